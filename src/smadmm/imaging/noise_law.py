"""The noise by differences along the detector, as a function of the value where it depends on that."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.imaging.pnp import sinogram_noise

UNEQUAL = 4.0  # variances that differ by more depend on the value
STRAIGHT = 0.95  # share of the logarithms of variances that a straight line explains, of those that are used
NEARLY, ALONE = 0.8, 0.97  # and of all, where the law is checked, and where it is not
USED = 0.8  # of the values, those that fit it best: edges of the object disturb others


class _Line(NamedTuple):
    """A straight line through the values that fit it best, the share of these that it explains, and that of all."""

    slope: float
    start: float
    straight: float
    of_all: float


def noise_law(
    b: NDArray[np.float32],
    weights: NDArray[np.float32],
    off: frozenset[str],
    striped: bool = False,
    checked: bool = True,
) -> tuple[float, NDArray[np.float32] | None]:
    """The noise of the best rays, and 1/variance of each in units of theirs, log-linear in the value, if it varies.

    What is left of stripes, the same in all views, is no noise. Edges and texture of the object are not, either: a law
    that cannot be checked with frequencies that no object has must fit all values.
    """
    noise = sinogram_noise(torch.from_numpy(b))
    if "noise" in off or b.shape[1] < 32:
        return noise, None
    order = 6
    d = np.diff(b, n=order, axis=1)
    d = np.abs(d - np.median(d, axis=0) if striped else d)
    d /= math.sqrt(math.comb(2 * order, order)) * 0.3186  # a quarter is below
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
    slope, start, straight, of_all = _line(centers[good], 2 * np.log(levels[good]))
    low, high, top = (float(q) for q in np.quantile(value, (0.05, 0.95, 0.999)))
    if (
        slope <= 0
        or straight < STRAIGHT
        or of_all < (NEARLY if checked else ALONE)
        or slope * (high - low) < math.log(UNEQUAL)
    ):
        return noise, None
    smooth = np.stack([np.convolve(row, np.ones(5) / 5, mode="same") for row in b])
    best = math.exp(0.5 * (start + slope * low))
    law = np.exp(-slope * (np.clip(smooth, low, top) - low))
    return best, law.astype(np.float32)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> _Line:
    used, least = np.ones(len(x), bool), 1.0
    for _ in range(4):
        slope, start = np.polyfit(x[used], y[used], 1)
        rest = y - start - slope * x
        straight = 1 - float(np.var(rest[used])) / max(float(np.var(y[used])), 1e-12)
        least = min(least, straight)
        used = np.abs(rest) <= np.sort(np.abs(rest))[math.ceil(USED * len(x)) - 1]
    return _Line(float(slope), float(start), straight, least)
