"""From diffraction patterns to a folder: image, figure, curves, run.json and a report.

The amplitudes are first fitted without a prior, on at most 16 masks. That fit sets the unit, so that the image lies in
[0, 1] as a denoiser expects it, and the noise: its residual r has n P - P (complex images: n P - 2 P) free values, so
    s^2 = |r|^2 / (n P - P),       rho = s^2 / (n sigma^2)
which is the weight for which F + rho phi is a negative log posterior, phi the prior of a denoiser for noise sigma.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import smadmm
from smadmm.data.images import read_slices
from smadmm.data.patterns import QUANTITIES, Patterns, is_patterns, read_patterns
from smadmm.extras import needs
from smadmm.files import output_folder
from smadmm.imaging.outputs import Interrupted
from smadmm.imaging.priors import Prior, find_prior
from smadmm.imaging.retrieved import write_results
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import constant_start, spectral_start
from smadmm.metrics import align, snr
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.operators.diffraction import PIECE
from smadmm.pnp import METHODS, Method, pnp
from smadmm.problem import Prox, Step
from smadmm.proxes import Zero
from smadmm.run import Result, Stop, run
from smadmm.sampling import Rng
from smadmm.solver import State

EVERY, ITERATIONS, BATCH, FIT = 5, 200, 6, 60
TOP = 0.999  # the quantile that becomes 1
SNR = 25.0  # dB, of simulated patterns
STARTS = {"constant": constant_start, "spectral": spectral_start}
CHECKPOINT = "unfinished.checkpoint"


@dataclass(frozen=True)
class Settings:
    """How to retrieve; strength multiplies the weight of the prior that follows from the noise."""

    method: str = "smadmm"
    prior: str = "ridge-natural"
    batch: int | None = None
    iterations: int = ITERATIONS
    strength: float = 1.0
    start: str = "constant"
    complex: bool = False
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"no method {self.method!r}; there are {', '.join(METHODS)}")
        if self.start not in STARTS:
            raise ValueError(f"no start {self.start!r}; there are {', '.join(STARTS)}")
        for name in ("batch", "iterations", "strength"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"--{name} must be positive, got {value:g}")


@dataclass(frozen=True)
class Complex(Prox):
    """A real prox on the real and the imaginary part of a complex image."""

    real: Prox

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return torch.complex(self.real.prox(v.real.contiguous(), t), self.real.prox(v.imag.contiguous(), t))


def open_input(
    source: str, masks: int | None, decibel: float | None, mask_file: str | None, quantity: str | None, seed: int
) -> Patterns:
    """Measured patterns, or those of an image behind `masks` random masks; all of it is checked first."""
    path = Path(source)
    if quantity is not None and quantity not in QUANTITIES:
        raise ValueError(f"--quantity is amplitudes or intensities, got {quantity!r}")
    if masks is None and is_patterns(path):
        if decibel is not None:
            raise ValueError("--snr is the noise of a simulation; add --masks NUMBER or leave it out")
        kind = next((known for known in QUANTITIES if known == quantity), None)
        return read_patterns(path, None if mask_file is None else Path(mask_file), kind)
    if masks is None:
        raise ValueError(f"{path} is an image: give --masks NUMBER to simulate patterns, such as --masks 6")
    if mask_file is not None or quantity is not None:
        raise ValueError("--mask-file and --quantity are for measured patterns; leave them out with --masks NUMBER")
    return _simulated(path, masks, SNR if decibel is None else decibel, seed)


def _simulated(path: Path, masks: int, decibel: float, seed: int) -> Patterns:
    if masks < 1:
        raise ValueError(f"--masks must be at least 1, got {masks}")
    if not decibel >= 0:
        raise ValueError(f"--snr must not be negative, got {decibel:g}; it is 20 log10(|signal| / |noise|) in dB")
    slices = read_slices(path)
    if slices.count != 1:
        raise ValueError(f"{path} holds {slices.count} images; give one")
    image = slices.read(0)
    if not image.min() < image.max():
        raise ValueError(f"{path} is constant ({image.min():g}): there is nothing to retrieve")
    operator = CodedDiffraction(circle_masks(masks, image.shape, seed))
    clean = operator(torch.from_numpy(image)).abs().numpy()
    noise = Rng(seed, 2**60).standard_normal(clean.shape, dtype=np.float32)
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) * 10 ** (-decibel / 20)
    return Patterns(np.maximum(clean + noise, 0), operator.masks(torch.arange(masks)).numpy(), "amplitudes", image)


def retrieve(
    name: str,
    patterns: Patterns,
    out: str | Path,
    settings: Settings,
    command: str,
    resume: bool = False,
    progress: bool = True,
) -> Iterator[str]:
    """Retrieve the image and write the results; yields what there is to say."""
    begin = time.perf_counter()
    needs("tifffile", "imaging", "retrievals")  # before the work, not after
    limits = (-math.inf, math.inf) if settings.complex else (0.0, 1.0)
    prior = find_prior(settings.prior, settings.device, limits)
    count = patterns.shape[0]
    if settings.batch is not None and settings.batch > count:
        raise ValueError(f"--batch {settings.batch} is more than the {count} masks")
    folder = output_folder(out)
    scaled, fit, noise = _unit_and_noise(patterns, settings)
    rho = settings.strength * noise**2 / (count * prior.sigma**2)
    result = _solve(scaled, fit, prior, rho, settings, folder / CHECKPOINT, resume, progress)
    if result.reason.startswith("interrupted"):
        raise Interrupted(f"stopped after {result.state.k} iterations; go on with: {command} --resume")
    facts = {"command": command, "version": smadmm.__version__, "input": name, **asdict(settings)}
    facts |= {
        "data": patterns.quantity,
        "masks": count,
        "size": list(patterns.shape[1:]),
        "noise": noise * scaled.scale,
    }
    facts |= {"scale": scaled.scale, "rho": rho, "batch": _batch(settings, count), "prior_sigma": prior.sigma}
    facts |= {"prior_lipschitz": prior.lipschitz, "total_seconds": time.perf_counter() - begin}
    yield from write_results(folder, scaled, fit, result, facts)
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _batch(settings: Settings, count: int) -> int:
    return min(count, BATCH) if settings.batch is None else settings.batch


def _loss(patterns: Patterns, settings: Settings, numbers: NDArray[np.int64] | None = None) -> AmplitudeLoss:
    """The loss over all masks, read as drawn, or over some of them in memory."""
    dtype = torch.complex64 if settings.complex else torch.float32
    if numbers is None:
        return AmplitudeLoss(CodedDiffraction(patterns.masks, dtype, settings.device), patterns)
    masks = torch.from_numpy(np.asarray(patterns.masks[numbers]).astype(np.complex64))
    data = torch.from_numpy(patterns[numbers])
    return AmplitudeLoss(CodedDiffraction(masks, dtype, settings.device), data.to(settings.device))


def _some(count: int) -> NDArray[np.int64]:
    """At most PIECE of the masks."""
    return np.unique(np.linspace(0, count - 1, min(count, PIECE)).astype(np.int64))


def _unit_and_noise(patterns: Patterns, settings: Settings) -> tuple[Patterns, Tensor, float]:
    """The patterns in a unit in which the image lies in [0, 1], the fit without prior, and the noise in that unit."""
    numbers = _some(patterns.shape[0])
    loss = _loss(patterns, settings, numbers)
    count, pixels = len(numbers), math.prod(patterns.shape[1:])
    strongest = float(loss.operator.masks(loss.everything).abs().max()) ** 2
    solver = pnp(loss, Zero(), "spider", count, 0.1 * strongest, 1.1 * strongest)
    fit = run(solver, STARTS[settings.start](loss), Stop(iterations=FIT), every=FIT, objective=False, progress=False).x
    free = max(count * pixels - pixels * (2 if settings.complex else 1), pixels // 10)
    noise = math.sqrt(2 * count * float(loss.value(fit, loss.full())) / free)
    size = fit.abs() if settings.complex else fit * torch.sign(fit.sum())
    scale = float(np.quantile(size.cpu().numpy(), TOP))
    if not scale > 0:
        raise ValueError("the patterns give an image without positive values; for complex images add --complex")
    truth = None if patterns.truth is None else patterns.truth / scale
    return replace(patterns, scale=scale, truth=truth), fit / scale, noise / scale


def _solve(
    patterns: Patterns,
    start: Tensor,
    prior: Prior,
    rho: float,
    settings: Settings,
    checkpoint: Path,
    resume: bool,
    progress: bool,
) -> Result:
    """Start from the fit without prior; with a checkpoint to resume, go on from it."""
    loss = _loss(patterns, settings)
    h = Complex(prior.prox(rho)) if settings.complex else prior.prox(rho)
    method: Method = next(known for known in METHODS if known == settings.method)
    largest = float(loss.operator.masks(torch.from_numpy(_some(loss.n))).abs().max()) ** 2
    solver = pnp(loss, h, method, _batch(settings, loss.n), rho, largest + rho, seed=settings.seed)
    if checkpoint.exists() and not resume:
        raise ValueError(f"{checkpoint.parent} holds an unfinished run; add --resume, or remove {checkpoint}")
    name, metric = _metric(patterns, settings, loss)
    stop = Stop(iterations=settings.iterations)
    options: dict[str, Any] = {"every": EVERY, "objective": False, "progress": progress}
    return run(solver, start, stop, metrics={name: metric}, checkpoint=checkpoint, resume=resume, **options)


def _metric(patterns: Patterns, settings: Settings, loss: AmplitudeLoss) -> tuple[str, Any]:
    """SNR where the truth is known, the relative residual of some patterns elsewhere."""
    if patterns.truth is not None:
        truth = _truth(patterns, settings).to(settings.device)
        return "snr", lambda s: snr(truth, align(truth, s.est.at))
    numbers = torch.from_numpy(_some(loss.n))
    size = float(loss.data(numbers).double().square().mean()) * loss.data(numbers)[0].numel()

    def residual(s: State) -> float:
        return math.sqrt(2 * float(loss.value(s.est.at, numbers)) / size)

    return "residual", residual


def _truth(patterns: Patterns, settings: Settings) -> Tensor:
    return torch.from_numpy(np.asarray(patterns.truth)).to(torch.complex64 if settings.complex else torch.float32)
