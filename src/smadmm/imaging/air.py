"""Air is zero: constants that are the same in all rays, or in all rays of a view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.imaging.findings import Finding
from smadmm.imaging.geometry import EDGE, air_of, spread
from smadmm.imaging.neighbours import usual_size
from smadmm.imaging.pnp import sinogram_noise


def without_offset(b: NDArray[Any], off: frozenset[str]) -> tuple[NDArray[Any], list[Finding]]:
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
    return usual_size(np.diff(profile, 2)) / math.sqrt(6)
