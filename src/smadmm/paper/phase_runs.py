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

import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from smadmm.denoisers import load
from smadmm.imaging.metrics import align, snr, ssim
from smadmm.imaging.pnp import Method, pnp
from smadmm.io.images import read_images
from smadmm.losses import AmplitudeLoss
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.proxes import Denoised
from smadmm.running import Diverged, Stop, run
from smadmm.sampling import Rng
from smadmm.schedules import Power
from smadmm.solver import State

PRIOR = "ridge-natural"
FOLDERS = {"train": "BSD400", "test": "OnRED6"}
TEST = ("Barbara", "Boat", "Lena", "Monarch", "Parrot", "Peppers")  # what the six pictures show, in order of the files
NAMES = {
    "on-red": "On-RED",
    "spider": "SPIDER-ADMM",
    "sadmm": "PnP-SADMM",
    "sadmm-decay": "PnP-SADMM, step k^(-1/3)",
    "asvrg": "ASVRG-ADMM",
    "smadmm": "PnP-SMADMM",
}
Set = Literal["train", "test"]


@dataclass(frozen=True)
class Job:
    """An image, its masks and noise, a method and its parameters; `size`: the upper left corner of that size."""

    purpose: str  # of the rows: tuning, sum, unbiased, own step, many masks
    images: Set
    image: int
    size: int
    masks: int
    method: str
    batch: int
    seed: int
    iterations: int
    rho: float
    step: float
    strength: float
    decibel: float = 25.0
    fingerprint: str = ""  # of images and weights

    @property
    def name(self) -> str:
        scan = f"{self.purpose.replace(' ', '_')}-{self.images}{self.image}-{self.size}-n{self.masks}"
        return f"{scan}-{self.method}-b{self.batch}-r{self.rho:.3g}-t{self.step:.3g}-f{self.strength:g}-s{self.seed}"


@lru_cache(maxsize=2)
def read_set(data: str | None, images: Set) -> tuple[Tensor, ...]:
    """The gray images of a set, from DIR/images/BSD400 or DIR/images/OnRED6."""
    if data is None:
        raise ValueError("phase retrieval needs images: give --data DIR with DIR/images/BSD400 and DIR/images/OnRED6")
    folder = Path(data) / "images" / FOLDERS[images]
    files = sorted(folder.glob("*.png"))
    if not files:
        raise ValueError(f"no PNG files in {folder}; give --data DIR that has images/BSD400 and images/OnRED6")
    return tuple(image.pixels for image in read_images(files))


def fingerprint(images: tuple[Tensor, ...]) -> str:
    """Of the images and of the prior's weights."""
    digest = hashlib.sha256(b"".join(image.numpy().tobytes() for image in images))
    for name, tensor in sorted(load(PRIOR).state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def amplitudes(operator: CodedDiffraction, truth: Tensor, decibel: float, seed: int) -> Tensor:
    """|A x| with white noise at this SNR; what falls below zero is zero."""
    clean = operator(truth).abs()
    noise = torch.from_numpy(Rng(seed, 2**60).standard_normal(clean.shape)).to(clean)
    noisy: Tensor = clean + noise * (clean.norm() / noise.norm() * 10 ** (-decibel / 20))
    return noisy.clamp(min=0)


def solver(job: Job, loss: AmplitudeLoss) -> Any:
    """The method of a job: its eta is 1/step, times k^(1/3) where the step decays."""
    denoiser, decay = load(PRIOR), job.method == "sadmm-decay"
    assert denoiser.sigma is not None
    level = denoiser.sigma * job.strength

    def denoise(v: Tensor) -> Tensor:
        y: Tensor = denoiser(v, level)
        return y

    method: Method = "sadmm" if decay else job.method  # type: ignore[assignment]
    eta = Power(1 / job.step, 1 / 3) if decay else 1 / job.step
    return pnp(loss, Denoised(denoise, image=True), method, job.batch, job.rho, eta, seed=job.seed)


def run_job(job: Job, data: str | None) -> dict[str, Any]:
    """SNR and SSIM, and SNR, SFO and seconds of the processor after every iteration; nulls if it diverged."""
    truth = read_set(data, job.images)[job.image][: job.size, : job.size].contiguous()
    operator = CodedDiffraction(circle_masks(job.masks, tuple(truth.shape), job.seed))
    loss = AmplitudeLoss(operator, amplitudes(operator, truth, job.decibel, job.seed))
    method = solver(job, loss)
    start = torch.full_like(truth, 0.01)
    method.step(method.init(start))  # compiles
    begin = time.process_time()

    def quality(s: State) -> float:
        return snr(truth, align(truth, s.answer))

    def seconds(s: State) -> float:
        return time.process_time() - begin

    metrics = {"snr": quality, "cpu": seconds}
    try:
        stop = Stop(iterations=job.iterations)
        result = run(method, start, stop, every=1, metrics=metrics, objective=False, progress=False)
    except Diverged:
        return {"snr": None, "ssim": None, "sfo": [], "curve": [], "cpu": []}
    if result.interrupted:
        raise KeyboardInterrupt(result.reason.value)  # a part of a curve is no result
    x, history = align(truth, result.x), result.history
    return {
        "snr": snr(truth, x),
        "ssim": ssim(truth, x),
        "sfo": [int(n) for n in history["sfo"]],
        "curve": [round(v, 3) for v in history["snr"]],
        "cpu": [round(v, 3) for v in history["cpu"]],
    }


def at_sfo(result: dict[str, Any], budget: int) -> float | None:
    """The SNR when no more than `budget` sample gradients were drawn."""
    affordable = [v for n, v in zip(result["sfo"], result["curve"], strict=True) if n <= budget]
    return affordable[-1] if affordable else None


def reached(result: dict[str, Any], level: float) -> dict[str, float | None]:
    """Iterations, sample gradients and seconds after which the SNR stays at or above a level."""
    curve = np.asarray(result["curve"])
    below = np.flatnonzero(curve < level)
    first = int(below[-1]) + 1 if len(below) else 0
    if not len(curve) or first >= len(curve):
        return {"iterations_to": None, "sfo_to": None, "seconds_to": None}
    return {"iterations_to": first, "sfo_to": result["sfo"][first], "seconds_to": result["cpu"][first]}
