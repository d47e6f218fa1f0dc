"""The paper's CT experiments, Tables 3 to 5 and Figures 2 and 3.

    ct-120, -180   SNR and SSIM of six methods at batch sizes 5, 10, 20, 40; 50 dB, at 180 views also 35 dB
    ct-ablation    momentum a_k = k^-alpha
    ct-iterations  SNR over iterations at 120, 180, 360, 720 views
    ct-visual      the images, and the library's default against the published algorithm

Each tunes its methods on training slices (smadmm.paper.ct_tuning), then reports test slices with other seeds. The unit
is the seed: of noise, views and sampling; each sees some of the slices, in turn. How a job runs: smadmm.paper.ct_runs.
What is made of the rows: smadmm.paper.ct_chapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from smadmm.paper import ct_chapter
from smadmm.paper.ct_runs import CT_PRIOR, PUBLISHED, CTRun, CTScan, read_slices, run_ct
from smadmm.paper.ct_tuning import Cell, Chosen, choose, tuning_runs
from smadmm.paper.experiment import Experiment, Findings, JobResult, Request
from smadmm.paper.provenance import with_fingerprints
from smadmm.report import Part

METHODS = (*PUBLISHED, "default")
RIVALS = ("sadmm", "smadmm", "default")
ALPHAS = tuple(ct_chapter.PAPER_ABLATION)


@dataclass(frozen=True)
class CTPlan:
    """How much is run."""

    slices: tuple[int, ...] = (0, 3, 6, 9, 12)
    each: int = 1  # slices that a seed sees
    seeds: int = 8
    training: tuple[int, ...] = (20, 100)  # slices
    decibels: tuple[float, ...] = (50.0, 35.0)  # at 180 views; otherwise the first
    batches: tuple[int, ...] = (5, 10, 20, 40)
    iterations: int = 60
    size: int = 256
    seed: int = 0


FULL = CTPlan()
QUICK = CTPlan(slices=(0, 3), each=1, seeds=2, training=(20,), decibels=(50.0,), batches=(5, 20), iterations=10)


def _scans(plan: CTPlan, views: int, decibel: float) -> list[CTScan]:
    """Seeds, each with `each` slices in turn."""
    return [
        CTScan("test", plan.slices[(number + i) % len(plan.slices)], plan.size, views, decibel, plan.seed + number)
        for number, i in product(range(plan.seeds), range(plan.each))
    ]


def table_cells(plan: CTPlan, views: int) -> list[Cell]:
    decibels = plan.decibels if views == 180 else plan.decibels[:1]
    return [Cell(views, d, b, plan.iterations, m) for d, b, m in product(decibels, plan.batches, METHODS)]


def ablation_cells(plan: CTPlan) -> list[Cell]:
    return [Cell(180, 50.0, b, plan.iterations, "smadmm", alpha) for b, alpha in product(plan.batches, ALPHAS)]


def iterations_cells(plan: CTPlan) -> list[Cell]:
    return [Cell(views, 50.0, 5, 2 * plan.iterations, m) for views, m in product((120, 180, 360, 720), RIVALS)]


def visual_cells(plan: CTPlan) -> list[Cell]:
    shown = [Cell(180, 50.0, 5, plan.iterations, m) for m in ("red-sd", *RIVALS)]
    return shown + [Cell(180, 50.0, 20, plan.iterations, m) for m in RIVALS]


def table_runs(plan: CTPlan, chosen: Chosen) -> list[CTRun]:
    """Every cell on every scan, for every budget with what was best for it."""
    runs = []
    for (cell, budget), tuned in chosen.items():
        if math.isinf(tuned.winner.score):  # every point diverged, or could not afford the budget
            continue
        best, sfo = tuned.best, cell.sfo if budget == "sfo" else None
        for scan in _scans(plan, cell.views, cell.decibel):
            run = CTRun(scan, cell.method, cell.batch, cell.iterations, best["kappa"], best["eta"], cell.alpha, sfo)
            runs.append(run)
    return runs


def at_equal_iterations(plan: CTPlan, chosen: Chosen) -> list[CTRun]:
    return [run for run in table_runs(plan, chosen) if run.sfo is None]


def iterations_runs(plan: CTPlan, chosen: Chosen) -> list[CTRun]:
    return at_equal_iterations(replace(plan, each=1), chosen)


def visual_runs(plan: CTPlan, chosen: Chosen) -> list[CTRun]:
    """One image of every method at B = 5; at B = 20, with what needs no tuning, one slice per seed."""
    first = replace(plan, seeds=1, each=1)
    shown = [replace(run, keep=True) for run in at_equal_iterations(first, chosen) if run.batch == 5]
    one = replace(plan, each=1)
    compared = [run for run in table_runs(one, chosen) if run.batch == 20]
    for scan in _scans(one, 180, 50.0):
        compared.append(CTRun(scan, "untuned", 20, plan.iterations, 1.0, 1.0))
        compared.append(CTRun(scan, "all-views", 180, plan.iterations, 1.0, 1.0))
    return shown + compared


def _experiment(
    name: str,
    title: str,
    about: str,
    cells: Callable[[CTPlan], Iterable[Cell]],
    runs: Callable[[CTPlan, Chosen], list[CTRun]],
    chapter: Callable[[Findings], list[Part]],
) -> Experiment:
    def plan_of(request: Request) -> CTPlan:
        plan = QUICK if request.quick else FULL
        return replace(plan, seed=request.seed, size=request.size or plan.size)

    def marked(request: Request, jobs: Sequence[CTRun]) -> list[CTRun]:
        return with_fingerprints(jobs, partial(read_slices, request.data), CT_PRIOR)

    def jobs(request: Request) -> list[CTRun]:
        plan = plan_of(request)
        marked(request, [CTRun(scan, "sadmm", 1, 1, 1.0, 1.0) for scan in _scans(plan, 180, 50.0)])  # are they there?
        return marked(request, tuning_runs(cells(plan), plan.training, plan.size, plan.seed))

    def reported(request: Request, tuning: Sequence[CTRun], results: Mapping[str, JobResult]) -> list[CTRun]:
        return marked(request, runs(plan_of(request), choose(tuning, results)))

    return Experiment(
        name,
        title,
        about,
        jobs=jobs,
        work=run_ct,
        rows=ct_chapter.ct_rows,
        chapter=chapter,
        reported=reported,
        figures=ct_chapter.kept_images,
        sized=True,
    )


CT = (
    _experiment(
        "ct-120",
        "Tomography, 120 views (Table 3)",
        "Table 3: sparse-view CT, 120 views.",
        partial(table_cells, views=120),
        table_runs,
        ct_chapter.table_chapter,
    ),
    _experiment(
        "ct-180",
        "Tomography, 180 views (Table 4)",
        "Table 4: sparse-view CT, 180 views.",
        partial(table_cells, views=180),
        table_runs,
        ct_chapter.table_chapter,
    ),
    _experiment(
        "ct-ablation",
        "Tomography, the momentum's exponent (Table 5)",
        "Table 5: the momentum a_k = k^-alpha.",
        ablation_cells,
        at_equal_iterations,
        ct_chapter.ablation_chapter,
    ),
    _experiment(
        "ct-iterations",
        "Tomography, quality over iterations (Figure 3)",
        "Figure 3: SNR over iterations, 120 to 720 views.",
        iterations_cells,
        iterations_runs,
        ct_chapter.iterations_chapter,
    ),
    _experiment(
        "ct-visual",
        "Tomography, what it looks like (Figure 2)",
        "Figure 2: the images, and the library's default against the published algorithm.",
        visual_cells,
        visual_runs,
        ct_chapter.visual_chapter,
    ),
)
