"""The noise by differences along the detector, as a function of the value where it depends on that."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.imaging.pnp import sinogram_noise

UNEQUAL = 4.0  # variances that differ by more depend on the value
STRAIGHT = 0.9  # share of the logarithms of variances that a straight line explains


def noise_law(
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
