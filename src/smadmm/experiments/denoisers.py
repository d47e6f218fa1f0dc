"""The denoisers compared: PSNR on Set12 and CT test slices, Lip(I - D), parameters, milliseconds.

Noise 5/255 (and 15, 25 for the potentials trained at those levels), one fixed seed. Times are CPU
milliseconds of one 512 x 512 image on one thread, the smallest of a few calls; the DnCNN 17 x 64 gradient
step of the paper is timed in the same run.
"""

import json
import math
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smadmm.data.images import read_images
from smadmm.denoisers import BM3D, DnCNN, GradientStep, Ridge, lipschitz, load, shipped
from smadmm.denoisers.training import psnrs

Row = dict[str, str | float | None]
Denoise = Callable[[Tensor], Tensor]
SIGMA = 5 / 255
TV_WEIGHT = 0.5  # times sigma: the best of .4, .5, ... 1.2 on 30 images of BSD400 at sigma = 5/255


def total_variation(sigma: float) -> Denoise:
    """TV denoising by Chambolle's dual iteration."""
    from skimage import restoration

    chambolle: Callable[..., Any] = restoration.denoise_tv_chambolle

    def denoise(x: Tensor) -> Tensor:
        planes = [chambolle(p.numpy(), weight=TV_WEIGHT * sigma, max_num_iter=100) for p in x[:, 0]]
        return torch.stack([torch.from_numpy(p) for p in planes])[:, None].to(x)

    return denoise


def load_images(data: Path, quick: bool) -> dict[str, list[Tensor]]:
    """Set12 with its seven 256 x 256 images first, and the CT test slices."""
    set12 = [i.pixels[None, None] for i in read_images([data / "images" / "Set12"])]
    set12.sort(key=lambda image: image.numel())
    slices = [i.pixels[None, None] for i in read_images(sorted((data / "ct").glob("test_*.npz")), sharp=True)]
    small = [image for image in set12 if image.shape[-1] == 256]
    if quick:
        return {"set12_small": small[:2], "set12": [], "ct": [slices[0][..., 128:384, 128:384]]}
    return {"set12_small": small, "set12": set12[len(small) :], "ct": slices}


def milliseconds(denoise: Denoise, repeats: int) -> float:
    """CPU time of one 512 x 512 image, the smallest of some calls."""
    image = torch.rand(1, 1, 512, 512, generator=torch.Generator().manual_seed(0))
    best = math.inf
    with torch.no_grad():
        for _ in range(repeats):
            start = time.process_time()
            denoise(image)
            best = min(best, time.process_time() - start)
    return 1000 * best


def quality(denoise: Denoise, images: dict[str, list[Tensor]], sigma: float) -> dict[str, float]:
    """Mean PSNR by test set."""
    small = psnrs(denoise, images["set12_small"], sigma, 1)
    large = psnrs(denoise, images["set12"], sigma, 2)
    slices = psnrs(denoise, images["ct"], sigma, 3)
    return {"psnr_set12_small": mean(small), "psnr_set12": mean(small + large), "psnr_ct": mean(slices)}


def mean(values: list[float]) -> float:
    """The average."""
    return sum(values) / len(values)


def compare(images: dict[str, list[Tensor]], quick: bool) -> tuple[list[Row], dict[str, tuple[float, ...]]]:
    """A row per denoiser, and all measured Lipschitz constants of the learned ones."""
    paper = milliseconds(GradientStep(DnCNN()), 1 if quick else 2)
    noisy: Row = {"denoiser": "noisy", "sigma": 5, **quality(lambda x: x, images, SIGMA)}
    dncnn: Row = {
        "denoiser": "DnCNN 17 x 64 (untrained, for time)",
        "sigma": 5,
        "parameters": _size(DnCNN()),
        "ms": paper,
    }
    rows: list[Row] = [noisy, dncnn]
    references: dict[str, Denoise] = {"TV": total_variation(SIGMA)}
    if not quick:
        references["BM3D"] = BM3D(SIGMA)
    for name, denoise in references.items():
        result = quality(denoise, images, SIGMA) | _speed(denoise, paper, 1)
        rows.append({"denoiser": name, "sigma": 5, **result})
    measured: dict[str, tuple[float, ...]] = {}
    for name in shipped():
        row, measured[name] = examine(name, images, paper, 5 if quick else 20)
        rows.append(row)
    return rows, measured


def examine(name: str, images: dict[str, list[Tensor]], paper: float, iterations: int) -> tuple[Row, tuple[float, ...]]:
    """The row of a shipped net, and its Lipschitz constants at clean, noisy and intermediate test images."""
    denoiser = load(name)
    assert denoiser.sigma is not None
    row: Row = {"denoiser": name, "sigma": round(255 * denoiser.sigma), "parameters": _size(denoiser)}
    row |= quality(denoiser, images, denoiser.sigma) | _speed(denoiser, paper, 7)
    row["certified"] = denoiser.g.certificate() if isinstance(denoiser.g, Ridge) else None
    if row["certified"] is not None:
        iterations = min(iterations, 8)  # the bound is proved; this only shows how much of it is used
    everything = [image for of_set in images.values() for image in of_set]
    measured = lipschitz(denoiser, everything, denoiser.sigma, iterations).values
    row["measured"] = max(measured)
    return row, measured


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _speed(denoise: Denoise, paper: float, repeats: int) -> dict[str, float]:
    denoise(torch.rand(1, 1, 32, 32))  # compiles
    ms = milliseconds(denoise, repeats)
    return {"ms": ms, "times_faster_than_dncnn": paper / ms}


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row.get(column) for column in columns]
        texts = ["" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _draw(rows: list[Row], measured: dict[str, tuple[float, ...]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row in rows:
        if "ms" in row and "psnr_ct" in row and row["sigma"] == 5:
            left.plot(row["ms"], row["psnr_set12"], "o", color="C0")
            left.plot(row["ms"], row["psnr_ct"], "s", color="C1")
            left.annotate(str(row["denoiser"]), (row["ms"], row["psnr_ct"]), fontsize=8)
    left.set(xscale="log", xlabel="ms per 512 x 512 image", ylabel="PSNR (dB): circles Set12, squares CT")
    for name, values in measured.items():
        right.hist(values, 15, histtype="step", label=name)
    right.axvline(1, color="black")
    right.set(xlabel="measured Lip(I - D), clean, between and noisy test images", ylabel="points")
    right.legend(fontsize=8)
    figure.savefig(path)


def add_to_cards(rows: list[Row], folder: Path) -> None:
    """Put the row of each shipped net into its card; for those who release weights."""
    for row in rows:
        path = folder / f"{row['denoiser']}.json"
        if path.exists():
            card = json.loads(path.read_text())
            path.write_text(json.dumps(card | {"test": row}, indent=1) + "\n")


def reproduce(out: Path, data: Path, quick: bool = False) -> Path:
    """Write results.json, denoisers.md and denoisers.png into out; the path of results.json."""
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    rows, measured = compare(load_images(data, quick), quick)
    try:
        release = version("smadmm")
    except PackageNotFoundError:
        release = "unknown"
    results = {
        "experiment": "denoisers",
        "command": "smadmm reproduce denoisers" + (" --quick" if quick else ""),
        "version": release,
        "seconds": time.monotonic() - start,
        "rows": rows,
    }
    path = out / "results.json"
    path.write_text(json.dumps(results, indent=1))
    (out / "denoisers.md").write_text(table(rows))
    _draw(rows, measured, out / "denoisers.png")
    return path
