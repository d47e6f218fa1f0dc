"""Fair comparisons: solve a problem, draw methods side by side, tune each with the same effort.

result = solve(problem, budget=50_000)                 auto's parameters; or solve(ADMM(...), budget)
compare({"SMADMM": result, ...}, "certificate")        curves over sample gradients and over seconds
tune(solver_of, grid, problem, budget)                 the best point of a grid, judged at the budget

What makes a comparison fair is in `smadmm.protocol`: units, pairs, intervals, tuning on other seeds, flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice, product
from statistics import fmean
from typing import Any

from torch import Tensor

from smadmm.extras import needs
from smadmm.problem import Problem
from smadmm.protocol import Tried, Tuned, interval, refuse_seen
from smadmm.results import Diverged, Result
from smadmm.running import Solver, Stop, run
from smadmm.sampling import Rng
from smadmm.tuning import auto, start_of
from smadmm.workers import executing, spread

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

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> result = solve(problem, budget=3000)
    >>> bool((result.x - 0.7).abs().max() < 0.1)
    True
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

    A sequence of results of one method (other seeds) is drawn as its mean with the 95 % interval of that mean.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> runs = {"SMADMM": solve(problem, 600), "SADMM": solve(ADMM(problem, SGD(1), 1.0, 9.0), 600)}
    >>> len(compare(runs))
    2
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
        ax.locator_params(axis="x", nbins=5)  # numbers of gradients are long
        if column in ("certificate", "gradient", "subdifferential", "feasibility"):
            ax.set_yscale("log")
    axes[0].set_ylabel("dist^2(0, dL)" if column == "certificate" else column)
    axes[0].legend()
    return axes


def _draw(ax: Any, name: str, runs: list[Result], unit: str, column: str) -> None:
    rows = min(result.history.rows for result in runs)
    across = [fmean(result.history[unit][i] for result in runs) for i in range(rows)]
    values = [[result.history[column][i] for result in runs] for i in range(rows)]
    means = [interval(row) for row in values]
    (line,) = ax.plot(across, [each.mean for each in means], label=name)
    if len(runs) > 1:
        low, high = ([each.mean + sign * each.half for each in means] for sign in (-1, 1))
        ax.fill_between(across, low, high, alpha=0.2, color=line.get_color())


def tune(
    solver_of: Callable[..., Solver],
    grid: Mapping[str, Sequence[Any]],
    problem: Problem,
    budget: int,
    *,
    score: str | Callable[[Result], float] = "objective",
    points: int | None = None,
    seeds: Sequence[int] = (1000, 1001),
    reported: Sequence[int] = (),
    x: Tensor | None = None,
    executor: Executor | int | None = None,
) -> Tuned:
    """Try the points of a grid at the budget that will be judged, and keep the best mean score.

    solver_of(problem, seed=..., **point) makes the solver of a point. `score` is the column of the history whose last
    value counts, or a function of the result; smaller is better. `points`: try that many, drawn from the grid without
    repetition, so that methods with grids of different sizes get the same number of runs. A point that diverges, or
    that `solver_of` refuses by a ValueError, loses to all others and is counted in `Tuned.flags`. `reported` are the
    seeds that you will report: they are refused here. Where data are held out, tune on other data than you report.

    Of the answer, `best` is the best point, for `solver_of(problem, seed=..., **tuned.best)`, and `tried` has every
    point with its score, or with the reason why it was refused.

    `executor`: a number of processes, or any concurrent.futures.Executor, does the runs in parallel, with the same
    scores; solvers are sent to it, so the data should be small beside the work.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> def make(problem, seed, eta):
    ...     return ADMM(problem, SGD(1), rho=1.0, eta=eta, seed=seed)
    >>> tune(make, {"eta": [3.0, 9.0, 27.0]}, problem, budget=300).runs
    6
    """
    refuse_seen(seeds, reported)
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if points is not None:
        if points > len(every):
            raise ValueError(f"the grid has {len(every)} points, fewer than points = {points}; make it finer")
        every = [every[i] for i in sorted(Rng(0, 0).permutation(len(every))[:points])]
    start = start_of(problem) if x is None else x
    made: list[tuple[Solver, ...] | str] = [_solvers(partial(solver_of, problem, **point), seeds) for point in every]
    runs = [(solver, start, budget, score) for some in made if not isinstance(some, str) for solver in some]
    scores = iter(_scores(runs, executor))
    tried = [
        Tried(point, math.inf, refused=some)
        if isinstance(some, str)
        else Tried(point, fmean(islice(scores, len(some))))
        for point, some in zip(every, made, strict=True)
    ]
    if all(one.refused for one in tried):
        raise ValueError(f"every point of the grid was refused; the first one, {tried[0].point}: {tried[0].refused}")
    return Tuned(tuple(tried), len(tried) * len(seeds))


def _solvers(make: Callable[..., Solver], seeds: Sequence[int]) -> tuple[Solver, ...] | str:
    """The solvers of a point, or why it was refused."""
    try:
        return tuple(make(seed=seed) for seed in seeds)
    except ValueError as error:
        return str(error)


def _scores(runs: Sequence[tuple[Any, ...]], executor: Executor | int | None) -> list[float]:
    if executor is None:
        return [_score(*one) for one in runs]
    with executing(executor) as engine:
        found = dict(spread(engine, _score, [partial(tuple, one) for one in runs]))
    return [found[number] for number in range(len(runs))]


def _score(solver: Solver, x: Tensor, budget: int, score: str | Callable[[Result], float]) -> float:
    """The score of a run; infinite if it diverged."""
    certify = score in ("certificate", "gradient", "subdifferential", "feasibility")
    try:
        result = run(solver, x, Stop(sfo=budget), every=10**9, certify=certify, progress=False)
    except Diverged:
        return math.inf
    if score == "objective" and score not in result.history:
        raise ValueError(
            "there is no objective to tune for, since h has no value; give it one (interop.from_function(prox, value)) "
            'or use score="certificate" or a function of the result'
        )
    value = result.history[score][-1] if isinstance(score, str) else float(score(result))
    return value if math.isfinite(value) else math.inf
