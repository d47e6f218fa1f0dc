"""Fair comparisons, in numbers.

A mean of n independent values v_i has the 95 % interval of Student, mean +- t s / sqrt(n), with s their standard
deviation and t the 97.5 % quantile for n - 1 degrees of freedom. Two methods are compared in pairs: on the same data
with the same noise, so what the data do to both of them cancels. Differences that share their luck (several images
under one seed, say) belong to one unit and are averaged before the interval is taken, or it would be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

# --- statistics

FEW = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058)  # the quantiles for 1 to 5 degrees of freedom


class Interval(NamedTuple):
    """mean +- half: the mean of n values with its 95 % interval; NaN where the values are too few."""

    mean: float
    half: float
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with Student's 95 % interval."""
    n = len(values)
    if n < 2:
        return Interval(values[0] if n else math.nan, math.nan, n)
    return Interval(fmean(values), student(n - 1) * stdev(values) / math.sqrt(n), n)


def paired(ours: Sequence[float], theirs: Sequence[float], units: Sequence[Hashable] | None = None) -> Interval:
    """The mean of ours - theirs, pair by pair; differences of one unit are averaged first."""
    gaps: dict[Hashable, list[float]] = {}
    for a, b, unit in zip(ours, theirs, range(len(ours)) if units is None else units, strict=True):
        gaps.setdefault(unit, []).append(a - b)
    return interval([fmean(values) for values in gaps.values()])


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution, to four digits: a table, then Fisher's expansion in 1/freedom."""
    if freedom <= len(FEW):
        return FEW[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
