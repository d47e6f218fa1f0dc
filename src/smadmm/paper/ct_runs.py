"""One CT reconstruction as a job: simulate a sinogram from a slice, run a method for some iterations, keep its curve.

The published methods take the linearised x-step, step 1/(eta + rho), and independent views; `default` is the
library's own for batches: the Fourier preconditioner and equispaced views, on smadmm's estimator; `all-views` is that
of `smadmm reconstruct`: all views and a nearly exact x-step. RED-SD with a batch
size, as in the paper's tables, takes the gradient of a batch. rho = kappa s^2/(c N sigma^2) with s estimated from the
sinogram (smadmm.imaging.pnp): kappa and eta are tuned on training slices, every method with the same effort.

A run is reported after `iterations`, or where its `sfo` sample gradients are used up; its parameters were tuned for
that.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from smadmm.denoisers import load
from smadmm.imaging.metrics import snr, ssim
from smadmm.imaging.pnp import Method, pnp, posterior_weight, sinogram_noise, tomography
from smadmm.imaging.simulation import with_noise
from smadmm.io.images import read_images
from smadmm.losses import Tomography
from smadmm.operators import Radon
from smadmm.paper.following import at_sfo, follow
from smadmm.proxes import Denoised
from smadmm.running import Solver
from smadmm.sampling import iid, stride
from smadmm.schedules import Power

CT_PRIOR = "ridge-ct"
PUBLISHED = ("red-sd", "spider", "sadmm", "asvrg", "smadmm")
Set = Literal["train", "test"]
CT_METHODS = {
    "red-sd": "RED-SD",
    "spider": "SPIDER-ADMM",
    "sadmm": "PnP-SADMM",
    "asvrg": "ASVRG-ADMM",
    "smadmm": "PnP-SMADMM",
    "default": "ours (preconditioned)",
    "untuned": "PnP-SMADMM, step 1, our rho",
    "all-views": "ours, all views",
}
OURS = ("default", "all-views")
OTHER_NAMES: dict[str, Method] = {"red-sd": "on-red", "untuned": "smadmm"}


@dataclass(frozen=True)
class CTScan:
    """A slice, and how it is measured; the seed is that of the noise, and of a method's sampling."""

    images: Set
    image: int  # which slice
    size: int
    views: int
    decibel: float
    seed: int


@dataclass(frozen=True)
class CTRun:
    """A method with its parameters on a scan."""

    scan: CTScan
    method: str
    batch: int
    iterations: int
    kappa: float
    eta: float
    alpha: float = 2 / 3
    sfo: int | None = None  # the sample gradients that are reported; None: all iterations are
    keep: bool = False  # the image, with the result
    fingerprint: str = ""  # of slices and weights

    @property
    def name(self) -> str:
        scan = self.scan
        measured = f"{scan.images}{scan.image}-{scan.size}-{scan.views}views-{scan.decibel:g}dB"
        run = f"b{self.batch}-k{self.kappa:g}-e{self.eta:g}-a{self.alpha:.3g}-s{scan.seed}-K{self.iterations}"
        return f"{measured}-{self.method}-{run}" + ("" if self.sfo is None else f"-sfo{self.sfo}")

    @property
    def sees(self) -> tuple[str, ...]:
        """Data and luck that must not be in tuning and in what is reported."""
        return f"{self.scan.images} slice {self.scan.image}", f"seed {self.scan.seed}"


@lru_cache(maxsize=2)
def read_slices(data: str | None, images: Set, size: int) -> list[Tensor]:
    """The slices of a set, from DIR/ct/train_* or test_*; 512 x 512, or 2 x 2 pixels averaged."""
    if data is None:
        raise ValueError("the CT experiments need slices: give --data DIR with DIR/ct/train_*.npz and test_*.npz")
    files = sorted((Path(data) / "ct").glob(f"{images}_*.npz"))
    if not files:
        raise ValueError(f"no files {images}_*.npz in {Path(data) / 'ct'}; give --data DIR that has them")
    pixels = [image.pixels for image in read_images(files)]
    if any(p.shape[-1] % size for p in pixels):
        raise ValueError(f"slices of {pixels[0].shape[-1]} pixels cannot be averaged to {size}; use 512 or 256")
    return [torch.nn.functional.avg_pool2d(p[None, None], p.shape[-1] // size)[0, 0] for p in pixels]


def simulate(truth: Tensor, scan: CTScan) -> tuple[Radon, Tensor]:
    """A projector with int(sqrt 2 * size) detectors over a half circle, and a sinogram with Gaussian noise."""
    radon = Radon(scan.size, [math.pi * i / scan.views for i in range(scan.views)], int(math.sqrt(2) * scan.size))
    clean = radon(truth)
    generator = torch.Generator().manual_seed(1000 + scan.seed)
    return radon, with_noise(clean, scan.decibel, torch.randn(clean.shape, generator=generator, dtype=clean.dtype))


def ct_solver(job: CTRun, loss: Tomography, noise: float) -> tuple[Solver, float]:
    """The method of a job, and its rho."""
    denoiser = load(CT_PRIOR)
    assert denoiser.sigma is not None
    prior, rho = Denoised(denoiser, image=True), job.kappa * posterior_weight(loss, noise, denoiser.sigma)
    if job.method in OURS:
        batch = job.batch if job.method == "default" else None
        return tomography(loss, prior, rho, batch=batch, seed=job.scan.seed), rho
    method: Method = OTHER_NAMES.get(job.method, job.method)  # type: ignore[arg-type]
    a = Power(1.0, -job.alpha) if method == "smadmm" else None
    return pnp(loss, prior, method, job.batch, rho, eta=job.eta + rho, a=a, seed=job.scan.seed), rho


def run_ct(job: CTRun, data: str | None) -> dict[str, Any]:
    """SNR and SSIM of FBP and of the result, its curve, and CPU seconds per iteration; nulls if it diverged."""
    truth = read_slices(data, job.scan.images, job.scan.size)[job.scan.image]
    radon, sinogram = simulate(truth, job.scan)
    start = radon.fbp(sinogram)
    loss = Tomography(radon, sinogram, sampling=stride if job.method in OURS else iid)
    solver, rho = ct_solver(job, loss, sinogram_noise(sinogram))
    fbp = {"snr_fbp": snr(truth, start), "ssim_fbp": ssim(truth, start), "rho": rho}
    result = follow(solver, start, job.iterations, lambda x: snr(truth, x), job.sfo)
    if result is None:
        return fbp | {"snr": None, "ssim": None, "sfo": [], "curve": [], "seconds": None}
    x, history = result.x, result.history
    steps = [b - a for a, b in zip(history["cpu"], history["cpu"][1:], strict=False)]
    found: dict[str, Any] = {"snr": snr(truth, x), "ssim": ssim(truth, x), "seconds": median(steps)}
    curve = {"sfo": [int(n) for n in history["sfo"]], "curve": [round(v, 4) for v in history["quality"]]}
    if job.sfo is not None:  # the last iteration went beyond it
        found |= {"snr": at_sfo(curve, job.sfo), "ssim": None}
    return fbp | found | curve | ({"image": pack(x), "start": pack(start)} if job.keep else {})


def pack(image: Tensor) -> str:
    """An image as text, in half precision."""
    return base64.b64encode(image.half().numpy().tobytes()).decode()


def unpack(text: str, size: int) -> Tensor:
    """The image of `pack`."""
    values = np.frombuffer(base64.b64decode(text), dtype=np.float16).astype(np.float32)
    return torch.from_numpy(values.reshape(size, size))
