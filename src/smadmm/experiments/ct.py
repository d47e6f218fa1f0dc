"""The paper's CT experiments, Tables 3 to 5 and Figures 2 and 3, and the tuning behind them.

    ct-tuning      kappa and eta of every method on training slices, nine points each; the constants TUNED
    ct-120, -180   SNR and SSIM of six methods at batch sizes 5, 10, 20, 40; 50 and 35 dB
    ct-ablation    momentum a_k = k^-alpha
    ct-iterations  SNR over iterations at 120, 180, 360, 720 views
    ct-visual      the images, and the library's default against the published algorithm

How a job runs: smadmm.experiments.ct_runs. What is made of the rows: smadmm.experiments.ct_report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from smadmm.experiments import ct_report
from smadmm.experiments.ct_runs import PUBLISHED, Job, fingerprint, read_slices, run_job
from smadmm.experiments.jobs import run_all, write_csv
from smadmm.experiments.results import markdown, write_results
from smadmm.files import atomic_write, output_folder

Row = dict[str, Any]
METHODS = (*PUBLISHED, "default")
RIVALS = ("sadmm", "smadmm", "default")
BATCHES = (5, 10, 20, 40)
EXPERIMENTS = ("ct-tuning", "ct-120", "ct-180", "ct-ablation", "ct-iterations", "ct-visual")
KAPPAS = {50.0: (1.0, 4.0, 16.0), 35.0: (0.25, 1.0, 4.0)}
ETAS = (1.0, 0.3, 0.1)
DEFAULT_KAPPAS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0)

# (kappa, eta) by input SNR, batch size (5: also for 10; 20: also for 40) and method: the best mean SNR of
# `smadmm reproduce ct-tuning`, 256 x 256, 180 views
TUNED: dict[tuple[float, int], dict[str, tuple[float, float]]] = {
    (50.0, 5): {**dict.fromkeys(PUBLISHED, (4.0, 0.3)), "default": (1.4, 1.0)},
    (50.0, 20): {**dict.fromkeys(PUBLISHED, (4.0, 0.3)), "default": (1.0, 1.0)},
    (35.0, 5): {
        **dict.fromkeys(PUBLISHED, (1.0, 0.3)),
        "red-sd": (4.0, 1.0),
        "sadmm": (4.0, 1.0),
        "default": (0.7, 1.0),
    },
    (35.0, 20): {**dict.fromkeys(PUBLISHED, (1.0, 0.3)), "default": (0.5, 1.0)},
}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    size: int = 256
    slices: tuple[int, ...] = (0, 3, 6, 9, 12)
    training: tuple[int, ...] = (20, 100)  # slices
    tuned: tuple[tuple[float, int], ...] = tuple(TUNED)  # input SNR and batch size
    seeds: int = 2  # of ct-180 at 50 dB; the others have one
    batches: tuple[int, ...] = BATCHES
    iterations: int = 60
    processes: int = 2  # 0: in this one


FULL = Plan()
QUICK = Plan(slices=(0,), training=(20,), tuned=((50.0, 5),), seeds=1, batches=(5, 20), iterations=15)


def reproduce(
    name: str,
    out: str,
    data: str | None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    processes: int = 2,
    size: int = 256,
    plan: Plan | None = None,
) -> list[Row]:
    """Run or resume one of EXPERIMENTS; results.json, results.csv, table.md and figures go to `out`."""
    if name not in EXPERIMENTS:
        raise ValueError(f"no CT experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    if size not in (256, 512):
        raise ValueError(f"size must be 256 or 512, got {size}")
    plan = plan or replace(QUICK if quick else FULL, size=size, processes=processes)
    jobs = _with_fingerprints(_jobs(name, plan, seed), data)
    folder = output_folder(out)
    results = run_all(jobs, run_job, data, output_folder(folder / "parts"), plan.processes, progress)
    rows = [ct_report.row(job, results[job.name]) for job in jobs]
    ct_report.add_budgets(rows, [results[job.name] for job in jobs])
    command = f"smadmm reproduce {name} --data DIR --out DIR --size {plan.size} --seed {seed}"
    command += " --quick" if quick else ""
    chapter = ct_report.chapter(name, folder, jobs, results, rows)
    seconds = sum(result["work"] for result in results.values())
    write_results(folder, name, command, seconds, rows, quick=quick, seed=seed, report=chapter)
    write_csv(folder / "results.csv", rows)
    atomic_write(folder / "table.md", markdown(chapter).encode())
    return rows


def _with_fingerprints(jobs: Sequence[Job], data: str | None) -> list[Job]:
    """Every job with that of its slices; slices that do not exist are refused before any work is done."""
    marks: dict[tuple[Any, int], str] = {}
    for job in jobs:
        key = (job.images, job.size)
        if key not in marks:
            slices = read_slices(data, *key)
            needed = max(j.slice for j in jobs if (j.images, j.size) == key)
            if needed >= len(slices):
                raise ValueError(f"slice {needed} is needed, but there are only {len(slices)} {job.images} slices")
            marks[key] = fingerprint(slices)
    return [replace(job, fingerprint=marks[job.images, job.size]) for job in jobs]


def _jobs(name: str, plan: Plan, seed: int) -> list[Job]:
    seeds = range(seed, seed + plan.seeds)
    if name == "ct-tuning":
        return [job for decibel, batch in plan.tuned for job in _tuning(plan, decibel, batch, seed)]
    if name in ("ct-120", "ct-180"):
        views = int(name[3:])
        everything = (METHODS, plan.batches, plan.slices)
        several = seeds if views == 180 else seeds[:1]
        return _grid(plan, views, 50.0, *everything, several) + _grid(plan, views, 35.0, *everything, seeds[:1])
    if name == "ct-ablation":
        jobs = _grid(plan, 180, 50.0, ("smadmm",), plan.batches, plan.slices, seeds[:1])
        return [replace(job, alpha=alpha) for alpha in (0.1, 0.5, 2 / 3, 2.0) for job in jobs]
    if name == "ct-iterations":
        longer = replace(plan, iterations=2 * plan.iterations)
        return [
            j for v in (120, 180, 360, 720) for j in _grid(longer, v, 50.0, RIVALS, (5,), plan.slices[:2], seeds[:1])
        ]
    shown = ("red-sd", "sadmm", "smadmm", "default")
    images = [replace(j, keep=True) for j in _grid(plan, 180, 50.0, shown, (5,), plan.slices[:1], seeds[:1])]
    fixed = replace(plan, iterations=min(plan.iterations, 60))
    against = _grid(fixed, 180, 50.0, (*RIVALS, "untuned"), (20,), plan.slices, seeds[:1])
    against += _grid(fixed, 180, 50.0, ("all-views",), (180,), plan.slices, seeds[:1])
    long = replace(plan, iterations=4 * plan.iterations)
    return images + against + _grid(long, 180, 50.0, ("smadmm", "default"), (20,), plan.slices[:1], seeds[:1])


def _grid(
    plan: Plan,
    views: int,
    decibel: float,
    methods: Sequence[str],
    batches: Sequence[int],
    slices: Sequence[int],
    seeds: Sequence[int],
) -> list[Job]:
    return [
        Job("test", i, plan.size, views, decibel, method, batch, seed, plan.iterations, *tuned(decibel, batch, method))
        for method, batch, i, seed in product(methods, batches, slices, seeds)
    ]


def tuned(decibel: float, batch: int, method: str) -> tuple[float, float]:
    """kappa and eta; `untuned` is smadmm with step 1 and the default's weight, which `all-views` takes, too."""
    if method in ("untuned", "all-views"):
        return 1.0, 1.0
    return TUNED[decibel, 5 if batch < 20 else 20][method]


def _tuning(plan: Plan, decibel: float, batch: int, seed: int) -> list[Job]:
    """Nine points for every method, on the same training slices."""
    jobs = []
    for method in METHODS:
        points = [(k, 1.0) for k in DEFAULT_KAPPAS] if method == "default" else product(KAPPAS[decibel], ETAS)
        for (kappa, eta), i in product(points, plan.training):
            jobs.append(Job("train", i, plan.size, 180, decibel, method, batch, seed, plan.iterations, kappa, eta))
    return jobs
