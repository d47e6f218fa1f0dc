"""Phase retrieval from arrays: `retrieve` finds an image from the amplitudes of its coded diffraction patterns.

The amplitudes are first fitted without a prior, on at most 16 masks. That fit sets the unit, so that the image lies in
[0, 1] as a denoiser expects it, and the noise: its residual r has n P - P (complex images: n P - 2 P) free values, so
    s^2 = |r|^2 / (n P - P),       rho = s^2 / (n sigma^2)
which is the weight for which F + rho phi is a negative log posterior, phi the prior of a denoiser for noise sigma.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.imaging.metrics import align, snr, ssim
from smadmm.imaging.pnp import METHODS, Method, pnp
from smadmm.imaging.priors import find_prior
from smadmm.imaging.result import ImageResult
from smadmm.io.files import output_folder
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import constant_start, spectral_start
from smadmm.operators import CodedDiffraction
from smadmm.operators.diffraction import PIECE
from smadmm.problem import Distance, Prox, Step
from smadmm.proxes import Zero
from smadmm.running import Result, Stop, run
from smadmm.solver import State

EVERY, ITERATIONS, BATCH, FIT = 5, 200, 6, 60
TOP = 0.999  # the quantile that becomes 1
QUANTITIES = ("amplitudes", "intensities")
STARTS = {"constant": constant_start, "spectral": spectral_start}
CHECKPOINT = "run.checkpoint"
PARTS = (torch.real, torch.imag)


def retrieve(
    patterns: Any,
    masks: Any,
    *,
    quantity: str = "amplitudes",
    complex: bool = False,
    prior: str = "ridge-natural",
    start: str = "constant",
    batch: int | None = None,
    iterations: int = ITERATIONS,
    strength: float = 1.0,
    method: str = "smadmm",
    truth: Any = None,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> ImageResult:
    """Retrieve an image, real or complex, from its coded diffraction patterns |F(m_i x)|, F the unitary FFT.

    Parameters
    ----------
    patterns : n x height x width, amplitudes or intensities: NumPy, torch, or anything that is read by indexing, such
        as a memory map or an HDF5 dataset. The image comes back as the same kind.
    masks : n x height x width, complex.
    quantity : "amplitudes" or "intensities".
    complex : whether the image is complex.
    prior : a shipped denoiser, a file of weights (.safetensors), "tv" or "none".
    start : of the fit without prior: "constant" or "spectral".
    batch : masks per step; None: 6, or all if there are fewer.
    strength : multiplies the weight that the prior gets from the noise.
    method : smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.
    truth : the image, where it is known: SNR and SSIM are then measured.
    checkpoint : folder in which an unfinished run is kept; with `resume` it goes on there. Remove it when you are done.
    progress : show a progress bar.

    >>> from smadmm.io.phantoms import abdomen_image
    >>> masks = operators.circle_masks(6, (32, 32))
    >>> patterns = operators.CodedDiffraction(masks)(abdomen_image(32)).abs()
    >>> smadmm.retrieve(patterns, masks, iterations=10).image.shape
    torch.Size([32, 32])
    """
    one_of("method", method, METHODS)
    one_of("start", start, tuple(STARTS))
    one_of("quantity", quantity, QUANTITIES)
    positive(batch=batch, iterations=iterations, strength=strength)
    begin, raw = time.perf_counter(), Patterns(patterns, masks, quantity, complex, device)
    count = raw.shape[0]
    if batch is not None and batch > count:
        raise ArgumentError("{batch} is {0}, more than the {1} masks; lower it or leave it out", batch, count)
    limits = (-math.inf, math.inf) if complex else (0.0, 1.0)
    found = find_prior(prior, device, limits)
    if truth is not None and tuple(truth.shape) != raw.shape[1:]:
        raise ArgumentError("the truth has shape {0}, but the patterns {1}", tuple(truth.shape), raw.shape[1:])
    target = _checkpoint(checkpoint, resume)
    data, fit, noise = raw.in_unit(start)
    rho = strength * noise**2 / (count * found.sigma**2)
    h = found.prox(rho)
    known: Method = next(name for name in METHODS if name == method)
    loss = data.loss()
    size = min(count, BATCH) if batch is None else batch
    solver = pnp(loss, ComplexProx(h) if complex else h, known, size, rho, loss.largest_power() + rho, seed=seed)
    exact = None if truth is None else torch.from_numpy(np.asarray(truth)).to(data.dtype) / data.scale
    name, metric = _metric(loss, exact)
    result = run(solver, fit, Stop(iterations=iterations), every=EVERY, metrics={name: metric}, objective=False,
                 progress=progress, checkpoint=target, resume=resume)  # fmt: skip
    settings = {"method": method, "prior": prior, "strength": strength, "batch": size, "seed": seed, "start": start,
                "complex": complex, "data": quantity, "masks": count, "size": list(raw.shape[1:]), "device": device,
                "noise": noise * data.scale, "scale": data.scale, "rho": rho, "prior_sigma": found.sigma,
                "prior_lipschitz": found.lipschitz, "total_seconds": time.perf_counter() - begin}  # fmt: skip
    return _result(patterns, data.scale, fit.cpu(), exact, result, settings)


def _checkpoint(folder: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    """The file of an unfinished run, refused if it would be lost."""
    if folder is None:
        return None
    path = Path(folder) / CHECKPOINT
    if path.exists() and not resume:
        raise ArgumentError("{0} holds an unfinished run; set {resume} to go on with it, or remove it", folder)
    output_folder(path.parent)
    return path


def _metric(loss: AmplitudeLoss, truth: Tensor | None) -> tuple[str, Callable[[State], float]]:
    """SNR where the truth is known, the relative residual of some patterns elsewhere."""
    if truth is not None:
        exact = truth.to(loss.operator.device)
        return "snr", lambda s: snr(exact, align(exact, s.answer))
    numbers = torch.from_numpy(some_of(loss.n))
    size = float(loss.data(numbers).double().square().mean()) * loss.data(numbers)[0].numel()
    return "residual", lambda s: math.sqrt(2 * float(loss.value(s.answer, numbers)) / size)


def _result(
    patterns: Any, scale: float, fit: Tensor, truth: Tensor | None, result: Result, settings: dict[str, Any]
) -> ImageResult:
    """The image with the truth's sign or phase (else a positive mean), in the unit of the patterns."""
    found, history = result.x.detach().cpu(), result.history
    row: dict[str, Any] = {"iterations": result.state.k, "sfo": result.state.sfo, "seconds": history["seconds"][-1]}
    row["stopped"] = result.reason.value
    if truth is None:
        found, fit = (x if x.is_complex() or float(x.sum()) >= 0 else -x for x in (found, fit))
        row["residual"] = history["residual"][-1]
    else:
        found, fit = align(truth, found), align(truth, fit)
        for name, measure in (("snr", snr), ("ssim", ssim)):
            row |= {name: measure(truth, found), f"{name}_fit": measure(truth, fit)}
    pictures = {} if truth is None else {"truth": truth}
    pictures |= {"without prior": fit, settings["method"].upper(): found}
    image = scale * found
    return ImageResult(
        verb="Retrieval",
        image=image.to(patterns.device) if isinstance(patterns, Tensor) else image.numpy(),
        shown={name: (scale * (x.abs() if x.is_complex() else x)).float().numpy() for name, x in pictures.items()},
        slices=[row],
        histories=[history],
        settings=settings,
        interrupted=result.interrupted,
        unit="amplitude",
    )


def some_of(count: int) -> NDArray[np.int64]:
    """The numbers of at most PIECE masks."""
    return np.unique(np.linspace(0, count - 1, min(count, PIECE)).astype(np.int64))


@dataclass(frozen=True)
class ComplexProx(Prox):
    """A real prox on the real and the imaginary part of a complex image."""

    real: Prox

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignores_step", self.real.ignores_step)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return torch.complex(self.real.prox(v.real.contiguous(), t), self.real.prox(v.imag.contiguous(), t))

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        return _together(self.real.distance(part(y), part(g), r) for part in PARTS)

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        return _together(self.real.distance_after(part(z), part(y), part(g), r) for part in PARTS)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        values = [self.real.value_after(part(z), part(y), r) for part in PARTS]
        return None if None in values else sum(value for value in values if value is not None)


def _together(distances: Iterable[Distance]) -> Distance:
    return Distance(*(math.hypot(*ends) for ends in zip(*distances, strict=True)))


class Patterns:
    """Patterns with their masks: amplitudes divided by `scale`, read as they are asked for."""

    def __init__(self, stored: Any, masks: Any, quantity: str, complex_image: bool = False, device: str = "cpu"):
        self.stored, self.masks = (x.detach().cpu().numpy() if isinstance(x, Tensor) else x for x in (stored, masks))
        self.quantity, self.device, self.scale = quantity, device, 1.0
        self.dtype = torch.complex64 if complex_image else torch.float32
        self.shape = tuple(int(n) for n in stored.shape)
        self._check()

    def _check(self) -> None:
        """Look at every value."""
        shape, largest = self.shape, 0.0
        if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < 2:
            raise ArgumentError("{patterns} has the shape {0}; it is n x height x width", shape)
        if tuple(self.masks.shape) != shape:
            raise ArgumentError("{patterns} has the shape {0}, but {masks} has {1}", shape, tuple(self.masks.shape))
        for number in range(shape[0]):
            values, mask = np.asarray(self.stored[number]), np.asarray(self.masks[number])
            if values.dtype.kind not in "biuf" or mask.dtype.kind not in "biufc":
                raise ValueError(f"patterns are real numbers and masks complex, got {values.dtype} and {mask.dtype}")
            if not (np.isfinite(values).all() and np.isfinite(mask).all()):
                raise ValueError(f"pattern or mask {number} has values that are not finite (NaN or infinity)")
            if values.min() < 0:
                raise ValueError(f"pattern {number} has negative {self.quantity}, the least {values.min():g}")
            if not mask.any():
                raise ValueError(f"mask {number} is zero everywhere: nothing passes it")
            largest = max(largest, float(values.max()))
        if largest == 0:
            raise ValueError("all patterns are zero: there is nothing to retrieve")

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        values = np.asarray(self.stored[numbers], dtype=np.float32)
        amplitudes: NDArray[np.float32] = np.sqrt(values) if self.quantity == "intensities" else values
        return amplitudes if self.scale == 1 else amplitudes / np.float32(self.scale)

    def loss(self) -> AmplitudeLoss:
        """Over all masks, read as they are drawn."""
        return AmplitudeLoss(CodedDiffraction(self.masks, self.dtype, self.device), self)

    def loss_of(self, numbers: NDArray[np.int64]) -> AmplitudeLoss:
        """Over some masks, in memory."""
        masks = torch.from_numpy(np.asarray(self.masks[numbers]).astype(np.complex64))
        data = torch.from_numpy(self[numbers]).to(self.device)
        return AmplitudeLoss(CodedDiffraction(masks, self.dtype, self.device), data)

    def in_unit(self, start: str) -> tuple[Patterns, Tensor, float]:
        """The patterns in a unit in which the image lies in [0, 1], the fit without prior, the noise in that unit."""
        numbers = some_of(self.shape[0])
        loss, count, pixels = self.loss_of(numbers), len(numbers), math.prod(self.shape[1:])
        strongest = loss.largest_power()
        solver = pnp(loss, Zero(), "spider", count, 0.1 * strongest, 1.1 * strongest)
        done = run(solver, STARTS[start](loss), Stop(iterations=FIT), every=FIT, objective=False, progress=False)
        fit, is_complex = done.x, self.dtype.is_complex
        free = max(count * pixels - pixels * (2 if is_complex else 1), pixels // 10)
        noise = math.sqrt(2 * count * float(loss.value(fit, loss.full())) / free)
        size = fit.abs() if is_complex else fit * torch.sign(fit.sum())
        scale = float(np.quantile(size.cpu().numpy(), TOP))
        if not scale > 0:
            raise ArgumentError("the patterns give an image without positive values; if it is complex, set {complex}")
        scaled = copy.copy(self)
        scaled.scale = scale
        return scaled, fit / scale, noise / scale
