"""Views that are shifted along the detector, each by itself: the shifts are found and undone.

A smooth image, with a prior twenty times too strong, follows no single view. What it leaves of view i, e_i = b_i - p_i,
is e_i = s_i dp_i/dt to first order, with the shift s_i in detectors: least squares, with s normal. A constant and a
sine of the angle move the object: these are left alone. A few rounds, each with a new image from views as they are
corrected by then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.imaging.inspection import repaired
from smadmm.imaging.neighbours import filled
from smadmm.imaging.rough_image import rough_image
from smadmm.imaging.sinograms import Mended
from smadmm.imaging.survey import Survey

ROUNDS = 15
LARGEST = 2.0  # detectors: the standard deviation of shifts
SMALL = 0.1  # detectors: shifting would blur more than it mends

Array = NDArray[np.float64]


def shifted(rows: Any, shifts: Array) -> NDArray[np.float32]:
    """Each view moved to higher detectors, by cubic splines."""
    rows = filled(np.asarray(rows, np.float64))
    ndimage = needs("scipy.ndimage", "imaging", "the alignment of views")
    moved = [ndimage.shift(row, by, order=3, mode="nearest") for row, by in zip(rows, shifts, strict=True)]
    return np.stack(moved).astype(np.float32)


def aligned(slices: Any, rows: NDArray[Any], survey: Survey, off: frozenset[str]) -> tuple[Any, str]:
    """The slices with their views shifted back, as one of them shows it, and what there is to tell."""
    look = repaired(rows, survey, off)
    survey, a, shifts = replace(survey, center=look.center), np.deg2rad(survey.angles), np.zeros(len(rows))
    move = np.stack([np.ones_like(a), np.cos(a), np.sin(a)], 1)
    for _ in range(ROUNDS):
        shifts -= _seen(shifted(look.prepared, shifts), survey)
        shifts -= move @ np.linalg.lstsq(move, shifts, rcond=None)[0]
    size = float(np.sqrt((shifts**2).mean()))
    if size < SMALL:
        return slices, f"views are aligned to {SMALL:g} detectors (rms); nothing was changed"
    text = f"views are off by {size:.2f} detectors (rms), each by itself; they are shifted back"
    return Mended(slices, partial(shifted, shifts=shifts)), text


def _seen(b: NDArray[np.float32], survey: Survey) -> Array:
    """The shifts to higher detectors, so far as one image shows them."""
    left = rough_image(b, np.ones_like(b), survey).residual
    along = -np.gradient(b - left, axis=1)
    shifts: Array = (along * left).sum(1) / ((along**2).sum(1) + (left**2).mean(1) / LARGEST**2)
    return shifts.astype(np.float64)
