"""The folder that an image result leaves: numbers, pictures, curves, run.json and a page.

image.npy, image.tif (32-bit numbers), image.png; figure.png and curves.png where matplotlib is installed; curves.csv;
run.json; report.html. A complex image is image_complex.npy, and its modulus stands for it elsewhere. A volume is a
stack, written slice by slice; figure, picture and page show the slice in its middle. Every file is written whole or not
at all.
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
from smadmm.io.files import atomic_write, output_folder, write_array, write_csv, write_json
from smadmm.report.figures import comparison, curves, not_drawn, write_figure
from smadmm.report.page import Page
from smadmm.report.parts import Column, Compare, Curves, Facts, Heading, Picture, Run, Series, Table, environment
from smadmm.report.pictures import gray, png

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
        temporary = folder / ".image.npy"
        stack = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=image.shape)
        for number in range(len(image)):
            stack[number] = image[number]
        stack.flush()
        del stack
        os.replace(temporary, folder / "image.npy")
    _write_tiff(folder, image)
    atomic_write(folder / "image.png", png(gray(shown, result.limits())))
    return written


def _write_tiff(folder: Path, image: Any) -> None:
    """A page per slice, written one after the other."""
    tifffile = needs("tifffile", "imaging", "TIFF files")
    pages = image[None] if image.ndim == 2 else image
    with tifffile.TiffWriter(folder / ".image.tif", bigtiff=image.nbytes > 2**31) as writer:
        for page in pages:
            writer.write(page.astype(np.float32), photometric="minisblack", contiguous=True)
    os.replace(folder / ".image.tif", folder / "image.tif")


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
    what = f"{settings['views']} views" if "views" in settings else f"{settings['masks']} masks"
    noise = f", {settings['photons']:g} photons" if settings.get("photons") else ""
    return f"{name}: {what}{noise}, {settings['prior']}" if name else f"{what}{noise}, {settings['prior']}"


def _page(result: ImageResult, content: dict[str, Any], column: str, figure: bytes | None) -> Page:
    height, width = next(iter(result.shown.values())).shape
    count, settings = len(result.histories), result.settings
    data = f"{settings['views']} views" if "views" in settings else f"{settings['masks']} diffraction patterns"
    page = Page(
        f"{result.verb} of {content['input'] or 'an array'}",
        f"{count} image{'s' if count > 1 else ''} of {height} x {width} pixels from {data}, in {result.unit}.",
    )
    pictures = {name: gray(image, result.limits()) for name, image in reversed(list(result.shown.items()))}
    title = f"Slice {count // 2}" if count > 1 else "The image"
    page.add(*content["notes"], Heading("Result"), _quality(result), Compare(title, pictures))
    if figure is not None:
        page.add(Picture(figure, "the images side by side, with a detail of each", "figure.png"))
    page.add(Heading("The run"), *_curves(result, column))
    shown = {name: value for name, value in content.items() if isinstance(value, (str, int, float)) and value != ""}
    hidden = ("command", "version", "input", "total_seconds", "seed", *NUMBERS[:8])
    page.add(Facts({name: value for name, value in shown.items() if name not in hidden}, "Settings and cost"))
    made = Run(content["command"] or "in Python", settings["total_seconds"], settings["seed"], content["version"])
    return page.add(replace(made, environment=environment()))


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
    forms = {"snr": ".2f", "ssim": ".4f", "residual": ".2e", "relative_noise": ".2e", "seconds": ".1f"}
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
        quality = f"{mean}residual |Ax - b| / |b| {result.mean('residual'):.3e} (FBP {result.mean('residual_fbp'):.3e})"
    else:
        quality = f"relative residual {result.mean('residual'):.3e}"
    sample = "view" if "views" in result.settings else "mask"
    per = " per slice" if len(result.slices) > 1 else ""
    cost = f"{result.mean('iterations'):g} iterations, {result.mean('sfo'):g} {sample} gradients"
    return [quality, f"{cost}, {result.mean('seconds'):.1f} s{per}"]
