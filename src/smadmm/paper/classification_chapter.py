"""The classification experiment as a chapter: a verdict per claim, Table 2, Figure 1, who wins, how it was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from smadmm.paper.classification_claims import (
    AUTO,
    CLASSIFIERS,
    Case,
    Cell,
    ClassificationRows,
    claim_auto,
    number,
    verdicts,
)
from smadmm.paper.classification_runs import PAPER_INVERSE, PAPER_STEP, TUNED
from smadmm.paper.experiment import Findings, Row
from smadmm.paper.writing import draw
from smadmm.protocol import caption
from smadmm.report import Column, Curves, Heading, Measured, Part, Series, Table

PAPER_TABLE_2 = {  # training, test, features as the paper prints them
    "splice_scale": (500, 500, 60),
    "a8a": (11348, 11348, 300),
    "a9a": (16280, 16280, 123),
    "ijcnn1": (24995, 24995, 22),
}
SHOWN = [*((method, "tuned") for method in TUNED), ("smadmm", PAPER_INVERSE), ("smadmm", PAPER_STEP), AUTO]
LAST_MARK = (
    ("Objective (mean ± standard deviation over seeds)", "objective", ".4f"),
    ("Test loss", "test_loss", ".4f"),
    ("Test accuracy", "test_accuracy", ".4f"),
    ("dist²(0, ∂L), median over seeds (auto: of the average; the others: of the last iterate)", "certificate", ".1e"),
    ("dist²(0, ∂L) with y = prox(A x - lam) for all", "certificate_free_y", ".1e"),
    ("Seconds (the fastest seed, one thread, compiled; L-BFGS: all of its runs)", "seconds", ".3f"),
)


def chapter(found: Findings) -> list[Part]:
    described = [found.results[job.name]["set"] for job in found.jobs if job.method == "untuned"]
    sets = list({row["set"]: row for row in described}.values())
    return [*chapter_of_rows(found.rows, sets), Heading("How it was measured", 3), *notes(found)]


def chapter_of_rows(rows: Sequence[Row], sets: Sequence[Row]) -> list[Part]:
    """What the rows and the description of the sets tell."""
    results = ClassificationRows(rows)
    return [
        "Graph-guided classification with the sigmoid loss: random halves of LIBSVM sets, with and without intercept, "
        "every published method tuned with the same number of runs. Cells are problems at a number of SFO epochs. "
        "Published methods run on the columns as they are and answer with their last iterate; auto scales the columns "
        "and answers with an average. What SADMM and SAGA-ADMM reach with the same help is in "
        "../classification-helped/table.md.",
        *verdicts(results),
        "Not a claim of the paper. " + claim_auto(results),
        table_2(sets),
        Heading("Figure 1", 3),
        *_figure_1(results),
        Heading("auto, untuned, against the best tuned method", 3),
        *auto_tables(results),
        Heading(f"After {results.marks[-1]} epochs", 3),
        "Published methods with the one configuration that was best on the tuning seeds after that many SFO epochs.",
        *(_last_mark(results, title, name, form) for title, name, form in LAST_MARK),
    ]


def table_2(sets: Sequence[Row]) -> Table:
    """The sets, beside what the paper prints."""
    columns: list[str | Column] = ["set", "training", "test", "features", "edges"]
    columns += [Column("positive", ".2f"), Column("density", ".2f")]
    lines = []
    for found in sets:
        printed = PAPER_TABLE_2.get(found["set"], (None, None, None))
        sizes = zip(("training", "test", "features"), printed, strict=True)
        counts = [Measured(found[name], paper) for name, paper in sizes]
        lines.append([found["set"], *counts, found["edges"], found["positive"], found["density"]])
    note = "Random halves; edges of the graphical lasso on the training half (rows of G)."
    return Table("Table 2: the sets", columns, lines, note)


def _label(case: Case) -> list[str]:
    return [case[0], "yes" if case[1] else "no", f"{case[2]:g}"]


def _head(method: str, variant: str) -> str:
    return f"{CLASSIFIERS[method]} ({variant})" if variant in (PAPER_INVERSE, PAPER_STEP) else CLASSIFIERS[method]


def _figure_1(results: ClassificationRows) -> list[Part]:
    """Objective and test loss in the paper's setting: the smallest lam1 there is, no intercept."""
    lam1 = min(case[2] for case in results.cases)
    shown = [case for case in results.cases if case[2] == lam1 and not case[1]]
    same = ", as in the paper" if lam1 == 1e-11 else ""
    text = f"Here lam1 = {lam1:g}, no intercept{same}; the folder has figures of all problems."
    return [text, *(_plot(results, case, value) for case in shown for value in ("objective", "test_loss"))]


def _plot(results: ClassificationRows, case: Case, value: str, against: str = "epochs") -> Curves:
    series = []
    for method, variant in SHOWN:
        rows = [results.get((case, mark), method, variant) for mark in results.marks]
        y = [number(row[value]) for row in rows]
        low = high = None
        if value == "objective":
            spread = [0.0 if number(row["objective_std"]) == math.inf else row["objective_std"] for row in rows]
            low, high = ([a + sign * s for a, s in zip(y, spread, strict=True)] for sign in (-1, 1))
        x = results.marks if against == "epochs" else [row[against] for row in rows]
        series.append(Series(_head(method, variant), x, y, low, high, dashed="paper" in variant))
    series.append(Series("L-BFGS", x, [results.reference[case][value]] * len(x), dashed=True))  # as far as auto
    name = value.replace("_", " ")
    x_label = "SFO epochs" if against == "epochs" else against
    title = f"{case[0]}, {'with' if case[1] else 'no'} intercept: {name}"
    return Curves(title, series, x_label, name, log_x=True, log_y=True)


def figures(found: Findings) -> dict[str, bytes]:
    """Per set and lam1: objective and test loss against epochs and seconds, without and with intercept."""
    results = ClassificationRows(found.rows)
    drawn = {}
    for name, lam1 in dict.fromkeys((case[0], case[2]) for case in results.cases):
        plots = [
            _plot(results, case, value, against)
            for case in results.cases
            if case[::2] == (name, lam1)
            for value in ("objective", "test_loss")
            for against in ("epochs", "seconds")
        ]
        drawn[f"{name}_lam1_{lam1:g}.png"] = draw(plots, columns=4, dpi=72)
    return drawn


def auto_tables(results: ClassificationRows) -> list[Part]:
    """auto against the best tuned method of every mark, and how often it is ahead."""
    marks = ["1 epoch" if mark == 1 else f"{mark} epochs" for mark in results.marks]

    def cell(where: Cell) -> str:
        auto, rival = results.get(where, *AUTO)["objective"], results.best(where, TUNED)
        percent = f"{results.excess(AUTO, where, TUNED):+.1f} %"
        return f"{auto:.4f} / {rival['objective']:.4f} {rival['method']} ({percent})"

    lines = [[*_label(case), *(cell((case, mark)) for mark in results.marks)] for case in results.cases]
    note = (
        "Objective of auto / of the best published method, each of them with the configuration tuned for that number "
        "of SFO epochs; negative: auto is lower. Means over fresh seeds."
    )
    counts: list[list[str | float]] = []
    for name, mark in zip(marks, results.marks, strict=True):
        excess = [results.excess(AUTO, (case, mark), TUNED) for case in results.cases]
        wins, close = sum(e < 0 for e in excess), sum(e <= 1 for e in excess)
        counts.append([name, wins, len(excess) - wins, close, f"{min(excess):+.1f} % to {max(excess):+.1f} %"])
    return [
        Table("auto / best", ["set", "intercept", "lam1", *marks], lines, note),
        Table("Problems in which auto is", ["after", "lower", "higher", "at most 1 % above", "from, to"], counts),
    ]


def _last_mark(results: ClassificationRows, title: str, value: str, form: str) -> Table:
    """One number for every problem and method at the last mark."""
    shown = [*SHOWN, ("lbfgs", "reference")]

    def cell(row: Row) -> str:
        text = "-" if number(row[value]) == math.inf else format(row[value], form)
        spread = value == "objective" and number(row["objective_std"]) < math.inf
        return f"{text} ± {row['objective_std']:.4f}" if spread else text

    lines = [[*_label(c[0]), *(cell(results.get(c, *method)) for method in shown)] for c in results.last_cells]
    heads = ["set", "intercept", "lam1", *(_head(*method) for method in shown)]
    seeds: list[Any] = [results.get(results.last_cells[0], *method).get("seeds") for method in SHOWN]
    if None in seeds:  # stored before rows said it
        return Table(title, heads, lines)
    flagged = sum(bool(results.get(c, m, "tuned")["flags"]) for c in results.last_cells for m in TUNED)
    told = f"{flagged} of {len(lines) * len(TUNED)} tuned points have flags (results.json)"
    return Table(title, heads, lines, f"{caption('seed', min(seeds))}; {told}.")


def notes(found: Findings) -> list[str]:
    """How it was measured, and how often the best of a grid was at its end (some make no step in one epoch)."""
    one = found.jobs[0]
    tuned = [(job.method, found.results[job.name]) for job in found.jobs if job.method in TUNED]
    chosen = [(method, c) for method, result in tuned for c in result["configurations"] if c["chosen"][-1] > 1]
    batch, total = min(one.grid.batches), Counter(method for method, _ in chosen)
    smallest = Counter(method for method, c in chosen if c["batch"] <= batch)
    spent = [row["epochs_spent"] for row in found.rows if row["method"] == "lbfgs"]
    return [
        f"Each published method was tuned on each problem with {max(result['runs'] for _, result in tuned)} runs (step "
        f"x rho x batch x {one.tuning} seeds) by the objective on the training half, and is shown on {one.shown} fresh "
        f"seeds. Of {len(chosen)} configurations chosen for more than one epoch "
        f"{sum('at the end' in c['flags'] for _, c in chosen)} lie at an end of a grid and {smallest.total()} have its "
        f"smallest batch, {batch} (SMADMM: "
        f"{smallest['smadmm']} of {total['smadmm']}); smaller batches were not tried.",
        "An SFO epoch is as many sample gradients as the training half has samples; a method with restarts may spend "
        "up to one epoch more than the mark (epochs_spent in results.json).",
        "SARAH-ADMM has the id spider. SMADMM tuned: Theorem 3.2's exponents, first batch min(N/4, 1000). SMADMM of "
        "the paper: eta_k = min(0.1 k^(1/3), 0.5), a_k = max(0.5 k^(-2/3), 0.01), batches of 100, also the first; "
        "rho_k, which the paper does not print, is eta_k / (2 |A|²).",
        "L-BFGS (scipy): the better of two runs, from 0 and from the minimiser of the logistic loss, with |t| replaced "
        "by sqrt(t² + δ²), δ from 1e-3 to 1e-7; the objective shown is the true one. It is a local minimum of a "
        f"nonconvex function, found with {min(spent):.0f} to {max(spent):.0f} full gradients.",
        "Seconds are of runs beside other work on the machine: read them as orders of magnitude. auto's contain its "
        "pass for the column statistics, those of the published methods the inverse of their x-step. "
        f"All jobs together took {found.seconds:.0f} seconds of work.",
    ]
