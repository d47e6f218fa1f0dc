"""`smadmm train-denoiser`: read what the command line says, train, tell what came out and how to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from smadmm.denoisers.recipes import OF_NETWORKS, OF_RIDGE, Arch, Preset, Recipe, recipe
from smadmm.denoisers.training import train
from smadmm.files import output_folder
from smadmm.report.figures import not_drawn


def chosen_recipe(arch: str, sigma: float, preset: str, changes: Mapping[str, float | None]) -> Recipe:
    """The recipe of a preset, with everything replaced that is not None; sigma in units of 1/255."""
    for name, value, known in (("arch", arch, get_args(Arch)), ("preset", preset, get_args(Preset))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    given = {name: value for name, value in changes.items() if value is not None}
    for name in OF_NETWORKS if arch == "ridge" else OF_RIDGE:
        if name in given:
            raise ValueError(f"--{name} means nothing for --arch {arch}; leave it out")
    if "steps" in given:
        given["epochs"] = 0
    usual = recipe(arch, sigma / 255, preset)  # type: ignore[arg-type]
    return replace(usual, **given)  # type: ignore[arg-type]


def run(
    sources: Sequence[str],
    out: str,
    chosen: Recipe,
    minutes: float | None = None,
    start: str | None = None,
    also: Sequence[str] = (),
    resume: bool = False,
    skip_unreadable: bool = False,
    sharp: bool = False,
    progress: bool = True,
    device: str = "cpu",
) -> tuple[bool, str]:
    """Train; whether it came to its end, and what to tell the user."""
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes must be positive, got {minutes}")
    if minutes is not None and chosen.epochs:
        raise ValueError(f"the preset 'paper' runs {chosen.epochs} epochs, not {minutes:g} minutes; use --preset cpu")
    if also and chosen.arch == "ridge":
        raise ValueError("--also means nothing for --arch ridge, whose bound holds for every image; leave it out")
    for source in [*sources, *also]:
        if not Path(source).exists():
            raise ValueError(f"there is no file or folder {source!r}")
    path = Path(out) if out.endswith(".safetensors") else Path(f"{out}.safetensors")
    output_folder(path.parent)
    trained = train(
        [Path(source) for source in sources],
        path,
        chosen,
        minutes,
        None if start is None else _start(start),
        [Path(source) for source in also],
        resume,
        "skip" if skip_unreadable else "stop",
        sharp,
        progress,
        device=device,
    )
    if trained is None:
        return False, f"stopped; {path.with_suffix('.checkpoint')} is kept: go on with the same command and --resume"
    missing = not_drawn("the figure of the learning curves needs")
    beside = "its card and .csv are" if missing else "its card, .csv and .png are"
    proved = "proved" if chosen.arch == "ridge" else "measured on held-out images"
    return True, (
        f"PSNR {trained.psnr:.3f} dB on held-out images, Lip(I - D) = {trained.lipschitz:.3f} ({proved})\n"
        + "\n".join([f"{path}: use it with smadmm.denoisers.load({str(path)!r}); {beside} beside it", *missing])
    )


def _start(name: str) -> Path:
    """Weights to start from: a file, or the name of shipped ones."""
    from smadmm.denoisers.weights_file import SHIPPED

    path = Path(name) if name.endswith(".safetensors") else SHIPPED / f"{name}.safetensors"
    if not path.exists():
        raise ValueError(f"there are no weights {name!r} to start from")
    return path
