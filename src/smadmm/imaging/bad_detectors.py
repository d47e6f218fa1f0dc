"""Detectors that tell nothing of the object, by what a smooth image leaves of them.

Of the residual e = b - A x,
    d_j = median_i e_ij,  s_j = 1.48 median_i |e_ij - d_j|
are the offset and the spread of detector j. A detector that spreads more than four times as much as usual, or lies far
off its neighbours, is dead. So is one whose worst tenth of views is far worse than its neighbours': a wrong dark level
adds c exp(b), which shows behind dense material only. Those whose values differ from their neighbours' by far more than
usual have no say in the first image, so that they cannot hide in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.neighbours import running_median, usual_size

WINDOW = 31  # detectors of the running median: cupping is wider, stripes are not
SPREADS, OFF = 4.0, 8.0  # a dead detector: this many usual spreads, or this far off its neighbours
WORST, TAILS = 0.9, 2.5  # a detector that errs in some views only, such as those with dense material, or less light
ALONE = 0.35  # times the size of a dead detector: its neighbours
STUCK, STUCK_WINDOW = 0.05, 13  # a detector that changes less, compared with the detectors around it, is stuck
STILL, BLOCK = 0.005, 24  # so is one that hardly changes between such as do, if they are so near
NO_PART = 0.5  # of its changes: what an image leaves of a detector that tells nothing of it
BENT = 8.0  # times the usual second difference along the detector: a detector to be looked at
OPPOSED = 0.2  # second differences of the neighbours of a dead detector, in units of its own; one half at best


class Columns(NamedTuple):
    """Per detector: how far its residuals jump off its neighbours', their spread, and that of the worst views."""

    jump: NDArray[np.float32]
    spread: NDArray[np.float32]
    tail: NDArray[np.float32]


def columns_of(e: NDArray[np.float32], weights: NDArray[np.float32]) -> Columns:
    """By medians, and a quantile that rays without weight do not raise."""
    known = np.where(weights > 0, e, np.nan)
    known[:, (weights == 0).all(0)] = 0
    offset = np.nanmedian(known, axis=0)
    off = np.abs(known - offset)
    spreads, tail = 1.4826 * np.nanmedian(off, axis=0), np.quantile(np.nan_to_num(off), WORST, axis=0)
    jump = offset - running_median(offset, WINDOW)
    return Columns(jump.astype(np.float32), spreads.astype(np.float32), tail.astype(np.float32))


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


def suspects_of(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Detectors that differ from the mean of their neighbours by far more than others do, and those neighbours."""
    bent = np.median(np.abs(values[:, 1:-1] - (values[:, :-2] + values[:, 2:]) / 2), axis=0)
    bent = np.pad(bent, 1, mode="edge")
    found: NDArray[np.bool_] = bent > BENT * np.maximum(running_median(bent, WINDOW), np.median(bent))
    return found


def apart_from_neighbours(values: NDArray[np.float32]) -> NDArray[np.bool_]:
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


def stands_out(columns: Columns, usual: float, alone: bool) -> NDArray[np.bool_]:
    """Detectors that spread or jump more than those around them; where all jump, they are stripes.

    A dead detector first disturbs its neighbours. Without weight it stands `alone`; an edge of the object does not.
    """
    around = np.maximum(running_median(columns.spread, 7), usual)
    jump = np.abs(columns.jump) / (OFF * np.maximum(around, usual_size(columns.jump)))
    worst = columns.tail / (TAILS * np.maximum(running_median(columns.tail, 7), np.median(columns.tail)))
    size = np.maximum(np.maximum(columns.spread / (SPREADS * around), jump), worst)
    largest = np.lib.stride_tricks.sliding_window_view(np.pad(size, 3, mode="edge"), 7).max(-1)
    found: NDArray[np.bool_] = (size > 1) & (size >= 0.8 * largest)
    if alone:
        beside = np.pad(np.where(found, 0, size), 1)
        crowded = np.pad(found & (np.maximum(beside[:-2], beside[2:]) >= ALONE * size), 1)
        found &= ~(crowded[:-2] | crowded[1:-1] | crowded[2:])
    return found


def unexplained(columns: Columns, values: NDArray[np.float32], usual: float) -> NDArray[np.bool_]:
    """Three or more side by side whose values are no part of any image: what is left of them spreads as far as they."""
    around = np.maximum(running_median(columns.spread, 2 * BLOCK + 1), usual)
    changes = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    wild = (columns.spread > SPREADS * around) & (columns.spread > NO_PART * changes)
    runs = np.asarray(np.lib.stride_tricks.sliding_window_view(np.pad(wild, 2), 3).all(-1))
    found: NDArray[np.bool_] = runs[:-2] | runs[1:-1] | runs[2:]
    return found
