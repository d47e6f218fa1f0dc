"""The results of a reconstruction: finished slices in files, and the folder made of them.

image.npy and image.tif are in the unit of the input: Hounsfield units for slices that had them, attenuation for a
measured sinogram, [0, 1] for pictures. A volume is a stack, written slice by slice; its figure, picture and report show
the slice in its middle.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.data import dicom
from smadmm.data.images import hounsfield
from smadmm.extras import needs
from smadmm.files import atomic_write
from smadmm.history import History
from smadmm.imaging import outputs
from smadmm.imaging.outputs import Panel
from smadmm.imaging.scans import Scan
from smadmm.report import Column, Compare, Curves, Facts, Heading, Page, Picture, Run, Series, Table, environment, png
from smadmm.report.figures import not_drawn, write_figure

Array = NDArray[np.float32]
NUMBERS = (
    "snr",
    "ssim",
    "snr_fbp",
    "ssim_fbp",
    "residual",
    "residual_fbp",
    "iterations",
    "sfo",
    "seconds",
    "rho",
    "noise",
)
BAD_FIT = (
    "Warning: the image explains the sinogram badly. Check the angles, their unit and sense, which axis counts the "
    "views, the axis of rotation (--center), and that values are line integrals -log(I/I0), not counts (--flat)"
)
SOFT_TISSUE = (-300.0, 450.0)  # black and white of Hounsfield pictures


@dataclass(frozen=True)
class Finished:
    """A slice that is done, in the solver's unit ([0, 1])."""

    image: Array
    fbp: Array
    truth: Array | None
    history: History
    row: dict[str, Any]

    @staticmethod
    def path(parts: Path, number: int) -> Path:
        return parts / f"slice_{number:04d}.npz"

    def save(self, parts: Path, number: int) -> None:
        arrays = {"image": self.image, "fbp": self.fbp} | ({} if self.truth is None else {"truth": self.truth})
        text = json.dumps({"row": outputs.clean(self.row), "history": outputs.clean(self.history.columns)})
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **arrays)
        atomic_write(self.path(parts, number), buffer.getvalue())

    @classmethod
    def load(cls, parts: Path, number: int) -> Finished:
        with np.load(cls.path(parts, number), allow_pickle=False) as stored:
            content = json.loads(stored["text"].tobytes())
            truth = stored["truth"] if "truth" in stored.files else None
            history = History({n: [np.nan if v is None else v for v in c] for n, c in content["history"].items()})
            return cls(stored["image"], stored["fbp"], truth, history, content["row"])


@dataclass(frozen=True)
class Unit:
    """The unit of the output: its name, the values of the solver in it, black and white of pictures."""

    name: str
    convert: Callable[[Array], Array]
    limits: tuple[float, float]


def unit_of(scan: Scan, image: Array) -> Unit:
    if scan.hounsfield:
        return Unit("HU", hounsfield, SOFT_TISSUE)
    low, high = (float(q) * scan.scale for q in np.quantile(image, (0.005, 0.998)))
    name = "gray value" if scan.simulated else "attenuation a pixel"
    return Unit(name, lambda x: (x * np.float32(scan.scale)).astype(np.float32), (low, max(high, low + 1e-12)))


def write_results(folder: Path, scan: Scan, facts: Mapping[str, Any], read: Callable[[int], Finished]) -> Iterator[str]:
    """Everything there is to write, from the finished slices; yields what there is to say."""
    middle = read(scan.count // 2)
    unit = unit_of(scan, middle.image)
    rows, histories = [], []
    for number in range(scan.count):
        finished = read(number)
        rows.append({"slice": number, **finished.row})
        histories.append(finished.history)
        if scan.series is not None and _writes_dicom(scan.series):
            target = folder / "dicom"
            target.mkdir(exist_ok=True)
            text = f"smadmm {facts['method']} {facts['prior']}, {facts['views']} views"
            pixels = dicom.derived(scan.series, number, hounsfield(finished.image), text)
            atomic_write(target / f"slice_{number:04d}.dcm", pixels)
    _write_images(folder, scan, unit, read)
    outputs.write_curves(folder / "curves.csv", histories)
    figure = write_figure(folder / "figure.png", lambda: _figure(scan, unit, middle, facts))
    name, label = ("snr", "SNR (dB)") if "snr" in middle.history else ("residual", "|Ax - b| / |b|")
    title = f"slice {scan.count // 2}" if scan.count > 1 else ""
    write_figure(folder / "curves.png", lambda: outputs.curves(middle.history, {name: label}, title))
    remarks = [BAD_FIT] if any(row.get("fits_badly") for row in rows) else []
    facts = {**facts, "notes": [*facts["notes"], *remarks]}
    content = {**facts, **outputs.mean_of(rows, NUMBERS), "unit": unit.name, "batch": middle.row["batch"]}
    if scan.count == 1:
        content |= {key: rows[0][key] for key in ("iterations", "sfo", "stopped")}
    if scan.series is not None:
        content["pixel_spacing_mm"] = scan.series.spacing
    outputs.write_run(folder, {**content, "slices": rows})
    _page(scan, unit, middle, content, rows, (name, label), figure).write(folder / "report.html")
    return chain(_told(folder, scan, content), remarks)


def _writes_dicom(series: dicom.Series) -> bool:
    return all(piece.frame == 0 for piece in series.slices)


def _write_images(folder: Path, scan: Scan, unit: Unit, read: Callable[[int], Finished]) -> None:
    if scan.count == 1:
        outputs.write_image(folder, "image", unit.convert(read(0).image), unit.limits)
        return
    tifffile = needs("tifffile", "imaging", "TIFF files")
    temporary = {ending: folder / f".image.{ending}" for ending in ("npy", "tif")}
    shape = (scan.count, scan.radon.height, scan.radon.width)
    stack = np.lib.format.open_memmap(temporary["npy"], mode="w+", dtype=np.float32, shape=shape)
    with tifffile.TiffWriter(temporary["tif"], bigtiff=stack.nbytes > 2**31) as writer:
        for number in range(scan.count):
            stack[number] = unit.convert(read(number).image)
            writer.write(stack[number], photometric="minisblack", contiguous=True)
    stack.flush()
    del stack  # Windows cannot replace a file that is still mapped
    for ending, path in temporary.items():
        os.replace(path, folder / f"image.{ending}")
    middle = unit.convert(read(scan.count // 2).image)
    atomic_write(folder / "image.png", png(outputs.gray(middle, unit.limits)))


def _figure(scan: Scan, unit: Unit, one: Finished, facts: Mapping[str, Any]) -> Any:
    def panel(name: str, image: Array, key: str) -> Panel:
        told = f": SNR {one.row[key]:.2f} dB, SSIM {one.row[key.replace('snr', 'ssim')]:.3f}" if key in one.row else ""
        return Panel(name + told, unit.convert(image))

    panels = [panel("FBP", one.fbp, "snr_fbp"), panel(str(facts["method"]).upper(), one.image, "snr")]
    if one.truth is not None:
        error = unit.convert(one.image) - unit.convert(one.truth)
        panels = [Panel("truth", unit.convert(one.truth)), *panels, Panel(f"error ({unit.name})", error, True)]
    else:
        change = unit.convert(one.image) - unit.convert(one.fbp)
        panels.append(Panel(f"result - FBP ({unit.name})", change, True))
    noise = f", {scan.snr:g} dB" if scan.snr is not None else ""
    noise += f", {scan.photons:g} photons" if scan.photons is not None else ""
    return outputs.comparison(panels, unit.limits, f"{scan.name}: {scan.radon.views} views{noise}, {facts['prior']}")


def _page(
    scan: Scan,
    unit: Unit,
    one: Finished,
    content: Mapping[str, Any],
    rows: list[dict[str, Any]],
    curve: tuple[str, str],
    figure: bytes | None,
) -> Page:
    radon = scan.radon
    kind = "simulated from it" if scan.simulated else "measured"
    page = Page(
        f"Reconstruction of {scan.name}",
        f"{scan.count} slice{'s' if scan.count > 1 else ''} of {radon.height} x {radon.width} pixels from "
        f"{radon.views} views, {kind}. Images are in {unit.name}.",
    )
    shown = {"FBP": one.fbp, str(content["method"]).upper(): one.image}
    shown = ({} if one.truth is None else {"truth": one.truth}) | shown
    pictures = {name: outputs.gray(unit.convert(image), unit.limits) for name, image in reversed(shown.items())}
    title = f"Slice {scan.count // 2}" if scan.count > 1 else "The image"
    page.add(Heading("Result"), _quality(rows, content), Compare(title, pictures))
    if figure is not None:
        alt = "truth, filtered back-projection, result and error, with a detail of each"
        page.add(Picture(figure, alt, "figure.png"))
    x, y = one.history["k"], one.history[curve[0]]
    page.add(Heading("The run"), Curves(curve[1], [Series(str(content["method"]), x, y)], "iteration", curve[1]))
    names = ("data", "input_snr", "photons", "views", "detectors", "method", "prior", "prior_lipschitz", "batch", "rho",
             "noise", "scale", "iterations", "sfo", "seconds", "device", "threads")  # fmt: skip
    page.add(Facts({name: content[name] for name in names if content.get(name) is not None}, "Settings"))
    page.add(*content["notes"])
    return page.add(
        Run(content["command"], content["total_seconds"], content["seed"], content["version"], environment())
    )


def _quality(rows: list[dict[str, Any]], content: Mapping[str, Any]) -> Table:
    if "snr" in rows[0]:
        names = {"snr": ".2f", "snr_fbp": ".2f", "ssim": ".4f", "ssim_fbp": ".4f", "seconds": ".1f"}
    else:
        names = {"residual": ".2e", "residual_fbp": ".2e", "seconds": ".1f"}
    body = [[f"slice {row['slice']}", *(row[name] for name in names)] for row in rows]
    if len(rows) > 1:
        body.append(["mean", *(content[name] for name in names)])
    labels = [name.replace("_fbp", " of FBP").replace("snr", "SNR").replace("ssim", "SSIM") for name in names]
    columns: list[str | Column] = [""]
    columns += [Column(label, form) for label, form in zip(labels, names.values(), strict=True)]
    return Table("Quality", columns, body)


def _told(folder: Path, scan: Scan, content: Mapping[str, Any]) -> Iterator[str]:
    mean = "mean " if scan.count > 1 else ""
    if "snr" in content:
        yield f"{mean}SNR {content['snr']:.2f} dB (FBP {content['snr_fbp']:.2f}), " \
              f"SSIM {content['ssim']:.4f} (FBP {content['ssim_fbp']:.4f})"  # fmt: skip
    else:
        yield f"{mean}residual |Ax - b| / |b| {content['residual']:.3e} (FBP {content['residual_fbp']:.3e})"
    yield (
        f"{content['iterations']:g} iterations, {content['sfo']:g} view gradients, "
        f"{content['seconds']:.1f} s{' a slice' if scan.count > 1 else ''}"
    )
    written = "image.npy, image.tif, image.png" + (", dicom/" if (folder / "dicom").is_dir() else "")
    missing = not_drawn("figure.png and curves.png need")
    written += "" if missing else ", figure.png, curves.png"
    yield f"{written}, curves.csv, run.json and report.html are in {folder}"
    yield from missing
