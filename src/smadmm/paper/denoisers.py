"""The denoisers compared: noise removed from Set12 and CT test slices, Lip(I - D), parameters, time.

Noise of 5/255 (15/255 and 25/255 for what is made for those levels). Nothing is tuned on these images. BM3D is left out
where the package bm3d is not installed. How a job runs: smadmm.paper.denoisers_runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from smadmm.denoisers import load, shipped
from smadmm.denoisers.weights import SHIPPED, sha256
from smadmm.io.files import write_json
from smadmm.paper.denoisers_runs import PAPER, SMALL, DenoiserRun, load_images, run_denoiser
from smadmm.paper.experiment import Experiment, Findings, JobResult, Request, Row
from smadmm.paper.provenance import fingerprint
from smadmm.paper.rows import outcome
from smadmm.paper.writing import png_of
from smadmm.report import Column, Part, Picture, Table, Verdict

HEADS = {
    "denoiser": Column("denoiser"),
    "sigma": Column("255 sigma", ".0f"),
    "psnr_set12_small": Column("Set12, seven 256 x 256 (dB)", ".2f", "higher"),
    "psnr_set12": Column("Set12, all (dB)", ".2f", "higher"),
    "psnr_ct": Column("CT test slices (dB)", ".2f", "higher"),
    "proved": Column("Lip(I - D) proved", ".3f", "lower"),
    "measured": Column("Lip(I - D) measured", ".3f", "lower"),
    "parameters": Column("parameters", ".0f"),
    "ms": Column("ms, 512 x 512", ".0f", "lower"),
    "faster": Column("times faster than DnCNN 17 x 64", ".2g", "higher"),
}
NOTE = (
    "PSNR after Gaussian noise of level sigma/255. Lip(I - D): proved for ridge potentials; measured by a Krylov "
    "method at every test image, clean, noisy and half way (ridge: at the small images and two slices). ms: CPU time "
    "of one 512 x 512 image of noise on one thread; faster: how many times as long the 17 x 64 DnCNN gradient step "
    "takes, timed in turns. TV and BM3D are not learned; BM3D at 15 and 25 was run on the small images only."
)


def denoiser_jobs(request: Request) -> list[DenoiserRun]:
    images = load_images(request.data, request.quick)
    mark = fingerprint(image for part in images.values() for image in part)
    levels = [(name, 5, "") for name in ("noisy", PAPER, SMALL, "TV")]
    if not request.quick and find_spec("bm3d"):
        levels += [("BM3D", sigma, "") for sigma in (5, 15, 25)]
    for net in shipped():
        sigma = load(net).sigma
        assert sigma is not None
        levels.append((net, round(255 * sigma), sha256(SHIPPED / f"{net}.safetensors")))
    return [DenoiserRun(*level, request.quick, mark) for level in levels]


def denoiser_rows(jobs: Sequence[DenoiserRun], results: Mapping[str, JobResult]) -> list[Row]:
    rows = []
    for job in jobs:
        measured = {name: value for name, value in results[job.name].items() if name not in ("values", "work")}
        row = {"denoiser": job.denoiser, "sigma": job.sigma, **measured}
        rows.append(row | {"seconds": results[job.name]["work"]})
    return rows


def chapter(found: Findings) -> list[Part]:
    lines = []
    for row in found.rows:
        faster = row["dncnn_ms"] / row["ms"] if row.get("dncnn_ms") else None
        lines.append([(row | {"faster": faster}).get(name) for name in HEADS])
    verdicts = list(_verdicts({(row["denoiser"], row["sigma"]): row for row in found.rows}))
    picture = Picture("denoisers.png", "PSNR against time, and histograms of Lip(I - D)")
    return [NOTE, *verdicts, Table("Denoisers", list(HEADS.values()), lines), picture]


def _verdicts(by_name: Mapping[tuple[str, int], Row]) -> Iterator[Verdict]:
    """The aims that can be judged from these rows."""
    bm3d = by_name.get(("BM3D", 5))
    for net, key, slack, where in (
        ("ridge-natural", "psnr_set12_small", 0.0, "the seven small images of Set12"),
        ("ridge-ct", "psnr_ct", 0.1, "the CT test slices"),
        ("ridge-ct-large", "psnr_ct", 0.1, "the CT test slices"),
    ):
        row = by_name.get((net, 5))
        if bm3d is not None and row is not None:
            gap = row[key] - bm3d[key]
            aim = "reaches BM3D" if slack == 0 else f"is within {slack} dB of BM3D"
            yield Verdict(
                f"{net} {aim} on {where}",
                outcome(gap >= -slack, 1),
                f"{row[key]:.2f} dB, BM3D {bm3d[key]:.2f} ({gap:+.2f})",
            )
    bounds = {name: row.get("proved") or row.get("measured") for (name, _), row in by_name.items()}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    if known:
        worst = max(known, key=lambda name: known[name])
        because = f"at most {known[worst]:.3f} ({worst})"
        yield Verdict("every shipped net has Lip(I - D) < 1", outcome(known[worst] < 1, 1), because)


def figures(found: Findings) -> dict[str, bytes]:
    """denoisers.png: PSNR against time, and histograms of Lip(I - D)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    timed = [row for row in found.rows if row.get("ms") and row.get("psnr_set12") and row["sigma"] == 5]
    for key, marker, label in (("psnr_set12", "o", "Set12"), ("psnr_ct", "s", "CT test slices")):
        left.plot([row["ms"] for row in timed], [row[key] for row in timed], marker, label=label)
    for row in timed:
        left.annotate(
            row["denoiser"], (row["ms"], row["psnr_ct"]), xytext=(4, 4), textcoords="offset points", fontsize=7
        )
    left.set(xscale="log", xlabel="CPU ms for 512 x 512", ylabel="PSNR (dB), noise 5/255")
    left.legend(fontsize=8)
    for job in found.jobs:
        if values := found.results[job.name].get("values"):
            right.hist(values, 15, histtype="step", label=job.denoiser)
    right.axvline(1, color="black")
    right.set(xlabel="Lip(I - D), measured at test images", ylabel="points")
    right.legend(fontsize=7)
    return {"denoisers.png": png_of(figure, 110)}


DENOISERS = Experiment(
    "denoisers",
    "Denoisers",
    "Noise removed and Lipschitz constants of shipped denoisers, TV, BM3D; one at a time, to time them.",
    jobs=denoiser_jobs,
    work=run_denoiser,
    rows=denoiser_rows,
    chapter=chapter,
    figures=figures,
    alone=True,
)


def add_to_cards(rows: Sequence[Row], folder: Path) -> None:
    """Put the row of each shipped net into its card; for those who release weights."""
    for row in rows:
        path = folder / f"{row['denoiser']}.json"
        if path.exists():
            card = json.loads(path.read_text(encoding="utf-8"))
            write_json(path, card | {"test": dict(row)})
