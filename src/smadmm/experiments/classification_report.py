"""What the classification experiment shows: Table 2, who wins and who loses, the claims of the paper, figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from smadmm.experiments.classification_claims import NAMES, Problem, Results, Row, number, verdict
from smadmm.experiments.classification_runs import PAPER_INVERSE, PAPER_STEP, TUNED
from smadmm.experiments.results import markdown_table
from smadmm.report.figures import write_figure

PAPER_TABLE_2 = {  # training, test, features as the paper prints them
    "splice_scale": (500, 500, 60),
    "a8a": (11348, 11348, 300),
    "a9a": (16280, 16280, 123),
    "ijcnn1": (24995, 24995, 22),
}
COLUMNS = [(method, "tuned") for method in TUNED]
COLUMNS += [("smadmm", PAPER_INVERSE), ("smadmm", PAPER_STEP), ("auto", "untuned"), ("lbfgs", "reference")]


def _label(problem: Problem) -> Row:
    return {"set": problem[0], "intercept": "yes" if problem[1] else "no", "lam1": f"{problem[2]:g}"}


def table_2(sets: Sequence[Row]) -> str:
    columns = dict.fromkeys(("set", "training", "test", "features", "classes", "edges"), "")
    text = markdown_table(sets, {**columns, "density": ".2f", "positive": ".2f"})
    notes = []
    for row in sets:
        printed = PAPER_TABLE_2.get(row["set"])
        for name, value in zip(("training", "test", "features"), printed or (), strict=False):
            if row[name] != value:
                notes.append(f"{row['set']} has {row[name]} {name}, the paper prints {value}.")
    return text + ("\n\n" + " ".join(notes) if notes else "")


def auto_table(results: Results) -> str:
    """auto against the best tuned method of every mark."""
    rows = []
    for problem in results.problems:
        row = _label(problem)
        for mark in results.marks:
            auto = results.get(problem, "auto", "untuned", mark)["objective"]
            rival = results.best(problem, mark, TUNED)
            percent = f"{results.excess(problem, 'auto', 'untuned', mark, TUNED):+.1f} %"
            row[_epochs(mark)] = f"{auto:.4f} / {rival['objective']:.4f} {rival['method']} ({percent})"
        rows.append(row)
    return markdown_table(rows, dict.fromkeys(rows[0], "")) + "\n\n" + _auto_count(results)


def _epochs(mark: int) -> str:
    return "1 epoch" if mark == 1 else f"{mark} epochs"


def _auto_count(results: Results) -> str:
    lines = []
    for mark in results.marks:
        excess = [results.excess(p, "auto", "untuned", mark, TUNED) for p in results.problems]
        wins, close = sum(e < 0 for e in excess), sum(e <= 1 for e in excess)
        lines.append(
            f"- {_epochs(mark)}: auto is lower in {wins} and higher in {len(excess) - wins} of {len(excess)} problems, "
            f"at most 1 % above in {close}; from {min(excess):+.1f} % to {max(excess):+.1f} %."
        )
    return "\n".join(lines)


def last_mark_table(results: Results, value: str, form: str) -> str:
    """One number for every problem and method at the last mark."""
    rows = last_mark_rows(results, value, form)
    return markdown_table(rows, dict.fromkeys(rows[0], ""))


def last_mark_rows(results: Results, value: str, form: str) -> list[Row]:
    mark = results.marks[-1]
    rows = []
    for problem in results.problems:
        row = _label(problem)
        for method, variant in COLUMNS:
            found = results.get(problem, method, variant, mark)
            text = "-" if number(found[value]) == math.inf else format(found[value], form)
            if value == "objective" and number(found["objective_std"]) < math.inf:
                text += f" ± {found['objective_std']:.4f}"
            row[head(method, variant)] = text
        rows.append(row)
    return rows


def head(method: str, variant: str) -> str:
    return f"{NAMES[method]} ({variant})" if variant in (PAPER_INVERSE, PAPER_STEP) else NAMES[method]


def report(sets: Sequence[Row], rows: Sequence[Row], effort: Row) -> str:
    """table.md."""
    results = Results(rows)
    mark = results.marks[-1]
    parts = [
        "# Graph-guided classification",
        "## Verdict",
        verdict(results),
        "## Table 2: the sets",
        "Random halves of the LIBSVM training files; edges of the graphical lasso on the training half (rows of G); "
        "the share of positive labels.",
        table_2(sets),
        "## auto, untuned, against the best tuned method",
        "Objective of auto / of the best published method, each of them with the configuration tuned for that number "
        f"of SFO epochs; negative: auto is lower. Means over {effort['shown']} fresh seeds.",
        auto_table(results),
        f"## After {_epochs(mark)}",
        "Published methods with the one configuration that was best on the tuning seeds after that many SFO epochs.",
    ]
    for title, name, form in LAST_MARK:
        parts += [f"### {title}", last_mark_table(results, name, form)]
    return "\n\n".join([*parts, "## How it was measured", notes(effort, results)]) + "\n"


LAST_MARK = (
    ("Objective (mean ± standard deviation over seeds)", "objective", ".4f"),
    ("Test loss", "test_loss", ".4f"),
    ("Test accuracy", "test_accuracy", ".4f"),
    ("dist²(0, ∂L), median over seeds (auto: of the average; the others: of the last iterate)", "certificate", ".1e"),
    ("dist²(0, ∂L) with y = prox(A x - lam) for all", "certificate_free_y", ".1e"),
    ("Seconds (the fastest seed, one thread, compiled; L-BFGS: all of its runs)", "seconds", ".3f"),
)


def notes(effort: Row, results: Results) -> str:
    evaluations = [r["epochs_spent"] for r in results.reference.values()]
    lines = [
        f"Each published method was tuned on each problem with {effort['runs']} runs (step x rho x batch x "
        f"{effort['tuning']} seeds) by the objective on the training half; of {effort['chosen']} configurations chosen "
        f"for more than one epoch {effort['at_edge']} lie at an end of the step grid and {effort['smallest']} have its "
        f"smallest batch, {effort['batch']} (SMADMM: {effort['smallest_smadmm']} of {effort['chosen_smadmm']}); "
        "smaller batches were not tried.",
        "An SFO epoch is as many sample gradients as the training half has samples; a method with restarts may spend "
        "up to one epoch more than the mark (epochs_spent in results.json).",
        "SARAH-ADMM has the id spider. SMADMM tuned: Theorem 3.2's exponents, first batch min(N/4, 1000). SMADMM of "
        "the paper: eta_k = min(0.1 k^(1/3), 0.5), a_k = max(0.5 k^(-2/3), 0.01), batches of 100, also the first; "
        "rho_k, which the paper does not print, is eta_k / (2 |A|²).",
        "L-BFGS (scipy): the better of two runs, from 0 and from the minimiser of the logistic loss, with |t| replaced "
        "by sqrt(t² + δ²), δ from 1e-3 to 1e-7; the objective shown is the true one. It is a local minimum of a "
        f"nonconvex function, found with {min(evaluations):.0f} to {max(evaluations):.0f} full gradients.",
        "Seconds are of runs beside other work on the machine: read them as orders of magnitude. auto's contain its "
        "pass for the column statistics, those of the published methods the inverse of their x-step.",
        f"All jobs together took {effort['seconds']:.0f} seconds of work.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """One figure a set and lam1: objective and test loss against epochs and seconds, without and with intercept."""
    results = Results(rows)
    for name, lam1 in dict.fromkeys((p[0], p[2]) for p in results.problems):
        problems = [p for p in results.problems if p[::2] == (name, lam1)]
        write_figure(folder / f"{name}_lam1_{lam1:g}.png", partial(_figure, results, problems), dpi=75)


def _figure(results: Results, problems: Sequence[Problem]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(problems), 6.2), layout="constrained")
    grid = figure.subplots(2, 2 * len(problems), squeeze=False)
    for block, problem in enumerate(problems):
        for i, value in enumerate(("objective", "test_loss")):
            for j, against in enumerate(("epochs", "seconds")):
                axes = grid[i, 2 * block + j]
                _curves(axes, results, problem, value, against)
                axes.set(xlabel="SFO epochs" if against == "epochs" else against, ylabel=value.replace("_", " "))
                axes.set_title(f"{problem[0]}, {'with' if problem[1] else 'no'} intercept", fontsize=9)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


COLOURS = {"sadmm": "tab:blue", "svrg": "tab:orange", "spider": "tab:green", "asvrg": "tab:brown"}
COLOURS |= {"saga": "tab:purple", "smadmm": "tab:red", "auto": "black"}
STYLES = {PAPER_INVERSE: "--", PAPER_STEP: ":"}


def _curves(axes: Any, results: Results, problem: Problem, value: str, against: str) -> None:
    from matplotlib.ticker import LogLocator

    reference = results.reference[problem][value]
    levels = [reference]
    for method, variant in COLUMNS[:-1]:
        rows = [results.get(problem, method, variant, mark) for mark in results.marks]
        label = head(method, variant) + (", tuned" if variant == "tuned" else "")
        look = {"color": COLOURS[method], "marker": ".", "linewidth": 2.2 if method == "auto" else 1.2}
        x, y = [r[against] for r in rows], [number(r[value]) for r in rows]
        levels += y
        axes.plot(x, y, STYLES.get(variant, "-"), label=label, **look)
        if value == "objective":
            spread = [0.0 if number(r["objective_std"]) == math.inf else r["objective_std"] for r in rows]
            low, high = ([a + sign * s for a, s in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, alpha=0.12, color=COLOURS[method], linewidth=0)
    axes.axhline(reference, color="0.5", linestyle="-.", linewidth=1, label="L-BFGS")
    axes.set(xscale="log", yscale="log", ylim=(0.95 * min(levels), min(1.05 * max(levels), 0.55)))  # F(0) = 0.5
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
