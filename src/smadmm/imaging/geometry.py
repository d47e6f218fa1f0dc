"""What the views of a scan say about its geometry: the axis of rotation, the angles, what lies outside.

The mass of a view, sum_j b_ij, is the same for all views, and its centre runs on a sine,
    m_i = sum_j t_j b_ij / sum_j b_ij = center + u cos(a_i) + v sin(a_i),   t_j = j - (detectors - 1)/2,
if no mass lies outside the view and air is zero. A robust fit gives the axis with its standard error. Where the fit
leaves more than noise would (scatter, drift, truncation), the axis is the one for which a few conjugate gradient steps
on every second view predict the others best. With few views all axes predict alike: the fit is kept where masses agree.
Half a turn of equal steps then says more: with the right axis, frequencies that no object has hold noise alone.

Centres of mass of a fan are no sine. But its ray (theta, gamma) is also (theta + pi - 2 gamma, -gamma), backwards, so
the axis is the one for which such pairs agree best. Where few lines are seen twice it is not found: predicted views
change by a few per cent per detector there, which tells nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.operators.fan import FanGeometry
from smadmm.operators.radon import Radon
from smadmm.operators.radon.projector import Projector
from smadmm.xsteps import conjugate_gradients

Array = NDArray[np.float64]

EDGE = 0.03  # share of the detectors that is taken as the edge on each side
GOOD_FIT = 0.15  # detectors: a sine fit that leaves less needs no second opinion
ACCEPTED = 0.5  # detectors: the largest standard error of an axis that is used
COARSE = (320, 180)  # detectors and views of the second opinion
AGREEMENT = 3.0  # detectors: how far the second opinion looks around a sine fit that is accepted
STEADY = (0.05, 0.01, 0.005)  # of the mass and its moments, in units of mass and half the detector
CGLS_STEPS = 10
PREDICTED_ERROR, MANY_VIEWS = 0.25, 60  # detectors: the standard error of an axis by predicted views; more with fewer
NEAR, NEAR_ERROR = 1.0, 0.06  # detectors: how far to look around an axis that is near, and the error then
PAIRED = 0.1  # share of rays that must be seen twice to compare them
PAIRED_ERROR = 0.025  # detectors: the standard error of an axis found that way
WEDGE, FEWEST_BINS = 0.75, 250  # of the wedge of empty frequencies: the share that is used, and the fewest
REFINING = (1.0, 0.15)  # detectors: the steps of a search in the wedge
WEDGE_ERROR, SURE = 0.05, 0.15  # detectors: the error of an axis if energies double within one; and the largest
COMPARED = 90  # views whose rays are compared
SMOOTH, ASIDE = 7, (4, 12)  # detectors, and the fewest and most views at each side, to compare views
NO_STEP, RARE = 0.35, 0.05  # of a usual step, if that seldom happens: the first view comes again
CLOSES, TURNS = 0.95, 0.5  # of that error: an end point that is included, views that turn the other way


class Axis(NamedTuple):
    """The axis of rotation in detectors off the middle, its standard error, and what the sine fit leaves."""

    center: float
    error: float
    left: float


class Air(NamedTuple):
    """The mean of the edges of every view, left and right."""

    left: Array
    right: Array

    @property
    def level(self) -> float:
        return float(np.median(self.left + self.right) / 2)


def spread(values: Array) -> float:
    """A robust standard deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def air_of(b: Array) -> Air:
    """The edges of the views, by medians."""
    k = max(3, round(EDGE * b.shape[1]))
    return Air(np.median(b[:, :k], axis=1), np.median(b[:, -k:], axis=1))


def sine_fit(b: Array, degrees: Array) -> Axis:
    """The axis by the centres of mass, after a straight line through both edges is taken off every view."""
    detectors = b.shape[1]
    t, air, a = np.arange(detectors) - (detectors - 1) / 2, air_of(b), np.deg2rad(degrees)
    p = b - (air.left[:, None] + (air.right - air.left)[:, None] * np.linspace(0, 1, detectors))
    mass = p.sum(1)
    usual = np.median(mass)
    used = np.abs(mass - usual) < 0.5 * abs(usual)
    if used.sum() < 6:
        return Axis(0.0, math.inf, math.inf)
    m, columns = (p[used] @ t) / mass[used], np.stack([np.ones_like(a), np.cos(a), np.sin(a)], axis=1)[used]
    weight = np.ones(len(m))
    for _ in range(20):  # Huber's weights
        root = np.sqrt(weight)
        fit = np.linalg.lstsq(columns * root[:, None], m * root, rcond=None)[0]
        rest = m - columns @ fit
        left = spread(rest) + 1e-9
        weight = np.minimum(1, 1.5 * left / np.maximum(np.abs(rest), 1e-12))
    normal = (columns * weight[:, None]).T @ columns
    if np.linalg.cond(normal) > 1e6:  # a range of few degrees
        return Axis(0.0, math.inf, math.inf)
    return Axis(float(fit[0]), left * math.sqrt(np.linalg.inv(normal)[0, 0]), left)


def is_steady(b: Array, degrees: Array) -> bool:
    """Whether views agree as projections of one object at these angles must: in mass, and in its first two moments.

    Moments of order n are trigonometric polynomials of order n in the angle. What a fit leaves is compared with the
    size of the object.
    """
    detectors, a, air = b.shape[1], np.deg2rad(degrees), air_of(b)
    t = (np.arange(detectors) - (detectors - 1) / 2) / (detectors / 2)
    p = b - 0.5 * (air.left + air.right)[:, None]
    mass = p.sum(1)
    if len(b) < 8 or not np.median(mass) > 0:
        return False
    constant, first = np.ones_like(a), [np.cos(a), np.sin(a)]
    for order, columns in enumerate(([constant], [constant, *first], [constant, *first, np.cos(2 * a), np.sin(2 * a)])):
        moment = (p @ t**order) / np.median(mass)
        basis = np.stack(columns, axis=1)
        left = moment - basis @ np.linalg.lstsq(basis, moment, rcond=None)[0]
        if spread(left) > STEADY[order]:
            return False
    return True


def find_axis(b: Array, degrees: Array) -> Axis:
    """The axis of rotation by the sine fit and, where that leaves too much, by predicted views; then by the wedge."""
    return refined(_first_axis(b, degrees), b, degrees)


def _first_axis(b: Array, degrees: Array) -> Axis:
    fitted = sine_fit(b, degrees)
    if fitted.left < GOOD_FIT and fitted.error < GOOD_FIT:
        return fitted
    limit, near = 0.1 * b.shape[1], fitted.error < ACCEPTED and abs(fitted.center) < b.shape[1] / 3
    if near:
        places = fitted.center + np.linspace(-AGREEMENT, AGREEMENT, 13)
    else:
        rough = np.linspace(-limit, limit, 25)
        first = [prediction_error(b, degrees, c, (96, 90)) for c in rough]
        places = rough[int(np.argmin(first))] + np.linspace(-1, 1, 9) * (rough[1] - rough[0])
    errors = np.array([prediction_error(b, degrees, c, COARSE) for c in places])
    center = _valley(places, errors)
    if errors.max() < 1.01 * errors.min():  # a flat valley tells nothing; a fit to steady views errs less than one does
        return fitted._replace(error=max(fitted.error, fitted.left) if near and is_steady(b, degrees) else math.inf)
    if center is None:
        return fitted._replace(error=math.inf)
    return Axis(center, PREDICTED_ERROR * max(1.0, MANY_VIEWS / len(b)), fitted.left)


def refined(axis: Axis, b: Array, degrees: Array) -> Axis:
    """Where frequencies that no object has are weakest: with a wrong axis they grow as the square of its error.

    Offsets of detectors move all centres of mass alike, and are not among those frequencies: where both disagree, the
    centres of mass are wrong; else the surer one is taken.
    """
    if axis.error > ACCEPTED or len(b) < MANY_VIEWS or not _is_even_turn(np.sort(degrees), 180):
        return axis  # in a whole turn the wedge stays empty
    around = axis.center
    for step in REFINING:
        places = around + step * np.arange(-4, 5)
        energies = np.array([wedge_noise(b, degrees, c) ** 2 for c in places])
        best = int(np.argmin(energies))
        if math.isinf(energies.max()) or best in (0, 8):
            return axis
        around = float(places[best])
    bend, slope, _ = np.polyfit(places - around, energies, 2)
    error = WEDGE_ERROR * float(energies.min()) / max(bend, 1e-30)
    center = around - slope / (2 * bend)
    agree = abs(center - axis.center) < 3 * math.hypot(error, axis.error)
    if error > SURE or (agree and axis.error < error):
        return axis
    return Axis(center, error, axis.left)


def with_predicted(axis: Axis, b: Array, degrees: Array) -> Axis:
    """An axis that is near, and the one that predicts every second view best, weighed by their errors."""
    error = NEAR_ERROR * max(1.0, MANY_VIEWS / len(b))
    if not error < axis.error < math.inf:
        return axis
    off = NEAR * np.linspace(-1, 1, 5)
    bend, slope, _ = np.polyfit(off, [prediction_error(b, degrees, axis.center + x, COARSE) ** 2 for x in off], 2)
    if bend <= 0 or abs(slope) > 2 * bend * NEAR:
        return axis
    share = axis.error**2 / (axis.error**2 + error**2)
    return axis._replace(center=axis.center - share * slope / (2 * bend), error=error * math.sqrt(share))


def _valley(places: Array, errors: Array) -> float | None:
    """Where a curve of fourth order through the errors is lowest, inside; single dips come from interpolation."""
    x, weight = (places - places.mean()) / (places[-1] - places[0]), np.ones(len(places))
    for _ in range(10):
        curve = np.polynomial.Polynomial.fit(x, errors, 4, domain=[-0.5, 0.5], w=weight)
        rest = np.abs(errors - curve(x))
        weight = np.minimum(1, np.median(rest) / np.maximum(rest, 1e-12))
    fine = np.linspace(-0.5, 0.5, 1001)
    best = int(np.argmin(curve(fine)))
    return None if best in (0, 1000) else float(places.mean() + fine[best] * (places[-1] - places[0]))


def fan_axis(b: Array, degrees: Array, geometry: FanGeometry) -> Axis:
    """The axis of a fan by its opposite rays; not found where too few lines are seen twice."""
    limit = 0.1 * b.shape[1]
    rough = np.linspace(-limit, limit, 41)
    first = [opposite_error(b, degrees, c, geometry) for c in rough]
    places = rough[int(np.argmin(first))] + np.linspace(-1, 1, 13) * (rough[1] - rough[0])
    errors = np.array([opposite_error(b, degrees, c, geometry) for c in places])
    center = _valley(places, errors) if np.isfinite(errors).all() else None
    if center is None or errors.max() / errors.min() - 1 < 0.01:  # a flat valley tells nothing
        return Axis(0.0, math.inf, math.inf)
    return Axis(center, PAIRED_ERROR, 0.0)


def fits_better(b: Array, other: Array, degrees: Array, geometry: FanGeometry, margin: float) -> bool:
    """Whether opposite rays of a fan agree better, by the factor `margin`, with other angles, each with its axis."""

    def error(angles: Array) -> float:
        return opposite_error(b, angles, fan_axis(b, angles, geometry).center, geometry)

    return error(other) < margin * error(degrees)


def opposite_error(b: Array, degrees: Array, center: float, geometry: FanGeometry) -> float:
    """How far rays are from those that see the same lines backwards; inf where too few are.

    Both are interpolated at places that mirror each other, in smooth views, so that places between detectors are not
    preferred.
    """
    order, n = np.argsort(degrees % 360), b.shape[1]
    turn, smooth = np.deg2rad(degrees[order] % 360), b[order]
    for _ in range(4):
        smooth[:, 1:-1] = 0.25 * (smooth[:, :-2] + smooth[:, 2:]) + 0.5 * smooth[:, 1:-1]
    views = np.unique(np.linspace(0, len(b) - 1, min(len(b), COMPARED)).astype(np.int64))
    middle = (n - 1) / 2 + center
    u = np.arange(1 - n, n) + (n - 1) % 2 / 2
    u = u[(np.minimum(middle + u, middle - u) >= 0) & (np.maximum(middle + u, middle - u) <= n - 1)]
    gamma = geometry.projector(2, [0.0], n, centre=center).gamma_of(u)
    angle = (turn[views][:, None] + math.pi - 2 * gamma) % (2 * math.pi)
    after = np.searchsorted(turn, angle)
    before, after = (after - 1) % len(turn), after % len(turn)
    gap = (turn[after] - turn[before]) % (2 * math.pi)
    known = gap < 3 * np.median(np.diff(turn))
    if known.mean() < PAIRED or not len(u):
        return math.inf
    share = ((angle - turn[before]) % (2 * math.pi)) / np.maximum(gap, 1e-12)

    def at(rows: NDArray[np.int64], places: Array) -> Array:
        left = np.minimum(places.astype(np.int64), n - 2)
        values: Array = smooth[rows, left] + (places - left) * (smooth[rows, left + 1] - smooth[rows, left])
        return values

    here, there = at(views[:, None], middle + u), [at(rows, middle - u) for rows in (before, after)]
    apart = (here - (1 - share) * there[0] - share * there[1])[known]
    return float((apart**2).mean() / (here[known] ** 2).mean())


def prediction_error(b: Array, degrees: Array, center: float, most: tuple[int, int]) -> float:
    """How badly every second view is predicted from the others, at a coarse resolution."""
    k = max(1, b.shape[1] // most[0])
    width = b.shape[1] // k * k
    views = np.unique(np.linspace(0, len(b) - 1, min(len(b), most[1])).round().astype(np.int64))
    rows = torch.from_numpy(b[views, :width].reshape(len(views), -1, k).mean(2).astype(np.float32))
    middle, a = (center + (b.shape[1] - width) / 2) / k, np.deg2rad(degrees[views])
    side = round(1.4 * rows.shape[1])  # something may lie outside the view
    seen, left_out = (Radon(side, a[n::2], rows.shape[1], 1.0, middle) for n in (0, 1))
    image = cgls(seen, rows[::2], CGLS_STEPS)
    return float((left_out(image) - rows[1::2]).norm() / rows.norm())


def wedge_noise(b: Array, degrees: Array, center: float) -> float:
    """The noise by frequencies that no object has: inf where views are not equispaced over a turn or half of it.

    An object of radius R around the axis has no part with |omega| R < |n|, n in cycles per turn and omega in radians
    per detector (Lindgren and Rattey). Unlike differences along the detector it does not take texture for noise.
    """
    order = np.argsort(degrees)
    n, off, half = len(b), round(2 * center), _is_even_turn(degrees[order], 180)
    rows = b[order, off:] if off > 0 else b[order, : b.shape[1] + off]  # the axis is in their middle, up to a quarter
    detectors = rows.shape[1]
    if detectors < 16 or not (half or _is_even_turn(degrees[order], 360)):
        return math.inf
    window, frequency = np.hanning(detectors + 2)[1:-1], np.fft.fftfreq(detectors)
    turn = np.fft.fft((np.concatenate([rows, rows[:, ::-1]]) if half else rows) * window, axis=1)
    turn[n:] *= np.exp(-2j * np.pi * frequency * (2 * center - off))
    f = np.fft.fft(turn, axis=0) / math.sqrt(len(turn) * (window**2).sum())
    cycles = np.abs(np.fft.fftfreq(len(turn), 1 / len(turn)))
    empty = np.pi * np.abs(frequency) * detectors < WEDGE * cycles[:, None] - 3
    empty[:, np.abs(frequency) * detectors < 2.5] = False  # views that differ in air or brightness
    return math.inf if empty.sum() < FEWEST_BINS else float(np.sqrt(np.median(np.abs(f[empty]) ** 2) / math.log(2)))


def _is_even_turn(degrees: Array, span: float) -> bool:
    """Whether sorted angles go over the span in equal steps, without its end."""
    return np.allclose(np.diff(degrees), span / len(degrees), rtol=1e-3)


def cgls(radon: Projector, rows: torch.Tensor, steps: int, weights: torch.Tensor | None = None) -> torch.Tensor:
    """A few conjugate gradient steps for |A x - b|^2_W from zero: least squares, stopped early."""
    w = torch.ones_like(rows) if weights is None else weights
    return conjugate_gradients(lambda p: radon.adjoint(w * radon(p)), radon.adjoint(w * rows), steps)


def ends_twice(b: Array, span: float, center: float) -> bool | None:
    """Whether the last view repeats the first, in a range of angles that includes its end point; None: it is not clear.

    After half a turn a parallel view is its own mirror image, so views go on mirrored. In a whole turn of n views, the
    number of views after which all of them come back mirrored is n/2 without the end point and (n - 1)/2 with it.
    """
    turns, n = round(span / 180), len(b)
    if abs(span - 180 * turns) > 1e-6 or turns not in (1, 2) or n < 12:
        return None
    smooth = _smooth(b)
    smooth /= np.maximum(np.abs(smooth.sum(1, keepdims=True)), 1e-30)
    t = np.arange(b.shape[1]) - (b.shape[1] - 1) / 2 - center
    mirrored = np.stack([np.interp(-t, t, row) for row in smooth])
    if turns == 1:
        return _repeats(smooth, mirrored)
    after = np.arange(n // 2 - 3, n // 2 + 4)
    views = np.arange(n - int(after[-1]))
    errors = [np.median([_apart(mirrored[i], smooth[i + k]) ** 2 for i in views]) for k in after]
    bend, slope, _ = np.polyfit(after - n / 2, errors, 2)
    return bool(-slope / (2 * bend) < -0.25) if bend > 0 else None


def _smooth(b: Array) -> Array:
    window = np.ones(SMOOTH) / SMOOTH
    return np.stack([np.convolve(row, window, mode="same") for row in b])


def _repeats(views: Array, following: Array) -> bool | None:
    """Whether no step lies between the last view and the one that follows, rather than one; None: noise hides it."""
    n, detectors = views.shape
    m = int(np.clip(round(4 * SMOOTH * n / (math.pi * detectors)), *ASIDE))  # views in which the rim moves far
    places = [p for p in (*range(m, 4 * m), *range(n - 4 * m, n - m)) if m <= p <= n - m]
    steps = np.array([_step_between(views[p - m : p], views[p : p + m]) for p in places])
    usual, last = float(np.median(steps)) if places else 0.0, _step_between(views[-m:], following[:m])
    rarely = [float((np.abs(steps) <= size).mean()) < RARE for size in (max(abs(last), 0.1 * usual), usual / 2)]
    if usual > 0 and abs(last) < NO_STEP * usual and rarely[0]:
        return True
    return False if usual > 0 and last > (1 - NO_STEP) * usual and rarely[1] else None


def _step_between(before: Array, after: Array) -> float:
    """How many steps lie between the last view and the next, by what steps change before and after; shifts are free."""
    change = (before[-2] - before[0] + after[-1] - after[1]) / (2 * (len(before) - 2))
    gap, shift = after[0] - before[-1], np.gradient((after[0] + before[-1]) / 2)
    usual = np.abs(gap) <= np.quantile(np.abs(gap), 0.97)  # without wrong rays
    steps: Array = np.linalg.lstsq(np.stack([change, shift], 1)[usual], gap[usual], rcond=None)[0]
    return float(steps[0])


def _apart(one: Array, two: Array) -> float:
    """The root mean square difference of two views without the largest twentieth, where detectors may be dead."""
    differences = np.sort(np.abs(one - two))
    return float(np.sqrt((differences[: math.ceil(0.95 * len(differences))] ** 2).mean()))
