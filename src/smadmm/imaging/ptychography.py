"""Ptychography from arrays: the object that a known probe has scanned.

The error of a fit without prior at a pixel with the light w = 1/n sum_i |P_i|^2 is lv = s sqrt(2 / (n w)) per real
value, s the noise per amplitude (1/2 of square roots of counts), as phase_fit.py says of masks. s is taken from what
such a fit leaves at bright pixels of the detector: most others hold no photons and no noise. SMADMM follows with a
denoiser of real and imaginary part for the level of the mean light and the weight rho = w/2. It begins at the fit, but
at low counts at the constant 1: such a fit is full of errors that the prior does not take back. Only pixels with light
are known.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import positive
from smadmm.imaging.metrics import align, snr
from smadmm.imaging.phase import NATURAL, ComplexProx, Still
from smadmm.imaging.phase_checks import turned_signs
from smadmm.imaging.pnp import pnp
from smadmm.imaging.priors import Prior, find_prior
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.losses.phase import NO_DATA
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography
from smadmm.running import Result, Stop, run
from smadmm.sampling import reshuffled
from smadmm.xsteps import Metric

FIT, ITERATIONS = 40, 200
LIT = 0.05  # of the largest light: darker pixels are not judged
STILL = 0.001  # of lv
MISFIT = 0.5  # of the amplitudes, left by a fit: a wrong description, or hardly any light
PIECE = 512  # positions of a whole gradient; with more, batches


@dataclass(frozen=True)
class ScanFit:
    """An object fitted to a scan without a prior: residual and noise per amplitude, light of every pixel."""

    image: Tensor
    residual: float
    noise: float
    light: Tensor

    @property
    def lit(self) -> Tensor:
        return self.light > LIT * self.light.max()

    @property
    def brightness(self) -> float:
        """The mean light of the pixels that are judged."""
        return float(self.light[self.lit].mean())


def residual_of(loss: PtychographyLoss, x: Tensor) -> float:
    """The root mean square of |A x| - y over all measured amplitudes."""
    return math.sqrt(2 * loss.n * float(loss.value(x, loss.full())) / max(int((loss.amplitudes >= 0).sum()), 1))


def fit_scan(loss: PtychographyLoss, x: Tensor) -> ScanFit:
    """Gradient steps with momentum on all positions, each pixel with its own curvature."""
    light, old = loss.operator.light(), x
    curvature = light.clamp(min=LIT * float(light.max()))
    for _ in range(FIT):
        point = x + 0.6 * (x - old)
        old, x = x, point - loss.gradient((point,), (1.0,), loss.full()) / curvature
    data = loss.amplitudes
    bright = data > data[data >= 0].square().mean().sqrt()
    noise = float((loss.operator(x).abs() - data)[bright].square().mean().sqrt())
    return ScanFit(x, residual_of(loss, x), noise, light)


def with_prior(
    loss: PtychographyLoss, fit: ScanFit, prior: str | None, strength: float = 1.0, iterations: int = ITERATIONS,
    batch: int | None = None, seed: int = 0,
) -> tuple[Result, Prior]:  # fmt: skip
    """SMADMM with a denoiser for the error of a fit; with all positions gradients are exact."""
    level = fit.noise * math.sqrt(2 / (loss.n * fit.brightness))
    extent = float(np.quantile(fit.image[fit.lit].abs().cpu().numpy(), 0.999))
    name = prior or next(name for most, name in NATURAL if level <= most * max(extent, level))
    found = find_prior(name, loss.operator.device, None, min(level, 1.0))
    rho, size = 0.5 * strength * fit.brightness, batch or (loss.n if loss.n <= PIECE else 64)
    whole = size >= loss.n
    loss.sampling = reshuffled  # whole passes: of positions as of views
    crowded = 1.0 if whole else min(4.0, loss.n / size)  # a batch may lie on one spot
    step = Metric(crowded * fit.light.clamp(min=LIT * float(fit.light.max())) + rho)
    solver = pnp(loss, ComplexProx(found.prox(rho)), "smadmm", size, rho, 1.0, a=1.0 if whole else None, x_step=step,
                 seed=seed)  # fmt: skip
    stop = Stop(iterations=iterations if whole else iterations * -(-loss.n // size))
    still = Still(STILL * level) if whole else None
    start = fit.image if level <= NATURAL[0][0] * extent else torch.ones_like(fit.image)
    return run(solver, start, stop, every=10, objective=False, callback=still, progress=False), found


def scan_snr(truth: Tensor, x: Tensor, light: Tensor) -> float:
    """The SNR over the pixels that have light, after the phase that the patterns leave open is removed."""
    lit = light > LIT * light.max()
    return snr(truth[lit], align(truth[lit], x[lit]))


def retrieve_scan(
    patterns: Any,
    positions: Any,
    probe: Any,
    *,
    shape: tuple[int, int] | None = None,
    quantity: str = "amplitudes",
    valid: Any = None,
    prior: str | None = None,
    strength: float = 1.0,
    iterations: int | None = None,
    batch: int | None = None,
    truth: Any = None,
    seed: int = 0,
) -> ImageResult:
    """The object of a scan; see `smadmm.retrieve`."""
    positive(iterations=iterations, strength=strength, batch=batch)
    begin = time.perf_counter()
    operator = Ptychography(torch.from_numpy(np.array(probe, dtype=np.complex64)), positions, shape)
    data = torch.from_numpy(np.array(patterns, dtype=np.float32))
    if bool((data < 0).any()):
        raise ValueError(f"the patterns have negative {quantity}, the least {float(data.min()):g}")
    data = data.sqrt() if quantity == "intensities" else data
    if valid is not None:
        data = torch.where(torch.from_numpy(np.asarray(valid).astype(bool)), data, NO_DATA)
    loss = PtychographyLoss(operator, data)
    fit = fit_scan(loss, torch.ones(operator.size, dtype=torch.complex64))
    result, found = with_prior(loss, fit, prior, strength, iterations or ITERATIONS, batch, seed)
    size = float(data[data >= 0].square().mean().sqrt())
    told = list(turned_signs(fit.image))
    if fit.residual > MISFIT * size:
        told.append(
            f"The object leaves {fit.residual / size:.0%} of the amplitudes unexplained: check the positions (row and "
            "column in pixels), the order of frequencies (zero first), and the strength of the probe."
        )
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)
    row: dict[str, Any] = {"iterations": result.state.k, "sfo": result.state.sfo, "relative_noise": fit.noise / size,
                           "residual": residual_of(loss, result.x) / size}  # fmt: skip
    row["seconds"] = time.perf_counter() - begin
    pictures = {"without prior": fit.image, "SMADMM": result.x}
    if truth is not None:
        exact = torch.from_numpy(np.asarray(truth).astype(np.complex64))
        row |= {"snr": scan_snr(exact, result.x, fit.light), "snr_fit": scan_snr(exact, fit.image, fit.light)}
        pictures = {"truth": exact} | {name: align(exact, x) for name, x in pictures.items()}
    settings = {"method": "smadmm", "prior": found.name, "strength": strength, "seed": seed, "data": quantity,
                "positions": loss.n, "probe": list(operator.window), "size": list(operator.size), "noise": fit.noise,
                "prior_sigma": found.sigma, "prior_lipschitz": found.lipschitz}  # fmt: skip
    return ImageResult(
        verb="Ptychography",
        image=list(pictures.values())[-1].numpy(),
        shown={name: x.abs().float().numpy() for name, x in pictures.items()},
        slices=[row],
        histories=[result.history],
        settings=settings,
        warnings=tuple(told),
        interrupted=result.interrupted,
        unit="transmission",
    )
