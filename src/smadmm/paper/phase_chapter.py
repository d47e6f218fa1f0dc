"""What is made of the rows of the phase experiment: tables beside the paper's, paired differences, curves, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smadmm.paper.experiment import Findings, JobResult, Row
from smadmm.paper.following import at_sfo
from smadmm.paper.phase_runs import PHASE_METHODS, TEST, PhaseRun
from smadmm.paper.rows import (
    batch_table,
    caption_of,
    difference,
    highest,
    mean,
    mean_curve,
    outcome,
    signed,
    some,
    values,
)
from smadmm.paper.writing import draw
from smadmm.protocol import Interval, Tried, Tuned, minus_mean, same_effort
from smadmm.report import Column, Curves, Part, Picture, Series, Table, Verdict
from smadmm.report.parts import Outcome

PAPER = {  # Table 6: SNR by batch size
    "on-red": {1: (31.33,), 2: (32.06,), 3: (32.07,)},
    "spider": {1: (31.37,), 2: (33.21,), 3: (33.03,)},
    "sadmm": {1: (31.26,), 2: (33.03,), 3: (33.06,)},
    "asvrg": {1: (31.52,), 2: (33.27,), 3: (33.20,)},
    "smadmm": {1: (31.56,), 2: (33.76,), 3: (33.57,)},
}
CLOSE = 0.1  # dB below the converged SNR


SCAN = ("purpose", "images", "image", "size", "masks", "seed", "batch")  # the same for methods that are compared


def phase_rows(jobs: Sequence[PhaseRun], results: Mapping[str, JobResult]) -> list[Row]:
    """Settings and figures of every job; where SADMM ran on the same scan, the SNR when its SFO were used up."""
    rows: list[Row] = []
    for job in jobs:
        result = results[job.name]
        row = {"purpose": job.purpose, **vars(job.scan), "method": job.method, "batch": job.batch}
        row |= {"iterations": job.iterations, **vars(job.weights), "snr": result["snr"], "ssim": result["ssim"]}
        row |= {name: result[key][-1] if result[key] else None for name, key in (("sfo", "sfo"), ("seconds", "cpu"))}
        rows.append(row | {"snr_equal_sfo": None})
    budgets = {_scan(row): row["sfo"] for row in some(rows, method="sadmm")}
    for job, row in zip(jobs, rows, strict=True):
        budget = budgets.get(_scan(row))
        if budget is not None and results[job.name]["curve"]:
            row["snr_equal_sfo"] = at_sfo(results[job.name], budget)
    _add_times(rows, [results[job.name] for job in jobs])
    return rows


Steps = Mapping[tuple[str, int | None], Tuned]  # by method and the SFO it was tuned for; None: all iterations


def choose_steps(jobs: Sequence[PhaseRun], results: Mapping[str, JobResult]) -> Steps:
    """The best step of every method for every budget, of the tuning runs with batches; all with the same effort."""
    runs: dict[str, list[PhaseRun]] = {}
    for job in jobs:
        if job.purpose == "tuning" and job.batch != job.scan.masks:
            runs.setdefault(job.method, []).append(job)
    budgets = (None, (jobs[-1].iterations + 1) * jobs[-1].batch)  # that of PnP-SADMM
    chosen = {(m, sfo): _best_step(own, results, sfo) for sfo in budgets for m, own in runs.items()}
    same_effort({f"{method} {sfo}": tuned for (method, sfo), tuned in chosen.items()})
    return chosen


def _best_step(jobs: Sequence[PhaseRun], results: Mapping[str, JobResult], sfo: int | None) -> Tuned:
    found: dict[float, list[float | None]] = {}
    for job in jobs:
        result = results[job.name]
        found.setdefault(job.weights.step, []).append(result["snr"] if sfo is None else at_sfo(result, sfo))
    return Tuned(tuple(Tried({"step": step}, minus_mean(snrs)) for step, snrs in found.items()), len(jobs))


def _scan(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in SCAN)


def _add_times(rows: Sequence[Row], results: Sequence[JobResult]) -> None:
    """For many masks: what it took until the SNR stayed within CLOSE of the converged one (full gradients)."""
    many = [(row, result) for row, result in zip(rows, results, strict=True) if row["purpose"] == "many masks"]
    converged = {(row["masks"], row["image"]): row["snr"] for row, _ in many if row["batch"] == row["masks"]}
    for row, result in many:
        row["converged"] = converged[row["masks"], row["image"]]
        row |= reached(result, row["converged"] - CLOSE)


def reached(result: JobResult, level: float) -> dict[str, float | None]:
    """Iterations, sample gradients and seconds after which the SNR stays at or above a level."""
    below = [k for k, value in enumerate(result["curve"]) if value < level]
    first = below[-1] + 1 if below else 0
    if first >= len(result["curve"]):
        return {"iterations_to": None, "sfo_to": None, "seconds_to": None}
    return {"iterations_to": first, "sfo_to": result["sfo"][first], "seconds_to": result["cpu"][first]}


def gap(rows: Sequence[Row], first: str, second: str, name: str = "snr") -> Interval:
    """first - second. The images of one seed see their masks in the same order, so seeds are the units."""
    return difference(rows, (first, second), name, SCAN, "seed")


def with_seeds(found: Interval) -> str:
    """+0.12 +- 0.03 (5 seeds)."""
    return f"{signed(found)} ({found.n} seed{'s' if found.n > 1 else ''})" if found.n else "-"


def chapter(found: Findings) -> list[Part]:
    """The story of the experiment."""
    rows = found.rows
    table = [row for row in rows if row["purpose"] in ("sum", "unbiased", "own step", "own step SFO")]
    first_seed, first_batch = min(values(table, "seed")), min(values(table, "batch"))
    images = values([row for row in table if row["batch"] != first_batch], "image")
    named = [row for row in some(table, seed=first_seed) if row["image"] in images]
    named_sum, named_mean = (some(named, purpose=purpose) for purpose in ("sum", "unbiased"))
    published = {method: PHASE_METHODS[method] for method in PHASE_METHODS if method in PAPER}
    who = ", ".join(TEST[i] for i in images)
    title = f"Table 6, On-RED's constants (sum): mean SNR of {who}"
    fair = f"The mean over the masks (unbiased): mean SNR of {who}"
    return [
        _setting(table, who),
        batch_table(title, named_sum, "method", published, ("snr",), PAPER),
        batch_table(fair, named_mean, "method", PHASE_METHODS, ("snr",), {}),
        _gaps(table),
        *_six(some(table, seed=first_seed, batch=first_batch)),
        _own(table, choose_steps([job for job in found.jobs if job.purpose == "tuning"], found.results)),
        _many_table(rows),
        *_tuning(rows),
        *_curves(found),
        Picture("phase.png", "SNR over the number of sample gradients, for each convention and number of masks"),
        highest("PnP-SMADMM has the highest SNR of Table 6 at every batch size", named_sum, published),
        *_verdicts(table),
        *_many_verdict(rows),
    ]


def _setting(rows: Sequence[Row], who: str) -> str:
    one = rows[0]
    return (
        f"{one['masks']} masks on the unit circle, {one['decibel']:g} dB, {one['size']} x {one['size']} pixels, "
        f"K = {one['iterations']}, prior ridge-natural, started from 0.01 everywhere, SNR after the better sign. The "
        f"paper does not name its three images; ours are {who}. In the sum convention the mean of a batch has the "
        "weight rho = tau/B and the step B/(6 + 2 tau): with B the problem changes, too, not only the noise. "
        "The strength of the denoiser was tuned on training images with full gradients, for all methods at once. The "
        "paper's denoiser and images are others: compare differences, not levels."
    )


def _gaps(rows: Sequence[Row]) -> Table:
    lines = []
    batches = values(rows, "batch")
    for purpose in ("sum", "unbiased"):
        for method, label in PHASE_METHODS.items():
            for name, equal in (("snr", "iterations"), ("snr_equal_sfo", "SFO")):
                found = [gap(some(rows, purpose=purpose, batch=b), "smadmm", method, name) for b in batches]
                if method != "smadmm" and any(g.n for g in found):
                    lines.append([purpose, label, equal, *map(with_seeds, found)])
    columns = ["convention", "PnP-SMADMM minus", "at equal", *(f"B={b}" for b in batches)]
    note = (
        "dB, pairs of one image, its masks and noise, averaged over the images of a seed; one step for all methods, "
        "tuned for none. Equal SFO: all stop when PnP-SADMM has done its iterations; PnP-SMADMM then has done half as "
        f"many; {caption_of(rows)}."
    )
    return Table("Paired differences", columns, lines, note)


def _six(rows: Sequence[Row]) -> list[Part]:
    """Every image by its name, where there are more than three."""
    images = values(rows, "image")
    if len(images) <= 3:
        return []
    lines = []
    for purpose in ("sum", "unbiased"):
        for method, label in PHASE_METHODS.items():
            chosen = some(rows, purpose=purpose, method=method)
            if chosen:
                each = [mean(some(chosen, image=image), "snr") for image in images]
                lines.append([purpose, label, *each, mean(chosen, "snr")])
    names = [Column(TEST[i], ".2f", "higher") for i in images]
    columns: list[str | Column] = ["convention", "method", *names, Column("mean", ".2f")]
    return [Table("B = 1, every image: SNR", columns, lines, f"{caption_of(rows)}.")]


def _own(rows: Sequence[Row], own: Steps) -> Table:
    """Every method with its own step; the interval is that of the difference to PnP-SADMM."""
    lines: list[list[Any]] = []
    for (method, sfo), tuned in own.items():
        same = some(rows, purpose="own step" if sfo is None else "own step SFO")
        snr, common = mean(some(same, method=method), "snr"), some(rows, purpose="unbiased", method=method, batch=1)
        name = "snr" if sfo is None else "snr_equal_sfo"
        step = ["iterations" if sfo is None else "SFO", PHASE_METHODS[method], tuned.best["step"], snr]
        difference_to = with_seeds(gap(same, method, "sadmm")) if method != "sadmm" else ""
        lines.append([*step, difference_to, mean(_same_scans(common, same), name), tuned.runs, tuned.flags])
    columns: list[str | Column] = ["at equal", "method", Column("step", ".3f"), Column("SNR", ".2f", "higher")]
    columns += ["minus PnP-SADMM, paired", Column("SNR with the common step", ".2f"), "runs", "flags"]
    title = "B = 1, every method with the step that was best for it on training images, for the budget that is reported"
    return Table(title, columns, lines, f"{caption_of(some(rows, purpose='own step'))}.")


def _same_scans(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Rows of the images and seeds that others have."""
    there = {(row["image"], row["seed"]) for row in others}
    return [row for row in rows if (row["image"], row["seed"]) in there]


def _many_means(rows: Sequence[Row]) -> list[Row]:
    """Many masks: the means over the images; none of what not all of them reached."""
    many = some(rows, purpose="many masks")
    means: list[Row] = []
    for masks, method, batch in dict.fromkeys((row["masks"], row["method"], row["batch"]) for row in many):
        images = some(many, masks=masks, method=method, batch=batch)
        means.append({"masks": masks, "method": method, "batch": batch, "images": len(images)})
        for name in ("iterations_to", "sfo_to", "seconds_to", "snr", "converged"):
            means[-1][name] = mean(images, name)
    return means


def _many_table(rows: Sequence[Row]) -> Table:
    lines, images = [], 0
    for row in _many_means(rows):
        label = PHASE_METHODS[row["method"]] if row["batch"] != row["masks"] else "full gradients"
        reach = [row["iterations_to"], row["sfo_to"], row["seconds_to"]]
        lines.append([row["masks"], label, row["batch"], *reach, row["snr"], row["converged"]])
        images = row["images"]
    columns: list[str | Column] = ["masks", "method", "B", Column("iterations", ".0f"), Column("SFO", ".0f")]
    columns += [Column("seconds", ".1f", "lower"), Column("last SNR", ".2f"), Column("converged", ".2f")]
    unit = caption_of(some(rows, purpose="many masks"))
    note = f"Seconds of one processor, denoiser included; means of {images} images; {unit}."
    title = f"Many masks: until the SNR stays within {CLOSE} dB of the converged one (- : not in the iterations done)"
    return Table(title, columns, lines, note)


def _tuning(rows: Sequence[Row]) -> list[Part]:
    tuning = some(rows, purpose="tuning")
    full = [row for row in tuning if row["batch"] == row["masks"]]
    lines: list[list[Any]] = []
    for rho in reversed(values(full, "rho")):
        for strength in values(some(full, rho=rho), "strength"):
            lines.append([rho, strength, mean(some(full, rho=rho, strength=strength), "snr")])
    parts: list[Part] = []
    if lines:
        columns = [Column("rho", ".3f"), Column("strength", "g"), Column("SNR", ".2f")]
        parts.append(Table("Tuning: strength of the denoiser, full gradients, training images", columns, lines))
    own = [row for row in tuning if row["batch"] != row["masks"]]
    steps = values(own, "step")[::-1]
    lines = [
        [label, *(mean(some(own, method=method, step=step), "snr") for step in steps)]
        for method, label in PHASE_METHODS.items()
        if some(own, method=method)
    ]
    if lines:
        names: list[str | Column] = ["method", *(Column(f"step {step:.3f}", ".2f") for step in steps)]
        parts.append(Table("Tuning: step of each method, B = 1, training images", names, lines))
    return parts


def _series(found: Findings, chosen: Sequence[PhaseRun]) -> list[Series]:
    """The mean curve of every method and batch size, over sample gradients."""
    series = []
    for method, batch in dict.fromkeys((job.method, job.batch) for job in chosen):
        same = [found.results[job.name] for job in chosen if (job.method, job.batch) == (method, batch)]
        full = batch == chosen[0].scan.masks
        name = "full gradients" if full else f"{PHASE_METHODS[method]}, B = {batch}"
        sfo: list[int] = next((result["sfo"] for result in same if result["curve"]), [])
        series.append(Series(name, sfo, mean_curve(same), dashed=full))
    return series


def _curves(found: Findings) -> list[Curves]:
    seed = min(job.scan.seed for job in found.jobs)
    chosen = {
        f"6 masks, B = 1, {purpose}": [
            job for job in found.jobs if (job.purpose, job.batch, job.scan.seed) == (purpose, 1, seed)
        ]
        for purpose in ("sum", "unbiased")
    }
    many = [job for job in found.jobs if job.purpose == "many masks"]
    for masks in sorted({job.scan.masks for job in many}):
        chosen[f"{masks} masks"] = [job for job in many if job.scan.masks == masks]
    return [
        Curves(title, _series(found, jobs), "sample gradients", "SNR (dB)", log_x=True)
        for title, jobs in chosen.items()
    ]


def figures(found: Findings) -> dict[str, bytes]:
    """phase.png: SNR over sample gradients."""
    return {"phase.png": draw(_curves(found), depth=8.0)}


def _verdicts(table: Sequence[Row]) -> list[Part]:
    unbiased = some(table, purpose="unbiased", batch=1)
    constant = gap(unbiased, "smadmm", "sadmm")
    decay = gap(unbiased, "smadmm", "sadmm-decay", "snr_equal_sfo")
    own, own_sfo = (gap(some(table, purpose=name), "smadmm", "sadmm") for name in ("own step", "own step SFO"))
    parts: list[Part] = [
        Verdict(
            "Momentum removes the noise that a constant step leaves: at least 2 dB above PnP-SADMM, B = 1, unbiased",
            at_least(constant, 2.0),
            f"PnP-SMADMM minus PnP-SADMM with the same step at equal iterations: {with_seeds(constant)} dB",
        ),
        Verdict(
            "PnP-SMADMM is not below PnP-SADMM with a step k^(-1/3) at equal SFO, B = 1",
            at_least(decay, 0.0),
            f"the difference is {with_seeds(decay)} dB",
        ),
    ]
    text = f"{with_seeds(own)} dB at equal iterations, {with_seeds(own_sfo)} dB at equal SFO"
    return [*parts, f"Each with the step that was tuned for the budget, PnP-SMADMM minus PnP-SADMM is {text}."]


def at_least(found: Interval, level: float) -> Outcome:
    """Holds if the whole interval is above the level, in part if its mean is."""
    half = found.half if math.isfinite(found.half) else math.inf
    return "holds" if found.mean - half >= level else "holds in part" if found.mean >= level else "does not hold here"


def _many_verdict(rows: Sequence[Row]) -> list[Part]:
    """SMADMM against SPIDER, each with the better of the batches tried, in sample gradients and in seconds."""
    many = _many_means(rows)
    texts, ahead = [], []
    for masks in values(many, "masks"):
        ours, theirs = (_least(some(many, masks=masks, method=method)) for method in ("smadmm", "spider"))
        for method, (sfo, seconds) in (("smadmm", ours), ("spider", theirs)):
            told = f"{sfo:.0f} SFO and {seconds:.1f} s" if math.isfinite(sfo) else "not reached"
            texts.append(f"N = {masks} {PHASE_METHODS[method]} {told}")
        ahead += [a < b for a, b in zip(ours, theirs, strict=True)]
    if not texts:
        return []
    claim = "With many masks PnP-SMADMM needs less than SPIDER-ADMM with its full gradients"
    because = f"to within {CLOSE} dB, means of {many[0]['images']} images: " + "; ".join(texts)
    return [Verdict(claim, outcome(sum(ahead), len(ahead)), because)]


def _least(rows: Sequence[Row]) -> tuple[float, float]:
    """The fewest sample gradients and the fewest seconds; infinite where none of the batches arrived."""
    done = [row for row in rows if row["batch"] != row["masks"] and row["sfo_to"] is not None]
    sfo, seconds = (min((row[name] for row in done), default=math.inf) for name in ("sfo_to", "seconds_to"))
    return sfo, seconds
