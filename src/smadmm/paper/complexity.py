"""The paper's Table 1, measured: how dist^2(0, dL) falls with the number T of sample gradients.

The theorems say T^(-2/3) for SMADMM and SPIDER-ADMM, T^(-1/2) for SADMM with growing batches, no decrease for SADMM
with one sample. Reported is dist^2 averaged over the second half of each run (the theorem's random iterate), its
log-log slope over the budgets, and the budget at which the fitted line reaches 1e-3. The problem and the methods:
smadmm.paper.complexity_runs.

Where dist^2 falls like T^slope, dist^2 = eps is reached with T ~ eps^(1/slope) sample gradients, so the paper's
O(eps^(-3/2)) is the slope -2/3 and its O(eps^(-2)) the slope -1/2. An order is an upper bound: it holds where the
measured slope is at most NEAR above it, in part where it is at most FAR above it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from smadmm.paper.complexity_runs import ComplexityRun, run_complexity
from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.writing import draw, markdown_table
from smadmm.report import Column, Curves, Measured, Part, Series, Table, Verdict
from smadmm.report.parts import Outcome

TARGET = 1e-3
FULL_BUDGETS = (10_000, 31_623, 100_000, 316_228, 1_000_000)
QUICK_BUDGETS = FULL_BUDGETS[:3]
NEAR, FAR = 0.05, 0.15


@dataclass(frozen=True)
class TableLine:
    """A line of Table 1. With a horizon its parameters depend on the budget T; else one run serves all budgets."""

    method: str
    variant: str
    label: str
    batches: str
    theory: float  # the slope
    horizon: bool


TABLE_1 = (
    TableLine("smadmm", "dynamic", "SMADMM, dynamic (Theorem 3.2)", "1", -2 / 3, horizon=False),
    TableLine("smadmm", "constant", "SMADMM, constant (Theorem 3.1)", "T^(1/3) once, then 1", -2 / 3, horizon=True),
    TableLine("spider", "constant", "SARAH-ADMM", "T^(2/3) and T^(1/3)", -2 / 3, horizon=True),
    TableLine("sadmm", "sqrt", "SADMM, growing batches", "T^(1/2)", -1 / 2, horizon=True),
    TableLine("sadmm", "one", "SADMM, one sample", "1", 0.0, horizon=False),
)
PRINTED = {"smadmm": -2 / 3, "spider": -2 / 3, "sadmm": -1 / 2}  # the orders of the paper, as slopes


def complexity_jobs(request: Request) -> list[ComplexityRun]:
    """The longest first."""
    budgets, runs = (QUICK_BUDGETS, 10) if request.quick else (FULL_BUDGETS, 16)
    jobs = []
    for line in TABLE_1:
        for part in [(T,) for T in budgets] if line.horizon else [budgets]:
            jobs.append(ComplexityRun(line.method, line.variant, part, runs, request.seed))
    return sorted(jobs, key=lambda job: -job.budgets[-1])


def levels_of(
    line: TableLine, jobs: Sequence[ComplexityRun], results: Mapping[str, JobResult]
) -> tuple[list[int], NDArray[np.float64]]:
    """The budgets, and the mean dist^2 of every run: budgets x runs."""
    same = [job for job in jobs if (job.method, job.variant) == (line.method, line.variant)]
    same.sort(key=lambda job: job.budgets)
    budgets = [T for job in same for T in job.budgets]
    return budgets, np.concatenate([results[job.name]["levels"] for job in same])


def complexity_rows(jobs: Sequence[ComplexityRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for line in TABLE_1:
        budgets, levels = levels_of(line, jobs, results)
        slope, low, high, reach = fit(budgets, levels)
        row = {"method": line.method, "variant": line.variant, "slope": slope, "slope_low": low, "slope_high": high}
        row |= {"theory": line.theory, "sfo_to_1e-3": reach, "level": float(levels[-1].mean())}
        at = {f"level_at_{T}": float(level) for T, level in zip(budgets, levels.mean(1), strict=True)}
        rows.append(row | at)
    return rows


def fit(budgets: Sequence[int], levels: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Log-log slope of the mean over runs, its 95 % bootstrap interval, and the budget where the line meets 1e-3."""
    logs = np.log(np.asarray(budgets, dtype=float))
    count = levels.shape[1]
    rng = np.random.default_rng(0)
    resampled = [levels[:, rng.integers(count, size=count)] for _ in range(500)]
    slopes = [np.polyfit(logs, np.log(part.mean(1)), 1)[0] for part in resampled]
    slope, offset = np.polyfit(logs, np.log(levels.mean(1)), 1)
    low, high = np.percentile(slopes, [2.5, 97.5])
    reach = float(np.exp((np.log(TARGET) - offset) / slope)) if slope < -0.1 else float("nan")
    return float(slope), float(low), float(high), reach


def chapter(found: Findings) -> list[Part]:
    """The chapter, from the rows alone."""
    return [
        "A population problem with closed-form gradients: how dist²(0, ∂L), averaged over the second half of a run, "
        "falls with the number T of sample gradients. The slope measured in the logarithms of both is set beside the "
        "order that the paper's Table 1 prints.",
        *verdicts({(row["method"], row["variant"]): row for row in found.rows}),
        _table(found.rows),
        _curves(found.rows),
    ]


def verdicts(found: Mapping[tuple[str, str], Row]) -> list[Verdict]:
    dynamic, constant = found["smadmm", "dynamic"], found["smadmm", "constant"]
    spider, growing, one = found["spider", "constant"], found["sadmm", "sqrt"], found["sadmm", "one"]
    slowest = max(dynamic, constant, key=lambda row: row["slope"])
    return [
        Verdict(
            "SMADMM with dynamic parameters and batches of O(1) needs Õ(ε^(-3/2)) sample gradients (Theorem 3.2)",
            _order(dynamic["slope"], -2 / 3),
            f"The slope is {_slope(dynamic)}; the theorem says -0.667.",
        ),
        Verdict(
            "SMADMM with constant parameters and one large first batch needs O(ε^(-3/2)) (Theorem 3.1)",
            _order(constant["slope"], -2 / 3),
            f"The slope is {_slope(constant)}; the theorem says -0.667.",
        ),
        Verdict(
            "SMADMM has the order of SARAH-ADMM, without its double loop and large batches",
            _order(slowest["slope"], spider["slope"]),
            f"The slope of SARAH-ADMM is {_slope(spider)}; SMADMM reaches dist² = 1e-3 with {_ratio(dynamic, spider)} "
            f"of its sample gradients (dynamic) and {_ratio(constant, spider)} (constant).",
        ),
        Verdict(
            "SMADMM improves on the order O(ε^(-2)) of SADMM",
            _order(slowest["slope"], growing["slope"] - 2 * NEAR),
            f"SADMM with batches of T^(1/2) has the slope {_slope(growing)}; SMADMM reaches dist² = 1e-3 with "
            f"{_ratio(dynamic, growing)} of its sample gradients.",
        ),
        Verdict(
            "SADMM needs O(ε^(-2)) with batches of O(1) and a fixed penalty (first row of Table 1)",
            _order(one["slope"], -1 / 2),
            f"With one sample per iteration and a fixed step the slope is {_slope(one)}. With batches that grow like "
            f"T^(1/2) it is {_slope(growing)}.",
        ),
    ]


def _order(slope: float, bound: float) -> Outcome:
    return "holds" if slope <= bound + NEAR else "holds in part" if slope <= bound + FAR else "does not hold here"


def _slope(row: Row) -> str:
    return f"{row['slope']:.3f} (95 % interval {row['slope_low']:.3f} to {row['slope_high']:.3f})"


def _ratio(row: Row, other: Row) -> str:
    ours, theirs = row["sfo_to_1e-3"], other["sfo_to_1e-3"]
    known = all(value is not None and math.isfinite(value) for value in (ours, theirs))
    return f"{100 * ours / theirs:.0f} %" if known else "an unknown share"


def _table(rows: Sequence[Row]) -> Table:
    columns: list[str | Column] = [
        "method",
        "batches",
        Column("slope of dist² in T", ".3f", "lower"),
        "95 % interval",
        Column("T for dist² = 1e-3", ".2g"),
        Column("dist² at the largest T", ".2e"),
    ]
    cells = []
    for line, row in zip(TABLE_1, rows, strict=True):
        slope = Measured(row["slope"], PRINTED[line.method])
        interval = f"{row['slope_low']:.3f} to {row['slope_high']:.3f}"
        cells.append([line.label, line.batches, slope, interval, row["sfo_to_1e-3"], row["level"]])
    note = (
        "The paper prints orders: O(ε^(-3/2)) is the slope -0.667, O(ε^(-2)) the slope -0.500. More negative is better."
    )
    return Table("Table 1: oracle complexity", columns, cells, note)


def _curves(rows: Sequence[Row]) -> Curves:
    budgets = [int(name.removeprefix("level_at_")) for name in rows[0] if name.startswith("level_at_")]
    series = [
        Series(line.label, budgets, [row[f"level_at_{T}"] for T in budgets])
        for line, row in zip(TABLE_1, rows, strict=True)
    ]
    first = 1.6 * rows[0][f"level_at_{budgets[0]}"]
    for slope, name in ((-2 / 3, "slope -2/3"), (-1 / 2, "slope -1/2")):
        series.append(Series(name, budgets, [first * (T / budgets[0]) ** slope for T in budgets], dashed=True))
    return Curves(
        "dist² against sample gradients", series, "sample gradients T", "dist²(0, ∂L)", log_x=True, log_y=True
    )


def table(found: Findings) -> str:
    """table.md."""
    columns = {"method": "", "variant": "", "slope": ".3f", "slope_low": ".3f", "slope_high": ".3f", "theory": ".3f"}
    return markdown_table(found.rows, {**columns, "sfo_to_1e-3": ".2g", "level": ".2e"}) + "\n"


def figures(found: Findings) -> dict[str, bytes]:
    """complexity.png: means over runs, with the range of 80 % of them."""
    curves = _curves(found.rows)
    levels = [levels_of(line, found.jobs, found.results)[1] for line in TABLE_1]
    bands = [np.percentile(each, [10, 90], axis=1) for each in levels]
    series = [replace(s, low=low, high=high) for s, (low, high) in zip(curves.series, bands, strict=False)]
    return {"complexity.png": draw([replace(curves, series=[*series, *curves.series[len(series) :]])], dpi=150)}


COMPLEXITY = Experiment(
    "complexity",
    "Oracle complexity (Table 1)",
    "Table 1: how the stationarity measure falls with the number of sample gradients.",
    jobs=complexity_jobs,
    work=run_complexity,
    rows=complexity_rows,
    chapter=chapter,
    table=table,
    figures=figures,
)
