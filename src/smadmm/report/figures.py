"""Figures by matplotlib, an extra: without it a job goes on without them and says so.

Of an image result: images side by side with a detail of each, and curves.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.imaging.result import ImageResult
from smadmm.io.files import atomic_write
from smadmm.records import History

Array = NDArray[np.float32]
DETAIL = 5  # the detail is 1/5 of the image wide
ACCENT = "#f2b134"


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


def comparison(result: ImageResult, title: str = "") -> Any:
    """The images of a result side by side, its error or what it changed, and below each the same detail."""
    Figure = needs("matplotlib.figure", "plot", "figures").Figure
    images, names = list(result.shown.values()), list(result.shown)
    reference = "truth" if "truth" in result.shown else names[0]
    panels: list[tuple[Array, str, Any]] = [(x, _quality(result, n), result.limits()) for n, x in result.shown.items()]
    if len(images) > 1:
        difference = "error" if reference == "truth" else f"{names[-1]} - {reference}"
        panels.append((images[-1] - result.shown[reference], f"{difference} ({result.unit})", None))
    height, width = images[0].shape
    window = detail(images[0])
    figure = Figure(figsize=(2.9 * len(panels), 2.9 * height / width + 3.3), layout="constrained", facecolor="white")
    axes = figure.subplots(2, len(panels), squeeze=False, height_ratios=(height / width, 1))
    for (panel, label, limits), pair in zip(panels, axes.T, strict=True):
        _panel(figure, pair, panel, window, limits)
        pair[0].set_title(label, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _quality(result: ImageResult, name: str) -> str:
    """The name of an image, with its SNR and SSIM where they are known."""
    row = result.slices[len(result.slices) // 2]
    suffix = {"truth": None, "FBP": "_fbp", "without prior": "_fit"}.get(name, "")
    if suffix is None or f"snr{suffix}" not in row:
        return name
    return f"{name}: SNR {row[f'snr{suffix}']:.2f} dB, SSIM {row[f'ssim{suffix}']:.3f}"


def _panel(figure: Any, axes: Any, image: Array, window: tuple[slice, slice], limits: Any) -> None:
    """An image above its detail; without limits it is an error, in colours that are symmetric about zero."""
    from matplotlib.patches import Rectangle

    whole, close = axes
    rows, columns = window
    low, high = error_limits(image) if limits is None else limits
    style = {"cmap": "RdBu_r" if limits is None else "gray", "vmin": low, "vmax": high, "interpolation": "nearest"}
    shown = whole.imshow(image, **style)
    corner, size = (columns.start - 0.5, rows.start - 0.5), (columns.stop - columns.start, rows.stop - rows.start)
    whole.add_patch(Rectangle(corner, *size, fill=False, edgecolor=ACCENT, linewidth=1.2))
    close.imshow(image[rows, columns], **style)
    for axis in (whole, close):
        axis.set(xticks=[], yticks=[])
    for spine in close.spines.values():
        spine.set(edgecolor=ACCENT, linewidth=1.6)
    if limits is None:
        figure.colorbar(shown, ax=whole, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)


def error_limits(error: Array) -> tuple[float, float]:
    """Symmetric limits that 99 % of the values keep."""
    top = float(np.nanquantile(np.abs(error), 0.99)) or 1.0
    return -top, top


def curves(history: History, column: str, label: str, title: str = "") -> Any:
    """A column of the history over iterations, sample gradients and seconds."""
    Figure = needs("matplotlib.figure", "plot", "figures").Figure
    figure = Figure(figsize=(10.8, 2.7), layout="constrained", facecolor="white")
    names = {"k": "iterations", "sfo": "sample gradients", "seconds": "seconds"}
    grid = figure.subplots(1, len(names), sharey=True)
    for axis, (name, name_label) in zip(grid, names.items(), strict=True):
        axis.plot(history[name], history[column], color="#2b6cb0", marker=".", markersize=3)
        axis.set_xlabel(name_label)
        axis.grid(alpha=0.3)
    grid[0].set_ylabel(label)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def write_figure(path: Path, draw: Callable[[], Any], dpi: int = 130) -> bytes | None:
    """Save the matplotlib figure that `draw` makes and return the file's content; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    buffer = io.BytesIO()
    draw().savefig(buffer, format="png", dpi=dpi)
    atomic_write(path, buffer.getvalue())
    return buffer.getvalue()


def not_drawn(needed: str) -> list[str]:
    """If matplotlib is missing, the sentence that begins with `needed`, such as "graph.png needs"; else nothing."""
    return [] if find_spec("matplotlib") else [f"{needed} matplotlib: pip install 'smadmm[plot]'"]
