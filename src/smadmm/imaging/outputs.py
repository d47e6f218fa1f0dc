"""What a job leaves in its folder; every file is written whole or not at all.

NAME.npy, NAME.tif (32-bit numbers), NAME.png (gray, from `limits`)        write_image
figure.png: images side by side, the error, and a detail of each below     comparison
curves.png, curves.csv: what was measured during the run                   curves, write_curves
run.json: settings and results                                             write_run
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.files import atomic_write
from smadmm.history import History
from smadmm.report import png

Array = NDArray[np.float32]
Limits = tuple[float, float]
DETAIL = 5  # the detail is 1/5 of the image wide
ACCENT = "#f2b134"


class Interrupted(Exception):
    """A job was stopped by Ctrl-C or a signal; what was done is kept, and the message says how to go on."""


@dataclass(frozen=True)
class Panel:
    """One image of the figure; `error` ones have a colour scale of their own, with zero in its middle."""

    title: str
    image: Array
    error: bool = False


def write_image(folder: Path, name: str, image: Array, limits: Limits) -> None:
    """The image as numbers (NPY and, with tifffile, TIFF) and as a picture whose black and white are `limits`."""
    buffer = io.BytesIO()
    np.save(buffer, image.astype(np.float32), allow_pickle=False)
    atomic_write(folder / f"{name}.npy", buffer.getvalue())
    atomic_write(folder / f"{name}.tif", tiff(image))
    if image.ndim == 2:
        atomic_write(folder / f"{name}.png", png(gray(image, limits)))


def tiff(image: Array) -> bytes:
    """A 32-bit TIFF file; a stack has one page a slice."""
    tifffile = needs("tifffile", "imaging", "TIFF files")
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, image.astype(np.float32), photometric="minisblack")
    return buffer.getvalue()


def gray(image: Array, limits: Limits) -> Array:
    """The image with limits[0] at 0 and limits[1] at 1."""
    low, high = limits
    shown: Array = np.clip((image - low) / max(high - low, 1e-30), 0, 1).astype(np.float32)
    return shown


# --- the figure -------------------------------------------------------------------------------------------------------


def detail(image: Array) -> tuple[slice, slice]:
    """Rows and columns of the window, 1/5 of the image wide, with the most contrast in it."""
    side = [max(2, n // DETAIL) for n in image.shape]
    rough = np.abs(np.gradient(image, axis=0)) + np.abs(np.gradient(image, axis=1))
    rough = np.minimum(rough, 4 * rough.mean())  # many fine edges, not one strong one
    sums = np.pad(rough.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    windows = sums[side[0] :, side[1] :] - sums[: -side[0], side[1] :] - sums[side[0] :, : -side[1]]
    windows = windows + sums[: -side[0], : -side[1]]
    row, column = np.unravel_index(int(windows.argmax()), windows.shape)
    return slice(int(row), int(row) + side[0]), slice(int(column), int(column) + side[1])


def comparison(panels: Sequence[Panel], limits: Limits, title: str = "") -> Any:
    """A matplotlib figure: the panels side by side, below each the same detail; `limits` are black and white."""
    needs("matplotlib", "plot", "figures")
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = panels[0].image.shape
    rows, columns = detail(next((p.image for p in panels if not p.error), panels[0].image))
    figure = Figure(figsize=(2.9 * len(panels), 2.9 * height / width + 3.3), layout="constrained", facecolor="white")
    axes = figure.subplots(2, len(panels), squeeze=False, height_ratios=(height / width, 1))
    for panel, (whole, close) in zip(panels, axes.T, strict=True):
        scale = error_limits(panel.image) if panel.error else limits
        style = {"cmap": "RdBu_r" if panel.error else "gray", "vmin": scale[0], "vmax": scale[1]}
        shown = whole.imshow(panel.image, interpolation="nearest", **style)
        whole.set_title(panel.title, fontsize=9)
        corner = (columns.start - 0.5, rows.start - 0.5)
        size = (columns.stop - columns.start, rows.stop - rows.start)
        whole.add_patch(Rectangle(corner, *size, fill=False, edgecolor=ACCENT, linewidth=1.2))
        close.imshow(panel.image[rows, columns], interpolation="nearest", **style)
        for axis in (whole, close):
            axis.set(xticks=[], yticks=[])
        for spine in close.spines.values():
            spine.set(edgecolor=ACCENT, linewidth=1.6)
        if panel.error:
            figure.colorbar(shown, ax=whole, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def error_limits(error: Array) -> Limits:
    """Symmetric limits that 99 % of the values keep."""
    top = float(np.quantile(np.abs(error), 0.99)) or 1.0
    return -top, top


def curves(history: History, names: Mapping[str, str], title: str = "") -> Any:
    """A matplotlib figure of columns of the history (name -> label) over iterations, sample gradients and seconds."""
    needs("matplotlib", "plot", "figures")
    from matplotlib.figure import Figure

    axes_of = {"k": "iterations", "sfo": "sample gradients", "seconds": "seconds"}
    figure = Figure(figsize=(3.6 * len(axes_of), 2.7 * len(names)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(names), len(axes_of), squeeze=False, sharey="row")
    for row, (name, label) in zip(grid, names.items(), strict=True):
        for axis, (column, column_label) in zip(row, axes_of.items(), strict=True):
            axis.plot(history[column], history[name], color="#2b6cb0", marker=".", markersize=3)
            axis.set_xlabel(column_label)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(label)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


# --- numbers ----------------------------------------------------------------------------------------------------------


def write_curves(path: Path, histories: Sequence[History]) -> None:
    """The histories as one table; the column `slice` numbers them where there are several."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for history in histories for name in history))
    writer = csv.writer(text)
    writer.writerow(names if len(histories) == 1 else ["slice", *names])
    for number, history in enumerate(histories):
        columns = [history[name] if name in history else [math.nan] * history.rows for name in names]
        for row in zip(*columns, strict=True):
            writer.writerow(row if len(histories) == 1 else [number, *row])
    atomic_write(path, text.getvalue().encode())


def clean(value: Any) -> Any:
    """The value as JSON can hold it: numbers that are not finite become null, paths become text."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def write_run(folder: Path, content: Mapping[str, Any]) -> None:
    """run.json: settings and results."""
    atomic_write(folder / "run.json", (json.dumps(clean(content), indent=1) + "\n").encode())


def mean_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """The mean over slices of every named number that all of them have."""
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in names
        if rows and all(isinstance(row.get(name), (int, float)) for row in rows)
    }
