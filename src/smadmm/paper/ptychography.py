"""Ptychography against ptychi: few and many positions, few and many photons, the probe known and unknown.

An error is what is left after the phase, a ramp of it and a factor are removed, over the pixels with light. ptychi is
measured where it is installed, and left out by name elsewhere. How a job runs: smadmm.paper.ptychography_runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.ptychography_runs import BATCH, PASSES, PEERS, STEPS, ScanRun, run_scan
from smadmm.paper.robustness_runs import read_crops
from smadmm.paper.rows import best, mean, outcome, some
from smadmm.report import Column, Part, Table, Verdict

SETS, TUNING, SIZE = ("Set12", "OnRED6"), "BSD400", 128
SCANS = [(5, photons, images, probe) for images in SETS for photons in (1e3, 1e4, 1e5) for probe in PASSES]
SCANS += [(17, photons, SETS[0], probe) for photons in (1e3, 1e4, 1e5) for probe in PASSES]  # take ten times as long
QUICK = [(5, photons, SETS[0], probe) for photons in (1e3, 1e5) for probe in PASSES]
GRID = {"epie": (0.1, 0.3, 1.0), "rpie": (0.1, 0.3, 1.0), "lsqml": (0.3, 0.9)}  # steps
BATCHES, LONGEST = {5: (1, 5), 17: (5,)}, {5: 100, 17: 50}  # by positions per row; passes of tuning
GAIN, SLACK = 2.0, 0.5
SIMPLE = {"constant": "constant", "fit": "fit", "one denoising": "fit + one denoising"}


def _runs(request: Request, scans: Sequence[tuple[int, float, str, str]], seed: int) -> list[ScanRun]:
    """Ours on these scans."""
    size = SIZE // 2 if request.quick else SIZE
    marks = {images: fingerprint(read_crops(request.data, images, size, middle=True)) for _, _, images, _ in scans}
    return [ScanRun("default", images, 0, size, side, photons, probe, seed, marks[images])
            for side, photons, images, probe in scans]  # fmt: skip


def tuning_jobs(request: Request) -> list[ScanRun]:
    """Every peer on another object, with every step and batch; none in a quick run."""
    if request.quick or find_spec("ptychi") is None:
        return []
    scans = dict.fromkeys((side, photons, TUNING, probe) for side, photons, _, probe in SCANS)
    return [
        replace(run, method=peer, step=step, batch=batch, passes=LONGEST[run.side])
        for run in _runs(request, list(scans), request.seed + 1)
        for peer in STEPS
        for step in GRID[peer]
        for batch in BATCHES[run.side]
    ]


def scan_jobs(request: Request, jobs: Sequence[ScanRun], results: Mapping[str, JobResult]) -> list[ScanRun]:
    """Ours, and every peer as it is and as it was tuned."""
    found = []
    for run in _runs(request, QUICK if request.quick else SCANS, request.seed):
        usual = [replace(run, method=peer, step=STEPS[peer], batch=BATCH, passes=PASSES[run.probe])
                 for peer in STEPS if find_spec("ptychi")]  # fmt: skip
        found += [run, *usual, *(_tuned(peer, jobs, results) for peer in usual if jobs)]
    return found


def _tuned(peer: ScanRun, jobs: Sequence[ScanRun], results: Mapping[str, JobResult]) -> ScanRun:
    """With the best step, batch and number of passes on the other object; all passes, where the last one was best."""
    tried = [
        (snr, job.step, job.batch, passes)
        for job in jobs
        if (job.method, job.side, job.photons, job.probe) == (peer.method, peer.side, peer.photons, peer.probe)
        for passes, snr in results[job.name]["curve"]
        if snr is not None
    ]
    _, step, batch, passes = max(tried)
    passes = peer.passes if passes == LONGEST[peer.side] else passes
    return replace(peer, method=f"{peer.method} tuned", step=step, batch=batch, passes=passes)


def scan_rows(jobs: Sequence[ScanRun], results: Mapping[str, JobResult]) -> list[Row]:
    """A row for every run that is reported."""
    rows = []
    for job in (job for job in jobs if job.images != TUNING):
        found = {name: value for name, value in results[job.name].items() if name not in ("work", "curve")}
        row = {"method": job.method, "images": job.images, "image": job.image, "size": job.size}
        row |= {"positions": job.side**2, "photons": job.photons, "probe": job.probe, "seed": job.seed}
        row |= {"step": job.step, "batch": job.batch} if job.method in PEERS else {}
        rows.append({**row, **found})
    return rows


def chapter(found: Findings) -> list[Part]:
    rows = found.rows
    peers = {name: PEERS[name] for name in PEERS if some(rows, method=name)}
    size = rows[0]["size"]
    counts = {n: len({row["images"] for row in some(rows, positions=n)}) for n, _, _ in _scans(rows)}
    objects = " and ".join(f"{count} at {n} positions" for n, count in counts.items())
    parts: list[Part] = [
        f"SNR in dB over the pixels with light, means over objects of {size} x {size} ({objects}), scanned by a probe "
        f"of {size // 2} x {size // 2}. Peers have ptychi's own step and batch, and no fewer passes over the positions "
        "than `retrieve` takes at most. Tuned ones have the step, the batch and the number of passes that were best on "
        f"another object (of {TUNING}). Seconds are those of the processor, of one thread.",
    ]
    if not peers:
        parts.append("ptychi is not installed here: its ePIE, rPIE and LSQML are left out.")
    parts += _verdicts(rows, list(peers))
    parts.append(_table("SNR", SIMPLE | peers | {"default": "default"}, rows, "snr", "-: diverged."))
    parts.append(_table("Passes over the positions", peers | {"default": "default"}, rows, "passes"))
    parts.append(_table("Seconds of the processor", peers | {"default": "default"}, rows, "cpu"))
    return parts


def _scans(rows: Sequence[Row]) -> list[tuple[int, float, str]]:
    return list(dict.fromkeys((row["positions"], row["photons"], row["probe"]) for row in rows))


def _mean(rows: Sequence[Row], method: str, scan: tuple[int, float, str], value: str = "snr") -> float | None:
    """Of a method or, by the name of its value, of what the default begins with; None: it diverged."""
    positions, photons, probe = scan
    own, key = ("default", method) if method in SIMPLE else (method, value)
    return mean(some(rows, method=own, positions=positions, photons=photons, probe=probe), key)


def _table(title: str, names: Mapping[str, str], rows: Sequence[Row], value: str, note: str = "") -> Table:
    kind = {"snr": Column("", ".2f", "higher"), "cpu": Column("", ".1f", "lower"), "passes": Column("", ".0f")}[value]
    heads = [replace(kind, name=name) for name in names.values()]
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
        gaps = {}
        for scan in (scan for scan in _scans(rows) if scan[1] == photons and peers):
            theirs = {peer: _mean(rows, peer, scan) for peer in peers}
            ours, most = _mean(rows, "default", scan), theirs[winner := best(theirs)]
            assert ours is not None and most is not None
            gaps[f"{scan[0]} positions, probe {scan[2]}: {{:+.2f}} dB ({PEERS[winner]})"] = ours - most
        if gaps:
            wins = sum(gap >= least for gap in gaps.values())
            said = "; ".join(text.format(gap) for text, gap in gaps.items())
            yield Verdict(claim, outcome(wins, len(gaps)), f"in {wins} of {len(gaps)} scans: {said}")


PTYCHOGRAPHY = Experiment(
    "ptychography",
    "Ptychography",
    "Ptychography with few and many photons, the probe known and unknown, against ptychi.",
    jobs=tuning_jobs,
    work=run_scan,
    rows=scan_rows,
    chapter=chapter,
    reported=scan_jobs,
    alone=True,
)
