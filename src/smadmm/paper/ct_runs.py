"""One CT reconstruction as a job: simulate a sinogram from a slice, run a method for some iterations, keep its curve.

The published methods take the linearised x-step, step 1/(eta + rho), and independent views; `default` is the
library's own for batches: the Fourier preconditioner and equispaced views, on smadmm's estimator; `all-views` is that
of `smadmm reconstruct`: all views and a nearly exact x-step. RED-SD with a batch
size, as in the paper's tables, takes the gradient of a batch. rho = kappa s^2/(c N sigma^2) with s estimated from the
sinogram (smadmm.imaging.pnp): kappa and eta are tuned on training slices, every method with the same effort.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
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
from smadmm.io.images import read_images
from smadmm.losses import Tomography
from smadmm.operators import Radon
from smadmm.proxes import Denoised
from smadmm.running import Diverged, Stop, run
from smadmm.sampling import iid, stride
from smadmm.schedules import Power
from smadmm.solver import State

PRIOR = "ridge-ct"
PUBLISHED = ("red-sd", "spider", "sadmm", "asvrg", "smadmm")
Set = Literal["train", "test"]
NAMES = {
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
class Job:
    """A slice, a scan, a method and its parameters."""

    images: Set
    slice: int
    size: int
    views: int
    decibel: float
    method: str
    batch: int
    seed: int
    iterations: int
    kappa: float
    eta: float
    alpha: float = 2 / 3
    keep: bool = False  # the image, as a file beside the result
    fingerprint: str = ""  # of slices and weights

    @property
    def name(self) -> str:
        scan = f"{self.images}{self.slice}-{self.size}-{self.views}views-{self.decibel:g}dB"
        run = f"b{self.batch}-k{self.kappa:g}-e{self.eta:g}-a{self.alpha:.3g}-s{self.seed}-K{self.iterations}"
        return f"{scan}-{self.method}-{run}"


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


def fingerprint(slices: list[Tensor]) -> str:
    """Of the slices and of the prior's weights."""
    digest = hashlib.sha256(b"".join(s.numpy().tobytes() for s in slices))
    for name, tensor in sorted(load(PRIOR).state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def simulate(truth: Tensor, views: int, decibel: float, seed: int) -> tuple[Radon, Tensor]:
    """A projector with int(sqrt 2 * size) detectors over a half circle, and a sinogram with Gaussian noise."""
    size = truth.shape[-1]
    radon = Radon(size, [math.pi * i / views for i in range(views)], int(math.sqrt(2) * size))
    clean = radon(truth)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed), dtype=clean.dtype)
    return radon, clean + noise * (clean.norm() / noise.norm() * 10 ** (-decibel / 20))


def run_job(job: Job, data: str | None) -> dict[str, Any]:
    """SNR and SSIM of FBP and of the result, its curve, and CPU seconds an iteration; nulls if it diverged."""
    truth = read_slices(data, job.images, job.size)[job.slice]
    radon, sinogram = simulate(truth, job.views, job.decibel, seed=1000 + job.seed)
    start = radon.fbp(sinogram)
    loss = Tomography(radon, sinogram, sampling=stride if job.method in OURS else iid)
    denoiser = load(PRIOR)
    assert denoiser.sigma is not None
    rho = job.kappa * posterior_weight(loss, sinogram_noise(sinogram), denoiser.sigma)
    prior, momentum = Denoised(denoiser, image=True), Power(1.0, -job.alpha)
    if job.method in OURS:
        batch = job.batch if job.method == "default" else None
        solver = tomography(loss, prior, rho, "smadmm", batch, job.seed)
    else:
        method: Method = OTHER_NAMES.get(job.method, job.method)  # type: ignore[arg-type]
        a = momentum if method == "smadmm" else None
        solver = pnp(loss, prior, method, job.batch, rho, eta=job.eta + rho, a=a, seed=job.seed)

    def answer(s: State) -> float:
        return snr(truth, s.answer)

    def cpu(s: State) -> float:
        return time.process_time()

    fbp = {"snr_fbp": snr(truth, start), "ssim_fbp": ssim(truth, start), "rho": rho}
    try:
        stop = Stop(iterations=job.iterations)
        result = run(solver, start, stop, every=1, metrics={"snr": answer, "cpu": cpu}, objective=False, progress=False)
    except Diverged:
        return fbp | {"snr": None, "ssim": None, "sfo": [], "curve": [], "seconds": None}
    if result.interrupted:
        raise KeyboardInterrupt(result.reason.value)  # a part of a curve is no result
    x, history = result.x, result.history
    steps = [b - a for a, b in zip(history["cpu"], history["cpu"][1:], strict=False)]
    found = {"snr": snr(truth, x), "ssim": ssim(truth, x), "seconds": median(steps)}
    curve = {"sfo": [int(n) for n in history["sfo"]], "curve": [round(v, 4) for v in history["snr"]]}
    return fbp | found | curve | ({"image": pack(x), "start": pack(start)} if job.keep else {})


def pack(image: Tensor) -> str:
    """An image as text, in half precision."""
    return base64.b64encode(image.half().numpy().tobytes()).decode()


def unpack(text: str, size: int) -> Tensor:
    """The image of `pack`."""
    values = np.frombuffer(base64.b64decode(text), dtype=np.float16).astype(np.float32)
    return torch.from_numpy(values.reshape(size, size))
