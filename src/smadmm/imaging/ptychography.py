"""Ptychography from arrays: the object that a probe has scanned, and the probe itself where it is not known.

After checks of the arrays an unknown probe is guessed (probe_guess.py), the object is fitted without a prior
(scan_fit.py), then found with one (scan_plan.py); what may be wrong with the scan is said (ptychography_checks.py).
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.imaging.metrics import align, ssim, without_ramp
from smadmm.imaging.phase_checks import holes, saturation, told_pixels
from smadmm.imaging.priors import Prior
from smadmm.imaging.probe import redescribed, scaled_probe
from smadmm.imaging.probe_guess import centred, guessed_probe
from smadmm.imaging.ptychography_checks import empty_patterns, scan_doubts
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.imaging.scan_fit import ScanFit, fit_scan, residual_of, size_of
from smadmm.imaging.scan_plan import ScanPlan, scan_snr
from smadmm.losses.phase import NO_DATA
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography
from smadmm.results import Reason, Result

GUESSED = "the probe was not given: it was guessed from the mean pattern and found with the object"


def retrieve_scan(
    patterns: Any,
    positions: Any,
    probe: Any,
    plan: ScanPlan,
    *,
    shape: tuple[int, int] | None = None,
    quantity: str = "amplitudes",
    valid: Any = None,
    truth: Any = None,
) -> ImageResult:
    """The object of a scan; see `smadmm.retrieve`."""
    begin = time.perf_counter()
    given, told = _scan(patterns, positions, probe, shape, quantity, valid)
    if probe is None:
        given, plan = centred(given), replace(plan, refine_probe=True)
    tried = 0
    if plan.refine_probe:
        guess, tried = guessed_probe(given, probe is not None)
        given = redescribed(given, scaled_probe(guess, given.amplitudes), given.operator.positions)
    fitted, fit = fit_scan(given, plan.refine_probe, plan.refine_positions)
    prior = plan.found_prior(fitted, fit)
    exact = None if truth is None else torch.from_numpy(np.asarray(truth).astype(np.complex64))
    result, loss, visits = plan.run(fitted, fit, prior, exact, given.operator.probe)
    found = result.x if plan.constraint is None else plan.constraint.prox(result.x, 1.0)
    told += scan_doubts(given, fitted, fit, (plan.refine_probe, plan.refine_positions), quantity)
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)
    row = _row(loss, replace(fit, sfo=fit.sfo + tried), result, visits) | {
        "residual": residual_of(loss, found) / size_of(loss)
    }
    row["seconds"] = time.perf_counter() - begin
    quality, pictures = _pictures(fit, found, exact, plan.refine_probe)
    made = list(pictures.values())[-1]
    return ImageResult(
        verb="Ptychography",
        image=made if isinstance(patterns, Tensor) else made.numpy(),
        shown={name: x.abs().float().numpy() for name, x in pictures.items()},
        slices=[row | quality],
        histories=[result.history],
        settings=_settings(loss, fit, prior, plan) | {"data": quantity, "total_seconds": row["seconds"]},
        notes=(GUESSED,) * (probe is None),
        warnings=tuple(told),
        interrupted=result.interrupted,
        unit="transmission",
        probe=loss.operator.probe.numpy(),
        positions=loss.operator.positions,
    )


def _row(loss: PtychographyLoss, fit: ScanFit, result: Result, visits: int) -> dict[str, Any]:
    size = size_of(loss)
    return {"iterations": result.state.k, "sfo": fit.sfo + result.state.sfo + visits, "sfo_fit": fit.sfo,
            "relative_noise": fit.noise / size, "residual_fit": fit.residual / size,
            "stopped": "no more change" if result.reason is Reason.CALLBACK else result.reason.value}  # fmt: skip


def _settings(loss: PtychographyLoss, fit: ScanFit, prior: Prior, plan: ScanPlan) -> dict[str, Any]:
    operator = loss.operator
    return {"method": "smadmm", "prior": prior.name, "strength": plan.strength, "seed": plan.seed,
            "positions": loss.n, "probe": list(operator.window), "size": list(operator.size), "noise": fit.noise,
            "refine_probe": plan.refine_probe, "refine_positions": plan.refine_positions,
            "prior_sigma": prior.sigma, "prior_lipschitz": prior.lipschitz}  # fmt: skip


def _scan(
    patterns: Any, positions: Any, probe: Any, shape: tuple[int, int] | None, quantity: str, valid: Any
) -> tuple[PtychographyLoss, list[str]]:
    """The loss of a scan from arrays, and what is wrong with pixels of the detector."""
    data = np.asarray(patterns).astype(np.float32)
    if data.ndim != 3:
        raise ArgumentError("{patterns} are n x height x width, got the shape {0}", data.shape)
    field = np.ones(data.shape[1:], np.complex64) if probe is None else np.asarray(probe).astype(np.complex64)
    if not (np.isfinite(field).all() and field.any()):
        raise ValueError("the probe is zero everywhere or has values that are not finite; give its complex field")
    operator = Ptychography(torch.from_numpy(field), positions, shape)
    if data.shape != operator.out_shape:
        raise ArgumentError("{patterns} has the shape {0}, but {positions} and {probe} need {1}", data.shape,
                            operator.out_shape)  # fmt: skip
    if not (np.isfinite(data).all() and data.min() >= 0):
        raise ValueError(f"the patterns have {quantity} that are negative or not finite, the least {data.min():g}")
    data = np.sqrt(data) if quantity == "intensities" else data
    kept = np.ones(data.shape[1:], dtype=bool) if valid is None else np.asarray(valid).astype(bool)
    if kept.shape not in (data.shape, data.shape[1:]) or not kept.any():
        raise ArgumentError(
            "{valid} is {0} with {1} valid pixels, the patterns {2}", kept.shape, kept.sum(), data.shape
        )
    seen = np.broadcast_to(kept, data.shape)
    dead, top = holes((data.astype(np.float64) ** 2).sum(0)) & seen.any(0), saturation(data[seen])
    told = told_pixels(data[seen], dead, top)
    seen = seen & ~dead & (data < (math.inf if top is None else top))
    empty = empty_patterns(data)
    if empty.any():
        told.append(f"{empty.sum()} patterns hold no light, the first of them {empty.argmax()}: they are left out.")
        seen = seen & ~empty[:, None, None]
    return PtychographyLoss(operator, torch.from_numpy(np.where(seen, data, np.float32(NO_DATA)))), told


def _pictures(
    fit: ScanFit, found: Tensor, exact: Tensor | None, blind: bool
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """SNR where the truth is known, and the images as it lets them be compared."""
    pictures = {"without prior": fit.image, "SMADMM": found}
    if exact is None:
        return {}, pictures
    made = {name: without_ramp(exact, x, fit.lit) if blind else align(exact, x) for name, x in pictures.items()}
    quality = {"snr": scan_snr(exact, found, fit.light, blind), "snr_fit": scan_snr(exact, fit.image, fit.light, blind)}
    quality |= {"ssim": ssim(exact, made["SMADMM"]), "ssim_fit": ssim(exact, made["without prior"])}
    return quality, {"truth": exact} | made
