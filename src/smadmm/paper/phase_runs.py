"""One phase retrieval as a job: simulate noisy amplitudes of an image, run a method, keep its curve.

Two conventions. `unbiased`: F is the mean over the masks, every method has the prior's weight rho = 2.2 and the step
1/(1 + rho). `sum`: On-RED's constants, whose code sums the gradients of a batch, tau = 1.3181 and step 1/(6 + 2 tau). A
sum over B masks is B times their mean, and
    x - s (B v + tau (x - y) - lam)  =  x - s B (v + (tau/B) (x - y) - lam/B),
so that convention is the unbiased one with rho = tau/B and the step B/(6 + 2 tau): what grows with B there is the
weight of the data, not only the quality of the gradient. Jobs are stated in (rho, step) of the mean; so are the methods
with full gradients, which would diverge if a full gradient was a sum over 6 and a batch one over B.

The denoiser is D_f(x) = f D(x/f): its strength f is tuned on training images with full gradients, that is for the
common solution of all methods, before any of them is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from smadmm.denoisers import load
from smadmm.imaging.metrics import align, snr, ssim
from smadmm.imaging.pnp import Method, pnp
from smadmm.imaging.simulation import with_noise
from smadmm.io.images import read_images
from smadmm.losses import AmplitudeLoss
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.paper.following import at_sfo, follow
from smadmm.proxes import Denoised
from smadmm.running import Solver
from smadmm.sampling import Rng
from smadmm.schedules import Power

PHASE_PRIOR = "ridge-natural"
FOLDERS = {"train": "BSD400", "test": "OnRED6"}
TEST = ("Barbara", "Boat", "Lena", "Monarch", "Parrot", "Peppers")  # what the six pictures show, in order of the files
PHASE_METHODS = {
    "on-red": "On-RED",
    "spider": "SPIDER-ADMM",
    "sadmm": "PnP-SADMM",
    "sadmm-decay": "PnP-SADMM, step k^(-1/3)",
    "asvrg": "ASVRG-ADMM",
    "smadmm": "PnP-SMADMM",
}
Set = Literal["train", "test"]


@dataclass(frozen=True)
class PhaseScan:
    """An image and how it is measured; the seed is that of masks and noise, and of a method's sampling."""

    images: Set
    image: int
    size: int  # the upper left corner of that size
    masks: int
    seed: int
    decibel: float = 25.0


@dataclass(frozen=True)
class Weights:
    """Of the prior, of a step, and the strength of the denoiser."""

    rho: float
    step: float
    strength: float


@dataclass(frozen=True)
class PhaseRun:
    """A method with its parameters on a scan."""

    purpose: str  # of the rows: tuning, sum, unbiased, own step, own step SFO, many masks
    scan: PhaseScan
    method: str
    batch: int
    iterations: int
    weights: Weights
    sfo: int | None = None  # the sample gradients that are reported; None: all iterations are
    fingerprint: str = ""  # of images and weights of the denoiser

    @property
    def name(self) -> str:
        scan, w = self.scan, self.weights
        measured = f"{self.purpose.replace(' ', '_')}-{scan.images}{scan.image}-{scan.size}-n{scan.masks}"
        return f"{measured}-{self.method}-b{self.batch}-r{w.rho:.3g}-t{w.step:.3g}-f{w.strength:g}-s{scan.seed}"

    @property
    def sees(self) -> tuple[str, ...]:
        """Data and luck that must not be in tuning and in what is reported."""
        return f"{self.scan.images} image {self.scan.image}", f"seed {self.scan.seed}"


@lru_cache(maxsize=2)
def read_set(data: str | None, images: Set, size: int) -> list[Tensor]:
    """The upper left corners of the gray images of a set, from DIR/images/BSD400 or DIR/images/OnRED6."""
    if data is None:
        raise ValueError("phase retrieval needs images: give --data DIR with DIR/images/BSD400 and DIR/images/OnRED6")
    folder = Path(data) / "images" / FOLDERS[images]
    files = sorted(folder.glob("*.png"))
    if not files:
        raise ValueError(f"no PNG files in {folder}; give --data DIR that has images/BSD400 and images/OnRED6")
    pixels = [image.pixels for image in read_images(files)]
    if any(min(p.shape) < size for p in pixels):
        raise ValueError(f"the images in {folder} must be at least {size} pixels high and wide; take out smaller ones")
    return [p[:size, :size].contiguous() for p in pixels]


def measure(truth: Tensor, scan: PhaseScan) -> AmplitudeLoss:
    """The loss of amplitudes |A x| with white noise; what falls below zero is zero."""
    operator = CodedDiffraction(circle_masks(scan.masks, tuple(truth.shape), scan.seed))
    clean = operator(truth).abs()
    noise = torch.from_numpy(Rng(scan.seed, 2**60).standard_normal(clean.shape)).to(clean)
    return AmplitudeLoss(operator, with_noise(clean, scan.decibel, noise).clamp(min=0))


def phase_solver(job: PhaseRun, loss: AmplitudeLoss) -> Solver:
    """The method of a job: its eta is 1/step, times k^(1/3) where the step decays."""
    denoiser, decay = load(PHASE_PRIOR), job.method == "sadmm-decay"
    assert denoiser.sigma is not None
    level = denoiser.sigma * job.weights.strength

    def denoise(v: Tensor) -> Tensor:
        y: Tensor = denoiser(v, level)
        return y

    method: Method = "sadmm" if decay else job.method  # type: ignore[assignment]
    eta = Power(1 / job.weights.step, 1 / 3) if decay else 1 / job.weights.step
    return pnp(loss, Denoised(denoise, image=True), method, job.batch, job.weights.rho, eta, seed=job.scan.seed)


def run_phase(job: PhaseRun, data: str | None) -> dict[str, Any]:
    """SNR and SSIM, and SNR, SFO and seconds of the processor after every iteration; nulls if it diverged."""
    truth = read_set(data, job.scan.images, job.scan.size)[job.scan.image]
    solver = phase_solver(job, measure(truth, job.scan))
    start = torch.full_like(truth, 0.01)
    solver.step(solver.init(start))  # compiles
    result = follow(solver, start, job.iterations, lambda x: snr(truth, align(truth, x)), job.sfo)
    if result is None:
        return {"snr": None, "ssim": None, "sfo": [], "curve": [], "cpu": []}
    x, history = align(truth, result.x), result.history
    found: dict[str, Any] = {
        "snr": snr(truth, x),
        "ssim": ssim(truth, x),
        "sfo": [int(n) for n in history["sfo"]],
        "curve": [round(v, 3) for v in history["quality"]],
        "cpu": [round(v, 3) for v in history["cpu"]],
    }
    if job.sfo is not None:  # the last iteration went beyond it
        found |= {"snr": at_sfo(found, job.sfo), "ssim": None}
    return found
