"""Half-acquisition: in a whole turn with the axis of rotation near an edge of the detector, views complete each other.

A parallel ray (theta, t) is also (theta + pi, -t), t from the axis. So the view theta + pi, mirrored, goes on where the
view theta ends; where they overlap, around the axis, they must agree. For an axis at m, in detectors from the first,
    E(m) = sum (p_i(m + u) - q_i(m - u))^2 / sum (p_i - mean)^2 + (q_i - mean)^2,   q_i opposite to p_i,
is the disagreement of the overlap: about 0 at the right axis, 1 for what has nothing to do with each other. If the
least one is near an edge that shows the object, views are completed to half a turn of wider ones. In the overlap their
weights fall linearly from 1 to 0 and add up to 1, so that no ray counts twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.bad_detectors import stuck
from smadmm.imaging.geometry import Array, air_of
from smadmm.imaging.neighbours import filled

OFF_MIDDLE = 0.1  # share of the detector: an axis nearer to the middle is one of an ordinary scan
NARROWEST = 10  # detectors of an overlap, at the resolution at which it is searched
ALIKE, CLEARER = 0.25, 0.5  # the largest disagreement of an overlap; of that with an axis near the middle
CUT_OFF = 0.1  # of a large value: the mean at an edge beyond which the object goes on
PAIRS, COARSE = 120, 512  # pairs of views, and detectors, that are compared at first
SMOOTHED = 3  # times that neighbours are averaged: noise agrees with nothing
LEAST = 0.1  # of the deviation of all rays: that of an overlap that shows something
FEWEST = 16  # views
STEPS = 4  # of Gauss and Newton for the axis


class Pairs(NamedTuple):
    """Views of half a turn, and where between two views the opposite of each lies."""

    views: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    share: Array

    def opposite(self, b: Any) -> Any:
        """The opposite views, in between by linear interpolation."""
        share = self.share[:, None].astype(b.dtype)
        return np.where(share == 0, b[self.before], (1 - share) * b[self.before] + share * b[self.after])

    def some(self, most: int) -> Pairs:
        chosen = np.unique(np.linspace(0, len(self.views) - 1, min(len(self.views), most)).astype(np.int64))
        return Pairs(self.views[chosen], self.before[chosen], self.after[chosen], self.share[chosen])


@dataclass(frozen=True)
class Completion:
    """How views of a whole turn become wider ones of half a turn, the axis at `middle`, in detectors from the first."""

    pairs: Pairs
    degrees: Array  # of the completed views
    middle: float
    detectors: int  # of a view as it is measured
    inclusive: bool = False  # of a range of angles: the last view repeats the first

    @property
    def _places(self) -> NDArray[np.int64]:
        """Of the completed detectors, as numbers of measured ones."""
        first = min(0, math.ceil(2 * self.middle - (self.detectors - 1)))
        return np.arange(first, max(self.detectors - 1, math.floor(2 * self.middle)) + 1)

    @property
    def center(self) -> float:
        """The axis of the completed views, in detectors off their middle."""
        return float(self.middle - self._places.mean())

    def __call__(self, b: NDArray[Any]) -> NDArray[np.float32]:
        """The completed views; a ray that both measured is their mean by weights."""
        values = np.where(stuck(b), np.nan, np.asarray(b, dtype=np.float64))
        places = self._places.astype(np.float64)
        own, other = (
            _cubic(values[self.pairs.views], places),
            _cubic(self.pairs.opposite(values), 2 * self.middle - places),
        )
        edge = 0.0 if self.middle < (self.detectors - 1) / 2 else self.detectors - 1.0  # next to the axis
        half = abs(edge - self.middle) + 1.0
        weight = np.clip(0.5 + 0.5 * (self.middle - places) / half * (1 if edge else -1), 0, 1)
        w = np.where(np.isfinite(own), np.where(np.isfinite(other), weight, 1.0), 0.0)
        mixed = w * np.nan_to_num(own) + (1 - w) * np.nan_to_num(other)
        return np.where(np.isfinite(own) | np.isfinite(other), mixed, np.nan).astype(np.float32)

    def __str__(self) -> str:
        off, width = self.middle - (self.detectors - 1) / 2, len(self._places)
        last = ", the last of which repeats the first," if self.inclusive else ""
        return (
            f"the axis of rotation is {off:+.2f} detectors off the middle, and opposite views{last} complete each "
            f"other (half-acquisition): they make {len(self.degrees)} views of {width} detectors over half a turn"
        )


def half_acquisition(b: NDArray[Any], given: Array, center: float | str, off: frozenset[str]) -> Completion | None:
    """How the views of a slice complete each other; None if it is an ordinary scan.

    `given` are the angles in degrees, or the two ends of their range; `center` is the axis in detectors off the middle,
    or "auto".
    """
    if "completion" in off or ("axis" in off and isinstance(center, str)) or len(b) < FEWEST:
        return None
    values = filled(np.where(stuck(b), np.nan, np.asarray(b, dtype=np.float64)))
    found = [
        (error, each) for each in _readings(given, len(b)) if (error := _fitting(values, each[0], center)) is not None
    ]
    if not found:
        return None
    best = min(found, key=lambda pair: pair[0][0])
    (_, middle), (degrees, inclusive) = best
    pairs = pairs_of(degrees)
    assert pairs is not None
    return Completion(pairs, degrees[pairs.views], middle, b.shape[1], inclusive)


def _readings(given: Array, views: int) -> list[tuple[Array, bool]]:
    """What a range of angles may mean: without its end point, or with it."""
    if len(given) == views:
        return [(given, False)]
    return [(np.linspace(given[0], given[1], views, endpoint=end), end) for end in (False, True)]


def pairs_of(degrees: Array) -> Pairs | None:
    """Views and their opposite ones, in one whole turn; None if it is none."""
    order = np.argsort(degrees)
    turn = degrees[order] - degrees[order[0]]
    step = float(np.median(np.diff(turn)))
    if len(turn) < FEWEST or abs(turn[-1] + step / 2 - 360) > 1.01 * step or np.diff(turn).max() > 2.5 * step:
        return None
    views = np.flatnonzero(turn < 180 - 0.25 * step)
    order, turn = np.append(order, order[0]), np.append(turn, 360.0)
    after = np.minimum(np.searchsorted(turn, turn[views] + 180 - 1e-3 * step), len(turn) - 1)
    gap = turn[after] - turn[after - 1]
    share = np.clip((turn[views] + 180 - turn[after - 1]) / np.maximum(gap, 1e-12), 0, 1)
    near = np.abs(share - np.round(share)) < 0.01
    share = np.where(near, np.round(share), share)
    before = np.where(share == 1, after, after - 1)
    return Pairs(order[views], order[before], order[after], np.where(share == 1, 0.0, share))


def _fitting(values: Array, degrees: Array, center: float | str) -> tuple[float, float] | None:
    """The disagreement and the place of the axis, if it is near an edge that cuts the object off."""
    pairs, n = pairs_of(degrees), values.shape[1]
    if pairs is None:
        return None
    few = pairs.some(PAIRS)
    own, other = _smooth(values[few.views]), _smooth(few.opposite(values))
    if isinstance(center, str):
        k = max(1, round(n / COARSE))
        here, there = _binned(own, k), _binned(other, k)
        size = here.shape[1]
        places = np.arange(NARROWEST - 1, 2 * size - NARROWEST) / 2
        errors = np.array([disagreement(here, there, place) for place in places])
        near = np.abs(places - (size - 1) / 2) < OFF_MIDDLE * size
        best = int(np.argmin(errors))
        if near[best] or errors[best] > CLEARER * errors[near].min():
            return None
        middle = (places[best] + 0.5) * k - 0.5
        around = middle + np.arange(-k, k + 1) / 2
        middle = _refined(own, other, float(around[int(np.argmin([disagreement(own, other, m) for m in around]))]))
    else:
        middle = (n - 1) / 2 + center
    off = middle - (n - 1) / 2
    if abs(off) < OFF_MIDDLE * n or min(middle, n - 1 - middle) < 1:
        return None
    air, top = air_of(values), float(np.quantile(values, 0.99))
    cut = float(np.quantile(air.right if off > 0 else air.left, 0.5)) - min(air.level, 0.0)
    error = disagreement(own, other, middle)
    return (error, middle) if error < ALIKE and cut > CUT_OFF * top else None


def disagreement(own: Array, other: Array, middle: float) -> float:
    """Of views and their opposites around an axis, in units of what they show; inf where that is little or air."""
    n = own.shape[1]
    reach = min(middle, n - 1 - middle)
    u = np.arange(-math.floor(reach), math.floor(reach) + 1)
    if len(u) < NARROWEST - 1:
        return math.inf
    here, there = _linear(own, middle + u), _linear(other, middle - u)
    mean = 0.5 * float(here.mean() + there.mean())
    shown = float(((here - mean) ** 2).mean() + ((there - mean) ** 2).mean())
    return float(((here - there) ** 2).mean()) / shown if shown > 2 * LEAST**2 * float(own.var()) else math.inf


def _refined(own: Array, other: Array, middle: float) -> float:
    """The axis to a part of a detector, by a few Gauss-Newton steps."""
    start, n = middle, own.shape[1]
    for _ in range(STEPS):
        reach = math.floor(min(middle, n - 1 - middle)) - 1
        u = np.arange(-reach, reach + 1)
        apart = _linear(own, middle + u) - _linear(other, middle - u)
        slope = _linear(own, middle + u + 0.5) - _linear(own, middle + u - 0.5)
        slope -= _linear(other, middle - u + 0.5) - _linear(other, middle - u - 0.5)
        step = -float((apart * slope).sum()) / max(float((slope**2).sum()), 1e-30)
        middle += min(max(step, -0.5), 0.5)
        if abs(middle - start) > 1:
            return start
    return middle


def _linear(rows: Array, places: Array) -> Array:
    left = np.clip(np.floor(places).astype(np.int64), 0, rows.shape[1] - 2)
    values: Array = rows[:, left] + (places - left) * (rows[:, left + 1] - rows[:, left])
    return values


def _cubic(rows: Array, places: Array) -> Array:
    """Rows in between detectors, by cubic convolution; nan beyond the edges."""
    n = rows.shape[1]
    left = np.floor(places).astype(np.int64)
    f = places - left
    if not f.any():
        taps = [(0, np.ones_like(f))]
    else:
        taps = [(-1, -0.5 * f + f**2 - 0.5 * f**3), (0, 1 - 2.5 * f**2 + 1.5 * f**3),
                (1, 0.5 * f + 2 * f**2 - 1.5 * f**3), (2, -0.5 * f**2 + 0.5 * f**3)]  # fmt: skip
    values: Array = sum(w * rows[:, np.clip(left + k, 0, n - 1)] for k, w in taps)  # type: ignore[assignment]
    return np.where((places >= 0) & (places <= n - 1), values, np.nan)


def _smooth(rows: Array) -> Array:
    for _ in range(SMOOTHED):
        wide = np.pad(rows, ((0, 0), (1, 1)), mode="edge")
        rows = 0.25 * (wide[:, :-2] + wide[:, 2:]) + 0.5 * rows
    return rows


def _binned(rows: Array, k: int) -> Array:
    binned: Array = rows[:, : rows.shape[1] // k * k].reshape(len(rows), -1, k).mean(2)
    return binned
