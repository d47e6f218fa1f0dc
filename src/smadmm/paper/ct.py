"""The paper's CT experiments, Tables 3 to 5 and Figures 2 and 3, and the tuning behind them.

    ct-tuning      kappa and eta of every method on training slices, nine points each; the constants TUNED
    ct-120, -180   SNR and SSIM of six methods at batch sizes 5, 10, 20, 40; 50 and 35 dB
    ct-ablation    momentum a_k = k^-alpha
    ct-iterations  SNR over iterations at 120, 180, 360, 720 views
    ct-visual      the images, and the library's default against the published algorithm

How a job runs: smadmm.paper.ct_runs. What is made of the rows: smadmm.paper.ct_chapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from smadmm.paper import ct_chapter
from smadmm.paper.ct_runs import CT_PRIOR, PUBLISHED, CTRun, CTScan, read_slices, run_ct
from smadmm.paper.experiment import Experiment, Findings, Request
from smadmm.paper.provenance import with_fingerprints
from smadmm.report import Part

METHODS = (*PUBLISHED, "default")
RIVALS = ("sadmm", "smadmm", "default")
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
class CTPlan:
    """How much is run."""

    slices: tuple[int, ...] = (0, 3, 6, 9, 12)
    training: tuple[int, ...] = (20, 100)  # slices
    tuned: tuple[tuple[float, int], ...] = tuple(TUNED)  # input SNR and batch size
    seeds: int = 2  # of ct-180 at 50 dB; the others have one
    batches: tuple[int, ...] = (5, 10, 20, 40)
    iterations: int = 60
    size: int = 256
    seed: int = 0


FULL = CTPlan()
QUICK = CTPlan(slices=(0,), training=(20,), tuned=((50.0, 5),), seeds=1, batches=(5, 20), iterations=15)


def tuned(decibel: float, batch: int, method: str) -> tuple[float, float]:
    """kappa and eta; `untuned` is smadmm with step 1 and the default's weight, which `all-views` takes, too."""
    if method in ("untuned", "all-views"):
        return 1.0, 1.0
    return TUNED[decibel, 5 if batch < 20 else 20][method]


def _grid(plan: CTPlan, methods: Sequence[str], views: int = 180, decibel: float = 50.0) -> list[CTRun]:
    """Methods x batches x slices x seeds, on test slices, with the tuned parameters."""
    runs = []
    for method, batch, i, number in product(methods, plan.batches, plan.slices, range(plan.seeds)):
        scan = CTScan("test", i, plan.size, views, decibel, plan.seed + number)
        runs.append(CTRun(scan, method, batch, plan.iterations, *tuned(decibel, batch, method)))
    return runs


def tuning_runs(plan: CTPlan) -> list[CTRun]:
    """Nine points for every method, on the same training slices."""
    runs = []
    for (decibel, batch), method in product(plan.tuned, METHODS):
        points = [(k, 1.0) for k in DEFAULT_KAPPAS] if method == "default" else product(KAPPAS[decibel], ETAS)
        for (kappa, eta), i in product(points, plan.training):
            scan = CTScan("train", i, plan.size, 180, decibel, plan.seed)
            runs.append(CTRun(scan, method, batch, plan.iterations, kappa, eta))
    return runs


def table_runs(plan: CTPlan, views: int) -> list[CTRun]:
    one = replace(plan, seeds=1)
    return _grid(plan if views == 180 else one, METHODS, views) + _grid(one, METHODS, views, 35.0)


def ablation_runs(plan: CTPlan) -> list[CTRun]:
    runs = _grid(replace(plan, seeds=1), ("smadmm",))
    return [replace(run, alpha=alpha) for alpha in (0.1, 0.5, 2 / 3, 2.0) for run in runs]


def iterations_runs(plan: CTPlan) -> list[CTRun]:
    longer = replace(plan, seeds=1, batches=(5,), slices=plan.slices[:2], iterations=2 * plan.iterations)
    return [run for views in (120, 180, 360, 720) for run in _grid(longer, RIVALS, views)]


def visual_runs(plan: CTPlan) -> list[CTRun]:
    one = replace(plan, seeds=1, batches=(20,))
    first = replace(one, slices=plan.slices[:1])
    images = _grid(replace(first, batches=(5,)), ("red-sd", "sadmm", "smadmm", "default"))
    fixed = replace(one, iterations=min(plan.iterations, 60))
    long = replace(first, iterations=4 * plan.iterations)
    return [
        *(replace(run, keep=True) for run in images),
        *_grid(fixed, (*RIVALS, "untuned")),
        *_grid(replace(fixed, batches=(180,)), ("all-views",)),
        *_grid(long, ("smadmm", "default")),
    ]


def _experiment(
    name: str,
    title: str,
    about: str,
    runs: Callable[[CTPlan], list[CTRun]],
    chapter: Callable[[Findings], list[Part]],
) -> Experiment:
    def jobs(request: Request) -> list[CTRun]:
        plan = QUICK if request.quick else FULL
        plan = replace(plan, seed=request.seed, size=request.size or plan.size)
        return with_fingerprints(runs(plan), partial(read_slices, request.data), CT_PRIOR)

    return Experiment(
        name,
        title,
        about,
        jobs=jobs,
        work=run_ct,
        rows=ct_chapter.ct_rows,
        chapter=chapter,
        figures=ct_chapter.kept_images,
        sized=True,
    )


CT = (
    _experiment(
        "ct-tuning",
        "Tomography, how the parameters were chosen",
        "Parameters of every CT method, on training slices.",
        tuning_runs,
        ct_chapter.tuning_chapter,
    ),
    _experiment(
        "ct-120",
        "Tomography, 120 views (Table 3)",
        "Table 3: sparse-view CT, 120 views.",
        partial(table_runs, views=120),
        ct_chapter.table_chapter,
    ),
    _experiment(
        "ct-180",
        "Tomography, 180 views (Table 4)",
        "Table 4: sparse-view CT, 180 views.",
        partial(table_runs, views=180),
        ct_chapter.table_chapter,
    ),
    _experiment(
        "ct-ablation",
        "Tomography, the momentum's exponent (Table 5)",
        "Table 5: the momentum a_k = k^-alpha.",
        ablation_runs,
        ct_chapter.ablation_chapter,
    ),
    _experiment(
        "ct-iterations",
        "Tomography, quality over iterations (Figure 3)",
        "Figure 3: SNR over iterations, 120 to 720 views.",
        iterations_runs,
        ct_chapter.iterations_chapter,
    ),
    _experiment(
        "ct-visual",
        "Tomography, what it looks like (Figure 2)",
        "Figure 2: the images, and the library's default against the published algorithm.",
        visual_runs,
        ct_chapter.visual_chapter,
    ),
)
