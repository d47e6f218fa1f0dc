"""Fair comparisons: solve a problem, draw methods side by side, tune each with the same effort.

result = solve(problem, budget=50_000)                 auto's parameters; or solve(ADMM(...), budget)
compare({"SMADMM": result, ...}, "certificate")        curves over sample gradients and over seconds
tune(solver_of, grid, problem, budget)                 the best point of a grid, judged at the budget

A mean of n independent values v_i has the 95 % interval of Student, mean +- t s / sqrt(n), with s their standard
deviation and t the 97.5 % quantile for n - 1 degrees of freedom. Two methods are compared in pairs: on the same data
with the same noise, so what the data do to both of them cancels. Differences that share their luck (several images
under one seed, say) belong to one unit and are averaged before the interval is taken, or it would be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

from torch import Tensor

from smadmm.extras import needs
from smadmm.problem import Problem
from smadmm.running import Diverged, Result, Solver, Stop, run
from smadmm.sampling import Rng
from smadmm.tuning import auto, start_of

RECORDS = 50  # rows of a history, about


def solve(
    what: Problem | Solver,
    budget: int,
    *,
    x: Tensor | None = None,
    seed: int = 0,
    certify: bool = True,
    progress: bool = False,
) -> Result:
    """Solve a problem with `budget` sample gradients: by SMADMM with parameters from the problem, or by your solver.

    x is where it starts, by default zero. The history holds about 50 rows, with dist^2(0, dL) if `certify` is set.
    """
    problem = what if isinstance(what, Problem) else what.problem
    x = start_of(problem) if x is None else x
    solver: Solver = auto(problem, budget, x).solver(seed) if isinstance(what, Problem) else what
    every = max(1, _iterations(solver, budget) // RECORDS)
    certified = certify and problem.f.n is not None
    return run(solver, x, Stop(sfo=budget), every=every, certify=certified, progress=progress)


def _iterations(solver: Any, budget: int) -> int:
    """About how many iterations a budget allows."""
    estimator = getattr(solver, "estimator", None)
    return max(1, budget // (2 * getattr(estimator, "batch", 1)))


def compare(results: Mapping[str, Result | Sequence[Result]], column: str = "objective", axes: Any = None) -> Any:
    """Curves of a column of the histories over sample gradients and over seconds; returns the two matplotlib axes.

    A sequence of results of one method (other seeds) is drawn as its mean with a band from the smallest to the largest.
    """
    if axes is None:
        plt = needs("matplotlib.pyplot", "plot", "figures")
        axes = plt.figure(figsize=(9, 3.5), layout="constrained").subplots(1, 2, sharey=True)
    for name, given in results.items():
        runs = [given] if isinstance(given, Result) else list(given)
        for ax, unit in zip(axes, ("sfo", "seconds"), strict=True):
            _draw(ax, name, runs, unit, column)
    for ax, label in zip(axes, ("sample gradients", "seconds"), strict=True):
        ax.set_xlabel(label)
        if column in ("certificate", "gradient", "subdifferential", "feasibility"):
            ax.set_yscale("log")
    axes[0].set_ylabel("dist^2(0, dL)" if column == "certificate" else column)
    axes[0].legend()
    return axes


def _draw(ax: Any, name: str, runs: list[Result], unit: str, column: str) -> None:
    rows = min(result.history.rows for result in runs)
    across = [fmean(result.history[unit][i] for result in runs) for i in range(rows)]
    values = [[result.history[column][i] for result in runs] for i in range(rows)]
    (line,) = ax.plot(across, [fmean(row) for row in values], label=name)
    if len(runs) > 1:
        low, high = [min(row) for row in values], [max(row) for row in values]
        ax.fill_between(across, low, high, alpha=0.2, color=line.get_color())


@dataclass(frozen=True)
class Tried:
    """A point of a grid and the mean of its scores over the seeds; infinite if a run diverged."""

    point: Mapping[str, Any]
    score: float


@dataclass(frozen=True, repr=False)
class Tuned:
    """What tuning found: the best point, all that were tried, and how many runs that took.

    `at_end` names parameters whose best value is the first or last of three or more: the grid should be longer there.
    """

    tried: tuple[Tried, ...]
    runs: int
    at_end: tuple[str, ...]

    @property
    def best(self) -> Mapping[str, Any]:
        return min(self.tried, key=lambda one: one.score).point

    @property
    def diverged(self) -> int:
        """How many points diverged."""
        return sum(math.isinf(one.score) for one in self.tried)

    def __repr__(self) -> str:
        point = ", ".join(f"{name}={value}" for name, value in self.best.items())
        score = min(one.score for one in self.tried)
        end = f", {' and '.join(self.at_end)} at the end of the grid" if self.at_end else ""
        return f"Tuned({point}: {score:.6g} after {self.runs} runs, {self.diverged} points diverged{end})"


def tune(
    solver_of: Callable[..., Solver],
    grid: Mapping[str, Sequence[Any]],
    problem: Problem,
    budget: int,
    *,
    score: str | Callable[[Result], float] = "objective",
    points: int | None = None,
    seeds: Sequence[int] = (1000, 1001),
    x: Tensor | None = None,
) -> Tuned:
    """Try the points of a grid at the budget that will be judged, and keep the best mean score.

    solver_of(problem, seed=..., **point) makes the solver of a point. `score` is the column of the history whose last
    value counts, or a function of the result; smaller is better. `points`: try that many, drawn from the grid without
    repetition, so that methods with grids of different sizes get the same number of runs. Tune on other seeds, and
    where data are held out on other data, than those you report.
    """
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if points is not None:
        if points > len(every):
            raise ValueError(f"the grid has {len(every)} points, fewer than points = {points}; make it finer")
        every = [every[i] for i in sorted(Rng(0, 0).permutation(len(every))[:points])]
    start = start_of(problem) if x is None else x
    tried = []
    for point in every:
        scores = [_score(solver_of(problem, seed=seed, **point), start, budget, score) for seed in seeds]
        tried.append(Tried(point, fmean(scores)))
    best = min(tried, key=lambda one: one.score).point
    ends = tuple(name for name, values in grid.items() if len(values) > 2 and best[name] in (values[0], values[-1]))
    return Tuned(tuple(tried), len(tried) * len(seeds), ends)


def _score(solver: Solver, x: Tensor, budget: int, score: str | Callable[[Result], float]) -> float:
    """The score of a run; infinite if it diverged."""
    certify = score in ("certificate", "gradient", "subdifferential", "feasibility")
    try:
        result = run(solver, x, Stop(sfo=budget), every=10**9, certify=certify, progress=False)
    except Diverged:
        return math.inf
    value = result.history[score][-1] if isinstance(score, str) else float(score(result))
    return value if math.isfinite(value) else math.inf


# --- statistics -------------------------------------------------------------------------------------------------------

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
