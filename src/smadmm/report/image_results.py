"""The folder that an image result leaves: numbers, pictures, curves, run.json and a page.

image.npy, image.tif (32-bit numbers), image.png; figure.png and curves.png where matplotlib is installed; curves.csv;
run.json; report.html. A complex image is image_complex.npy, and its modulus stands for it elsewhere; of
ptychography there are probe.npy and positions.npy. A volume is a stack, written slice by slice; figure, picture and
page show the slice in its middle. Every file is written whole or not at all.

The page says what was found in the data and repaired, shows the image beside a map of where the prior decides, what the
image leaves of the data, and how well views that were left out are predicted.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from smadmm.extras import needs
from smadmm.imaging.result import ImageResult
from smadmm.io.files import (
    atomic_write,
    output_folder,
    write_array,
    write_csv,
    write_json,
    write_slices,
    written_whole,
)
from smadmm.report.figures import comparison, curves, error_limits, not_drawn, write_figure
from smadmm.report.page import Page
from smadmm.report.parts import (
    Column,
    Compare,
    Curves,
    Facts,
    Heading,
    Levels,
    Part,
    Picture,
    Row,
    Run,
    Series,
    Table,
    environment,
)
from smadmm.report.pictures import gray, png

ROOM = 0.5  # of the window, on either side of it, that pictures keep for a reader who moves it
DIFFERS = 0.1  # of the window: what is white on the map of where the prior decides
TRUST = ("held_out", "views", "prior", "strength", "misfit")
NUMBERS = ("snr", "ssim", "snr_fbp", "ssim_fbp", "snr_fit", "ssim_fit", "residual", "residual_fbp", "relative_noise",
           "iterations", "sfo", "seconds", "rho", "noise")  # fmt: skip
LABELS = {"snr": "SNR (dB)", "residual": "|Ax - b| / |b|", "objective": "objective F(x) + h(y)",
          "certificate": "certificate dist²(0, ∂L)"}  # fmt: skip
NOTES = {"objective": "With a denoiser h = rho phi (RED: rho g); a lower bound where images are cut to their limits.",
         "certificate": "Of stationarity: zero at solutions, but small on plateaus, too."}  # fmt: skip


def write_image_result(result: ImageResult, folder: str | os.PathLike[str], command: str, name: str) -> list[str]:
    """Write everything; returns what there is to say."""
    import smadmm

    target = output_folder(folder)
    written = _write_images(result, target)
    column = "snr" if "snr" in result.history else "residual"
    label = LABELS[column]
    write_csv(target / "curves.csv", _curve_rows(result))
    figure = write_figure(target / "figure.png", lambda: comparison(result, _title(result, name)))
    write_figure(target / "curves.png", lambda: curves(result.history, column, label))
    written += ["figure.png", "curves.png"] if figure is not None else []
    content = {"command": command, "version": smadmm.__version__, "input": name, **result.settings}
    content |= {number: result.mean(number) for number in NUMBERS if number in result}
    content |= {"unit": result.unit, "notes": [*result.notes, *result.warnings], "slices": result.slices}
    if result.trust is not None:
        content["trust"] = {name: getattr(result.trust, name) for name in TRUST}
    if len(result.slices) == 1:
        content |= {key: result.slices[0][key] for key in ("iterations", "sfo", "stopped")}
    write_json(target / "run.json", content)
    _page(result, content, column, figure).write(target / "report.html")
    return [*_told(result), *_files(target, [*written, "curves.csv", "run.json", "report.html"])]


def _files(folder: Path, written: list[str]) -> list[str]:
    listed = f"{', '.join(written[:-1])} and {written[-1]} are in {folder}"
    return [listed, *not_drawn("figure.png and curves.png need")]


def _array(image: Any) -> Any:
    return image.detach().cpu().numpy() if isinstance(image, Tensor) else image


def _write_images(result: ImageResult, folder: Path) -> list[str]:
    image, shown = _array(result.image), list(result.shown.values())[-1]
    written = ["image.npy", "image.tif", "image.png"]
    if np.iscomplexobj(image):
        write_array(folder / "image_complex.npy", image)
        written, image = [*written, "image_complex.npy"], shown
    if image.ndim == 2:
        write_array(folder / "image.npy", image.astype(np.float32))
    else:
        write_slices(folder / "image.npy", image.shape, (image[number] for number in range(len(image))))
    for name, array in (("probe.npy", result.probe), ("positions.npy", result.positions)):
        if array is not None:
            write_array(folder / name, array)
            written.append(name)
    _write_tiff(folder, image)
    atomic_write(folder / "image.png", png(gray(shown, result.limits())))
    return written


def _write_tiff(folder: Path, image: Any) -> None:
    """A page per slice, written one after the other."""
    tifffile = needs("tifffile", "imaging", "TIFF files")
    pages = image[None] if image.ndim == 2 else image
    with (
        written_whole(folder / "image.tif") as temporary,
        tifffile.TiffWriter(temporary, bigtiff=image.nbytes > 2**31) as writer,
    ):
        for page in pages:
            writer.write(page.astype(np.float32), photometric="minisblack", contiguous=True)


def _curve_rows(result: ImageResult) -> list[dict[str, float]]:
    """The histories as one table; the column `slice` numbers them where there are several."""
    rows = []
    for number, history in enumerate(result.histories):
        for values in zip(*history.values(), strict=True):
            row = dict(zip(history, values, strict=True))
            rows.append(row if len(result.histories) == 1 else {"slice": number, **row})
    return rows


def _title(result: ImageResult, name: str) -> str:
    settings = result.settings
    what = next(f"{settings[kind]} {kind}" for kind in ("views", "masks", "positions") if kind in settings)
    noise = f", {settings['photons']:g} photons" if settings.get("photons") else ""
    return f"{name}: {what}{noise}, {settings['prior']}" if name else f"{what}{noise}, {settings['prior']}"


def _page(result: ImageResult, content: dict[str, Any], column: str, figure: bytes | None) -> Page:
    height, width = next(iter(result.shown.values())).shape
    count, settings = len(result.histories), result.settings
    patterns = settings.get("masks", settings.get("positions"))
    data = f"{settings['views']} views" if "views" in settings else f"{patterns} diffraction patterns"
    page = Page(
        f"{result.verb} of {content['input'] or 'an array'}",
        f"{count} image{'s' if count > 1 else ''} of {height} x {width} pixels from {data}, in {result.unit}.",
    )
    title = f"Slice {count // 2}" if count > 1 else "The image"
    page.add(*_remarks(result), Heading("Result"), _quality(result), _images(result, title))
    if figure is not None:
        page.add(Picture(figure, "the images side by side, with a detail of each", "figure.png"))
    page.add(*_findings(result), *_evidence(result))
    page.add(Heading("The run"), *_curves(result, column))
    shown = {name: value for name, value in content.items() if isinstance(value, (str, int, float)) and value != ""}
    hidden = ("command", "version", "input", "total_seconds", "seed", *NUMBERS[:8])
    page.add(Facts({name: value for name, value in shown.items() if name not in hidden}, "Settings and cost"))
    made = Run(content["command"] or "in Python", settings["total_seconds"], settings["seed"], content["version"])
    return page.add(replace(made, environment=environment()))


def _remarks(result: ImageResult) -> list[str]:
    """Warnings, and the notes that have no table of their own."""
    told = [] if result.inspection is None else [finding.text for finding in result.inspection.findings]
    told += [] if result.trust is None else [str(result.trust)]
    others = [text[:1].upper() + text[1:].rstrip(".") + "." for text in result.notes if text not in told]
    return [*(f"Warning: {text}" for text in result.warnings), *([" ".join(others)] if others else [])]


def _images(result: ImageResult, title: str) -> Row:
    """The images under their sliders and, beside them, where the prior decides."""
    levels = _levels(result)
    ends = result.limits() if levels is None else (levels.low, levels.high)
    pictures = {name: gray(image, ends) for name, image in reversed(list(result.shown.items()))}
    row: list[Picture | Compare] = [Compare(title, pictures, levels=levels)]
    if levels is not None and result.trust is not None and not result.interrupted:
        most = DIFFERS * (levels.white - levels.black)
        alt = "map of the difference between the images of two priors, bright where the prior decides"
        words = "The local difference between the images of two priors. Black: none, the data decide. "
        words += f"White: {most:.3g} {result.unit} or more, a tenth of the image's window."
        row.append(Picture(gray(result.trust.differs, (0.0, most)), alt, words, "Where the prior decides"))
    return Row(row)


def _levels(result: ImageResult) -> Levels | None:
    """The window, and room on either side as far as there are values; None where the image has none."""
    (black, white), answer = result.limits(), list(result.shown.values())[-1]
    if not (black < white and math.isfinite(white - black)):
        return None
    room = ROOM * (white - black)
    low, high = max(black - room, float(np.nanmin(answer))), min(white + room, float(np.nanmax(answer)))
    return Levels(min(low, black), max(high, white), black, white, result.unit)


def _findings(result: ImageResult) -> list[Part]:
    """What a look at the data found, and what was done."""
    if result.inspection is None:
        return []
    rows = [[f.kind, f.text, "corrected" if f.repaired else "noted"] for f in result.inspection.findings]
    heading, note = Heading("What was found in the data"), "In the slice in the middle." * (len(result.histories) > 1)
    if not rows:
        return [heading, f"Nothing to repair. {note}".strip()]
    return [heading, Table("Findings", ["kind", "what was found", "what was done"], rows, note)]


def _evidence(result: ImageResult) -> list[Part]:
    """Views that were left out, and what the image leaves of the data."""
    parts: list[Part] = []
    if result.trust is not None:
        trust = result.trust
        kinds = {"FBP": "filtered back-projection, Hann window", "CGLS": "least squares, without prior"}
        rows = [
            [name, kinds.get(name, "prior, taken" if name == trust.prior else "prior"), error]
            for name, error in sorted(trust.held_out.items(), key=lambda item: item[1])
        ]
        note = f"Images made from the other views predict the {trust.views} that were left out: |Ax - b| / |b| there. "
        note += "The best comes first. A prior that invents structure tends to lose to images without one."
        columns = [Column("image"), Column("made by"), Column("error", ".2%")]
        parts.append(Table("Error at views that were left out", columns, rows, note))
    if result.residual is not None:
        low, high = error_limits(result.residual)
        words = f"Views downwards: black is {low:.3g}, gray zero, white {high:.3g}, in the sinogram's unit. Structure "
        words += "in it shows what is wrong with the data or their geometry; rays without weight are as filled in."
        alt = "the residual sinogram, gray where the image explains the data"
        picture = Picture(gray(result.residual, (low, high)), alt, words, "Residual sinogram b - Ax")
        parts.append(Row([picture]))
    return [Heading("How far to trust the image"), *parts] if parts else []


def _curves(result: ImageResult, *columns: str) -> list[Curves]:
    """Those columns and, where they were recorded, the objective and the certificate, over iterations."""
    history, parts = result.history, []
    for name in (*columns, *(name for name in NOTES if name in result.history)):
        rows = [(k, y) for k, y in zip(history["k"], history[name], strict=True) if name in columns or math.isfinite(y)]
        series = Series(str(result.settings["method"]), [k for k, _ in rows], [y for _, y in rows])
        label, note = LABELS[name], NOTES.get(name, "")
        parts.append(Curves(label, [series], "iteration", label, log_y=name == "certificate", note=note))
    return parts


def _quality(result: ImageResult) -> Table:
    """SNR and SSIM or the residual of every slice, beside those of the image it began with."""
    forms = {"snr": ".2f", "ssim": ".4f", "residual": ".2%", "relative_noise": ".2%", "seconds": ".1f"}
    names = {name: form for name, form in forms.items() if name in result}
    names = {
        full: form for name, form in names.items() for full in (name, f"{name}_fbp", f"{name}_fit") if full in result
    }
    rows = [[f"slice {number}", *(row[name] for name in names)] for number, row in enumerate(result.slices)]
    if len(rows) > 1:
        rows.append(["mean", *(result.mean(name) for name in names)])
    words = {"snr": "SNR", "ssim": "SSIM", "fbp": "of FBP", "fit": "without prior", "relative": "relative"}
    labels = [" ".join(words.get(word, word) for word in name.split("_")) for name in names]
    columns = [Column(label, form) for label, form in zip(labels, names.values(), strict=True)]
    return Table("Quality", [Column(""), *columns], rows)


def _told(result: ImageResult) -> list[str]:
    """The quality and the cost, in two sentences."""
    mean = "mean " if len(result.slices) > 1 else ""
    before, word = ("fbp", "FBP") if "residual_fbp" in result else ("fit", "without prior")
    if "snr" in result:
        quality = f"{mean}SNR {result.mean('snr'):.2f} dB ({word} {result.mean(f'snr_{before}'):.2f}), "
        quality += f"SSIM {result.mean('ssim'):.4f} ({word} {result.mean(f'ssim_{before}'):.4f})"
    elif before == "fbp":
        quality = f"{mean}residual |Ax - b| / |b| {result.mean('residual'):.2%} (FBP {result.mean('residual_fbp'):.2%})"
    else:
        quality = f"residual {result.mean('residual'):.2%} of the data"
    sample = next((name for name in ("view", "position") if f"{name}s" in result.settings), "mask")
    per = " per slice" if len(result.slices) > 1 else ""
    cost = f"{result.mean('iterations'):.0f} iterations, {result.mean('sfo'):.0f} {sample} gradients"
    total = result.settings.get("total_seconds")  # with the look at the data and the trial of priors
    whole = "" if total is None else f"; {total:.1f} s in all"
    return [quality, f"{cost}, {result.mean('seconds'):.1f} s{per}{whole}"]
