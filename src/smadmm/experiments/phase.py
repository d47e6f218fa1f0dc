"""Phase retrieval from coded diffraction patterns, the paper's Table 6, and what it does not show.

    tuning      strength of the denoiser (full gradients), and a step of its own for every method, on BSD400 crops
    many masks  N = 60 and 300: sample gradients and seconds until the SNR stays within 0.1 dB of the converged one
    unbiased    B = 1, 2, 3; the mean over the masks, the same rho and step for all
    sum         the same with On-RED's constants
    own step    B = 1, every method with the step that was best for it on the training images

6 masks, 25 dB, K = 600, 256 x 256. The paper does not say which three images it used: we take the first three of
On-RED's six, and all six at B = 1; five seeds, of which those after the first see one image. How a job runs:
smadmm.experiments.phase_runs. What is made of the rows: smadmm.experiments.phase_report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from smadmm.experiments import phase_report
from smadmm.experiments.jobs import run_all, write_csv
from smadmm.experiments.phase_runs import NAMES, Job, fingerprint, read_set, run_job
from smadmm.experiments.results import markdown, write_results
from smadmm.files import atomic_write, output_folder

Row = dict[str, Any]
METHODS = tuple(NAMES)
TAU, MASKS, RHO = 1.3181, 6, 2.2
STEP = 1 / (1 + RHO)
STRENGTHS = {"unbiased": (0.2, 0.25, 0.3, 0.35, 0.4, 0.5), "sum": (0.35, 0.5, 0.6, 0.7)}
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625)  # times STEP
TRAINING = (10, 60, 110, 160, 210, 260, 310, 360)  # of BSD400
CROP = 96

# the best of the rows "tuning" of a full run; those of On-RED, SADMM, SMADMM end their grid
STRENGTH = {"unbiased": 0.3, "sum": 0.5}
OWN_STEP = {
    "on-red": 0.0625,
    "spider": 0.125,
    "sadmm": 0.0625,
    "sadmm-decay": 0.5,
    "asvrg": 0.125,
    "smadmm": 0.0625,
}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    size: int = 256
    images: tuple[int, ...] = (0, 1, 2)
    more_images: tuple[int, ...] = (3, 4, 5)  # at the smallest batch
    seeds: int = 5  # after the first each sees one image, in turn
    batches: tuple[int, ...] = (1, 2, 3)
    iterations: int = 600
    many: tuple[int, ...] = (60, 300)
    training: tuple[int, ...] = TRAINING
    processes: int = 2  # 0: in this one


FULL = Plan()
QUICK = Plan(size=64, more_images=(), seeds=2, batches=(1, 2), iterations=60, many=(60,), training=TRAINING[:2])


def reproduce(
    out: str,
    data: str | None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    processes: int = 2,
    plan: Plan | None = None,
) -> list[Row]:
    """Run or resume; results.json, results.csv, table.md and figures go to `out`."""
    plan = plan or replace(QUICK if quick else FULL, processes=processes)
    jobs = _with_fingerprints(_jobs(plan, seed), data)
    folder = output_folder(out)
    results = run_all(jobs, run_job, data, output_folder(folder / "parts"), plan.processes, progress)
    rows = phase_report.rows_of(jobs, results)
    chapter = phase_report.chapter(folder, jobs, results, rows)
    command = f"smadmm reproduce phase --data DIR --out DIR --seed {seed}" + (" --quick" if quick else "")
    seconds = sum(result["work"] for result in results.values())
    write_results(folder, "phase", command, seconds, rows, quick=quick, seed=seed, report=chapter)
    write_csv(folder / "results.csv", rows)
    atomic_write(folder / "table.md", markdown(chapter).encode())
    return rows


def _with_fingerprints(jobs: Sequence[Job], data: str | None) -> list[Job]:
    """Every job with that of its images; images that do not exist are refused before any work is done."""
    marks = {}
    for kind in dict.fromkeys(job.images for job in jobs):
        images = read_set(data, kind)
        needed = [job for job in jobs if job.images == kind]
        if max(job.image for job in needed) >= len(images):
            raise ValueError(f"{1 + max(job.image for job in needed)} {kind} images are needed, found {len(images)}")
        if any(min(images[job.image].shape) < job.size for job in needed):
            raise ValueError(f"the {kind} images must be at least {needed[0].size} pixels high and wide")
        marks[kind] = fingerprint(images)
    return [replace(job, fingerprint=marks[job.images]) for job in jobs]


def _jobs(plan: Plan, seed: int) -> list[Job]:
    """In the order of what matters most, should a run be stopped."""
    rivals, first = ("smadmm", "sadmm", "sadmm-decay"), plan.batches[:1]
    others = [method for method in METHODS if method not in rivals]
    summed = [method for method in METHODS if method != "sadmm-decay"]
    jobs = _strengths(plan, seed) + _many_masks(plan, seed)
    jobs += _table("unbiased", plan, rivals, first, plan.images, seed)
    turns = [(seed + number, plan.images[number % len(plan.images)]) for number in range(1, plan.seeds)]
    for other, image in turns:
        jobs += _table("unbiased", plan, rivals, first, (image,), other)
    jobs += _own_steps(plan, seed)
    jobs += _table("sum", plan, summed, plan.batches, plan.images, seed)
    jobs += _table("unbiased", plan, others, first, plan.images, seed)
    jobs += _table("unbiased", plan, METHODS, plan.batches[1:], plan.images, seed)
    jobs += _table("own step", plan, METHODS, first, plan.images, seed)
    jobs += _table("unbiased", plan, METHODS, first, plan.more_images, seed)
    jobs += _table("sum", plan, summed, first, plan.more_images, seed)
    for other, image in turns:
        jobs += _table("own step", plan, METHODS, first, (image,), other)
        jobs += _table("sum", plan, summed, plan.batches, (image,), other)
        jobs += _table("unbiased", plan, METHODS, plan.batches, (image,), other)
    return list(dict.fromkeys(jobs))


def _table(
    purpose: str,
    plan: Plan,
    methods: Iterable[str],
    batches: Sequence[int],
    images: Sequence[int],
    seed: int,
) -> list[Job]:
    jobs = []
    for image, batch, method in product(images, batches, methods):  # a part of it is whole images
        rho, step, strength = RHO, STEP, STRENGTH["unbiased"]
        if purpose == "sum":
            rho, step, strength = TAU / batch, batch / (MASKS + 2 * TAU), STRENGTH["sum"]
        if purpose == "own step":
            step *= OWN_STEP[method]
        where = (purpose, "test", image, plan.size, MASKS, method, batch, seed, plan.iterations)
        jobs.append(Job(*where, rho, step, strength))  # type: ignore[arg-type]
    return jobs


def _strengths(plan: Plan, seed: int) -> list[Job]:
    """Full gradients on training images: SPIDER with all masks in a batch."""
    full = ("spider", MASKS, seed, min(plan.iterations, 120))
    jobs = []
    for image in plan.training:
        where = ("tuning", "train", image, CROP, MASKS, *full)
        jobs += [Job(*where, RHO, STEP, f) for f in STRENGTHS["unbiased"]]  # type: ignore[arg-type]
        for f, batch in product(STRENGTHS["sum"], plan.batches):
            jobs.append(Job(*where, TAU / batch, batch / (MASKS + 2 * TAU), f))  # type: ignore[arg-type]
    return jobs


def _own_steps(plan: Plan, seed: int) -> list[Job]:
    """Five steps for every method, B = 1, on two training images."""
    jobs = []
    for image, method, factor in product(plan.training[:2], METHODS, STEPS):
        where = ("tuning", "train", image, CROP, MASKS, method, plan.batches[0], seed, plan.iterations)
        jobs.append(Job(*where, RHO, factor * STEP, STRENGTH["unbiased"]))  # type: ignore[arg-type]
    return jobs


def _many_masks(plan: Plan, seed: int) -> list[Job]:
    """SMADMM and SPIDER for N masks, batches of 1 and about sqrt(N), and a long run with full gradients."""
    jobs = []
    for image, masks in product(plan.images, plan.many):
        where = ("many masks", "test", image, plan.size, masks)
        model = (RHO, STEP, STRENGTH["unbiased"])
        some = max(1, round(masks**0.5))
        jobs.append(Job(*where, "spider", masks, seed, min(plan.iterations, 60), *model))  # type: ignore[arg-type]
        for method, batch in product(("smadmm", "spider", "sadmm-decay"), (1, some)):
            jobs.append(Job(*where, method, batch, seed, plan.iterations // 2, *model))  # type: ignore[arg-type]
    return jobs
