"""Phase retrieval from coded diffraction patterns, the paper's Table 6, and what it does not show.

    tuning      strength of the denoiser (full gradients), and a step of its own for every method, on BSD400 crops, for
                all iterations and for the sample gradients of PnP-SADMM
    many masks  N = 60 and 300: sample gradients and seconds until the SNR stays within 0.1 dB of the converged one
    unbiased    B = 1, 2, 3; the mean over the masks, the same rho and step for all
    sum         the same with On-RED's constants
    own step    B = 1, every method with the step that was best for it on the training images, at equal iterations and
                at equal sample gradients, each with what was tuned for it

6 masks, 25 dB, K = 200, 256 x 256. The paper gives neither its K nor the names of its three images: we take the first
three of On-RED's six, and all six at B = 1; eight seeds, of which those after the first see one image, in turn. The
unit is the seed. How a job runs: smadmm.paper.phase_runs. What is made of the rows: smadmm.paper.phase_chapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from smadmm.paper import phase_chapter
from smadmm.paper.experiment import Experiment, JobResult, Request
from smadmm.paper.phase_chapter import Steps, choose_steps
from smadmm.paper.phase_runs import PHASE_METHODS, PHASE_PRIOR, PhaseRun, PhaseScan, Weights, read_set, run_phase
from smadmm.paper.provenance import with_fingerprints

METHODS = tuple(PHASE_METHODS)
TAU, MASKS, RHO = 1.3181, 6, 2.2
STEP = 1 / (1 + RHO)
STRENGTHS = {"unbiased": (0.2, 0.25, 0.3, 0.35, 0.4, 0.5), "sum": (0.25, 0.35, 0.5, 0.6, 0.7, 0.9)}
STEPS = (1.4, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)  # times STEP; ADMM takes at most 1/RHO = 1.45 of it
TUNING_SEED = 1000  # added to the seed of the request
TRAINING = (10, 60, 110, 160, 210, 260, 310, 360)  # of BSD400

# one for all methods and batch sizes, from the rows "tuning" of a full run; in the sum convention no one value is best
STRENGTH = {"unbiased": 0.3, "sum": 0.5}
UNBIASED = Weights(RHO, STEP, STRENGTH["unbiased"])


@dataclass(frozen=True)
class PhasePlan:
    """How much is run."""

    size: int = 256
    images: tuple[int, ...] = (0, 1, 2)
    more_images: tuple[int, ...] = (3, 4, 5)  # at the smallest batch
    seeds: int = 8  # after the first each sees one image, in turn
    batches: tuple[int, ...] = (1, 2, 3)
    iterations: int = 200
    many: tuple[int, ...] = (60, 300)
    training: tuple[int, ...] = TRAINING  # half of them for the steps
    crop: int = 96  # of the training images
    seed: int = 0  # the first


FULL = PhasePlan()
QUICK = PhasePlan(size=64, more_images=(), seeds=2, batches=(1, 2), iterations=60, many=(60,), training=TRAINING[:2])


def _plan(request: Request) -> PhasePlan:
    return replace(QUICK if request.quick else FULL, seed=request.seed)


def _marked(request: Request, runs: Sequence[PhaseRun]) -> list[PhaseRun]:
    return with_fingerprints(runs, partial(read_set, request.data), PHASE_PRIOR)


def phase_jobs(request: Request) -> list[PhaseRun]:
    """Tuning."""
    plan = _plan(request)
    _marked(request, [PhaseRun("unbiased", _scan(plan, image), "sadmm", 1, 1, UNBIASED) for image in plan.images])
    return _marked(request, [*_strengths(plan), *_own_steps(plan)])


def reported_jobs(request: Request, jobs: Sequence[PhaseRun], results: Mapping[str, JobResult]) -> list[PhaseRun]:
    return _marked(request, reported_runs(_plan(request), choose_steps(jobs, results)))


def reported_runs(plan: PhasePlan, own: Steps) -> list[PhaseRun]:
    """In the order of what matters most, should a run be stopped."""
    rivals, first = ("smadmm", "sadmm", "sadmm-decay"), plan.batches[:1]
    others = [method for method in METHODS if method not in rivals]
    summed = [method for method in METHODS if method != "sadmm-decay"]
    scans, more = ([_scan(plan, image) for image in images] for images in (plan.images, plan.more_images))
    every = (*plan.images, *plan.more_images)
    turns = [
        replace(_scan(plan, every[number % len(every)]), seed=plan.seed + number) for number in range(1, plan.seeds)
    ]
    table = partial(_table, plan)
    runs = [
        *_many_masks(plan),
        *table("unbiased", rivals, first, scans),
        *table("unbiased", rivals, first, turns),
        *_own(plan, own, scans),
        *_own(plan, own, turns),
        *table("sum", summed, plan.batches, scans),
        *table("unbiased", others, first, scans),
        *table("unbiased", METHODS, plan.batches[1:], scans),
        *table("unbiased", METHODS, first, more),
        *table("sum", summed, first, more),
    ]
    for turn in turns:
        runs += table("sum", summed, plan.batches, [turn])
        runs += table("unbiased", METHODS, plan.batches, [turn])
    return list(dict.fromkeys(runs))


def _scan(plan: PhasePlan, image: int, masks: int = MASKS) -> PhaseScan:
    return PhaseScan("test", image, plan.size, masks, plan.seed)


def _training(plan: PhasePlan, number: int) -> PhaseScan:
    """A training image, with a seed of its own."""
    return PhaseScan("train", plan.training[number], plan.crop, MASKS, plan.seed + TUNING_SEED + number)


def _summed(batch: int, strength: float) -> Weights:
    """On-RED's constants, for the mean over a batch."""
    return Weights(TAU / batch, batch / (MASKS + 2 * TAU), strength)


def _table(
    plan: PhasePlan, purpose: str, methods: Iterable[str], batches: Sequence[int], scans: Sequence[PhaseScan]
) -> list[PhaseRun]:
    runs = []
    for scan, batch, method in product(scans, batches, methods):  # a part of it is whole images
        weights = _summed(batch, STRENGTH["sum"]) if purpose == "sum" else UNBIASED
        runs.append(PhaseRun(purpose, scan, method, batch, plan.iterations, weights))
    return runs


def _strengths(plan: PhasePlan) -> list[PhaseRun]:
    """Full gradients on training images: SPIDER with all masks in a batch."""
    tried = [replace(UNBIASED, strength=f) for f in STRENGTHS["unbiased"]]
    tried += [_summed(batch, f) for f, batch in product(STRENGTHS["sum"], plan.batches)]
    iterations = min(plan.iterations, 120)
    return [
        PhaseRun("tuning", _training(plan, number), "spider", MASKS, iterations, weights)
        for number, weights in product(range(len(plan.training)), tried)
    ]


def _own_steps(plan: PhasePlan) -> list[PhaseRun]:
    """Eight steps for every method, B = 1, on half of the training images."""
    runs = []
    for number, method, factor in product(range((len(plan.training) + 1) // 2), METHODS, STEPS):
        scan, weights = _training(plan, number), replace(UNBIASED, step=factor * STEP)
        runs.append(PhaseRun("tuning", scan, method, plan.batches[0], plan.iterations, weights))
    return runs


def _own(plan: PhasePlan, own: Steps, scans: Sequence[PhaseScan]) -> list[PhaseRun]:
    """B = 1: every method with the step that was tuned for the budget, all iterations or PnP-SADMM's SFO."""
    runs, batch = [], plan.batches[0]
    for scan, ((method, sfo), tuned) in product(scans, own.items()):
        weights = replace(UNBIASED, step=tuned.best["step"])
        purpose = "own step" if sfo is None else "own step SFO"
        runs.append(PhaseRun(purpose, scan, method, batch, plan.iterations, weights, sfo))
    return runs


def _many_masks(plan: PhasePlan) -> list[PhaseRun]:
    """SMADMM and SPIDER for N masks, batches of 1 and about sqrt(N), and a long run with full gradients."""
    runs = []
    for image, masks in product(plan.images, plan.many):
        run = partial(PhaseRun, "many masks", _scan(plan, image, masks), weights=UNBIASED)
        runs.append(run("spider", masks, min(plan.iterations, 60)))
        for method, batch in product(("smadmm", "spider", "sadmm-decay"), (1, max(1, round(masks**0.5)))):
            runs.append(run(method, batch, plan.iterations))
    return runs


PHASE = Experiment(
    "phase",
    "Phase retrieval (Table 6)",
    "Table 6: phase retrieval from coded diffraction patterns, and the case of many masks.",
    jobs=phase_jobs,
    work=run_phase,
    reported=reported_jobs,
    rows=phase_chapter.phase_rows,
    chapter=phase_chapter.chapter,
    figures=phase_chapter.figures,
)
