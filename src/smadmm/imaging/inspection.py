"""A careful look at a sinogram before it is solved, and repairs inside the model: `inspect`.

First the geometry: angles, axis, air, what lies outside the view (smadmm.imaging.geometry). Then rounds: a smooth
image x of half the resolution, with a prior twenty times too strong, cannot follow what detectors and single rays do
wrong, so it stays in the residual e = b - A x:
    d_j = median_i e_ij,  s_j = 1.48 median_i |e_ij - d_j|
are the offset and the spread of detector j. A detector that spreads more than four times as much as usual, or lies far
off its neighbours, is dead: weight 0. So is one whose worst tenth of views is far worse than its neighbours': a wrong
dark level adds c exp(b), which shows behind dense material only. Those whose values differ from their neighbours' by
far more than usual have no say in the first image, so that they cannot hide in it. Smaller offsets are stripes: what
d_j differs from its running median is taken off. A ray that stands out of its neighbours, and a view that fits much
worse than others, get weight 0. The noise is measured by differences along the detector, as a function of the value
where it depends on that; else by frequencies that no object has, if that is less.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.imaging.detectors import NO_DEVIATIONS, Deviations, likeliest
from smadmm.imaging.geometry import (
    ACCEPTED,
    CLOSES,
    EDGE,
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
    wedge_noise,
)
from smadmm.imaging.pnp import posterior_weight, sinogram_noise, tomography
from smadmm.imaging.priors import find_prior
from smadmm.imaging.sinograms import BackProjections, noise_level
from smadmm.losses.tomography import Tomography
from smadmm.operators.fan import FanGeometry
from smadmm.operators.radon import Radon
from smadmm.running import Stop, run
from smadmm.sampling import stride

REPAIRS = ("angles", "axis", "air", "width", "detectors", "stripes", "rays", "views", "noise", "negative")
OTHER_WAY = (
    "opposite rays agree if the views turn the other way: their angles get the other sign, or the image may be mirrored"
)
WIDER = 1.4  # the image beside the detector, where something lies outside the view
ROUNDS, ROUGH_STEPS, ROUGH_STRENGTH = 3, 6, 20.0
ROUGH_CUT = 0.25  # the filter of its first image
NOTHING, AIR = 3.0, 0.25  # noises that a ray of air stays below, and the share of such rays that pixels of air have
WINDOW = 31  # detectors of the running median: cupping is wider, stripes are not
OUTER = 0.04  # share of the detectors at each side whose offsets are left alone
SPREADS, OFF = 4.0, 8.0  # a dead detector: this many usual spreads, or this far off its neighbours
WORST, TAILS = 0.9, 2.5  # a detector that errs in some views only, such as those with dense material, or less light
ALONE = 0.35  # times the size of a dead detector: its neighbours
LASTING = 0.6  # correlation of the stripes of both halves of the views
SHADED = 0.1  # of a large mean value: detectors behind the object
STRIPED = 0.35  # usual spreads: smaller offsets are what images leave
STUCK, STUCK_WINDOW = 0.05, 13  # a detector that changes less, compared with the detectors around it, is stuck
FILLED = 0.1  # error of values that are filled in from their neighbours, as a share of them
STILL, BLOCK = 0.005, 24  # so is one that hardly changes between such as do, if they are so near
NO_PART = 0.5  # of its changes: what an image leaves of a detector that tells nothing of it
BENT = 8.0  # times the usual second difference along the detector: a detector to be looked at
OUTSTANDING = 16.0  # spreads of its surroundings: a wrong ray
SPARSE_VIEWS = 3.0  # degrees: with views further apart a wrong ray looks like a small object
LOST = 5.0  # times the usual misfit: a lost view
BESIDE = 4  # views at each side to compare it with
OPPOSED = 0.2  # second differences of the neighbours of a dead detector, in units of its own; one half at best
UNEQUAL = 4.0  # variances that differ by more depend on the value
TEXTURE = 1.5  # times the noise of frequencies that no object has: a law of noise that says more is of the object
STRAIGHT = 0.9  # share of the logarithms of variances that a straight line explains
GAP = 10.0  # degrees without a view that are worth a sentence
FEW_VIEWS = 8  # too few to tell a detector from the image


class Finding(NamedTuple):
    """What was found in the data; `repaired` where data, weights or geometry were changed for it.

    >>> Finding("dead", "detector 7 is dead", repaired=True).kind
    'dead'
    """

    kind: str
    text: str
    repaired: bool


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
    survey = survey_of(b, angles, center, skipped(raw))
    return repaired(b, survey, skipped(raw))


def skipped(raw: bool | Collection[str]) -> frozenset[str]:
    """The repairs that are switched off, by name."""
    if isinstance(raw, bool):
        return frozenset(REPAIRS if raw else ())
    names = frozenset([raw] if isinstance(raw, str) else raw)
    if names - set(REPAIRS):
        wrong, known = ", ".join(sorted(names - set(REPAIRS))), ", ".join(REPAIRS)
        raise ArgumentError("{raw} names repairs to switch off, and {0} is none; there are {1}", wrong, known)
    return names


# --- geometry ---------------------------------------------------------------------------------------------------------


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
    middle, found = _axis_used(axis, isinstance(center, str) and "axis" not in off)
    width, outside = _width(_without_offset(values, off)[0], off)
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
    middle, found = _axis_used(axis, wanted)
    width, outside = _width(_without_offset(values, off)[0], off)
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


def _axis_used(axis: Axis, wanted: bool) -> tuple[float, list[Finding]]:
    """The centre that is used: the found one where it is sure, and not 0 already."""
    if not wanted:
        return axis.center, []
    if axis.error > ACCEPTED:
        return 0.0, [Finding("axis", "the axis of rotation was not found; the middle of the detector is taken", False)]
    if abs(axis.center) < max(4 * axis.error, 0.1):
        return 0.0, []
    text = f"the axis of rotation is {axis.center:+.2f} detectors off the middle (standard error {axis.error:.2f})"
    return axis.center, [Finding("axis", text, True)]


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


# --- detectors, rays, views -------------------------------------------------------------------------------------------


def repaired(b: NDArray[Any], survey: Survey, off: frozenset[str]) -> Inspection:
    """Find and repair what went wrong in one slice of a surveyed geometry."""
    finite, constant = np.isfinite(b), stuck(b) if "detectors" not in off else np.zeros(b.shape[1], bool)
    values = filled(np.where(finite & ~constant, np.asarray(b, dtype=np.float64), np.nan)).astype(np.float32)
    weights, findings = (finite & ~constant).astype(np.float32), list(survey.findings)
    if constant.any():
        findings.append(Finding("detectors", f"{_numbered('detector', constant)} stuck and given no weight", True))
    if not finite.all():
        text = f"{int((~finite).sum())} rays are not finite numbers and given no weight"
        findings.append(Finding("rays", text, True))
    values, found = _without_offset(values, off)
    findings += found
    negative, deviations = False, NO_DEVIATIONS
    if len(values) >= FEW_VIEWS and not {"detectors", "stripes", "rays", "views", "negative"} <= off:
        values, survey, negative, deviations, found = _rounds(values, weights, survey, off)
        findings = [f for f in findings if f.kind != "axis"] + [f for f in survey.findings if f.kind == "axis"] + found
    known = weights > 0
    fill = filled(np.where(known, values, np.nan)).astype(np.float32)
    noise, law = _noise_law(fill, weights, off)
    if survey.geometry is None:
        sure = wedge_noise(fill.astype(np.float64), survey.angles, survey.center)
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


def _without_offset(b: NDArray[Any], off: frozenset[str]) -> tuple[NDArray[Any], list[Finding]]:
    """Air is zero: a constant that both edges of all views have is taken off; where the beam drifts, one per view.

    A drifting beam changes both edges and the mean of a view by the same; an object beyond the edges does not.
    """
    air, top, noise = air_of(b.astype(np.float64)), float(np.quantile(b, 0.99)), sinogram_noise(torch.from_numpy(b))
    level, beam = air.level, 0.5 * (air.left + air.right)
    alike = abs(float(np.median(air.left) - np.median(air.right))) < max(noise, 0.2 * abs(level))
    if "air" in off:
        return b, []
    means, drift = b.mean(1), spread(beam)
    explained = drift > 2 * spread(air.left - air.right) and spread(means - beam) < 0.5 * spread(means)
    if explained and drift > max(noise, 0.003 * abs(top)) and abs(level) < max(3 * drift, 0.05 * abs(top)):
        text = f"the brightness of the beam differs between views by {drift:.2g} (rms); air is zero in each now"
        return b - beam[:, None].astype(np.float32), [Finding("air", text, True)]
    steady = max(spread(side) for side in air) < max(noise, 0.1 * abs(level))
    half = max(2, round(EDGE / 2 * b.shape[1]))
    slopes = [
        float(np.median(b[:, :half] - b[:, half : 2 * half])),
        float(np.median(b[:, -half:] - b[:, -2 * half : -half])),
    ]
    chance = 3 * math.sqrt(2 / half) * _stripe_size(b)
    steady &= max(np.abs(slopes)) < max(noise, 0.05 * abs(level), chance)  # round objects beyond are steady, too
    if not (steady and alike) or abs(level) < max(noise, 0.003 * abs(top)):
        return b, []
    return b - np.float32(level), [
        Finding("air", f"air is at {level:.3g} instead of zero; this is subtracted from all rays", True)
    ]


def _stripe_size(b: NDArray[Any]) -> float:
    """How far detectors differ from the mean of their neighbours in all views, as if each had an offset of its own."""
    profile = np.median(b, axis=0)
    return _size(np.diff(profile, 2)) / math.sqrt(6)


class _Rough(NamedTuple):
    """A smooth image of half the resolution and what it leaves of the sinogram."""

    image: Tensor
    residual: NDArray[np.float32]


def rough_image(values: NDArray[np.float32], weights: NDArray[np.float32], survey: Survey) -> _Rough:
    """Solve coarsely with a strong prior, which follows no single detector."""
    detectors = values.shape[1]
    make = Radon if survey.geometry is None else survey.geometry.projector
    radon = make(math.ceil(detectors * survey.width / 2), np.deg2rad(survey.angles), detectors, 0.5, survey.center)
    known = torch.from_numpy(filled(np.where(weights > 0, values, np.nan)).astype(np.float32))
    images = BackProjections(radon, known)
    scale = float(np.quantile(np.abs(images[1.0].numpy()), 0.999))
    images.divide(scale)
    loss = Tomography(radon, images.rows, torch.from_numpy(weights), sampling=stride)
    prior, noise = find_prior("ridge-ct", "cpu", (-math.inf, math.inf)), noise_level(images.rows)
    rho = ROUGH_STRENGTH * posterior_weight(loss, noise, prior.sigma)
    first = images[ROUGH_CUT]  # rings are weak in it
    solver = tomography(loss, prior.prox(rho), rho)
    done = run(solver, first, Stop(iterations=ROUGH_STEPS), every=ROUGH_STEPS, objective=False, progress=False)
    air = images.rows.abs() < NOTHING * min(noise, sinogram_noise(images.rows.T))  # stripes are no noise along views
    empty = radon.adjoint(air.float()) > AIR * radon.adjoint(torch.ones_like(known))
    image = (done.x * scale).masked_fill(empty, 0)  # else wrong rays beside the object become objects in the corners
    return _Rough(image, values - radon(image).numpy())


def _rounds(
    values: NDArray[np.float32], weights: NDArray[np.float32], survey: Survey, off: frozenset[str]
) -> tuple[NDArray[np.float32], Survey, bool, Deviations, list[Finding]]:
    """Find wrong detectors, rays and views in what a smooth image leaves; `weights` is changed in place.

    Returns the repaired sinogram, the survey with its axis again, whether the image has values below zero, how far
    detectors deviate, and what was found.
    """
    deviations = NO_DEVIATIONS
    rough, taken, trusted = None, np.zeros_like(values), weights.copy()  # the latter without dead detectors
    dead, lost, wrong = np.zeros(values.shape[1], bool), np.zeros(len(values), bool), 0
    suspects = _suspects(values) if "detectors" not in off else dead
    weights[:, suspects] = 0
    apart = _apart_from_neighbours(values)
    for number in range(ROUNDS):
        rough = rough_image(values, weights, survey)
        e = rough.residual
        columns = _columns(e, trusted)  # a detector may turn out to be good after all
        usual = float(np.median(columns.spread[columns.spread > 0])) if columns.spread.any() else 0.0
        if usual == 0:
            break
        if "detectors" not in off:
            dead = _stands_out(columns, usual, alone=number > 0 or bool(suspects.any())) & apart
            dead |= suspects & _unexplained(columns, values, usual)
            weights[:] = np.where(dead, 0, trusted)
        if "views" not in off:
            misfit = 1.4826 * np.median(np.abs((e - columns.jump)[:, ~dead]), axis=1)
            around = np.pad(misfit, BESIDE, mode="reflect")  # ends of limited angles fit worse, one after the other
            beside = np.median(np.lib.stride_tricks.sliding_window_view(around, 2 * BESIDE + 1), axis=-1)
            lost |= misfit > np.maximum(LOST * np.median(misfit), 2 * beside)
            weights[lost] = trusted[lost] = 0
        if "rays" not in off and _step(survey.angles) < SPARSE_VIEWS:
            out = _outstanding(e - columns.jump, values, weights > 0, _travel(survey.angles, values.shape[1]))
            weights[out] = trusted[out] = 0
            wrong += int(out.sum())
        gross = bool(dead.any() or lost.any() or wrong)
        if "stripes" not in off and (number > 0 or not gross):  # gross errors look like stripes at first
            changed = _changed(e, weights, usual)
            taken, values, e = taken + changed, values - changed, e - changed
            stripes, found = _stripes(e, values - e, weights, usual, survey.angles)
            taken, values, deviations = taken + stripes, values - stripes, deviations.largest(found)
        if not (gross or taken.any()):
            break
        survey = _again(survey, values, weights, taken)
    assert rough is not None
    low, high = np.quantile(rough.image.numpy(), (0.02, 0.999))
    limited = any(finding.kind in ("range", "width") for finding in survey.findings)  # such images have dark shadows
    negative = bool("negative" not in off and not limited and low < -0.1 * high)
    return values, survey, negative, deviations, _told(dead, lost, wrong, taken, negative)


def _again(
    survey: Survey, values: NDArray[np.float32], weights: NDArray[np.float32], taken: NDArray[np.float32]
) -> Survey:
    """The axis by a sine fit to repaired data; offsets of detectors move all centres of mass alike."""
    if not survey.sought:
        return survey
    rows = filled(np.where(weights > 0, values, np.nan).astype(np.float64))
    axis = refined(sine_fit(rows, survey.angles), rows, survey.angles)
    if axis.left > GOOD_FIT:
        return survey
    offsets = taken.mean(0)
    t = np.arange(len(offsets)) - (len(offsets) - 1) / 2
    moved = float(np.sqrt((offsets**2).mean() * (t**2).sum()) / abs(np.median(rows.sum(1))))
    axis = axis._replace(error=math.hypot(axis.error, moved, _moved(rows, (weights == 0).all(0))))
    center, found = _axis_used(axis, True)
    kept = tuple(f for f in survey.findings if f.kind != "axis")
    return replace(survey, center=center, center_error=axis.error, findings=(*kept, *found))


def _told(
    dead: NDArray[np.bool_], lost: NDArray[np.bool_], wrong: int, taken: NDArray[np.float32], negative: bool
) -> list[Finding]:
    findings = []
    if dead.any():
        findings.append(Finding("detectors", f"{_numbered('detector', dead)} dead or hot and given no weight", True))
    if lost.any():
        findings.append(Finding("views", f"{_numbered('view', lost)} not like the others and given no weight", True))
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


def _numbered(word: str, which: NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(which)
    listed = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"{word} {listed} is" if len(numbers) == 1 else f"{len(numbers)} {word}s ({listed}) are"


class _Columns(NamedTuple):
    """Per detector: how far its residuals jump off its neighbours', their spread, and that of the worst views."""

    jump: NDArray[np.float32]
    spread: NDArray[np.float32]
    tail: NDArray[np.float32]


def _columns(e: NDArray[np.float32], weights: NDArray[np.float32]) -> _Columns:
    """By medians, and a quantile that rays without weight do not raise."""
    known = np.where(weights > 0, e, np.nan)
    known[:, (weights == 0).all(0)] = 0
    offset = np.nanmedian(known, axis=0)
    off = np.abs(known - offset)
    spreads, tail = 1.4826 * np.nanmedian(off, axis=0), np.quantile(np.nan_to_num(off), WORST, axis=0)
    jump = offset - running_median(offset, WINDOW)
    return _Columns(jump.astype(np.float32), spreads.astype(np.float32), tail.astype(np.float32))


def stuck(b: NDArray[Any]) -> NDArray[np.bool_]:
    """Detectors that stay at one value where those around them change.

    Up to six may lie side by side; more, if they do not change at all, or no ray of them is a number.
    """
    values = np.where(np.isfinite(b), b, 0).astype(np.float64)
    changes = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    around = running_median(changes, STUCK_WINDOW)
    beside = np.lib.stride_tricks.sliding_window_view(np.pad(changes, BLOCK, mode="edge"), BLOCK).max(-1)
    between = np.minimum(beside[: len(changes)], beside[-len(changes) :])  # an edge of the object has one such side
    found: NDArray[np.bool_] = (changes < STUCK * around) | (changes < STILL * between)
    found &= between > 1e-3 * np.sqrt((values**2).mean())
    return found


def _suspects(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Detectors that differ from the mean of their neighbours by far more than others do, and those neighbours."""
    bent = np.median(np.abs(values[:, 1:-1] - (values[:, :-2] + values[:, 2:]) / 2), axis=0)
    bent = np.pad(bent, 1, mode="edge")
    found: NDArray[np.bool_] = bent > BENT * np.maximum(running_median(bent, WINDOW), np.median(bent))
    return found


def _apart_from_neighbours(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Detectors that may err alone: second differences are largest at them, and opposite at both neighbours.

    At the edge of a round object in the middle, which stays at one detector, they are not.
    """
    bent = np.pad(values[:, 1:-1] - (values[:, :-2] + values[:, 2:]) / 2, ((0, 0), (2, 2)))
    own = bent[:, 1:-1]
    energy = (bent**2).sum(0)
    opposed = [(own * side).sum(0) < -OPPOSED * energy[1:-1] for side in (bent[:, :-2], bent[:, 2:])]
    found: NDArray[np.bool_] = opposed[0] & opposed[1] & (energy[1:-1] >= np.maximum(energy[:-2], energy[2:]))
    found[[0, 1, -2, -1]] = True  # they have no two neighbours
    return found


def _stands_out(columns: _Columns, usual: float, alone: bool) -> NDArray[np.bool_]:
    """Detectors that spread or jump more than those around them; where all jump, they are stripes.

    A dead detector first disturbs its neighbours. Without weight it stands `alone`; an edge of the object does not.
    """
    around = np.maximum(running_median(columns.spread, 7), usual)
    jump = np.abs(columns.jump) / (OFF * np.maximum(around, _size(columns.jump)))
    worst = columns.tail / (TAILS * np.maximum(running_median(columns.tail, 7), np.median(columns.tail)))
    size = np.maximum(np.maximum(columns.spread / (SPREADS * around), jump), worst)
    largest = np.lib.stride_tricks.sliding_window_view(np.pad(size, 3, mode="edge"), 7).max(-1)
    found: NDArray[np.bool_] = (size > 1) & (size >= 0.8 * largest)
    if alone:
        beside = np.pad(np.where(found, 0, size), 1)
        crowded = np.pad(found & (np.maximum(beside[:-2], beside[2:]) >= ALONE * size), 1)
        found &= ~(crowded[:-2] | crowded[1:-1] | crowded[2:])
    return found


def _unexplained(columns: _Columns, values: NDArray[np.float32], usual: float) -> NDArray[np.bool_]:
    """Three or more side by side whose values are no part of any image: what is left of them spreads as far as they."""
    around = np.maximum(running_median(columns.spread, 2 * BLOCK + 1), usual)
    changes = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    wild = (columns.spread > SPREADS * around) & (columns.spread > NO_PART * changes)
    runs = np.asarray(np.lib.stride_tricks.sliding_window_view(np.pad(wild, 2), 3).all(-1))
    found: NDArray[np.bool_] = runs[:-2] | runs[1:-1] | runs[2:]
    return found


def _stripes(
    e: NDArray[np.float32], projected: NDArray[np.float32], weights: NDArray[np.float32], usual: float, degrees: Array
) -> tuple[NDArray[np.float32], Deviations]:
    """What detectors add to their rays, by offsets and gains; zero where that is no more than images leave.

    Stripes are everywhere, and the same in all views. What the image leaves sits at its edges, and differs between the
    first views and the last, or between views along and across.
    """
    nothing, inside = np.zeros_like(e), np.asarray((weights > 0).any(0))
    outer = max(1, round(OUTER * len(inside)))
    inside[:outer] = inside[-outer:] = False
    early, along = np.arange(len(e)) < len(e) / 2, np.abs(np.cos(np.deg2rad(degrees))) > math.sqrt(0.5)
    parts = [part for part in (early, ~early, along, ~along) if part.any()]
    if inside.sum() < WINDOW or len(parts) < 4:
        return nothing, NO_DEVIATIONS
    profiles = [_clipped(_columns(e[part], weights[part]).jump[inside]) for part in parts]
    columns, means = _columns(e, weights), projected.mean(0)
    jump = np.where(inside, columns.jump, 0)
    lasting = min(_correlation(*profiles[:2]), _correlation(*profiles[2:])) > LASTING
    least = max(STRIPED, 3 * 1.25 / math.sqrt(len(e)))  # more than chance
    shaded = inside & (means > SHADED * np.quantile(means, 0.9))  # gains add nothing to air
    large = _size(jump[inside]) > least * usual
    if shaded.any():
        large |= _size(jump[shaded]) > least * float(np.median(columns.spread[shaded]))
    if not (lasting and large):
        return nothing, NO_DEVIATIONS
    found = likeliest(jump[inside], means[inside], least * usual)
    return jump * found.shared(projected), found


def _changed(e: NDArray[np.float32], weights: NDArray[np.float32], usual: float) -> NDArray[np.float32]:
    """What detectors add in the second half of the scan beyond the first; zero unless both its quarters say so.

    What the image leaves differs between quarters, which see it from other sides.
    """
    quarter, outer = np.arange(len(e)) * 4 // len(e), max(1, round(OUTER * e.shape[1]))
    inside = np.asarray((weights > 0).any(0))
    inside[:outer] = inside[-outer:] = False
    first, second, third, fourth = (_columns(e[quarter == k], weights[quarter == k]).jump for k in range(4))
    change, least = (third + fourth - first - second) / 2, max(STRIPED, 6 * 1.25 / math.sqrt(len(e))) * usual
    later, inside = quarter[:, None] >= 2, inside & np.isfinite(change)
    alike = _correlation(_clipped((third - first)[inside]), _clipped((fourth - second)[inside])) > LASTING
    if inside.sum() < WINDOW or not alike or _size(change[inside]) < least:
        return np.zeros_like(e)
    return np.where(later & inside, change, 0).astype(np.float32)


def _size(values: NDArray[Any]) -> float:
    """What is usual, not what is extreme."""
    return float(1.4826 * np.median(np.abs(values)))


def _clipped(values: NDArray[np.float32]) -> NDArray[np.float32]:
    limit = 3 * _size(values)
    clipped: NDArray[np.float32] = np.clip(values, -limit, limit)
    return clipped


def _correlation(one: NDArray[np.float32], two: NDArray[np.float32]) -> float:
    return float(np.corrcoef(one, two)[0, 1]) if one.any() and two.any() else 0.0


def _step(degrees: Array) -> float:
    """Degrees from one view to the next."""
    return float(np.median(np.diff(np.sort(degrees))))


def _travel(degrees: Array, detectors: int) -> int:
    """How many detectors the trace of a point can move from one view to the next, at most."""
    return math.ceil(math.radians(_step(degrees)) * detectors / 2) + 2


def _outstanding(
    e: NDArray[np.float32], values: NDArray[np.float32], known: NDArray[np.bool_], travel: int
) -> NDArray[np.bool_]:
    """Rays that stand out of what is around them, in the residual and the data.

    A small object does so in the next views, too; and an edge that the image blurs does not in the data.
    """
    usual = 1.4826 * float(np.median(np.abs(e[known])))
    out = np.zeros(e.shape, bool)
    for i, j in np.argwhere((np.abs(e) > 10 * usual) & known):
        around = e[max(0, i - 3) : i + 4, max(0, j - 4) : j + 5]
        middle = float(np.median(around))
        size, width = abs(e[i, j] - middle), 1.4826 * float(np.median(np.abs(around - middle)))
        rows = [n for n in (i - 1, i + 1) if 0 <= n < len(e)]
        beside = [_second(np.abs(e[n, max(0, j - travel) : j + travel + 1] - middle)) for n in rows]
        own = abs(values[i, j] - np.median(values[max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]))
        out[i, j] = size > OUTSTANDING * max(width, usual) and size > 3 * max(beside) and own > 0.5 * size
    return out


def _second(values: NDArray[np.float32]) -> float:
    """The second largest: another wrong ray may lie there."""
    return float(np.sort(values)[-2])


# --- noise ------------------------------------------------------------------------------------------------------------


def _noise_law(
    b: NDArray[np.float32], weights: NDArray[np.float32], off: frozenset[str]
) -> tuple[float, NDArray[np.float32] | None]:
    """The noise of the best rays, and 1/variance of each in units of theirs, log-linear in the value, if it varies."""
    noise = sinogram_noise(torch.from_numpy(b))
    if "noise" in off or b.shape[1] < 32:
        return noise, None
    order = 6
    d = np.abs(np.diff(b, n=order, axis=1)) / (math.sqrt(math.comb(2 * order, order)) * 0.3186)  # a quarter is below
    windows = np.lib.stride_tricks.sliding_window_view(b, order + 1, axis=1)
    known = np.lib.stride_tricks.sliding_window_view(weights, order + 1, axis=1).min(-1) > 0
    value, size = windows.mean(-1)[known], d[known]
    cuts = np.quantile(value, np.linspace(0, 1, 13))
    which = np.clip(np.searchsorted(cuts, value, side="right") - 1, 0, 11)
    centers = np.array([value[which == n].mean() if (which == n).any() else np.nan for n in range(12)])
    levels = np.array([np.quantile(size[which == n], 0.25) if (which == n).any() else np.nan for n in range(12)])
    good = np.isfinite(centers) & (levels > 0)
    if good.sum() < 6:
        return noise, None
    logs = 2 * np.log(levels[good])
    slope, start = np.polyfit(centers[good], logs, 1)
    straight = 1 - np.var(logs - start - slope * centers[good]) / max(float(np.var(logs)), 1e-12)
    low, high, top = (float(q) for q in np.quantile(value, (0.05, 0.95, 0.999)))
    if slope <= 0 or straight < STRAIGHT or slope * (high - low) < math.log(UNEQUAL):
        return noise, None
    smooth = np.stack([np.convolve(row, np.ones(5) / 5, mode="same") for row in b])
    best = math.exp(0.5 * (start + slope * low))
    law = np.exp(-slope * (np.clip(smooth, low, top) - low))
    return best, law.astype(np.float32)


def running_median(values: Any, window: int) -> Any:
    """The median of `window` neighbours, the ends repeated."""
    half = min(window, len(values)) // 2
    padded = np.pad(values, half, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=-1).astype(values.dtype)


def filled(b: Array) -> Array:
    """Rays that are not finite are filled in from their neighbours in the view, whole views from neighbouring views."""
    bad = ~np.isfinite(b)
    if not bad.any():
        return b
    out, places = b.copy(), np.arange(b.shape[1])
    whole = bad.all(1)
    for i in np.flatnonzero(bad.any(1) & ~whole):
        out[i, bad[i]] = np.interp(places[bad[i]], places[~bad[i]], b[i, ~bad[i]])
    if whole.all():
        raise ValueError("the sinogram has no finite values; there is nothing to reconstruct")
    views = np.flatnonzero(~whole)
    for i in np.flatnonzero(whole):
        after = np.searchsorted(views, i)
        near = views[max(0, after - 1) : after + 1]
        share = np.abs(near - i).astype(float)
        out[i] = np.average(out[near], axis=0, weights=1 / share)
    filled_in: Array = out
    return filled_in
