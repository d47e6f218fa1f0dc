"""Scans with defects beyond the paper: what the default of `reconstruct` makes of them with nothing told.

    defects     each alone, and all together at moderate size, on training slices: test slices are never looked at
    objects     foam, gears, stones, wood, metal pins, a thing far from the axis: the same and what else instruments do
    alarms      clean sinograms of slices, photographs and foams: nothing is to be repaired

How a job runs: smadmm.paper.scan_defects_runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from smadmm.paper.ct_runs import read_slices
from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.rows import mean, outcome, some, values
from smadmm.paper.scan_defects_runs import CASES, NAMES, OBJECT_CASES, OBJECTS, SMALL, DefectRun, run_defect
from smadmm.paper.scan_objects import PAINTERS
from smadmm.report import Column, Part, Table, Verdict

SLICES, ALARMS = {256: 3, 512: 1}, 200  # slices by size
LARGE = {512: ("clean", "dead", "gains 5", "photons 1e4", "together")}  # some, to keep the run short
OBJECT_SIZE, QUICK_OBJECTS = 192, ("stones", "metal pins")
QUICK = ({256: 1}, 20)
NEAR, LOSS, TIMES, FALSE = 3.0, 0.05, 1.5, 0.01  # the aims: dB, dB, times the seconds, repairs per clean sinogram
AGAINST_TOLD = ("photons 1e4", "photons 1e5")


def defect_jobs(request: Request) -> list[DefectRun]:
    counts, alarms = QUICK if request.quick else (SLICES, ALARMS)
    counts = counts if request.size is None else {request.size: max(counts.values())}
    jobs = []
    for size, slices in counts.items():
        found = read_slices(request.data, "train", size)
        chosen = [int((i + 0.5) / slices * len(found)) for i in range(slices)]
        jobs += [
            DefectRun("defect", case, image, size, request.seed + image, fingerprint([found[image]]))
            for image in chosen
            for case in (CASES if request.size else LARGE.get(size, CASES))
        ]
    kinds = () if request.size else QUICK_OBJECTS if request.quick else tuple(PAINTERS)
    jobs += [
        DefectRun("object", f"{name}: {case}", 0, OBJECT_SIZE, request.seed) for name in kinds for case in OBJECT_CASES
    ]
    mark = fingerprint(read_slices(request.data, "train", SMALL))
    clean = [DefectRun("alarm", OBJECTS[n % len(OBJECTS)], n, SMALL, request.seed) for n in range(alarms)]
    return jobs + [replace(job, fingerprint=mark if job.case == "slice" else "") for job in clean]


def defect_rows(jobs: Sequence[DefectRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for job in jobs:
        found = {name: value for name, value in results[job.name].items() if name != "work"}
        row = {"kind": job.kind, "case": job.case, "image": job.image, "size": job.size, "seed": job.seed}
        rows.append({**row, **found})
    return rows


def chapter(found: Findings) -> list[Part]:
    defects, objects, alarms = (some(found.rows, kind=kind) for kind in ("defect", "object", "alarm"))
    parts: list[Part] = [
        "SNR in dB, means over training slices; seconds are those of the processor, of one thread, all methods in turn "
        "on the same data, with nothing told. `raw` takes data as they are; `told` knows the number of photons, or "
        "that there are values below zero.",
        *_verdicts(defects),
        *([_never_worse(objects)] if objects else []),
        _false_alarms(alarms),
    ]
    for size in values(defects, "size"):
        rows = some(defects, size=size)
        lines: list[list[Any]] = []
        for case in _cases(rows):
            own = some(rows, case=case)
            seconds = [mean(own, f"{name}_cpu") for name in ("tv", "raw", "default")]
            lines.append([CASES[case].title, *(_mean(own, name) for name in NAMES), *seconds])
        heads = [Column(name, ".2f", "higher") for name in NAMES.values()]
        heads += [Column(f"{name}, s", ".1f", "lower") for name in ("TV", "raw", "default")]
        note = f"Slices: {len(values(rows, 'image'))}, of {size} x {size}."
        parts.append(Table(f"SNR and seconds at {size} x {size}", [Column("defect"), *heads], lines, note))
    parts += [_objects(objects)] if objects else []
    counts: list[list[Any]] = [
        [kind, len(own := some(alarms, case=kind)), sum(len(row["repairs"]) for row in own)]
        for kind in values(alarms, "case")
    ]
    parts.append(Table("Clean sinograms", ["object", "sinograms", "repairs"], counts))
    texts = [
        [row["case"], f"{row['views']}", f"{row['decibel']:.0f}", "; ".join(row["repairs"])]
        for row in alarms
        if row["repairs"]
    ]
    return [*parts, Table("What was repaired in clean sinograms", ["object", "views", "dB", "repairs"], texts)]


def _objects(objects: Sequence[Row]) -> Table:
    """The default, and marks where it is below hann FBP, and where it warns."""
    kinds = list(dict.fromkeys(row["case"].split(": ")[0] for row in objects))
    found = {row["case"]: row for row in objects}
    lines: list[list[Any]] = []
    for key, case in OBJECT_CASES.items():
        rows = [found[f"{kind}: {key}"] for kind in kinds]
        marks = ["*" * (row["default"] < row["hann"]) + " (warns)" * bool(row["warned"]) for row in rows]
        cells = [f"{row['default']:.1f}{mark}" for row, mark in zip(rows, marks, strict=True)]
        lines.append([case.title, *cells])
    note = f"One object of each kind, {OBJECT_SIZE} x {OBJECT_SIZE}; *: below hann FBP."
    return Table("SNR of the default on other objects", ["defect", *kinds], lines, note)


def _never_worse(objects: Sequence[Row]) -> Verdict:
    """Bad data never make a result worse than the simplest method's in silence."""
    silent = [f"{row['case']} {row['default']:.1f} dB" for row in objects
              if row["default"] < row["hann"] and not row["warned"]]  # fmt: skip
    wins = len(objects) - len(silent)
    said = f"in {wins} of {len(objects)} scans" + (f"; not: {', '.join(silent)}" if silent else "")
    return Verdict("on other objects the default is above hann FBP, or warns", outcome(wins, len(objects)), said)


def _cases(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows))


def _mean(rows: Sequence[Row], name: str) -> float | None:
    return mean(rows, name) if name in rows[0] else None


def _verdicts(defects: Sequence[Row]) -> Iterator[Verdict]:
    means = {
        (size, case): {name: value for name in (*NAMES, "default_cpu", "raw_cpu") if (value := _mean(own, name))}
        for size in values(defects, "size")
        for case in _cases(defects)
        if (own := some(defects, size=size, case=case))
    }
    gaps = {}
    for (size, case), row in means.items():
        if case not in ("clean", "together"):
            reference = row["told"] if case in AGAINST_TOLD else means[size, "clean"]["default"]
            gaps[f"{case} at {size}"] = row["default"] - reference
    yield _aim(f"each defect alone is within {NEAR:g} dB of clean (photons: of told)", gaps, -NEAR, "cases", "dB")
    both = some(defects, case="together")
    above = {f"slice {row['image']} at {row['size']}": row["default"] - row["hann"] for row in both}
    yield _aim("all defects together never end below hann FBP", above, 0.0, "slices", "dB")
    lost = {
        f"slice {row['image']} at {row['size']}": row["default"] - row["raw"] for row in some(defects, case="clean")
    }
    yield _aim(f"clean data lose at most {LOSS} dB by the inspection", lost, -LOSS, "slices", "dB")
    clean = {size: means[size, "clean"] for size, case in means if case == "clean"}
    ratios = {f"{case} at {size}": -row["default_cpu"] / clean[size]["raw_cpu"] for (size, case), row in means.items()}
    within = sum(-ratio <= TIMES for ratio in ratios.values())
    said = ", ".join(f"{row['default_cpu'] / row['raw_cpu']:.2f} at {size}" for size, row in clean.items())
    worst = min(ratios, key=lambda name: ratios[name])
    yield Verdict(
        f"the default takes at most {TIMES} times the seconds of raw, clean data",
        outcome(within, len(ratios)),
        f"in {within} of {len(ratios)} cases; with clean data {said}; the most, {worst}: {-ratios[worst]:.2f}; "
        f"the mean {-fmean(ratios.values()):.2f}",
    )


def _aim(claim: str, gaps: Mapping[str, float], least: float, unit: str, of: str) -> Verdict:
    """Whether no gap is below the least; all that are, or the smallest."""
    below = {name: gap for name, gap in gaps.items() if gap < least}
    shown = below or {(name := min(gaps, key=lambda key: gaps[key])): gaps[name]}
    said = ", ".join(f"{name} {gap:+.2f} {of}" for name, gap in sorted(shown.items(), key=lambda item: item[1]))
    wins = len(gaps) - len(below)
    words = "not: " if below else "the least: "
    return Verdict(claim, outcome(wins, len(gaps)), f"in {wins} of {len(gaps)} {unit}; {words}{said}")


def _false_alarms(alarms: Sequence[Row]) -> Verdict:
    repairs, touched = sum(len(row["repairs"]) for row in alarms), sum(bool(row["repairs"]) for row in alarms)
    return Verdict(
        f"at most {FALSE:.0%} of clean sinograms are repaired",
        "holds" if repairs <= FALSE * len(alarms) else "does not hold here",
        f"repairs: {repairs}, in {touched} of {len(alarms)} sinograms",
    )


SCAN_DEFECTS = Experiment(
    "robustness",
    "Scans with defects",
    "CT scans with a wrong axis, dead detectors, wrong rays, few photons; and false alarms on clean ones.",
    jobs=defect_jobs,
    work=run_defect,
    rows=defect_rows,
    chapter=chapter,
    sized=True,
    alone=True,
)
