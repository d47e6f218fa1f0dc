"""What all slices of a scan share: angles, axis of rotation and width, from one of them (smadmm.imaging.geometry)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.imaging.air import without_offset
from smadmm.imaging.bad_detectors import stuck
from smadmm.imaging.findings import Finding
from smadmm.imaging.geometry import (
    ACCEPTED,
    CLOSES,
    GOOD_FIT,
    TURNS,
    Array,
    Axis,
    air_of,
    ends_twice,
    fan_axis,
    find_axis,
    fits_better,
    is_steady,
    refined,
    sine_fit,
    spread,
    with_predicted,
)
from smadmm.imaging.neighbours import filled
from smadmm.imaging.pnp import sinogram_noise
from smadmm.operators.fan import FanGeometry

OTHER_WAY = (
    "opposite rays agree if the views turn the other way: their angles get the other sign, or the image may be mirrored"
)
WIDER = 1.4  # the image beside the detector, where something lies outside the view
FILLED = 0.1  # error of values that are filled in from their neighbours, as a share of them
GAP = 10.0  # degrees without a view that are worth a sentence


@dataclass(frozen=True)
class Survey:
    """What all slices share."""

    angles: Array
    center: float
    center_error: float
    width: float
    findings: tuple[Finding, ...]
    geometry: FanGeometry | None = None  # None: parallel
    sought: bool = False  # the axis was found in the data, and repaired data may tell a better one
    steady: bool = True  # masses and their centres are what the angles say


def survey_of(
    b: NDArray[Any],
    angles: ArrayLike | Tensor | None,
    center: float | str,
    off: frozenset[str],
    geometry: FanGeometry | None = None,
) -> Survey:
    """Angles, axis and width, from one slice."""
    if geometry is not None:
        return _fan_survey(b, angles, center, off, geometry)
    missing = stuck(b)
    values = filled(np.where(missing, np.nan, np.asarray(b, dtype=np.float64)))
    missing |= ~np.isfinite(b).any(0)
    findings: list[Finding] = []
    given = np.asarray((0.0, 180.0) if angles is None else angles, dtype=np.float64).ravel()
    is_range, (first, last) = len(given) == 2 < len(values), given[[0, -1]]
    degrees = angles_of(given, len(values))
    if isinstance(center, str):
        axis = find_axis(values, degrees) if "axis" not in off else Axis(0.0, math.inf, math.inf)
    else:
        axis = Axis(float(center), 0.0, 0.0)
    inclusive = np.linspace(first, last, len(values))
    middle = axis.center if not isinstance(center, str) else sine_fit(values, inclusive).center
    if is_range and angles is not None and "angles" not in off:
        with_end, findings = _inclusive(ends_twice(values, abs(last - first), middle), first, last, len(values))
        if with_end:
            degrees = inclusive
            axis = find_axis(values, degrees) if isinstance(center, str) and "axis" not in off else axis
    axis = axis._replace(error=math.hypot(axis.error, _moved(values, missing)))
    middle, found = axis_used(axis, isinstance(center, str) and "axis" not in off)
    width, outside = _width(without_offset(values, off)[0], off)
    findings += [*found, *outside, *_gaps(degrees)]
    steady = is_steady(values, degrees) and (axis.error < ACCEPTED or middle == 0) and _agrees(values, degrees, middle)
    return Survey(
        degrees,
        middle,
        axis.error,
        width,
        tuple(findings),
        sought=isinstance(center, str) and "axis" not in off,
        steady=steady,
    )


def _moved(values: Array, missing: NDArray[np.bool_]) -> float:
    """How far detectors that are filled in from their neighbours may move centres of mass."""
    means, t = values.mean(0), np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    return FILLED * abs(float((means * t)[missing].sum())) / max(abs(float(means.sum())), 1e-30)


def _inclusive(repeats: bool | None, first: float, last: float, views: int) -> tuple[bool, list[Finding]]:
    """Whether a range of angles includes its end: as the data say, else if only then the steps are round numbers."""
    if repeats is not None:
        text = f"the last view repeats the first: the angles go from {first:g} to {last:g} degrees inclusive"
        return repeats, [Finding("angles", text, True)] * repeats
    inner, outer = ((last - first) / n for n in (views, views - 1))
    said = f"the data do not tell whether the last view is at {last:g} degrees"
    if _is_round(inner):
        return False, []
    if _is_round(outer):
        return True, [Finding("angles", f"{said}; it is taken to be, in steps of {abs(outer):g}", True)]
    return False, [Finding("angles", f"{said}; it is taken to be one step before", False)]


def _is_round(degrees: float) -> bool:
    """A step that a person would choose, such as 2 or .125 degrees."""
    return abs(degrees * 1000 - round(degrees * 1000)) < 1e-6


def _fan_survey(
    b: NDArray[Any], angles: ArrayLike | Tensor | None, center: float | str, off: frozenset[str], geometry: FanGeometry
) -> Survey:
    """The same for a fan, whose masses and their centres say nothing."""
    values = filled(np.where(stuck(b), np.nan, np.asarray(b, dtype=np.float64)))
    given = np.asarray((0.0, 360.0) if angles is None else angles, dtype=np.float64).ravel()
    wanted = isinstance(center, str) and "axis" not in off
    degrees, findings = angles_of(given, len(values)), list[Finding]()
    is_range, (first, last) = len(given) == 2 < len(values), given[[0, -1]]
    inclusive = np.linspace(first, last, len(values))
    if is_range and angles is not None and "angles" not in off:
        closes = None
        if (last - first) % 360 == 0 and fits_better(values, inclusive, degrees, geometry, CLOSES):
            closes = True
        elif (last - first) % 360 == 0 and fits_better(values, degrees, inclusive, geometry, CLOSES):
            closes = False
        with_end, findings = _inclusive(closes, first, last, len(values))
        degrees = inclusive if with_end else degrees
    if "angles" not in off and fits_better(values, -degrees, degrees, geometry, TURNS):
        degrees = -degrees
        findings.append(Finding("angles", OTHER_WAY, True))
    axis = fan_axis(values, degrees, geometry) if wanted else Axis(0.0 if isinstance(center, str) else center, 0.0, 0.0)
    middle, found = axis_used(axis, wanted)
    width, outside = _width(without_offset(values, off)[0], off)
    opening = np.ptp(np.rad2deg(geometry.projector(2, [0.0], b.shape[1]).gammas))
    findings += [*found, *outside, *_gaps(degrees, 360.0, 180 + opening)]
    return Survey(degrees, middle, axis.error, width, tuple(findings), geometry)


def _agrees(values: Array, degrees: Array, center: float) -> bool:
    """Whether centres of mass do not contradict this axis."""
    fit = sine_fit(values, degrees)
    return not (fit.error < GOOD_FIT and abs(fit.center - center) > 1)


def angles_of(given: Array, views: int) -> Array:
    """One angle per view; two are the ends of a range without its end point."""
    if len(given) == views:
        return given
    degrees: Array = given[0] + (given[1] - given[0]) * np.arange(views) / views
    return degrees


def axis_used(axis: Axis, wanted: bool) -> tuple[float, list[Finding]]:
    """The centre that is used: the found one where it is sure, and not 0 already."""
    if not wanted:
        return axis.center, []
    if axis.error > ACCEPTED:
        return 0.0, [Finding("axis", "the axis of rotation was not found; the middle of the detector is taken", False)]
    if abs(axis.center) < max(4 * axis.error, 0.1):
        return 0.0, []
    text = f"the axis of rotation is {axis.center:+.2f} detectors off the middle (standard error {axis.error:.2f})"
    return axis.center, [Finding("axis", text, True)]


def axis_again(
    survey: Survey, values: NDArray[np.float32], weights: NDArray[np.float32], taken: NDArray[np.float32]
) -> Survey:
    """The axis by repaired data; what is left of offsets, wide ones above all, moves all centres of mass."""
    if not survey.sought:
        return survey
    rows = filled(np.where(weights > 0, values, np.nan).astype(np.float64))
    axis = sine_fit(rows, survey.angles)
    if axis.left > GOOD_FIT:
        return survey
    offsets = taken.mean(0)
    t = np.arange(len(offsets)) - (len(offsets) - 1) / 2
    moved = 2 * float(np.sqrt((offsets**2).mean() * (t**2).sum()) / abs(np.median(rows.sum(1))))
    axis = axis._replace(error=math.hypot(axis.error, moved, _moved(rows, (weights == 0).all(0))))
    axis = with_predicted(refined(axis, rows, survey.angles), rows, survey.angles)
    if axis.error > ACCEPTED:
        return survey
    center, found = axis_used(axis, True)
    kept = tuple(f for f in survey.findings if f.kind != "axis")
    return replace(survey, center=center, center_error=axis.error, findings=(*kept, *found))


def _width(b: Array, off: frozenset[str]) -> tuple[float, list[Finding]]:
    """A wider image where the edges carry more than air in changing amounts."""
    air, top = air_of(b), float(np.quantile(b, 0.99))
    noise = sinogram_noise(torch.from_numpy(b))
    carried = max(float(np.quantile(side, 0.9)) - min(air.level, 0.0) for side in air)
    changing = max(spread(side) for side in air)
    if "width" in off or carried < max(3 * noise, 0.02 * top) or changing < max(noise, 0.1 * carried):
        return 1.0, []
    text = f"the object reaches beyond the detector; the image is computed {WIDER:g} times as wide"
    return WIDER, [Finding("width", text, True)]


def _gaps(degrees: Array, period: float = 180.0, needed: float = 180.0) -> list[Finding]:
    """Views leave part of the turn out, and do not span what is needed to see every line."""
    around = np.sort(degrees % period)
    steps = np.diff(np.append(around, around[0] + period))
    widest = float(steps.max()) - (period - needed)
    if widest < max(GAP, 3 * float(np.median(steps))):
        return []
    text = f"limited angles: {widest:.0f} of {needed:.0f} degrees have no view; edges along those rays are not seen"
    return [Finding("range", text, False)]
