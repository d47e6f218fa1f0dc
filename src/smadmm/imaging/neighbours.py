"""Statistics of values and of those around them, which extreme ones do not move."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.geometry import Array


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


def usual_size(values: NDArray[Any]) -> float:
    """What is usual, not what is extreme."""
    return float(1.4826 * np.median(np.abs(values)))


def clipped(values: NDArray[np.float32]) -> NDArray[np.float32]:
    limit = 3 * usual_size(values)
    clipped: NDArray[np.float32] = np.clip(values, -limit, limit)
    return clipped


def correlation(one: NDArray[np.float32], two: NDArray[np.float32]) -> float:
    return float(np.corrcoef(one, two)[0, 1]) if one.any() and two.any() else 0.0
