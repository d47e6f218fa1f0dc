"""What a finished run writes beside its weights: a card, learning curves as a table and as a figure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smadmm.denoisers.training.recipes import RECIPE_OPTIONS, Preset, Recipe, recipe
from smadmm.denoisers.training.state import Run
from smadmm.denoisers.weights import SHIPPED, sha256
from smadmm.io.files import atomic_write, write_csv
from smadmm.io.images import Image
from smadmm.report.figures import write_figure

LICENCE = "BSD-3-Clause, as the package smadmm"


def command(
    chosen: Recipe, data: Sequence[Path], out: Path, start: Path | None, also: Sequence[Path], sharp: bool
) -> str:
    """The command line that repeats a run."""
    preset: Preset = "paper" if chosen.decay == "halves" else "cpu"
    usual = asdict(recipe(chosen.arch, chosen.sigma, preset))
    words = ["smadmm train-denoiser", *(path.name for path in data), f"--arch {chosen.arch}", f"--preset {preset}"]
    words.append(f"--sigma {255 * chosen.sigma:g}")
    words += [
        f"--{name} {value}" for name, value in asdict(chosen).items() if name in RECIPE_OPTIONS and value != usual[name]
    ]
    words += [f"--start-from {start.stem if start.parent == SHIPPED else start.name}"] if start else []
    words += [f"--also {path.name}" for path in also]
    words += ["--sharp"] if sharp else []
    return " ".join([*words, f"--out {out.name}"])


def _count(images: list[Image]) -> str:
    files = sorted({image.name.split("[")[0] for image in images})
    shown = ", ".join(files) if len(files) <= 8 else f"{files[0]} ... {files[-1]}"
    return f"{len(images)} of {len({image.group for image in images})} groups: {shown}"


def write_card(run: Run, held_out: list[Image], out: Path, repeat: str, psnr: float, bound: float) -> None:
    """The card `out`.json: where the weights come from and what holds for them."""
    proved = run.recipe.arch == "ridge"
    about = {
        "command": repeat,
        "seed": run.recipe.seed,
        "training_images": _count(run.images),
        "held_out_images": _count(held_out),
        "cpu_seconds": round(run.seconds),
        "held_out_psnr": round(psnr, 3),
        "lipschitz": bound,
        "lipschitz_is": "proved for every image" if proved else "measured on the held-out images",
        "sha256": sha256(out),
        "licence": LICENCE,
    }
    atomic_write(out.with_suffix(".json"), (json.dumps(about, indent=1) + "\n").encode())


def write_curves(history: list[dict[str, float]], out: Path) -> None:
    """The learning curves `out`.csv and, if matplotlib is there, `out`.png."""
    write_csv(out.with_suffix(".csv"), history)
    write_figure(out.with_suffix(".png"), lambda: _learning_curves(history), dpi=100)


def _learning_curves(history: list[dict[str, float]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, key in zip(figure.subplots(1, 3), ("loss", "psnr", "lipschitz"), strict=True):
        axes.plot([row["step"] for row in history], [row[key] for row in history])
        axes.set(xlabel="step", title=key)
    return figure
