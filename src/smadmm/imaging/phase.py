"""Phase retrieval from arrays: `retrieve` finds an image from the amplitudes of its coded diffraction patterns.

The amplitudes are first fitted without a prior, on at most 16 masks (phase_fit.py). The fit tells the noise s per
amplitude and its own error lv = s sqrt(2 / (n e)), e = mean |m|^2, so that the prior is a denoiser for noise of that
level with the weight
    rho = s^2 / (n lv^2) = e / 2,
for which F + rho phi is a negative log posterior. A denoiser for another level is f D(x / f): the unit of the image has
no part in it. Values are cut at 0 where the fit has no negative ones beyond its error, and never above.

Where there are no more data than unknowns the fit does not tell the noise. It is then found with the prior, from above:
    s := max(r, s/2)  until  r >= 3/4 s,      r the residual of the image after some iterations at noise s.

A prior raises the residual from sqrt(1 - 1/n) s towards s. Where it is beyond that, the prior is wrong for the image,
and the fit is returned.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.distributed import if_joined
from smadmm.imaging.metrics import align, snr, ssim
from smadmm.imaging.phase_checks import dead_pixels, doubts, saturation, told_pixels
from smadmm.imaging.phase_fit import STARTS, Fit, dark, error_level, fit_amplitudes, residual_of, size_of
from smadmm.imaging.pnp import METHODS, Method, pnp
from smadmm.imaging.priors import ComplexProx, Prior, find_prior
from smadmm.imaging.red import RED
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.io.files import output_folder
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import NO_DATA
from smadmm.operators import CodedDiffraction
from smadmm.operators.diffraction import PIECE
from smadmm.problem import Prox
from smadmm.results import Reason, Result
from smadmm.running import Stop, run
from smadmm.sampling import reshuffled
from smadmm.solver import ADMM, State
from smadmm.xsteps import Metric

EVERY, ITERATIONS, STOCHASTIC, BATCH = 10, 60, 200, 6
STILL, STILL_DARK = 0.01, 0.001  # of lv: a change that is none; where masks are dark some pixels settle late
UNEXPLAINED = 1.05  # times the noise: a residual that the prior should not reach
FIRST_NOISE, ROUNDS, ROUND = 0.3, 8, 10  # of the amplitudes, where the fit does not tell it; tries, their iterations
NATURAL = ((10 / 255, "ridge-natural"), (20 / 255, "ridge-natural-15"), (math.inf, "ridge-natural-25"))
QUANTITIES = ("amplitudes", "intensities")
CHECKPOINT = "run.checkpoint"


def retrieve(
    patterns: Any,
    masks: Any = None,
    *,
    positions: Any = None,
    probe: Any = None,
    shape: tuple[int, int] | None = None,
    refine_probe: bool = False,
    refine_positions: bool = False,
    constraint: Prox | None = None,
    quantity: str = "amplitudes",
    complex: bool = False,
    valid: Any = None,
    prior: str | None = None,
    start: str = "auto",
    batch: int | None = None,
    iterations: int | None = None,
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
    positions, probe, shape : of ptychography, in the place of masks: n x 2, row and column of the upper left corner of
        the probe in pixels of the object, which begins at (0, 0); the complex probe, height x width, None: guessed from
        the patterns and found with the object; the object's shape, None: as far as the probe reaches. Objects are
        complex; `start`, `method`, checkpoints are not for them.
    refine_probe, refine_positions : whether the probe is a first guess only, to be found with the object, and whether
        positions may move. The result has `probe` and `positions`.
    constraint : of ptychography: a projection that follows the denoiser, such as `proxes.Support` or `proxes.Modulus`.
    quantity : "amplitudes" or "intensities".
    complex : whether the image is complex.
    valid : height x width, True where the detector measures. Saturated pixels, and those that are zero in every pattern
        amid bright ones, are left out anyway.
    prior : a shipped denoiser, a file of weights (.safetensors), "tv" or "none"; None: the ridge-natural that was
        trained for the noise at hand.
    start : of the fit without prior: "constant", "spectral", "raar", or "auto": all, where one may fail.
    batch : masks per step; None: all of at most 16, else 6. With all masks gradients are exact.
    iterations : at most; None: 60, or 200 with batches. With all masks it ends when nothing changes any more.
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
    one_of("start", start, STARTS)
    one_of("quantity", quantity, QUANTITIES)
    positive(batch=batch, iterations=iterations, strength=strength)
    if positions is not None or masks is None:
        from smadmm.imaging.ptychography import retrieve_scan
        from smadmm.imaging.scan_plan import ITERATIONS as LONG
        from smadmm.imaging.scan_plan import ScanPlan

        _refuse_scan(positions, probe, masks)
        scan = ScanPlan(prior, strength, iterations or LONG, batch, seed, refine_probe, refine_positions,
                        constraint)  # fmt: skip
        return retrieve_scan(patterns, positions, probe, scan, shape=shape, quantity=quantity, valid=valid, truth=truth)
    find_prior(prior or NATURAL[0][1])
    begin, data = time.perf_counter(), Patterns(patterns, masks, quantity, complex, device)
    count = data.refuse(batch, truth)
    target, told, notes = _checkpoint(checkpoint, resume), data.leave_out(valid), []
    few = data.loss_of(some_of(count))
    fit = first = fit_amplitudes(few, start)
    causes = doubts(few, fit, quantity)
    size = (count if count <= PIECE else BATCH) if batch is None else batch
    plan = Plan(next(name for name in METHODS if name == method), size, strength, seed, prior, device)
    if not fit.determined:
        notes.append(_undetermined(count, complex))
        fit = plan.with_noise(few, fit)
    loss = few if count <= PIECE else data.loss()
    loss.sampling = reshuffled if size == count else loss.sampling  # every mask once: the exact gradient
    level = error_level(fit.noise, count, data.light)
    solver, found = plan.solver(loss, level, fit, (data.light, data.peak))
    exact = None if truth is None else torch.from_numpy(np.asarray(truth)).to(data.dtype) / data.scale
    still = Still(level * (STILL_DARK if dark(data.light) else STILL)) if size == count else None
    stop = Stop(iterations=iterations or (STOCHASTIC if still is None else ITERATIONS))
    result = run(solver, fit.image, stop, every=EVERY, metrics=_metric(few, exact), objective=False, callback=still,
                 progress=progress, checkpoint=target, resume=resume)  # fmt: skip
    image, said = _accepted(few, replace(fit, image=first.image), result, strength)
    notes += said if causes else []  # a cause that is named explains them
    told += causes or said
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=2)
    settings = {"method": method, "prior": found.name, "strength": strength, "batch": size, "seed": seed,
                "start": start, "complex": complex, "data": quantity, "masks": count, "size": list(data.shape[1:]),
                "device": device, "noise": fit.noise * data.scale, "level": level * data.scale, "scale": data.scale,
                "rho": plan.rho(data.light), "prior_sigma": found.sigma, "prior_lipschitz": found.lipschitz,
                "total_seconds": time.perf_counter() - begin}  # fmt: skip
    unit = size_of(few)
    row: dict[str, Any] = {"residual": residual_of(few, image) / unit, "residual_fit": first.residual / unit,
           "relative_noise": fit.noise / unit}  # fmt: skip
    row |= {"iterations": result.state.k, "sfo": result.state.sfo, "seconds": result.history["seconds"][-1]}
    row["stopped"] = "no more change" if result.reason is Reason.CALLBACK else result.reason.value
    quality, pictures = _pictures(first.image.cpu(), image.cpu(), exact, method.upper())
    made = data.scale * list(pictures.values())[-1]
    return ImageResult(
        verb="Retrieval",
        image=made.to(patterns.device) if isinstance(patterns, Tensor) else made.numpy(),
        shown={name: (data.scale * (x.abs() if x.is_complex() else x)).float().numpy() for name, x in pictures.items()},
        slices=[row | quality],
        histories=[result.history],
        settings=settings,
        notes=tuple(notes),
        warnings=tuple(told),
        interrupted=result.interrupted,
        unit="amplitude",
    )


def _refuse_scan(positions: Any, probe: Any, masks: Any) -> None:
    if positions is None:
        raise ArgumentError("give {masks}, or for ptychography {positions}, and the {probe} if it is known")
    if masks is not None:
        raise ArgumentError("{positions} are those of a {probe} that is scanned; leave out them or {masks}")


def _undetermined(count: int, is_complex: bool) -> str:
    kind, least = ("complex", 3) if is_complex else ("real", 2)
    return (
        f"A {kind} image is not determined by {count} mask{'s' if count > 1 else ''}: what the patterns leave open is "
        f"the prior's choice. Measure at least {least} masks to be independent of it."
    )


def _accepted(loss: AmplitudeLoss, fit: Fit, result: Result, strength: float) -> tuple[Tensor, list[str]]:
    """The image with the prior, or the fit where it explains the patterns and the image does not."""
    if not fit.sure:
        return fit.image, [
            "Fits from different starts explain the patterns about as well and are different images: this is one of "
            "them, without prior. Check that each mask belongs to its pattern and is the complex transmission of the "
            "mask, that the patterns are of one object, and that no pixel outshines all others; or measure more masks."
        ]
    found = result.x.detach()
    residual, allowed = residual_of(loss, found), UNEXPLAINED * max(fit.noise, fit.residual)
    if residual <= allowed:
        return found, []
    share = size_of(loss)
    cure = "lower the strength" if strength > 1 else "try the prior tv, or a denoiser made for such images"
    return fit.image, [
        f"With the prior {residual / share:.2%} of the amplitudes are unexplained, more than their noise of "
        f"{fit.noise / share:.2%}: this is the fit without prior; {cure}."
    ]


@dataclass(frozen=True)
class Still:
    """Whether x and y, both the image in the end, differ by less than `least` per pixel (of RED: x and the last x)."""

    least: float

    def __call__(self, s: State) -> bool:
        return float((s.x - s.y).norm()) <= self.least * math.sqrt(s.x.numel())


@dataclass(frozen=True)
class Plan:
    """How the image is found once the noise is known."""

    method: Method
    batch: int
    strength: float
    seed: int
    prior: str | None
    device: str

    def rho(self, light: Tensor) -> float:
        """The prior's weight, e/2 times the strength."""
        return 0.5 * self.strength * float(light.mean())

    def solver(
        self, loss: AmplitudeLoss, level: float, fit: Fit, light: tuple[Tensor, Tensor]
    ) -> tuple[ADMM | RED, Prior]:
        """The solver with a prior for noise of `level`; each pixel steps by its light, in the mean or of one mask."""
        extent = float(np.quantile(fit.image.abs().cpu().numpy(), 0.999))
        name = self.prior or next(name for most, name in NATURAL if level <= most * max(extent, level))
        found = find_prior(name, self.device, (0.0, math.inf) if fit.positive() else None, level)
        rho, whole = self.rho(light[0]), self.batch >= loss.n
        h = found.prox(rho)
        step = Metric(light[0 if whole else 1].clamp(min=1e-3 * float(light[0].mean())) + rho)
        a = 1.0 if whole and self.method == "smadmm" else None
        prox = ComplexProx(h) if fit.image.is_complex() else h
        return pnp(if_joined(loss), prox, self.method, self.batch, rho, 1.0, a=a, x_step=step, seed=self.seed), found

    def with_noise(self, loss: AmplitudeLoss, fit: Fit) -> Fit:
        """The fit with the noise that image and prior together leave."""
        noise, whole = FIRST_NOISE * size_of(loss), replace(self, method="smadmm", batch=loss.n)
        loss.sampling = reshuffled
        for _ in range(ROUNDS):
            level = error_level(noise, loss.n, fit.light)
            fit = replace(fit, noise=noise, level=level)
            solver, _ = whole.solver(loss, level, fit, (fit.light, fit.light))
            done = run(solver, fit.image, Stop(iterations=ROUND), every=ROUND, objective=False, progress=False)
            fit = replace(fit, image=done.x)
            residual = residual_of(loss, done.x)
            if residual >= 0.75 * noise:
                break
            noise = max(residual, noise / 2)
        return fit


def _checkpoint(folder: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    """The file of an unfinished run, refused if it would be lost."""
    if folder is None:
        return None
    path = Path(folder) / CHECKPOINT
    if path.exists() and not resume:
        raise ArgumentError("{0} holds an unfinished run; set {resume} to go on with it, or remove it", folder)
    output_folder(path.parent)
    return path


def _metric(loss: AmplitudeLoss, truth: Tensor | None) -> dict[str, Callable[[State], float]]:
    """SNR where the truth is known, the relative residual of some patterns elsewhere."""
    if truth is not None:
        exact = truth.to(loss.operator.device)
        return {"snr": lambda s: snr(exact, align(exact, s.answer))}
    size = size_of(loss)
    return {"residual": lambda s: residual_of(loss, s.answer) / size}


def _pictures(
    fit: Tensor, found: Tensor, truth: Tensor | None, name: str
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """SNR and SSIM where the truth is known, and the images with its sign or phase, else with a positive mean."""
    if truth is None:
        fit, found = (x if x.is_complex() or float(x.sum()) >= 0 else -x for x in (fit, found))
        return {}, {"without prior": fit, name: found}
    fit, found = align(truth, fit), align(truth, found)
    quality: dict[str, float] = {}
    for key, measure in (("snr", snr), ("ssim", ssim)):
        quality |= {key: measure(truth, found), f"{key}_fit": measure(truth, fit)}
    return quality, {"truth": truth, "without prior": fit, name: found}


def some_of(count: int) -> NDArray[np.int64]:
    """The numbers of at most PIECE masks."""
    return np.unique(np.linspace(0, count - 1, min(count, PIECE)).astype(np.int64))


class Patterns:
    """Patterns with their masks: amplitudes divided by `scale`, their root mean square, read as they are asked for."""

    def __init__(self, stored: Any, masks: Any, quantity: str, complex_image: bool = False, device: str = "cpu"):
        self.stored, self.masks = (x.detach().cpu().numpy() if isinstance(x, Tensor) else x for x in (stored, masks))
        self.quantity, self.device, self.scale = quantity, device, 1.0
        self.dtype = torch.complex64 if complex_image else torch.float32
        self.shape = tuple(int(n) for n in stored.shape)
        self.valid: NDArray[np.bool_] | None = None
        self.top = math.inf  # what the detector saturates at
        self.light, self.peak = self._check()

    def _check(self) -> tuple[Tensor, Tensor]:
        """Look at every value; the mean and the largest |m|^2 of every pixel."""
        shape, energy, exponent = self.shape, 0.0, 1 if self.quantity == "intensities" else 2
        if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < 2:
            raise ArgumentError("{patterns} has the shape {0}; it is n x height x width", shape)
        if tuple(self.masks.shape) != shape:
            raise ArgumentError("{patterns} has the shape {0}, but {masks} has {1}", shape, tuple(self.masks.shape))
        mean, peak = np.zeros(shape[1:]), np.zeros(shape[1:])
        for number in range(shape[0]):
            values, mask = np.asarray(self.stored[number]), np.asarray(self.masks[number])
            self._check_one(number, values, mask)
            power = np.abs(mask.astype(np.complex128)) ** 2
            mean, peak = mean + power / shape[0], np.maximum(peak, power)
            energy += float((values.astype(np.float64) ** exponent).mean()) / shape[0]
        if energy == 0:
            raise ValueError("all patterns are zero: there is nothing to retrieve")
        self.scale = math.sqrt(energy)
        light, largest = (torch.from_numpy(v.astype(np.float32)).to(self.device) for v in (mean, peak))
        return light, largest

    def _check_one(self, number: int, values: NDArray[Any], mask: NDArray[Any]) -> None:
        if values.dtype.kind not in "biuf" or mask.dtype.kind not in "biufc":
            raise ValueError(f"patterns are real numbers and masks complex, got {values.dtype} and {mask.dtype}")
        if not (np.isfinite(values).all() and np.isfinite(mask).all()):
            raise ValueError(f"pattern or mask {number} has values that are not finite (NaN or infinity)")
        if values.min() < 0:
            raise ValueError(f"pattern {number} has negative {self.quantity}, the least {values.min():g}")
        if not mask.any():
            raise ValueError(f"mask {number} is zero everywhere: nothing passes it")

    def refuse(self, batch: int | None, truth: Any) -> int:
        """Refuse a batch or a truth that does not fit; returns the number of masks."""
        count = self.shape[0]
        if batch is not None and batch > count:
            raise ArgumentError("{batch} is {0}, more than the {1} masks; lower it or leave it out", batch, count)
        if truth is not None and tuple(truth.shape) != self.shape[1:]:
            raise ArgumentError("the truth has shape {0}, but the patterns {1}", tuple(truth.shape), self.shape[1:])
        return count

    def leave_out(self, valid: Any) -> list[str]:
        """Leave out pixels that are not valid, dead or saturated; returns what was found."""
        some = self[some_of(self.shape[0])]
        kept = np.ones(self.shape[1:], dtype=bool) if valid is None else np.asarray(valid).astype(bool)
        if kept.shape != self.shape[1:] or not kept.any():
            raise ArgumentError("{valid} is {0} with {1} valid pixels, the patterns {2}", kept.shape, kept.sum(),
                                self.shape[1:])  # fmt: skip
        dead, top = dead_pixels(some), saturation(some[:, kept])
        found = told_pixels(some[:, kept], dead & kept, top)
        self.top = math.inf if top is None else top
        kept &= ~dead
        self.valid = None if kept.all() else kept
        return found

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        values = np.asarray(self.stored[numbers], dtype=np.float32)
        amplitudes: NDArray[np.float32] = np.sqrt(values) if self.quantity == "intensities" else values
        amplitudes = amplitudes / np.float32(self.scale)
        if self.top < math.inf:
            amplitudes[amplitudes >= self.top] = NO_DATA
        if self.valid is not None:
            amplitudes[..., ~self.valid] = NO_DATA
        return amplitudes

    def loss(self) -> AmplitudeLoss:
        """Over all masks, read as they are drawn."""
        return AmplitudeLoss(CodedDiffraction(self.masks, self.dtype, self.device), self)

    def loss_of(self, numbers: NDArray[np.int64]) -> AmplitudeLoss:
        """Over some masks, in memory."""
        masks = torch.from_numpy(np.asarray(self.masks[numbers]).astype(np.complex64))
        data = torch.from_numpy(self[numbers]).to(self.device)
        return AmplitudeLoss(CodedDiffraction(masks, self.dtype, self.device), data)
