"""Rounds of a smooth image and what it leaves: wrong detectors, rays and views, stripes, and the axis once more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.bad_detectors import (
    apart_from_neighbours,
    columns_of,
    stands_out,
    suspects_of,
    unexplained,
)
from smadmm.imaging.detectors import NO_DEVIATIONS, Deviations
from smadmm.imaging.findings import Finding, numbered
from smadmm.imaging.rough_image import rough_image
from smadmm.imaging.stripes import changed_half_way, stripes_of
from smadmm.imaging.survey import Survey, axis_again
from smadmm.imaging.wrong_rays import lost_views, outstanding, step_between

ROUNDS = 3
SPARSE_VIEWS = 3.0  # degrees: with views further apart a wrong ray looks like a small object


def by_rounds(
    values: NDArray[np.float32], weights: NDArray[np.float32], survey: Survey, off: frozenset[str]
) -> tuple[NDArray[np.float32], Survey, bool, Deviations, list[Finding]]:
    """Find wrong detectors, rays and views in what a smooth image leaves; `weights` is changed in place.

    Returns the repaired sinogram, the survey with its axis again, whether the image has values below zero, how far
    detectors deviate, and what was found.
    """
    deviations = NO_DEVIATIONS
    rough, taken, trusted = None, np.zeros_like(values), weights.copy()  # the latter without dead detectors
    dead, lost, wrong = np.zeros(values.shape[1], bool), np.zeros(len(values), bool), 0
    suspects = suspects_of(values) if "detectors" not in off else dead
    weights[:, suspects] = 0
    apart = apart_from_neighbours(values)
    for number in range(ROUNDS):
        rough = rough_image(values, weights, survey)
        e = rough.residual
        columns = columns_of(e, trusted)  # a detector may turn out to be good after all
        usual = float(np.median(columns.spread[columns.spread > 0])) if columns.spread.any() else 0.0
        if usual == 0:
            break
        if "detectors" not in off:
            dead = stands_out(columns, usual, alone=number > 0 or bool(suspects.any())) & apart
            dead |= suspects & unexplained(columns, values, usual)
            weights[:] = np.where(dead, 0, trusted)
        if "views" not in off:
            lost |= lost_views((e - columns.jump)[:, ~dead])
            weights[lost] = trusted[lost] = 0
        if "rays" not in off and step_between(survey.angles) < SPARSE_VIEWS:
            out = outstanding(e - columns.jump, values, weights > 0, survey.angles)
            weights[out] = trusted[out] = 0
            wrong += int(out.sum())
        gross = bool(dead.any() or lost.any() or wrong)
        if "stripes" not in off and (number > 0 or not gross):  # gross errors look like stripes at first
            changed = changed_half_way(e, weights, usual)
            taken, values, e = taken + changed, values - changed, e - changed
            stripes, found = stripes_of(e, values - e, weights, usual, survey.angles)
            taken, values, deviations = taken + stripes, values - stripes, deviations.largest(found)
        if not (gross or taken.any()):
            break
        survey = axis_again(survey, values, weights, taken)
    assert rough is not None
    low, high = np.quantile(rough.image.numpy(), (0.02, 0.999))
    limited = any(finding.kind in ("range", "width") for finding in survey.findings)  # such images have dark shadows
    negative = bool("negative" not in off and not limited and low < -0.1 * high)
    return values, survey, negative, deviations, _told(dead, lost, wrong, taken, negative)


def _told(
    dead: NDArray[np.bool_], lost: NDArray[np.bool_], wrong: int, taken: NDArray[np.float32], negative: bool
) -> list[Finding]:
    findings = []
    if dead.any():
        findings.append(Finding("detectors", f"{numbered('detector', dead)} dead or hot and given no weight", True))
    if lost.any():
        findings.append(Finding("views", f"{numbered('view', lost)} not like the others and given no weight", True))
    if wrong:
        rays = "1 ray stands" if wrong == 1 else f"{wrong} rays stand"
        findings.append(Finding("rays", f"{rays} out from all neighbours and given no weight", True))
    if taken.any():
        size = float(np.sqrt((taken[taken != 0] ** 2).mean()))
        text = f"detectors are off by {size:.2g} (rms), which makes rings; they are corrected"
        findings.append(Finding("stripes", text, True))
    if negative:
        findings.append(Finding("negative", "the image has values below zero; they are allowed", False))
    return findings
