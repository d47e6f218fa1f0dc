"""Detectors that add something to all their rays, or from the middle view on: what makes rings."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.bad_detectors import columns_of
from smadmm.imaging.detectors import NO_DEVIATIONS, Deviations, likeliest
from smadmm.imaging.geometry import Array
from smadmm.imaging.neighbours import clipped, correlation, usual_size

WINDOW = 31  # detectors of the running median: cupping is wider, stripes are not
OUTER = 0.04  # share of the detectors at each side whose offsets are left alone
LASTING = 0.6  # correlation of the stripes of both halves of the views
SHADED = 0.1  # of a large mean value: detectors behind the object
STRIPED = 0.35  # usual spreads: smaller offsets are what images leave


def stripes_of(
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
    profiles = [clipped(columns_of(e[part], weights[part]).jump[inside]) for part in parts]
    columns, means = columns_of(e, weights), projected.mean(0)
    jump = np.where(inside, columns.jump, 0)
    lasting = min(correlation(*profiles[:2]), correlation(*profiles[2:])) > LASTING
    least = max(STRIPED, 3 * 1.25 / math.sqrt(len(e)))  # more than chance
    shaded = inside & (means > SHADED * np.quantile(means, 0.9))  # gains add nothing to air
    large = usual_size(jump[inside]) > least * usual
    if shaded.any():
        large |= usual_size(jump[shaded]) > least * float(np.median(columns.spread[shaded]))
    if not (lasting and large):
        return nothing, NO_DEVIATIONS
    found = likeliest(jump[inside], means[inside], least * usual)
    return jump * found.shared(projected), found


def changed_half_way(e: NDArray[np.float32], weights: NDArray[np.float32], usual: float) -> NDArray[np.float32]:
    """What detectors add in the second half of the scan beyond the first; zero unless both its quarters say so.

    What the image leaves differs between quarters, which see it from other sides.
    """
    quarter, outer = np.arange(len(e)) * 4 // len(e), max(1, round(OUTER * e.shape[1]))
    inside = np.asarray((weights > 0).any(0))
    inside[:outer] = inside[-outer:] = False
    first, second, third, fourth = (columns_of(e[quarter == k], weights[quarter == k]).jump for k in range(4))
    change, least = (third + fourth - first - second) / 2, max(STRIPED, 6 * 1.25 / math.sqrt(len(e))) * usual
    later, inside = quarter[:, None] >= 2, inside & np.isfinite(change)
    alike = correlation(clipped((third - first)[inside]), clipped((fourth - second)[inside])) > LASTING
    if inside.sum() < WINDOW or not alike or usual_size(change[inside]) < least:
        return np.zeros_like(e)
    return np.where(later & inside, change, 0).astype(np.float32)
