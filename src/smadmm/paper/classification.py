"""The paper's Table 2 and Figure 1: graph-guided classification, every published method tuned with the same effort.

Four LIBSVM sets, each split at random into halves; with and without intercept; lam1 = 1e-5 and the paper's 1e-11. A job
is one method on one problem (smadmm.paper.classification_runs); what it does: smadmm.paper.classification_methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from smadmm.io.libsvm import as_signs, load_libsvm
from smadmm.paper import classification_chapter
from smadmm.paper.classification_runs import (
    PAPER_INVERSE,
    PAPER_STEP,
    TUNED,
    ClassificationRun,
    Grid,
    load_halves,
    run_classification,
)
from smadmm.paper.experiment import Experiment, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint


@dataclass(frozen=True)
class ClassificationPlan:
    """What is compared, and with how much effort."""

    sets: tuple[str, ...] = ("splice_scale", "a8a", "a9a", "ijcnn1")
    intercepts: tuple[bool, ...] = (False, True)
    lams: tuple[float, ...] = (1e-5, 1e-11)
    marks: tuple[int, ...] = (1, 2, 5, 10, 20)  # SFO epochs
    grid: Grid = Grid((0.316, 1.0, 3.16, 10.0, 31.6, 100.0, 316.0), (0.03, 0.3, 3.0, 30.0), (8, 32, 100, 200, 300))  # noqa: RUF009
    tuning: int = 2  # seeds
    shown: int = 8


FULL = ClassificationPlan()
QUICK = ClassificationPlan(
    sets=("splice_scale", "a8a"),
    lams=(1e-5,),
    marks=(1, 2, 5, 10),
    grid=Grid((0.316, 1.0, 3.16, 10.0, 31.6, 100.0), (3.0,), (32, 100)),
    tuning=1,
    shown=2,
)


def classification_jobs(request: Request) -> list[ClassificationRun]:
    from smadmm.learn.loops import have_numba

    if not have_numba():
        raise ImportError("the classification experiment needs numba; install it with: pip install 'smadmm[learn]'")
    plan = QUICK if request.quick else FULL
    marks = fingerprints(plan.sets, request)
    return [
        ClassificationRun(
            name,
            intercept,
            lam1,
            method,
            seed=request.seed,
            marks=plan.marks,
            grid=plan.grid,
            tuning=plan.tuning,
            shown=plan.shown,
            fingerprint=marks[name],
        )
        for lam1, name, intercept, method in product(plan.lams, plan.sets, plan.intercepts, (*TUNED, "untuned"))
    ]


def fingerprints(names: Sequence[str], request: Request) -> dict[str, str]:
    """Of the sets, by name; all that cannot be used are named before any work is done."""
    found, failures = {}, []
    for name in names:
        try:
            load_halves(name, request.data, request.seed)
            whole = load_libsvm(name, request.data)
        except (OSError, ValueError) as error:
            failures.append(f"{name} ({error})")
        else:
            found[name] = fingerprint((whole.X.data, whole.X.indices, as_signs(whole.y)))
    if failures:
        raise ValueError("these sets cannot be used: " + "; ".join(failures))
    return found


def classification_rows(jobs: Sequence[ClassificationRun], results: Mapping[str, JobResult]) -> list[Row]:
    return [row for job in jobs for row in rows_of(job, results[job.name])]


def rows_of(job: ClassificationRun, result: JobResult) -> list[Row]:
    """Flat rows, one per variant and mark.

    "tuned": the configuration that was best at the last mark; "tuned per mark": at every mark the one best there.
    """
    if job.method == "untuned":
        rows = [row for v in (PAPER_INVERSE, PAPER_STEP) for row in _rows(job, "smadmm", v, result[v])]
        rows += _rows(job, "auto", "untuned", result["auto"])
        reference = {"seeds": [[result["lbfgs"]]]}
        return [*rows, *_rows(job, "lbfgs", "reference", reference, (round(result["lbfgs"]["spent"]),))]
    shown = result["configurations"]
    last = next(c for c in shown if job.marks[-1] in c["chosen"])
    each = [row for c in shown for row in _rows(job, job.method, "tuned per mark", c) if row["epochs"] in c["chosen"]]
    return _rows(job, job.method, "tuned", last) + sorted(each, key=lambda row: row["epochs"])


def _rows(
    job: ClassificationRun, method: str, variant: str, part: JobResult, marks: Sequence[int] | None = None
) -> list[Row]:
    """Means over the seeds; the certificate is the median, the seconds are the shortest."""
    rows = []
    for i, mark in enumerate(marks or job.marks):
        records = [seed[i] for seed in part["seeds"]]

        def of(name: str, records: Any = records) -> list[float]:
            return [math.nan if record[name] is None else record[name] for record in records]

        row: Row = {"set": job.set, "intercept": job.intercept, "lam1": job.lam1, "method": method, "variant": variant}
        row |= {"epochs": mark, "objective": float(np.mean(of("objective")))}
        row["objective_median"] = float(np.median(of("objective")))
        row["objective_std"] = float(np.std(of("objective"), ddof=1)) if len(records) > 1 else math.nan
        row |= {name: float(np.mean(of(name))) for name in ("test_loss", "test_accuracy")}
        row |= {"seconds": float(np.min(of("seconds")))}
        row |= {name: float(np.median(of(name))) for name in ("certificate", "certificate_free_y")}
        row |= {name: part.get(name) for name in ("step", "rho", "batch", "flags")} | {"seeds": len(records)}
        rows.append({**row, "epochs_spent": float(np.mean(of("spent")))})
    return rows


CLASSIFICATION = Experiment(
    "classification",
    "Graph-guided classification (Table 2, Figure 1)",
    "Table 2 and Figure 1: classification, every published method tuned with the same effort.",
    jobs=classification_jobs,
    work=run_classification,
    rows=classification_rows,
    chapter=classification_chapter.chapter,
    figures=classification_chapter.figures,
)
