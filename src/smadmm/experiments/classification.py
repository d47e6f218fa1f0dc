"""The paper's Table 2 and Figure 1: graph-guided classification, every published method tuned with the same effort.

Four LIBSVM sets, each split at random into halves; with and without intercept; lam1 = 1e-5 and the paper's 1e-11. The
work is cut into jobs (one method on one problem), which two processes do; each leaves its result in OUT/parts and is
not done again while its settings and data are the same. How a job runs: smadmm.experiments.classification_runs.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smadmm.experiments.classification_chapter import chapter
from smadmm.experiments.classification_report import draw, report
from smadmm.experiments.classification_runs import PAPER_INVERSE, PAPER_STEP, TUNED, Grid, Job, run_job
from smadmm.experiments.jobs import run_all, write_csv
from smadmm.experiments.results import write_results
from smadmm.extras import needs
from smadmm.files import atomic_write, output_folder

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is compared, and with how much effort."""

    sets: tuple[str, ...] = ("splice_scale", "a8a", "a9a", "ijcnn1")
    intercepts: tuple[bool, ...] = (False, True)
    lams: tuple[float, ...] = (1e-5, 1e-11)
    marks: tuple[int, ...] = (1, 2, 5, 10, 20)  # SFO epochs
    grid: Grid = Grid((0.316, 1.0, 3.16, 10.0, 31.6, 100.0, 316.0), (0.1, 3.0), (8, 32, 100))  # noqa: RUF009
    tuning: int = 2  # seeds
    shown: int = 5
    processes: int = 2  # 0: in this one


FULL = Plan()
QUICK = Plan(
    sets=("splice_scale", "a8a"),
    lams=(1e-5,),
    marks=(1, 2, 5, 10),
    grid=Grid((0.316, 1.0, 3.16, 10.0, 31.6, 100.0), (3.0,), (32, 100)),
    tuning=1,
    shown=2,
)


def reproduce(
    out: str,
    data: str | None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    processes: int = 2,
    plan: Plan | None = None,
) -> list[Row]:
    """Run or resume the experiment; results.json, results.csv, table.md and figures go to `out`."""
    folder = output_folder(out)
    plan = plan or replace(QUICK if quick else FULL, processes=processes)
    sets = describe_sets(plan.sets, data, seed)
    jobs = list(_jobs(plan, sets, seed))
    results = run_all(jobs, run_job, data, output_folder(folder / "parts"), plan.processes, progress)
    rows = [row for job in jobs for row in rows_of(job, results[job.name])]
    command = f"smadmm reproduce classification --data DIR --out DIR --seed {seed}" + (" --quick" if quick else "")
    seconds = sum(result["work"] for result in results.values())  # of all processes, also of earlier calls
    shown = chapter(rows, sets)
    write_results(folder, "classification", command, seconds, rows, quick=quick, seed=seed, report=shown)
    write_csv(folder / "results.csv", rows)
    atomic_write(folder / "table.md", report(sets, rows, _effort(plan, jobs, results) | {"seconds": seconds}).encode())
    draw(folder, rows)
    return rows


def _effort(plan: Plan, jobs: Sequence[Job], results: dict[str, Any]) -> Row:
    """How much was tuned, and how often the best of the grid was at its end (some make no step in one epoch)."""
    tuned = [(job.method, results[job.name]) for job in jobs if job.method in TUNED]
    chosen = [(method, c) for method, result in tuned for c in result["configurations"] if c["chosen"][-1] > 1]
    smallest = Counter(method for method, c in chosen if c["batch"] <= min(plan.grid.batches))
    return {
        "runs": max(result["runs"] for _, result in tuned),
        "tuning": plan.tuning,
        "shown": plan.shown,
        "chosen": len(chosen),
        "at_edge": sum(c["edge"] for _, c in chosen),
        "batch": min(plan.grid.batches),
        "smallest": smallest.total(),
        "smallest_smadmm": smallest["smadmm"],
        "chosen_smadmm": sum(method == "smadmm" for method, _ in chosen),
    }


def describe_sets(names: Sequence[str], data: str | None, seed: int) -> list[Row]:
    """Table 2, and a fingerprint of the data; all sets that cannot be used are named before any work is done."""
    from smadmm.data.libsvm import as_signs, load_libsvm
    from smadmm.experiments.classification_runs import load_halves

    needs("numba", "learn", "classification experiments")
    found, failures = [], []
    for name in names:
        try:
            whole = load_libsvm(name, data)
            halves = load_halves(name, data, seed)
        except (OSError, ValueError) as error:
            failures.append(f"{name} ({error})")
            continue
        X, y = whole.X, as_signs(whole.y)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in (X.data, X.indices, y)))
        row: Row = {"set": name, "training": len(halves.y), "test": len(halves.test_y), "features": X.shape[1]}
        row |= {"classes": 2, "edges": halves.graph.shape[0], "positive": float(np.mean(y > 0))}
        found.append({**row, "density": X.nnz / (X.shape[0] * X.shape[1]), "fingerprint": digest.hexdigest()[:16]})
    if failures:
        raise ValueError("these sets cannot be used: " + "; ".join(failures))
    return found


def _jobs(plan: Plan, sets: Sequence[Row], seed: int) -> Iterator[Job]:
    rest = (seed, plan.marks, plan.grid, plan.tuning, plan.shown)
    for lam1 in plan.lams:
        for found in sets:
            for intercept in plan.intercepts:
                for method in (*TUNED, "untuned"):
                    yield Job(found["set"], intercept, lam1, method, *rest, found["fingerprint"])


def rows_of(job: Job, result: Any) -> list[Row]:
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


def _rows(job: Job, method: str, variant: str, part: Any, marks: Sequence[int] | None = None) -> list[Row]:
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
        row |= {name: part.get(name) for name in ("step", "rho", "batch")}
        rows.append({**row, "epochs_spent": float(np.mean(of("spent")))})
    return rows
