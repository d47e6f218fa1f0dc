"""Classifiers with their default settings on small tables: ours against scikit-learn's and skglm.

Our default weight and graph come from the training rows, by leaving rows out (smadmm.learn.leaving_out). The unit of
these weights was chosen with scores of the sets that ship with scikit-learn and of LIBSVM's training files, so those
sets are no clean test; the search was developed on generated sets of these kinds with other seeds. The LIBSVM rows
(with a folder of data) are those of the test files. A method is better or worse than another on a set where the mean
paired difference over the splits exceeds its standard error.
How a job runs: smadmm.paper.tabular_runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.rows import mean, outcome, some
from smadmm.paper.tabular_runs import (
    BUNDLED,
    COLD,
    GENERATED,
    LIBSVM,
    OURS,
    OURS_CV,
    TabularRun,
    installed,
    read_table,
    run_tabular,
)
from smadmm.report import Column, Part, Table, Verdict

SPLITS = 5
QUICK = ("iris", "wine", "groups")
MEASURES = {  # column, format, which is better
    "accuracy": ("Accuracy", ".3f", "higher"),
    "auc": ("AUC", ".4f", "higher"),
    "log_loss": ("Log-loss", ".3f", "lower"),
    "nonzeros": ("Non-zero coefficients", ".0f", "lower"),
    "seconds": ("Seconds of a fit, warm (processor)", ".3f", "lower"),
}
RANKED = ("accuracy", "auc", "log_loss")
BEHIND = 0.01


def tabular_jobs(request: Request) -> list[TabularRun]:
    tables = [*BUNDLED, *GENERATED, *(LIBSVM if request.data else ())]
    tables = [table for table in tables if not request.quick or table in QUICK]
    jobs = []
    for table in tables:
        X, y = read_table(table, request.data, request.seed)
        mark = fingerprint([X.toarray() if hasattr(X, "toarray") else X, y])
        splits = 2 if request.quick else SPLITS
        jobs += [TabularRun(table, method, splits, request.seed, mark) for method in installed()]
    return jobs + [TabularRun(COLD, method, 0, request.seed) for method in installed() if not request.quick]


def tabular_rows(jobs: Sequence[TabularRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for job in jobs:
        found = results[job.name]
        known = {"table": job.table, "method": job.method}
        if job.table == COLD:
            rows.append({**known, "split": None, "seconds": found["seconds"]})
        for split in range(job.splits):
            rows.append({**known, "split": split, **{name: found[name][split] for name in MEASURES}})
    return rows


def chapter(found: Findings) -> list[Part]:
    warm, cold = [row for row in found.rows if row["table"] != COLD], some(found.rows, table=COLD)
    methods = list(dict.fromkeys(row["method"] for row in warm))
    tables = list(dict.fromkeys(row["table"] for row in warm))
    splits = 1 + max(row["split"] for row in warm)
    means = {
        name: {table: {m: mean(some(warm, table=table, method=m), name) for m in methods} for table in tables}
        for name in MEASURES
    }
    without = "" if "skglm" in methods else " skglm is not installed here and left out."
    parts: list[Part] = [
        f"Default settings, means of {splits} splits (3/4 of the rows for training, the same ones for every method). "
        "Ours standardise inside; the others follow a StandardScaler but for the columns that say raw. Solvers may run "
        f"to their end, SGDClassifier has the logistic loss, skglm the weight 1/rows.{without} Our default "
        "weight and graph come from the training rows, by leaving rows out. The unit of these weights was chosen with "
        f"scores of {', '.join(BUNDLED)} and of LIBSVM's training files: these sets are no clean test. The search was "
        "developed on generated sets of these kinds with other seeds, but scores of counts and digits were seen when a "
        "ridge was added to it. LIBSVM rows are those of the test files.",
        *_verdicts(means, [table for table in tables if table in GENERATED]),
    ]
    for name, (title, form, better) in MEASURES.items():
        heads: list[str | Column] = ["set", *(Column(method, form, better) for method in methods)]  # type: ignore[arg-type]
        lines: list[list[Any]] = [[table, *means[name][table].values()] for table in tables]
        if name in RANKED:
            lines.append(["mean rank", *_ranks(means[name], methods, better).values()])
        parts.append(Table(title, heads, lines))
    if cold:
        lines = [[row["method"], row["seconds"]] for row in cold]
        note = "A fresh process, from the import of the estimator to the end of its first fit (breast cancer)."
        parts.append(
            Table("Seconds of a cold start (processor)", ["method", Column("seconds", ".2f", "lower")], lines, note)
        )
    heads = ["ours", "against", *(f"{MEASURES[name][0]}: better / equal / worse, mean" for name in RANKED)]
    lines = [
        [ours, rival, *(_compared(warm, tables, ours, rival, name) for name in RANKED)]
        for ours in (OURS, OURS_CV)
        for rival in methods
        if rival not in (OURS, OURS_CV)
    ]
    note = "Sets, by the mean paired difference over the splits and its standard error; positive means in our favour."
    return [*parts, Table("Paired differences", heads, lines, note)]


def _ranks(by_table: Mapping[str, Mapping[str, float | None]], methods: Sequence[str], better: str) -> dict[str, Any]:
    """Mean ranks among the methods that have the measure on every set; ties share a rank."""
    complete = [m for m in methods if all(values[m] is not None for values in by_table.values())]
    ranks: dict[str, list[float]] = {m: [] for m in complete}
    for values in by_table.values():
        signed = {m: float(values[m] or 0.0) * (-1 if better == "higher" else 1) for m in complete}
        for m in complete:
            below, equal = (sum(other < signed[m] for other in signed.values()),
                            sum(other == signed[m] for other in signed.values()))  # fmt: skip
            ranks[m].append(below + (equal + 1) / 2)
    return {m: fmean(ranks[m]) if m in complete else None for m in methods}


def _compared(rows: Sequence[Row], tables: Sequence[str], ours: str, rival: str, name: str) -> str:
    """On how many sets ours is better, equal, worse, and the mean difference."""
    sign = 1 if MEASURES[name][2] == "higher" else -1
    counts, means = [0, 0, 0], []
    for table in tables:
        both = zip(some(rows, table=table, method=ours), some(rows, table=table, method=rival), strict=True)
        pairs = [(a[name], b[name]) for a, b in both]
        if any(None in pair for pair in pairs):
            continue
        differences = [sign * (a - b) for a, b in pairs]
        middle, error = fmean(differences), stdev(differences) / len(differences) ** 0.5
        counts[0 if middle > error else 2 if middle < -error else 1] += 1
        means.append(middle)
    return f"{counts[0]} / {counts[1]} / {counts[2]}, {fmean(means):+.3f}" if means else "-"


def _verdicts(means: Mapping[str, Any], generated: Sequence[str]) -> Iterator[Verdict]:
    """First in rank on log-loss and AUC, on all sets and on generated ones; never a point behind."""
    every = means["accuracy"]
    for name in ("log_loss", "auc"):
        title, _, better = MEASURES[name]
        methods = list(next(iter(means[name].values())))
        for kind, tables in (("all sets", list(every)), ("the generated sets", list(generated))):
            ranks = _ranks({table: means[name][table] for table in tables}, methods, better)
            ranked = sorted((rank, m) for m, rank in ranks.items() if rank is not None)
            said = ", ".join(f"{m} {rank:.1f}" for rank, m in ranked)
            won = ranked[0][1] in (OURS, OURS_CV)
            yield Verdict(f"{title}: one of ours has the best mean rank on {kind}", outcome(won, 1), said)
    for ours in (OURS, OURS_CV):
        gaps = {table: max(values.values()) - values[ours] for table, values in every.items()}
        lost = {table: gap for table, gap in gaps.items() if gap > BEHIND}
        said = ", ".join(f"{table} {100 * gap:.1f}" for table, gap in lost.items())
        yield Verdict(
            f"{ours}: never more than one point of accuracy behind the best",
            outcome(len(gaps) - len(lost), len(gaps)),
            f"on {len(gaps) - len(lost)} of {len(gaps)} sets" + (f"; points behind: {said}" if lost else ""),
        )


TABULAR = Experiment(
    "tabular",
    "Default classifiers on small tables",
    "Ours, scikit-learn's and skglm with default settings: accuracy, AUC, log-loss, non-zeros, seconds.",
    jobs=tabular_jobs,
    work=run_tabular,
    rows=tabular_rows,
    chapter=chapter,
    alone=True,
)
