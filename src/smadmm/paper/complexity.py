"""The paper's Table 1, measured so that it can fail: how dist^2(0, dL) falls with the number T of sample gradients.

Three population problems (smadmm.paper.complexity_kernel): a smooth one whose minimum is strongly convex, a flat one
with plateaus and heavy-tailed noise, and the chain of the lower bounds. Every method is tuned in its step, batch sizes
and period for each problem and each T by the same number of runs (smadmm.paper.complexity_runs), then reported on other
seeds: dist^2 averaged over the second half of a run, which is its mean at a random iterate, and the slope of its
logarithm in log T. SMADMM with dynamic parameters has no horizon: it is also reported with the constants that were best
for the smallest T at every T ("fixed"), whose slope is that of one method that goes on (those of the largest T would
still be on their way at smaller ones, which makes any slope steep).

Where dist^2 falls like T^slope, dist^2 = eps is reached with T ~ eps^(1/slope) sample gradients, so the paper's
O(eps^(-3/2)) is the slope -2/3 and its O(eps^(-2)) the slope -1/2. An order is an upper bound: it holds where the
measured slope is at most NEAR above it, in part where it is at most FAR above it. It shows only where the slope is not
below it either (by FAR), and no other exponent of a_k falls faster: otherwise the problem is too easy to tell orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from smadmm.extras import needs
from smadmm.paper.complexity_runs import EXPONENTS, LABELS, PROBLEMS, ComplexityRun, grid, run_complexity, tuned
from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.rows import outcome, some
from smadmm.paper.writing import draw, markdown
from smadmm.protocol import Tuned, caption, interval, paired, same_effort
from smadmm.report import Column, Curves, Heading, Part, Picture, Series, Table, Verdict
from smadmm.report.parts import Outcome

FULL_BUDGETS = (10_000, 31_623, 100_000, 316_228)
QUICK_BUDGETS = FULL_BUDGETS[:2]
NEAR, FAR = 0.05, 0.15
TINY = 1e-200  # for logarithms
TUNING_SEED = 10_000  # added to the seed of the request
SWEEP = ("smadmm-1/2", "smadmm", "smadmm-4/5", "smadmm-1")
COMPARED = tuple(method for method in LABELS if method == "smadmm" or method not in SWEEP)
ABOUT = {
    "smooth": "r(t) = t²/(1 + t²), Gaussian noise: strongly convex near its minimum",
    "flat": "r(t) = s⁴/(1 + s⁴), s = t - 1, noise of Student's distribution with 3 degrees of freedom: a plateau, and "
    "no strong convexity at the minimum",
    "chain": "the chain of the lower bounds: 25 links, each shown by one of 500 samples. dist² stays until all are "
    "found, then falls at any speed, as its noise vanishes there: slopes are no orders",
}


def complexity_jobs(request: Request) -> list[ComplexityRun]:
    """Tuning: every method on every problem for every budget, the longest first."""
    needs("numba", "learn", "runs of the complexity experiment")
    budgets, seeds = (QUICK_BUDGETS, 1) if request.quick else (FULL_BUDGETS, 3)
    first = request.seed + TUNING_SEED
    return [
        ComplexityRun(problem, method, T, tuple(range(first, first + seeds)))
        for T in budgets[::-1]
        for problem in PROBLEMS
        for method in LABELS
    ]


def reported_jobs(
    request: Request, jobs: Sequence[ComplexityRun], results: Mapping[str, JobResult]
) -> list[ComplexityRun]:
    """The best point of every grid, on fresh seeds."""
    seeds = tuple(range(request.seed, request.seed + (8 if request.quick else 16)))
    chosen = {job: tuned(job, results[job.name]) for job in jobs}
    same_effort({job.name: found for job, found in chosen.items()})
    reported = []
    for job, found in chosen.items():
        points = [found.index]
        if job.method in EXPONENTS:
            points.append(_at_smallest(job, chosen).index)
        reported += [ComplexityRun(job.problem, job.method, job.budget, seeds, point) for point in points]
    return list(dict.fromkeys(reported))


def _at_smallest(job: ComplexityRun, chosen: Mapping[ComplexityRun, Tuned]) -> Tuned:
    """What tuning chose for the same problem and method at the smallest budget."""
    same = [other for other in chosen if (other.problem, other.method) == (job.problem, job.method)]
    return chosen[min(same, key=lambda other: other.budget)]


def complexity_rows(jobs: Sequence[ComplexityRun], results: Mapping[str, JobResult]) -> list[Row]:
    """A row per problem, method and budget: what was chosen for it or is fixed, flags, dist^2 of every seed."""
    rows = []
    chosen = {job: tuned(job, results[job.name]) for job in jobs if job.point is None}
    reported = {(job.problem, job.method, job.budget, job.point): job for job in jobs if job.point is not None}
    for job, found in sorted(chosen.items(), key=lambda item: item[0].budget):
        for parameters in ("tuned", "fixed") if job.method in EXPONENTS else ("tuned",):
            used = found if parameters == "tuned" else _at_smallest(job, chosen)
            name = reported[job.problem, job.method, job.budget, used.index].name
            levels = [math.inf if level is None else level for level in results[name]["levels"][0]]
            row: Row = {"problem": job.problem, "method": job.method, "budget": job.budget, "parameters": parameters}
            row |= {"level": interval(levels).mean, "level_half": interval(levels).half, "n": len(levels)}
            row |= {"diverged": sum(map(math.isinf, levels)), "flags": used.flags, "runs": used.runs}
            rows.append(row | {f"tuned_{key}": value for key, value in used.best.items()} | {"levels": levels})
    return rows


def fit(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Log-log slope of the mean over seeds, with its 95 % interval by resampling seeds."""
    budgets, levels = [row["budget"] for row in rows], np.maximum([row["levels"] for row in rows], TINY)
    if not np.isfinite(levels).all():
        return math.nan, math.nan, math.nan
    logs, count, rng = np.log(np.asarray(budgets, dtype=float)), levels.shape[1], np.random.default_rng(0)
    resampled = levels[:, rng.integers(count, size=(500, count))].mean(-1)
    low, high = np.percentile(np.polyfit(logs, np.log(resampled), 1)[0], [2.5, 97.5])
    return float(np.polyfit(logs, np.log(levels.mean(1)), 1)[0]), float(low), float(high)


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row per problem and method: slope, dist^2 at the largest budget, and its ratio to that of SMADMM, by seeds."""
    found = []
    for problem in PROBLEMS:
        ours = some(rows, problem=problem, method="smadmm", parameters="tuned")[-1]["levels"]
        for method in LABELS:
            own, fixed = (some(rows, problem=problem, method=method, parameters=name) for name in ("tuned", "fixed"))
            last = own[-1]
            slope, low, high = fit(own)
            steady = fit(fixed) if fixed else None
            ratio = paired(*([math.log10(max(v, TINY)) for v in levels] for levels in (last["levels"], ours)))
            row = {"problem": problem, "method": method, "slope": slope, "slope_low": low, "slope_high": high}
            row |= {"level": last["level"], "level_half": last["level_half"], "ratio": ratio.mean, "fixed": steady}
            found.append(row | {"ratio_half": ratio.half, "flags": last["flags"], "chosen": _chosen(last)})
    return found


def _chosen(row: Row) -> str:
    names = [name for name in row if name.startswith("tuned_") and row[name] is not None]
    return ", ".join(f"{name.removeprefix('tuned_')} {row[name]:.3g}" for name in names)


def chapter(found: Findings) -> list[Part]:
    """The chapter, from the rows alone."""
    rows, lines = found.rows, summary(found.rows)
    parts: list[Part] = [
        "Three population problems with closed-form gradients: how dist²(0, ∂L), averaged over the second half of a "
        "run, falls with the number T of sample gradients. Every method is tuned in its step, batch sizes and period "
        f"for each problem and each T with {rows[0]['runs']} runs on seeds of its own ({len(grid('smadmm', 10_000))} "
        "points); the slope is that of log dist² in log T.",
        _short(lines, rows[-1]["n"]),
    ]
    for problem in PROBLEMS:
        own = some(lines, problem=problem)
        parts += [Heading(f"Problem {problem}", 3), f"{ABOUT[problem]}.", *verdicts(problem, own)]
        parts.append(_table(problem, own, rows))
    return [
        *parts,
        *_curves(rows),
        Picture(
            "complexity.png",
            "dist² against sample gradients: methods, tuned at every T; exponents, constants of the smallest T",
        ),
    ]


def verdicts(problem: str, lines: Sequence[Row]) -> list[Verdict]:
    of = {row["method"]: row for row in lines}
    ours, spider, sadmm = of["smadmm"], min(of["spider"], of["spider-free"], key=_level), of["sadmm"]
    one, here = of["smadmm-one"]["fixed"], ours["fixed"]
    others = [of[m]["fixed"] for m in SWEEP if m != "smadmm"]
    faster = [sum(other[i] < here[j] for other in others) for i, j in ((2, 1), (0, 0))]  # by intervals, by means
    shows = 0 if faster[0] or abs(here[0] + 2 / 3) > FAR else 1 if faster[1] else 2
    return [
        Verdict(
            f"{problem}: SMADMM needs Õ(ε^(-3/2)) sample gradients with one per point and iteration (Theorem 3.2)",
            _order(one[0], -2 / 3),
            f"The slope with fixed constants is {_bracketed(one)}; the theorem says -0.667, as an upper bound",
        ),
        Verdict(
            f"{problem}: the order shows: SMADMM does not fall faster, nor does any other exponent of a_k",
            outcome(shows, 2),
            "Slopes with fixed constants: "
            + ", ".join(f"exponent {EXPONENTS[m]:.3g}: {_bracketed(of[m]['fixed'])}" for m in SWEEP),
        ),
        Verdict(
            f"{problem}: SMADMM is as good as SPIDER-ADMM, in order and at the largest T, without its restarts",
            outcome((ours["slope"] <= spider["slope"] + NEAR) + (spider["ratio"] + spider["ratio_half"] >= 0), 2),
            f"{LABELS[spider['method']]}: slope {_slope(spider)}, dist² {_ratio(spider)} times that of SMADMM (batch "
            f"free: slope {_slope(ours)})",
        ),
        Verdict(
            f"{problem}: SMADMM improves on SADMM, tuned in its batches, too, in order and at the largest T",
            outcome((ours["slope_high"] < sadmm["slope_low"]) + (sadmm["ratio"] > sadmm["ratio_half"]), 2),
            f"SADMM: slope {_slope(sadmm)}, dist² {_ratio(sadmm)} times that of SMADMM; with one sample and a fixed "
            f"step its slope is {_slope(of['sadmm-one'])}",
        ),
    ]


def _level(row: Row) -> float:
    return float(row["level"])


def _order(slope: float, bound: float) -> Outcome:
    return "holds" if slope <= bound + NEAR else "holds in part" if slope <= bound + FAR else "does not hold here"


def _slope(row: Row) -> str:
    return _bracketed((row["slope"], row["slope_low"], row["slope_high"]))


def _bracketed(slope: tuple[float, float, float]) -> str:
    return "-" if math.isnan(slope[0]) else f"{slope[0]:.2f} [{slope[1]:.2f}, {slope[2]:.2f}]"


def _ratio(row: Row) -> str:
    low, high = (10 ** (row["ratio"] + sign * row["ratio_half"]) for sign in (-1, 1))
    return f"{10 ** row['ratio']:.3g} [{low:.3g}, {high:.3g}]"


def _short(lines: Sequence[Row], n: int) -> Table:
    """Slopes and levels of all problems beside each other."""
    columns: list[str | Column] = ["method"]
    for problem in PROBLEMS:
        columns += [f"{problem}: slope", Column(f"{problem}: dist²", ".1e", "lower")]
    cells = []
    for method, label in LABELS.items():
        own = [row for row in lines if row["method"] == method]
        cells.append([label, *(cell for row in own for cell in (_slope(row), row["level"]))])
    note = f"Slopes of log dist² in log T, tuned at every T; dist² at the largest T; {caption('seed', n)}."
    return Table("Oracle complexity (Table 1)", columns, cells, note)


def _table(problem: str, lines: Sequence[Row], rows: Sequence[Row]) -> Table:
    columns: list[str | Column] = ["method", "slope [95 % interval]", Column("dist²", ".2e", "lower"), "+-"]
    columns += ["times SMADMM's, paired", "slope, constants of the smallest T", "tuned to", "flags"]
    cells = []
    for row in lines:
        level = [row["level"], f"{row['level_half']:.1e}", _ratio(row)]
        fixed = "-" if row["fixed"] is None else _bracketed(row["fixed"])
        cells.append([LABELS[row["method"]], _slope(row), *level, fixed, row["chosen"], row["flags"]])
    lost = sum(row["diverged"] for row in some(rows, problem=problem))
    note = (
        f"dist², what was tuned and flags at T = {rows[-1]['budget']}; {caption('seed', rows[-1]['n'])}; {lost} "
        "reported runs diverged. eta is in the unit of the problem; a batch of 1 cannot be smaller."
    )
    return Table(f"Problem {problem}", columns, cells, note)


def _curves(rows: Sequence[Row]) -> list[Curves]:
    """A plot per problem, of the methods and of the exponents."""
    budgets = sorted({row["budget"] for row in rows})
    plots = []
    for title, methods, parameters in (("methods", COMPARED, "tuned"), ("exponents of a_k", SWEEP, "fixed")):
        for problem in PROBLEMS:
            some_rows = some(rows, problem=problem, parameters=parameters)
            series = [_series(some(some_rows, method=method)) for method in methods]
            first = 1.6 * series[0].y[0]
            for slope, name in ((-2 / 3, "slope -2/3"), (-1 / 2, "slope -1/2")):
                series.append(Series(name, budgets, [first * (T / budgets[0]) ** slope for T in budgets], dashed=True))
            axes = ("sample gradients T", "dist²(0, ∂L)")
            plots.append(Curves(f"{problem}: {title}", series, *axes, log_x=True, log_y=True))
    return plots


def _series(rows: Sequence[Row]) -> Series:
    """Means over seeds, with the range of 80 % of them."""
    own = [row for row in rows if not row["diverged"]]
    low, high = ([float(np.percentile(row["levels"], q)) for row in own] for q in (10, 90))
    return Series(LABELS[rows[0]["method"]], [row["budget"] for row in own], [row["level"] for row in own], low, high)


def table(found: Findings) -> str:
    """table.md: the slopes and levels first."""
    short, *rest = (part for part in chapter(found) if not isinstance(part, Curves | Picture | str))
    return markdown([short]) + "\n" + markdown(rest)


def figures(found: Findings) -> dict[str, bytes]:
    """complexity.png: methods above, exponents below."""
    return {"complexity.png": draw(_curves(found.rows), columns=len(PROBLEMS), dpi=110)}


COMPLEXITY = Experiment(
    "complexity",
    "Oracle complexity (Table 1)",
    "Table 1: how the stationarity measure falls with the number of sample gradients.",
    jobs=complexity_jobs,
    work=run_complexity,
    rows=complexity_rows,
    chapter=chapter,
    reported=reported_jobs,
    table=table,
    figures=figures,
)
