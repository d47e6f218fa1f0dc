"""One denoiser at one noise level as a job: PSNR by test set, Lip(I - D), parameters, milliseconds.

Noise is from one fixed seed. Networks: the largest singular value of the Jacobian of I - D at every test image, clean,
noisy and half way. Ridge potentials have a proved bound; their measured value, at the small images and two slices,
shows how much of it is used. Times are CPU milliseconds of one 512 x 512 image on one thread, the least of several
calls; the 17 x 64 DnCNN of the paper is timed between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smadmm.denoisers import DnCNN, GradientStep, Ridge, lipschitz, load
from smadmm.denoisers.training.loop import psnrs
from smadmm.denoisers.training.ridge_parameters import RidgeParameters
from smadmm.io.images import read_images
from smadmm.paper.bm3d import BM3D
from smadmm.proxes import TV

Figures = dict[str, Any]
Images = dict[str, list[Tensor]]
Denoise = Callable[[Tensor], Tensor]
TV_WEIGHT = 0.45  # times sigma: the best of .35, .4, .45, .5, .6 on 30 images of BSD400 at sigma = 5/255
PAPER = "DnCNN 17 x 64, untrained"
SMALL = "ridge, 48 filters of 9 x 9, untrained"
ITERATIONS = 24  # of the Krylov method for Lip(I - D)


@dataclass(frozen=True)
class DenoiserRun:
    """One denoiser at one noise level (in 1/255); SHA-256 of the weights of a shipped net and of the images."""

    denoiser: str
    sigma: int
    weights: str
    quick: bool
    images: str

    @property
    def name(self) -> str:
        return f"{self.denoiser}-{self.sigma}"


def load_images(data: str | None, quick: bool) -> Images:
    """The seven 256 x 256 images of Set12, its others, and the CT test slices."""
    if data is None:
        raise ValueError("Set12 and CT slices are needed to compare denoisers: give --data DIR, or set SMADMM_DATA")
    pictures, ct = Path(data) / "images" / "Set12", Path(data) / "ct"
    files = sorted(ct.glob("test_*.npz"))
    if not pictures.is_dir():
        raise ValueError(f"there is no folder {pictures} with the images of Set12; give --data DIR that has it")
    if not files:
        raise ValueError(f"there are no CT slices test_*.npz in {ct}; give --data DIR that has ct/test_*.npz")
    set12 = [image.pixels[None, None] for image in read_images([pictures])]
    slices = [image.pixels[None, None] for image in read_images(files, sharp=True)]
    small = [image for image in set12 if image.shape[-1] == 256]
    if quick:
        return {"small": small[:2], "large": [], "ct": [slices[0][..., 128:384, 128:384]]}
    return {"small": small, "large": [image for image in set12 if image.shape[-1] != 256], "ct": slices}


def quality(denoise: Denoise, images: Images, sigma: float) -> Figures:
    """Mean PSNR by test set."""
    by_set = {name: psnrs(denoise, images[name], sigma, seed) for seed, name in enumerate(("small", "large", "ct"), 1)}
    means = {"psnr_set12_small": by_set["small"], "psnr_ct": by_set["ct"]}
    if by_set["large"]:
        means["psnr_set12"] = by_set["small"] + by_set["large"]
    return {name: sum(values) / len(values) for name, values in means.items() if values}


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


def speed(denoise: Denoise, repeats: int) -> Figures:
    """Milliseconds of the denoiser and how many times those of the paper's network they are, timed in turns."""
    with torch.no_grad():
        denoise(torch.rand(1, 1, 32, 32))  # compiles
    paper = GradientStep(DnCNN()).requires_grad_(False)
    ours = milliseconds(denoise, repeats)
    theirs = milliseconds(paper, 1)
    return {"ms": min(ours, milliseconds(denoise, repeats)), "dncnn_ms": theirs}


def run_denoiser(job: DenoiserRun, data: str | None) -> Figures:
    """The row of one denoiser, and all measured values of Lip(I - D)."""
    images, sigma = load_images(data, job.quick), job.sigma / 255
    if job.weights:
        return _network(job, images, sigma)
    if job.denoiser == "noisy":
        return quality(lambda x: x, images, sigma)
    if job.denoiser == "TV":
        prior = TV(TV_WEIGHT * sigma)
        return quality(lambda x: prior.prox(x, 1.0), images, sigma) | speed(lambda x: prior.prox(x, 1.0), 1)
    if job.denoiser == "BM3D":
        if job.sigma != 5:  # slow, and only nets for natural images exist at these levels
            images = images | {"large": [], "ct": []}
        return quality(BM3D(sigma), images, sigma) | (speed(BM3D(sigma), 1) if job.sigma == 5 else {})
    untrained = GradientStep(DnCNN() if job.denoiser == PAPER else RidgeParameters(48, 9, sigma).export())
    untrained.requires_grad_(False)
    times = {"ms": milliseconds(untrained, 2)} if job.denoiser == PAPER else speed(untrained, 5)
    return {"parameters": _size(untrained), **times}


def _network(job: DenoiserRun, images: Images, sigma: float) -> Figures:
    denoiser = load(job.denoiser)
    row: Figures = {"parameters": _size(denoiser), **quality(denoiser, images, sigma), **speed(denoiser, 5)}
    points = images["small"] + images["large"] + images["ct"]
    if isinstance(denoiser.g, Ridge):
        row["proved"] = denoiser.g.certificate()
        points = images["small"] + images["ct"][:2]
    measured = lipschitz(GradientStep(denoiser.g), points, sigma, 3 if job.quick else ITERATIONS)
    return row | {"measured": measured.largest, "values": list(measured.values)}


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
