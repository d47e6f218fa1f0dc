"""What the comparison of denoisers shows: a table, verdicts on the aims, a figure, and the rows for the cards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smadmm.experiments.results import markdown_table
from smadmm.files import atomic_write
from smadmm.report import Column, Part, Picture, Table, Verdict
from smadmm.report.parts import Outcome

Row = Mapping[str, Any]
COLUMNS = {
    "denoiser": "",
    "sigma": "",
    "psnr_set12_small": ".2f",
    "psnr_set12": ".2f",
    "psnr_ct": ".2f",
    "proved": ".3f",
    "measured": ".3f",
    "parameters": "",
    "ms": ".0f",
    "faster": ".2g",
}
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


def _shown(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with the ratio of times, and numbers that are missing as None."""
    shown = []
    for row in rows:
        faster = row["dncnn_ms"] / row["ms"] if row.get("dncnn_ms") else None
        shown.append({name: row.get(name) for name in COLUMNS} | {"faster": faster})
    return shown


def table(rows: Sequence[Row]) -> str:
    """table.md."""
    return f"# Denoisers\n\n{markdown_table(_shown(rows), COLUMNS)}\n\n{NOTE}\n"


def report(rows: Sequence[Row]) -> list[Part]:
    """The chapter of the page."""
    cells = [[row[name] for name in HEADS] for row in _shown(rows)]
    verdicts = list(_verdicts({(row["denoiser"], row["sigma"]): row for row in rows}))
    picture = Picture("denoisers.png", "PSNR against time, and histograms of Lip(I - D)")
    return [NOTE, *verdicts, Table("Denoisers", list(HEADS.values()), cells), picture]


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
                _outcome(gap >= -slack),
                f"{row[key]:.2f} dB, BM3D {bm3d[key]:.2f} ({gap:+.2f})",
            )
    bounds = {name: row.get("proved") or row.get("measured") for (name, _), row in by_name.items()}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    if known:
        worst = max(known, key=lambda name: known[name])
        because = f"at most {known[worst]:.3f} ({worst})"
        yield Verdict("every shipped net has Lip(I - D) < 1", _outcome(known[worst] < 1), because)


def _outcome(holds: bool) -> Outcome:
    return "holds" if holds else "does not hold here"


def figure_of(rows: Sequence[Row], values: Mapping[str, Sequence[float]]) -> Any:
    """PSNR against time, and histograms of Lip(I - D)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    timed = [row for row in rows if row.get("ms") and row.get("psnr_set12") and row["sigma"] == 5]
    for key, marker, label in (("psnr_set12", "o", "Set12"), ("psnr_ct", "s", "CT test slices")):
        left.plot([row["ms"] for row in timed], [row[key] for row in timed], marker, label=label)
    for row in timed:
        left.annotate(
            row["denoiser"], (row["ms"], row["psnr_ct"]), xytext=(4, 4), textcoords="offset points", fontsize=7
        )
    left.set(xscale="log", xlabel="CPU ms for 512 x 512", ylabel="PSNR (dB), noise 5/255")
    left.legend(fontsize=8)
    for name, found in values.items():
        if found:
            right.hist(found, 15, histtype="step", label=name)
    right.axvline(1, color="black")
    right.set(xlabel="Lip(I - D), measured at test images", ylabel="points")
    right.legend(fontsize=7)
    return figure


def add_to_cards(rows: Sequence[Row], folder: Path) -> None:
    """Put the row of each shipped net into its card; for those who release weights."""
    for row in rows:
        path = folder / f"{row['denoiser']}.json"
        if path.exists():
            card = json.loads(path.read_text(encoding="utf-8"))
            atomic_write(path, (json.dumps(card | {"test": dict(row)}, indent=1) + "\n").encode())
