"""One slice of a scan: how far its rays are trusted, and how it is solved.

The noise of a ray has two parts: what was measured, by differences or by counts of photons, and what no image explains
(drift, scatter, hardening). The second is the same for all rays: with s_ij^2 the variance of the first,
    weight = 1 / (s_ij^2 + m^2),   m^2 = mean over values of (spread of b - A x)^2 - s^2,
and m is taken for zero unless it makes the noise three times as large. A large m makes the prior stronger, and rays
alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from smadmm.distributed import if_joined
from smadmm.imaging.detectors import Deviations, loss_of
from smadmm.imaging.findings import REPAIRS
from smadmm.imaging.geometry import wedge_noise
from smadmm.imaging.inspection import FEW_VIEWS, Inspection, repaired
from smadmm.imaging.metrics import snr, ssim
from smadmm.imaging.pnp import Method, posterior_weight, tomography
from smadmm.imaging.priors import LEVEL, Prior
from smadmm.imaging.sinograms import (
    QUIETEST,
    BackProjections,
    Rows,
    noise_level,
    read,
    residual,
    root_mean_square,
    sample,
)
from smadmm.imaging.survey import Survey
from smadmm.losses.tomography import Transmission
from smadmm.operators.radon.projector import Projector
from smadmm.proxes import TV
from smadmm.results import Result
from smadmm.running import Stop, run
from smadmm.solver import State

EVERY = 5  # iterations between two rows of the curves
SPARSE = 2  # the objective and the certificate are in every second row, to add less than 5 % (benchmarks/overhead.py)
NEVER = 10**9  # with batches only in the first and the last, for they cost a pass over all views
WARM = 12  # iterations that a first image with the learned prior saves
FEW_DETECTORS = 32  # too few to tell noise from image


def judged(rows: Rows) -> bool:
    """Whether there are enough rays to tell what is wrong with some of them."""
    return bool(rows.shape[0] >= FEW_VIEWS and rows.shape[1] >= FEW_DETECTORS)


def _same(rows: Rows) -> bool:
    """Whether all values are the same."""
    return isinstance(rows, Tensor) and bool(rows.min() == rows.max())


class Statistics(NamedTuple):
    """The noise of a ray of weight 1, the weights, and the root mean square noise of all rays."""

    noise: float
    weights: Any
    mean: float
    deviations: Deviations = Deviations()  # of detectors

    def of(self, rows: Tensor) -> Tensor:
        """The weights of these rays as a tensor."""
        if self.weights is None:
            return torch.ones_like(rows)
        weights: Tensor = self.weights(rows) if callable(self.weights) else self.weights
        return weights

    def with_misfit(self, rows: Tensor, misfit: float) -> Statistics:
        """With a variance that all rays share beside their own."""
        w = self.of(rows)
        known = w > 0
        total = self.noise**2 / w.clamp(min=1e-12) + misfit**2
        best = float(total[known].min())
        mean = math.sqrt(float(total[known].mean()))
        return Statistics(math.sqrt(best), torch.where(known, best / total, 0.0), mean, self.deviations)


@dataclass(frozen=True)
class Scan:
    """What all slices share: geometry, scale, and how they are solved."""

    radon: Projector
    scale: float
    prior: Prior
    method: Method
    stop: Stop
    batch: int | None = None
    strength: float = 1.0
    seed: int = 0
    photons: float | None = None
    loss: str = "squares"
    device: str = "cpu"
    survey: Survey | None = None
    off: frozenset[str] = frozenset()
    rest: Stop | None = None  # the limits from a first image that is nearly solved
    learned: Prior | None = None  # whose image another prior starts from
    misfit: float = 0.0  # what no image explains, as a share of the sinogram's size
    seen: tuple[slice, slice] = (slice(None), slice(None))  # the part of the image that is given back

    def look(self, stored: Any) -> tuple[BackProjections, Inspection | None]:
        """Read a slice; repaired, where the one in the middle was."""
        rows = read(stored, 1.0)
        look = None
        known = isinstance(rows, Tensor) and judged(rows) and not _same(rows)
        if self.survey is not None and known and not set(REPAIRS) <= self.off:
            look = repaired(rows.numpy(), self.survey, self.off)
            rows = torch.from_numpy(look.prepared)
        images = BackProjections(self.radon, rows)
        images.divide(self.scale)
        return images, look

    def statistics(self, rows: Rows, look: Inspection | None = None) -> Statistics:
        """How far the rays are trusted."""
        found = self._measured(rows, look)
        if not self.misfit or not isinstance(rows, Tensor):
            return found
        return found.with_misfit(rows, self.misfit * root_mean_square(rows))

    def _measured(self, rows: Rows, look: Inspection | None) -> Statistics:
        if _same(rows):  # a slice that was never measured, in a volume
            return Statistics(QUIETEST, None, QUIETEST)
        if self.photons is None:
            if look is None:
                wedge = self._wedge(rows) if isinstance(rows, Tensor) else math.inf
                noise = max(min(noise_level(rows), wedge), QUIETEST * root_mean_square(rows))
                return Statistics(noise, None, noise)
            noise = max(look.noise / self.scale, QUIETEST * root_mean_square(rows))
            trusted = np.ones(1) if look.weights is None else look.weights[look.weights > 0]
            weights = None if look.weights is None else torch.from_numpy(look.weights)
            mean = noise * math.sqrt(float((1 / trusted).mean()))
            return Statistics(noise, weights, mean, self._deviations(look))
        counted, least = 1 / (self.scale**2 * self.photons), (QUIETEST * root_mean_square(rows)) ** 2
        noise, law = math.sqrt(counted + least), Transmission(self.scale, least / counted)
        mean = noise * math.sqrt(float((1 / law(sample(rows))).mean()))
        if look is None:
            return Statistics(noise, law, mean)
        deviations = self._deviations(look)
        if look.weights is None:
            return Statistics(noise, law(rows) if any(deviations) else law, mean, deviations)
        return Statistics(noise, law(rows) * torch.from_numpy(look.weights > 0), mean, deviations)

    def _wedge(self, rows: Tensor) -> float:
        """The noise by frequencies that no object in parallel beams has."""
        if self.survey is not None and self.survey.geometry is not None:
            return math.inf
        return wedge_noise(rows.double().numpy(), np.rad2deg(self.radon.angles), self.radon.centre)

    def _deviations(self, look: Inspection) -> Deviations:
        """Of the detectors; batches tell nothing of them."""
        return look.deviations.scaled(self.scale) if self.batch is None else Deviations()

    def solve(
        self,
        images: BackProjections,
        look: Inspection | None,
        truth: Tensor | None,
        start: Tensor | None,
        checkpoint: Path | None,
        bar: Any,
    ) -> tuple[Result, dict[str, Any]]:
        """Reconstruct one slice, going on from a checkpoint that exists: the result, and a row of numbers on it."""
        rows = images.rows
        measured, found = self._measured(rows, look), self.statistics(rows, look)
        scan, first = self, None
        if start is None and self.learned is not None:  # its image fills in what no view sees far sooner
            brief = Stop(iterations=min(WARM, self.stop.iterations or WARM))
            first, rho = replace(self, prior=self.learned, stop=brief).run(images, found, truth, None, bar=bar)
            scan, start = replace(self, stop=self.rest or self.stop), first.x
        if first is not None and first.interrupted:
            result = first
        else:
            result, rho = scan.run(images, found, truth, start, checkpoint=checkpoint, bar=bar)
        size = root_mean_square(rows) or 1.0
        row = {"relative_noise": found.mean / size, "noise": found.noise, "rho": rho}
        if look is not None:
            row |= {"measured_noise": measured.mean / size, "steady": look.steady}
        return result, row | self.quality(images, truth, result)

    def run(
        self,
        images: BackProjections,
        found: Statistics,
        truth: Tensor | None,
        start: Tensor | None,
        *,
        checkpoint: Path | None = None,
        bar: Any,
        certified: bool = True,
    ) -> tuple[Result, float]:
        """Solve for these statistics; also returns the weight of the prior."""
        rows, begin = images.rows, bar.n
        robust = None if self.loss == "squares" else self.loss
        loss = if_joined(loss_of(self.radon, rows, found.weights, found.noise, found.deviations, self.device, robust))
        rho = self.strength * posterior_weight(loss, found.noise, self.prior.sigma)
        solver = tomography(loss, self.prior.prox(rho), rho, self.method, self.batch, self.seed)
        first = images.first(found.mean, min(self.prior.sigma, LEVEL)) if start is None else start
        name, metric = self._metric(rows, truth)

        def tick(s: State) -> None:
            bar.update(begin + s.k - bar.n)

        resume = checkpoint is not None and checkpoint.exists()
        certify = certified and not isinstance(solver.problem.h, TV)  # its subdifferential is a problem of its own
        result = run(solver, first.to(self.device), self.stop, every=EVERY, metrics={name: metric},
                     objective=certified,
                     certify=certify, sparse=SPARSE if self.batch is None else NEVER,
                     callback=tick, progress=False, checkpoint=checkpoint, resume=resume)  # fmt: skip
        return result, rho

    def _metric(self, rows: Rows, truth: Tensor | None) -> tuple[str, Callable[[State], float]]:
        """SNR where the truth is known, the relative residual of the data elsewhere."""
        if truth is None:
            return "residual", lambda s: residual(self.radon, rows, s.answer)
        exact = truth.to(self.device)
        return "snr", lambda s: snr(exact, s.answer)

    def quality(self, images: BackProjections, truth: Tensor | None, result: Result) -> dict[str, Any]:
        """Residuals, SNR and SSIM where the truth is known, and the cost."""
        x, plain = result.x.detach().cpu(), images[None]
        row: dict[str, Any] = {
            "residual": residual(self.radon, images.rows, x),
            "residual_fbp": residual(self.radon, images.rows, plain),
            "iterations": result.state.k,
            "sfo": result.state.sfo,
            "seconds": result.history["seconds"][-1],
            "stopped": result.reason.value,
        }
        if truth is not None:
            for name, measure in (("snr", snr), ("ssim", ssim)):
                row |= {name: measure(truth, x), f"{name}_fbp": measure(truth, plain)}
        return row

    def settings(self) -> dict[str, Any]:
        """What decides the result, in words and numbers."""
        radon = self.radon
        return {
            "method": self.method,
            "prior": self.prior.name,
            "strength": self.strength,
            "batch": self.batch,
            "limits": {"iterations": self.stop.iterations, "seconds": self.stop.seconds},
            "seed": self.seed,
            "photons": self.photons,
            "loss": self.loss,
            "views": radon.views,
            "detectors": radon.detectors,
            "size": [radon.height, radon.width],
            "spacing": radon.spacing,
            "geometry": asdict(self.survey.geometry) if self.survey and self.survey.geometry else None,
            "center": radon.centre,
            "scale": self.scale,
            "not_repaired": sorted(self.off),
        }
