"""Single rays that stand out of their neighbours, and views that fit much worse than others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.geometry import Array

OUTSTANDING = 16.0  # spreads of its surroundings: a wrong ray
CLEARLY, ALONE = 10.0, 5.0  # also this many, where no other comes near, and the image already follows a part of it
DENSE = 1.5  # degrees between such views
LOST = 5.0  # times the usual misfit: a lost view
BESIDE = 4  # views at each side to compare it with


def outstanding(
    e: NDArray[np.float32], values: NDArray[np.float32], known: NDArray[np.bool_], degrees: Array
) -> NDArray[np.bool_]:
    """Rays that stand out of what is around them, in the residual and the data.

    A small object does so in the next views, too; and an edge that the image blurs does not in the data.
    """
    usual = 1.4826 * float(np.median(np.abs(e[known])))
    travel, dense = _travel(degrees, e.shape[1]), step_between(degrees) < DENSE
    out = np.zeros(e.shape, bool)
    for i, j in np.argwhere((np.abs(e) > 10 * usual) & known):
        around = e[max(0, i - 3) : i + 4, max(0, j - 4) : j + 5]
        middle = float(np.median(around))
        size, width = abs(e[i, j] - middle), 1.4826 * float(np.median(np.abs(around - middle)))
        rows = [n for n in (i - 1, i + 1) if 0 <= n < len(e)]
        beside = [_second(np.abs(e[n, max(0, j - travel) : j + travel + 1] - middle)) for n in rows]
        own = abs(values[i, j] - np.median(values[max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]))
        sure = size > OUTSTANDING * max(width, usual) and size > 3 * max(beside) and own > 0.5 * size
        clear = size > max(CLEARLY * width, OUTSTANDING * usual, ALONE * max(beside)) and own > size
        out[i, j] = sure or (dense and clear)
    return out


def lost_views(e: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Views that fit much worse than most, and than those beside them."""
    misfit = 1.4826 * np.median(np.abs(e), axis=1)
    around = np.pad(misfit, BESIDE, mode="reflect")  # ends of limited angles fit worse, one after the other
    beside = np.median(np.lib.stride_tricks.sliding_window_view(around, 2 * BESIDE + 1), axis=-1)
    lost: NDArray[np.bool_] = misfit > np.maximum(LOST * np.median(misfit), 2 * beside)
    return lost


def step_between(degrees: Array) -> float:
    """Degrees from one view to the next."""
    return float(np.median(np.diff(np.sort(degrees))))


def _travel(degrees: Array, detectors: int) -> int:
    """How many detectors the trace of a point can move from one view to the next, at most."""
    return math.ceil(math.radians(step_between(degrees)) * detectors / 2) + 2


def _second(values: NDArray[np.float32]) -> float:
    """The second largest: another wrong ray may lie there."""
    return float(np.sort(values)[-2])
