"""What the complexity experiment shows: the paper's Table 1 beside the measured slopes, and a verdict per claim.

Where dist^2 falls like T^slope, dist^2 = eps is reached with T ~ eps^(1/slope) sample gradients, so the paper's
O(eps^(-3/2)) is the slope -2/3 and its O(eps^(-2)) the slope -1/2. An order is an upper bound: it holds where the
measured slope is at most NEAR above it, in part where it is at most FAR above it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smadmm.report import Column, Curves, Measured, Part, Picture, Series, Table, Verdict
from smadmm.report.parts import Outcome

Row = Mapping[str, Any]

NEAR, FAR = 0.05, 0.15
NAMES = {  # as in Table 1: name, batches
    ("smadmm", "dynamic"): ("SMADMM, dynamic (Theorem 3.2)", "1"),
    ("smadmm", "constant"): ("SMADMM, constant (Theorem 3.1)", "T^(1/3) once, then 1"),
    ("spider", "constant"): ("SARAH-ADMM", "T^(2/3) and T^(1/3)"),
    ("sadmm", "sqrt"): ("SADMM, growing batches", "T^(1/2)"),
    ("sadmm", "one"): ("SADMM, one sample", "1"),
}
PRINTED = {"smadmm": -2 / 3, "spider": -2 / 3, "sadmm": -1 / 2}  # the orders of Table 1, as slopes


def chapter(rows: Sequence[Row]) -> list[Part]:
    """The chapter, from the rows alone."""
    found = {(row["method"], row["variant"]): row for row in rows}
    return [
        "A population problem with closed-form gradients: how dist²(0, ∂L), averaged over the second half of a run, "
        "falls with the number T of sample gradients. The slope measured in the logarithms of both is set beside the "
        "order that the paper's Table 1 prints.",
        *verdicts(found),
        _table(rows),
        _figure(rows),
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
            f"With one sample an iteration and a fixed step the slope is {_slope(one)}. With batches that grow like "
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
    for row in rows:
        name, batches = NAMES[row["method"], row["variant"]]
        slope = Measured(row["slope"], PRINTED[row["method"]])
        interval = f"{row['slope_low']:.3f} to {row['slope_high']:.3f}"
        cells.append([name, batches, slope, interval, row["sfo_to_1e-3"], row["level"]])
    note = (
        "The paper prints orders: O(ε^(-3/2)) is the slope -0.667, O(ε^(-2)) the slope -0.500. More negative is better."
    )
    return Table("Table 1: oracle complexity", columns, cells, note)


def _figure(rows: Sequence[Row]) -> Part:
    """Curves where the rows hold the levels at all budgets, else the picture of the run."""
    budgets = [int(name.removeprefix("level_at_")) for name in rows[0] if name.startswith("level_at_")]
    alt = "dist²(0, ∂L) against the number of sample gradients T, both logarithmic: a falling line for each method"
    if not budgets:
        return Picture("complexity.png", alt, "Means over runs, with the range of 80 % of them.")
    series = [
        Series(NAMES[row["method"], row["variant"]][0], budgets, [row[f"level_at_{T}"] for T in budgets])
        for row in rows
    ]
    first = 1.6 * rows[0][f"level_at_{budgets[0]}"]
    for slope, name in ((-2 / 3, "slope -2/3"), (-1 / 2, "slope -1/2")):
        series.append(Series(name, budgets, [first * (T / budgets[0]) ** slope for T in budgets], dashed=True))
    return Curves(
        "dist² against sample gradients", series, "sample gradients T", "dist²(0, ∂L)", log_x=True, log_y=True
    )
