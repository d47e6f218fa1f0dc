"""One protocol for every comparison of methods: that of `compare` and `tune`, and of every experiment of the paper.

unit      what was drawn independently: a seed (of noise, views, masks, samples) or a patient. Images, slices or marks
          that share a seed are one unit; they are averaged before an interval is taken, or it would be too narrow.
pairs     two methods are compared unit by unit on the same data and noise, so what these do to both of them cancels.
interval  a mean of n units has Student's 95 % interval, mean +- t s / sqrt(n), with s their standard deviation and t
          the 97.5 % quantile for n - 1 degrees of freedom.
tuning    every method gets the same number of runs, at the budget that is reported, on other data and other seeds:
          `refuse_seen` stops a comparison whose tuning saw what is reported.
flags     `Tuned.flags` says where the best point lies at the end of its grid and how many points diverged; `caption`
          says what the unit is and how many there are. Every table has both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

FEW = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058)  # Student's quantiles for 1 to 5 degrees of freedom


@dataclass(frozen=True)
class Tried:
    """A point of a grid and the mean of its scores, the smaller the better; infinite if a run diverged.

    `refused` is the solver's sentence where it refused the point, as it does an eta below rho |A|^2; its score is then
    infinite, too.
    """

    point: Mapping[str, Any]
    score: float
    refused: str = ""


@dataclass(frozen=True, repr=False)
class Tuned:
    """What tuning found: the best point, all that were tried, and how many runs that took."""

    tried: tuple[Tried, ...]
    runs: int

    @property
    def index(self) -> int:
        """Which of the points is the best."""
        return min(range(len(self.tried)), key=lambda i: self.tried[i].score)

    @property
    def winner(self) -> Tried:
        return self.tried[self.index]

    @property
    def best(self) -> Mapping[str, Any]:
        return self.winner.point

    @property
    def at_end(self) -> tuple[str, ...]:
        """Parameters whose best value is the smallest or largest that was tried: the grid should be longer there."""
        tried = {name: {one.point[name] for one in self.tried} for name in self.best}
        return tuple(name for name, values in tried.items() if len(values) > 1 and _at_end(self.best[name], values))

    @property
    def diverged(self) -> int:
        """How many points diverged."""
        return sum(math.isinf(one.score) and not one.refused for one in self.tried)

    @property
    def refused(self) -> int:
        """How many points the solver refused to run."""
        return sum(bool(one.refused) for one in self.tried)

    @property
    def flags(self) -> str:
        """For a table: where the grid ends too early, how many points diverged or were refused; empty if none."""
        said = [f"{' and '.join(self.at_end)} at the end of the grid"] if self.at_end else []
        lost = {"diverged": self.diverged, "were refused": self.refused}
        return ", ".join(said + [f"{n} of {len(self.tried)} points {what}" for what, n in lost.items() if n])

    def __repr__(self) -> str:
        point = ", ".join(f"{name}={value}" for name, value in self.best.items())
        said = f", {self.flags}" if self.flags else ""
        return f"Tuned({point}: {self.winner.score:.6g} after {self.runs} runs{said})"


def _at_end(value: Any, values: set[Any]) -> bool:
    return isinstance(value, int | float) and value in (min(values), max(values))


def minus_mean(values: Sequence[float | None]) -> float:
    """The score of values that should be large, such as SNRs; infinite if one is missing because its run diverged."""
    there = [value for value in values if value is not None]
    return -fmean(there) if len(there) == len(values) else math.inf


def refuse_seen(tuning: Iterable[Hashable], reported: Iterable[Hashable]) -> None:
    """Refuse a comparison whose tuning saw data or seeds that it reports."""
    both = set(tuning) & set(reported)
    if both:
        named = ", ".join(sorted(map(str, both))[:3])
        raise ValueError(f"tuning saw what is reported ({named}); tune on other data and with other seeds")


def same_effort(tuned: Mapping[str, Tuned]) -> int:
    """The number of runs that every method was tuned with; refuses methods that got more or fewer than others."""
    runs = {name: found.runs for name, found in tuned.items()}
    if len(set(runs.values())) != 1:
        raise ValueError(f"methods were tuned with different numbers of runs ({runs}); give each the same")
    return next(iter(runs.values()))


def caption(unit: str, n: int) -> str:
    """What a table says of its intervals."""
    if n < 2:
        return f"unit: {unit}, n = {n}; one unit has no interval"
    return f"unit: {unit}, n = {n}; 95 % intervals over units" + ("; fewer than 8 units" if n < 8 else "")


class Interval(NamedTuple):
    """mean +- half: the mean of n values with its 95 % interval; NaN where the values are too few."""

    mean: float
    half: float
    n: int


def interval(values: Sequence[float], units: Sequence[Hashable] | None = None) -> Interval:
    """The mean of independent values with Student's 95 % interval; values of one unit are averaged first."""
    if units is not None:
        of: dict[Hashable, list[float]] = {}
        for value, unit in zip(values, units, strict=True):
            of.setdefault(unit, []).append(value)
        values = [fmean(each) for each in of.values()]
    n = len(values)
    if n < 2:
        return Interval(values[0] if n else math.nan, math.nan, n)
    if not all(map(math.isfinite, values)):
        return Interval(fmean(values), math.nan, n)
    return Interval(fmean(values), student(n - 1) * stdev(values) / math.sqrt(n), n)


def paired(ours: Sequence[float], theirs: Sequence[float], units: Sequence[Hashable] | None = None) -> Interval:
    """The mean of ours - theirs, pair by pair; differences of one unit are averaged first."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)], units)


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
