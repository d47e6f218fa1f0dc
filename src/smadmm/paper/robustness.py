"""Phase retrieval beyond the paper's table: other noise, few or binary masks, objects that are not photographs.

    cases       every method on the same patterns; the default is to be at most 0.1 dB below the best of the fit and the
                fit denoised once
    variations  changes of an object that must not matter: none is to end below its fit
    wrong       inputs that contradict their description: each is to be told, with its cause

Upper left corners of Set12 and OnRED6; constants were chosen on BSD400. How a job runs: smadmm.paper.robustness_runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.robustness_runs import CASES, NAMES, SMALL, WRONG, RobustnessRun, read_crops, run_robustness
from smadmm.paper.rows import outcome, some
from smadmm.report import Column, Part, Table, Verdict

SETS, VARIED = {"Set12": 12, "OnRED6": 6}, "Set12"  # sets and how many of their images
QUICK = (64, 20)  # pixels and variations
SLACK, AIM, SECONDS, TOLERANCE = 0.1, 32.8, 0.9, 0.01


def robustness_jobs(request: Request) -> list[RobustnessRun]:
    size, variations = QUICK if request.quick else (256, 200)
    counts = {
        name: 1 if request.quick else min(n, len(read_crops(request.data, name, size))) for name, n in SETS.items()
    }
    small = len(read_crops(request.data, VARIED, SMALL))
    jobs = [
        RobustnessRun("case", case, images, image, size, request.seed + image)
        for images in SETS
        for image in range(counts[images])
        for case in CASES
    ]
    jobs += [
        RobustnessRun("variation", "variation", VARIED, number % small, SMALL, request.seed + 100 + number)
        for number in range(variations)
    ]
    jobs += [RobustnessRun("wrong", kind, VARIED, number % small, SMALL, request.seed) for number, kind in
             enumerate(WRONG)]  # fmt: skip
    marks = {(images, at): fingerprint(read_crops(request.data, images, at)) for images in SETS for at in (size, SMALL)}
    return [replace(job, fingerprint=marks[job.images, job.size]) for job in jobs]


def robustness_rows(jobs: Sequence[RobustnessRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for job in jobs:
        found = {name: value for name, value in results[job.name].items() if name != "work"}
        row = {"kind": job.kind, "case": job.case, "images": job.images, "image": job.image, "size": job.size}
        rows.append({**row, "seed": job.seed, **found})
    return rows


def chapter(found: Findings) -> list[Part]:
    lines: list[list[Any]]
    cases, varied, wrong = (some(found.rows, kind=kind) for kind in ("case", "variation", "wrong"))
    names = {name: title for name, title in NAMES.items() if name in cases[0]}
    parts: list[Part] = [
        "SNR in dB, means over images; seconds are those of the processor, of one thread, all methods in turn on the "
        "same patterns. RED and TV are `retrieve` with the same fit and stop. The fit has no prior. "
        + (
            "deepinv: spectral start, amplitude loss, total variation."
            if "deepinv" in names
            else "deepinv is left out."
        ),
        *_verdicts(cases, varied, wrong),
    ]
    for images in SETS:
        rows = some(cases, images=images)
        heads = [Column("case"), *(Column(name, ".2f", "higher") for name in names.values())]
        lines = [
            [CASES[case].title, *(fmean(row[name] for row in some(rows, case=case)) for name in names)]
            for case in CASES
        ]
        count = len({row["image"] for row in rows})
        parts.append(
            Table(f"SNR on {images}", heads, lines, f"{count} images of {rows[0]['size']} x {rows[0]['size']}.")
        )
    heads = [Column("case"), *(Column(name, ".2f", "lower") for name in names.values())]
    lines = [
        [CASES[case].title, *(fmean(row[f"{name}_cpu"] for row in some(cases, case=case)) for name in names)]
        for case in CASES
    ]
    parts.append(Table("Seconds of the processor", heads, lines))
    told = [[row["case"], "yes" if row["told"] else "no", " ".join(row["warnings"])] for row in wrong]
    parts.append(Table("Wrong inputs", ["input", "told with its cause", "what was said"], told))
    return parts


def _verdicts(cases: Sequence[Row], varied: Sequence[Row], wrong: Sequence[Row]) -> Iterator[Verdict]:
    gaps = {}
    for case in CASES:
        rows = some(cases, case=case)
        default, simple = (
            fmean(row["default"] for row in rows),
            [fmean(row[m] for row in rows) for m in list(NAMES)[:2]],
        )
        gaps[case] = default - max(simple)
    worst = min(gaps, key=lambda case: gaps[case])
    wins = sum(gap >= -SLACK for gap in gaps.values())
    single = min(row["default"] - max(row["fit"], row["one denoising"]) for row in cases)
    yield Verdict(
        f"the default is never more than {SLACK} dB below the best of the fit and one denoising",
        outcome(wins, len(gaps)),
        f"in {wins} of {len(gaps)} cases; the least, {worst}: {gaps[worst]:+.2f} dB in the mean; the least of one "
        f"image: {single:+.2f} dB",
    )
    first = some(cases, case="25 dB", images=VARIED)
    level, seconds = (fmean(row[name] for row in first) for name in ("default", "default_cpu"))
    yield Verdict(
        f"6 masks at 25 dB: {AIM} dB in at most {SECONDS} s at 256 x 256",
        outcome((level >= AIM) + (seconds <= SECONDS), 2),
        f"{level:.2f} dB in {seconds:.2f} s on {VARIED}, {first[0]['size']} x {first[0]['size']}",
    )
    above = [row["default"] >= row["fit"] - TOLERANCE for row in varied]
    least = min(row["default"] - row["fit"] for row in varied)
    yield Verdict("no harmless variation ends below its fit", outcome(sum(above), len(above)),
                  f"{sum(above)} of {len(above)} do not; the least gain {least:+.2f} dB")  # fmt: skip
    told = sum(row["told"] for row in wrong)
    yield Verdict("every wrong input is told with its cause", outcome(told, len(wrong)), f"{told} of {len(wrong)} are")


ROBUSTNESS = Experiment(
    "phase-robustness",
    "Phase retrieval beyond the table",
    "Phase retrieval with other noise, masks and objects, harmless variations, and wrong inputs.",
    jobs=robustness_jobs,
    work=run_robustness,
    rows=robustness_rows,
    chapter=chapter,
    alone=True,
)
