"""Ptychography against ptychi: few and many positions, few and many photons, the probe known and unknown.

An error is what is left after the phase, a ramp of it and a factor are removed, over the pixels with light. ptychi is
measured where it is installed, and left out by name elsewhere. How a job runs: smadmm.paper.ptychography_runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.ptychography_runs import PASSES, PEERS, ScanRun, run_scan
from smadmm.paper.robustness_runs import read_crops
from smadmm.paper.rows import outcome, some
from smadmm.report import Column, Part, Table, Verdict

SETS, SIZE = ("Set12", "OnRED6"), 128
SCANS = [(5, photons, images, probe) for images in SETS for photons in (1e3, 1e4, 1e5) for probe in PASSES]
SCANS += [(17, photons, SETS[0], probe) for probe in PASSES for photons in (1e3, 1e5)]  # take ten times as long
QUICK = [(5, photons, SETS[0], probe) for photons in (1e3, 1e5) for probe in PASSES]
GAIN, SLACK = 2.0, 0.5
SIMPLE = {"constant": "constant", "fit": "fit", "one denoising": "fit + one denoising"}


def scan_jobs(request: Request) -> list[ScanRun]:
    scans, size = (QUICK, SIZE // 2) if request.quick else (SCANS, SIZE)
    methods = ("default", *(PEERS if find_spec("ptychi") else ()))
    marks = {images: fingerprint(read_crops(request.data, images, size, middle=True)) for _, _, images, _ in scans}
    return [
        ScanRun(method, images, 0, size, side, photons, probe, request.seed, marks[images])
        for side, photons, images, probe in scans
        for method in methods
    ]


def scan_rows(jobs: Sequence[ScanRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for job in jobs:
        found = {name: value for name, value in results[job.name].items() if name != "work"}
        row = {"method": job.method, "images": job.images, "image": job.image, "size": job.size}
        row |= {"positions": job.side**2, "photons": job.photons, "probe": job.probe, "seed": job.seed}
        rows.append({**row, **found})
    return rows


def chapter(found: Findings) -> list[Part]:
    rows = found.rows
    peers = [name for name in PEERS if some(rows, method=name)]
    size = rows[0]["size"]
    counts = {n: len({row["images"] for row in some(rows, positions=n)}) for n, _, _ in _scans(rows)}
    objects = " and ".join(f"{count} at {n} positions" for n, count in counts.items())
    parts: list[Part] = [
        f"SNR in dB over the pixels with light, means over objects of {size} x {size} ({objects}), scanned by a probe "
        f"of {size // 2} x {size // 2}. Every peer makes as many passes over the positions as `retrieve` at most. "
        "Seconds are those of the processor, of one thread.",
    ]
    if not peers:
        parts.append("ptychi is not installed here: its ePIE, rPIE and LSQML are left out.")
    parts += _verdicts(rows, peers)
    compared = {peer: PEERS[peer] for peer in peers} | {"default": "default"}
    parts.append(_table("SNR after all passes", SIMPLE | compared, rows, "snr"))
    if peers:
        best = "Passes: 10, 25, 50, 100 or all, chosen by the truth; ours takes no such choice."
        parts.append(_table("SNR after the best number of passes", compared, rows, "best", best))
    parts.append(_table("Seconds of the processor", compared, rows, "cpu"))
    return parts


def _scans(rows: Sequence[Row]) -> list[tuple[int, float, str]]:
    return list(dict.fromkeys((row["positions"], row["photons"], row["probe"]) for row in rows))


def _mean(rows: Sequence[Row], method: str, scan: tuple[int, float, str], value: str) -> float:
    """Of a method or, by the name of its value, of what the default begins with."""
    positions, photons, probe = scan
    own = "default" if method in SIMPLE else method
    key = method if method in SIMPLE else ("snr" if value == "best" and method == "default" else value)
    return fmean(row[key] for row in some(rows, method=own, positions=positions, photons=photons, probe=probe))


def _table(title: str, names: Mapping[str, str], rows: Sequence[Row], value: str, note: str = "") -> Table:
    heads = [Column(name, ".2f", "lower" if value == "cpu" else "higher") for name in names.values()]
    lines: list[list[Any]] = [
        [f"{scan[0]}", f"{scan[1]:g}", scan[2], *(_mean(rows, name, scan, value) for name in names)]
        for scan in _scans(rows)
    ]
    return Table(title, [Column("positions"), Column("photons"), Column("probe"), *heads], lines, note)


def _verdicts(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[Verdict]:
    counts = sorted({row["photons"] for row in rows})
    for photons, least, claim in (
        (counts[0], GAIN, f"at {counts[0]:g} photons per position at least {GAIN:g} dB above every peer"),
        (counts[-1], -SLACK, f"at {counts[-1]:g} photons at most {SLACK} dB below the best peer"),
    ):
        if not peers:
            return
        scans = [scan for scan in _scans(rows) if scan[1] == photons]
        gaps = {value: [_mean(rows, "default", scan, "snr") - max(_mean(rows, peer, scan, value) for peer in peers)
                        for scan in scans] for value in ("snr", "best")}  # fmt: skip
        wins = sum(gap >= least for gap in gaps["snr"])
        yield Verdict(
            claim,
            outcome(wins, len(scans)),
            f"after all passes in {wins} of {len(scans)} scans, the least gap {min(gaps['snr']):+.2f} dB; against the "
            f"best peer after its best number of passes {min(gaps['best']):+.2f} to {max(gaps['best']):+.2f} dB",
        )


PTYCHOGRAPHY = Experiment(
    "ptychography",
    "Ptychography",
    "Ptychography with few and many photons, the probe known and unknown, against ptychi.",
    jobs=scan_jobs,
    work=run_scan,
    rows=scan_rows,
    chapter=chapter,
    alone=True,
)
