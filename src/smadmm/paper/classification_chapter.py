"""The classification experiment as a chapter of the report: a verdict per claim, Table 2, Figure 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smadmm.paper.classification_claims import (
    Problem,
    Results,
    Row,
    all_cells,
    behind,
    claim_auto,
    holds,
    number,
    reached,
    stationarity,
    wins,
)
from smadmm.paper.classification_report import COLUMNS, LAST_MARK, PAPER_TABLE_2, head, last_mark_rows
from smadmm.paper.classification_runs import PAPER_INVERSE, PAPER_STEP
from smadmm.report import Column, Curves, Heading, Measured, Part, Series, Table, Verdict
from smadmm.report.parts import Outcome

OUTCOMES: dict[str, Outcome] = {
    "holds": "holds",
    "holds only in part": "holds in part",
    "does not hold": "does not hold here",
}


def chapter(rows: Sequence[Row], sets: Sequence[Row]) -> list[Part]:
    """The chapter, from the rows and the description of the sets."""
    results = Results(rows)
    last = results.marks[-1]
    tables = [_last_mark(results, title, name, form) for title, name, form in LAST_MARK]
    return [
        "Graph-guided classification with the sigmoid loss: random halves of LIBSVM sets, with and without intercept, "
        "every published method tuned with the same number of runs. Cells are problems at a number of SFO epochs.",
        *verdicts(results),
        "Not a claim of the paper. " + claim_auto(results),
        table_2(sets),
        Heading("Figure 1", 3),
        *_figure_1(results),
        Heading(f"After {last} epochs", 3),
        *tables,
    ]


def verdicts(results: Results) -> list[Verdict]:
    """The claims, each with the counts that decide it."""
    last, count, every = results.marks[-1], len(results.problems), len(all_cells(results))
    below, lowest, factor = stationarity(results, "certificate")
    losses, objectives = wins(results, "test_loss"), wins(results)
    inverse, step = reached(results, PAPER_INVERSE), reached(results, PAPER_STEP)

    def verdict(claim: str, good: int, of: int, because: str) -> Verdict:
        return Verdict(claim, OUTCOMES[holds(good, of)], because)

    return [
        verdict(
            "SMADMM has superior convergence speed: the lowest objective on all sets (Figure 1a)",
            objectives,
            every,
            f"Tuned SMADMM has the lowest objective of the six tuned methods in {objectives} of {every} cells; after "
            f"{last} epochs it is {behind(results):+.1f} % from the best other one in the median.",
        ),
        verdict(
            "SMADMM has the lowest test loss on all sets (Figure 1b)",
            losses,
            every,
            f"The test loss of tuned SMADMM is the lowest of the six in {losses} of {every} cells.",
        ),
        verdict(
            "With the parameters that the paper prints, SMADMM is at least as good as the other methods, tuned",
            max(inverse, step),
            every,
            f"They reach the best other tuned method in {inverse} of {every} cells with eta read as an inverse step, "
            f"in {step} with eta read as a step.",
        ),
        verdict(
            "SMADMM comes nearer to a stationary point than SADMM (the theorems' measure, at the last iterate)",
            below,
            count,
            f"Its dist²(0, ∂L) is the smaller in {below} of {count} problems after {last} epochs; SADMM's is "
            f"{factor:.2g} times as large in the median. SMADMM's is the smallest of all six in {lowest}.",
        ),
    ]


def table_2(sets: Sequence[Row]) -> Table:
    """The sets, beside what the paper prints."""
    columns: list[str | Column] = ["set", "training", "test", "features", "edges"]
    columns += [Column("positive", ".2f"), Column("density", ".2f")]
    rows = []
    for found in sets:
        printed = PAPER_TABLE_2.get(found["set"], (None, None, None))
        sizes = zip(("training", "test", "features"), printed, strict=True)
        counts = [Measured(found[name], paper) for name, paper in sizes]
        rows.append([found["set"], *counts, found["edges"], found["positive"], found["density"]])
    return Table(
        "Table 2: the sets", columns, rows, "Random halves; edges of the graphical lasso on the training half."
    )


def _figure_1(results: Results) -> list[Part]:
    """Objective and test loss in the paper's setting: the smallest lam1 there is, no intercept."""
    lam1 = min(p[2] for p in results.problems)
    shown = [p for p in results.problems if p[2] == lam1 and not p[1]]
    same = ", as in the paper" if lam1 == 1e-11 else ""
    text = f"Here lam1 = {lam1:g}, no intercept{same}; the folder has figures of all problems."
    plots = [_plot(results, p, value) for p in shown for value in ("objective", "test_loss")]
    return [text, *plots]


def _plot(results: Results, problem: Problem, value: str) -> Curves:
    series = []
    for method, variant in COLUMNS[:-1]:
        rows = [results.get(problem, method, variant, mark) for mark in results.marks]
        y = [number(row[value]) for row in rows]
        low = high = None
        if value == "objective":
            spread = [0.0 if number(row["objective_std"]) == math.inf else row["objective_std"] for row in rows]
            low, high = ([a + sign * s for a, s in zip(y, spread, strict=True)] for sign in (-1, 1))
        series.append(Series(head(method, variant), results.marks, y, low, high, dashed="paper" in variant))
    reference = [results.reference[problem][value]] * len(results.marks)
    series.append(Series("L-BFGS", results.marks, reference, dashed=True))
    name = value.replace("_", " ")
    return Curves(f"{problem[0]}: {name}", series, "SFO epochs", name, log_x=True, log_y=True)


def _last_mark(results: Results, title: str, name: str, form: str) -> Table:
    rows = last_mark_rows(results, name, form)
    return Table(title, list(rows[0]), [list(row.values()) for row in rows])
