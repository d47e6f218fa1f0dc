"""A careful look at a sinogram before it is solved, and repairs inside the model: `inspect`.

First the geometry (smadmm.imaging.survey): angles, axis, air, what lies outside the view. Then rounds
(smadmm.imaging.rounds): a smooth image of half the resolution, with a prior twenty times too strong, cannot follow what
detectors and single rays do wrong, so it stays in the residual. Dead detectors, rays that stand out of their
neighbours, and views that fit much worse than others get weight 0; stripes are taken off. The noise is measured by
differences along the detector, as a function of the value where it depends on that; else by frequencies that no object
has, if that is less.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.imaging.air import without_offset
from smadmm.imaging.bad_detectors import stuck
from smadmm.imaging.detectors import NO_DEVIATIONS, Deviations
from smadmm.imaging.findings import Finding, numbered, skipped
from smadmm.imaging.geometry import Array, wedge_noise
from smadmm.imaging.half_acquisition import half_acquisition
from smadmm.imaging.neighbours import filled
from smadmm.imaging.noise_law import noise_law
from smadmm.imaging.pnp import sinogram_noise
from smadmm.imaging.rounds import by_rounds
from smadmm.imaging.survey import Survey, survey_of

TEXTURE = 1.5  # times the noise of frequencies that no object has: a law of noise that says more is of the object
FEW_VIEWS = 8  # too few to tell a detector from the image


@dataclass(frozen=True)
class Inspection:
    """What a look at a sinogram found: geometry, the sinogram as repaired, and how far each ray is trusted.

    `prepared` has wrong rays filled in from their neighbours; `weights` is 1/variance in units of that of the best
    rays, 0 for wrong ones, None where all rays are alike; `noise` is the noise of a ray of weight 1.

    >>> from smadmm.imaging.simulation import simulated_sinogram
    >>> from smadmm.io.phantoms import abdomen_image
    >>> sinogram = simulated_sinogram(abdomen_image(32), views=30, snr=40)
    >>> look = inspect(sinogram)
    >>> isinstance(look, Inspection), abs(look.center) < 1
    (True, True)
    """

    angles: Array  # degrees
    center: float
    center_error: float
    width: float  # of the image, in units of the detector
    prepared: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    noise: float
    negative: bool  # whether the image has values below zero
    steady: bool  # whether masses and their centres are what the angles say
    findings: tuple[Finding, ...]
    deviations: Deviations = NO_DEVIATIONS  # of detectors that made stripes

    def __repr__(self) -> str:
        repaired = sum(f.repaired for f in self.findings)
        return f"Inspection({len(self.findings)} findings, {repaired} repaired, center {self.center:.2f})"

    def __str__(self) -> str:
        return "\n".join(f.text for f in self.findings) or "nothing to repair was found"


def inspect(
    sinogram: Any,
    angles: ArrayLike | Tensor | None = None,
    *,
    center: float | str = "auto",
    raw: bool | Collection[str] = False,
) -> Inspection:
    """Look at line integrals -log(I/I0), views x detectors; of a volume at the slice in its middle.

    `angles` in degrees: one per view, or (first, last) for equal steps; None: half a turn. `center` is the axis in
    detectors off the middle, or "auto". `raw` switches repairs off: True all, or the names of some.

    >>> from smadmm.imaging.simulation import simulated_sinogram
    >>> from smadmm.io.phantoms import abdomen_image
    >>> sinogram = simulated_sinogram(abdomen_image(32), views=30, snr=40)
    >>> sinogram[:, 16] = 0
    >>> [finding.kind for finding in inspect(sinogram).findings]
    ['detectors']
    """
    rows = sinogram[len(sinogram) // 2] if len(sinogram.shape) == 3 else sinogram
    b = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    off, given = skipped(raw), np.asarray((0.0, 180.0) if angles is None else angles, dtype=np.float64).ravel()
    completion = half_acquisition(b, given, center, off)
    if completion is None:
        return repaired(b, survey_of(b, angles, center, off), off)
    survey = survey_of(completion(b), completion.degrees, completion.center, off)
    told = (Finding("completion", str(completion), True), *survey.findings)
    return repaired(completion(b), replace(survey, findings=told), off)


def repaired(b: NDArray[Any], survey: Survey, off: frozenset[str]) -> Inspection:
    """Find and repair what went wrong in one slice of a surveyed geometry."""
    finite, constant = np.isfinite(b), stuck(b) if "detectors" not in off else np.zeros(b.shape[1], bool)
    values = filled(np.where(finite & ~constant, np.asarray(b, dtype=np.float64), np.nan)).astype(np.float32)
    weights, findings = (finite & ~constant).astype(np.float32), list(survey.findings)
    if constant.any():
        findings.append(Finding("detectors", f"{numbered('detector', constant)} stuck and given no weight", True))
    if not finite.all():
        text = f"{int((~finite).sum())} rays are not finite numbers and given no weight"
        findings.append(Finding("rays", text, True))
    values, found = without_offset(values, off)
    findings += found
    negative, deviations = False, NO_DEVIATIONS
    if len(values) >= FEW_VIEWS and not {"detectors", "stripes", "rays", "views", "negative"} <= off:
        values, survey, negative, deviations, found = by_rounds(values, weights, survey, off)
        findings = [f for f in findings if f.kind != "axis"] + [f for f in survey.findings if f.kind == "axis"] + found
    known = weights > 0
    fill = filled(np.where(known, values, np.nan)).astype(np.float32)
    parallel = survey.geometry is None
    sure = wedge_noise(fill.astype(np.float64), survey.angles, survey.center) if parallel else math.inf
    noise, law = noise_law(fill, weights, off, any(deviations), checked=sure < math.inf)
    if law is not None and noise * math.sqrt(float((1 / law).mean())) > TEXTURE * sure:
        noise, law = sinogram_noise(torch.from_numpy(fill)), None
    noise = noise if law is not None else min(noise, sure)
    if law is not None:
        weights *= law
        text = f"the noise grows with the value, its variance {1 / float(law.min()):.0f}-fold; rays are weighted by it"
        findings.append(Finding("noise", text, False))
    plain = bool((weights == 1).all())
    return Inspection(survey.angles, survey.center, survey.center_error, survey.width, prepared=fill,
                      weights=None if plain else weights, noise=noise, negative=negative, steady=survey.steady,
                      findings=tuple(findings), deviations=deviations)  # fmt: skip
