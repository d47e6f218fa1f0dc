"""The results of a phase retrieval: what is written into its folder. Images are in the unit of the input.

A complex image is image_complex.npy, and its modulus stands for it in image.*, figure and report.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.data.patterns import Patterns
from smadmm.files import atomic_write
from smadmm.imaging import outputs
from smadmm.imaging.outputs import Limits, Panel
from smadmm.metrics import align, snr, ssim
from smadmm.report import Compare, Curves, Facts, Heading, Page, Picture, Run, Series, environment
from smadmm.report.figures import not_drawn, write_figure
from smadmm.run import Result

Row = dict[str, Any]
Images = dict[str, NDArray[np.float32]]


def write_results(folder: Path, patterns: Patterns, fit: Tensor, result: Result, facts: Row) -> Iterator[str]:
    """All files; yields what there is to say."""
    found, images, row = _aligned(patterns, fit.cpu(), result.state.est.at.detach().cpu())
    history = result.history
    row |= {"iterations": result.state.k, "sfo": result.state.sfo, "seconds": history["seconds"][-1]}
    row |= {"residual": history["residual"][-1]} if "residual" in history else {}
    low, high = (float(q) for q in np.quantile(images["image"], (0.002, 0.998)))
    limits = (low, max(high, low + 1e-12))
    outputs.write_image(folder, "image", images["image"], limits)
    if found.is_complex():
        buffer = io.BytesIO()
        np.save(buffer, found.numpy() * np.float32(patterns.scale), allow_pickle=False)
        atomic_write(folder / "image_complex.npy", buffer.getvalue())
    name, label = ("snr", "SNR (dB)") if "snr" in history else ("residual", "relative residual")
    figure = write_figure(folder / "figure.png", lambda: _figure(images, limits, row, facts))
    write_figure(folder / "curves.png", lambda: outputs.curves(history, {name: label}))
    outputs.write_curves(folder / "curves.csv", [history])
    outputs.write_run(folder, {**facts, **row, "stopped": result.reason})
    _page(images, limits, row, facts, (history["k"], history[name], label), figure).write(folder / "report.html")
    yield _told(row)
    yield f"{row['iterations']} iterations, {row['sfo']} mask gradients, {row['seconds']:.1f} s"
    missing = not_drawn("figure.png and curves.png need")
    drawn = "" if missing else "figure.png, curves.png, "
    yield f"image.npy, image.tif, image.png, {drawn}curves.csv, run.json, report.html are in {folder}"
    yield from missing


def _told(row: Row) -> str:
    if "snr" not in row:
        return f"relative residual {row['residual']:.3e}"
    before = f"without prior {row['snr_fit']:.2f}, {row['ssim_fit']:.4f}"
    return f"SNR {row['snr']:.2f} dB, SSIM {row['ssim']:.4f} ({before})"


def _aligned(patterns: Patterns, start: Tensor, found: Tensor) -> tuple[Tensor, Images, Row]:
    """The image with the truth's sign or phase (else a positive mean), all images to show, and their quality."""
    row: Row = {}
    truth = None if patterns.truth is None else torch.from_numpy(np.asarray(patterns.truth)).to(found.dtype)
    if truth is None:
        found, start = (x if x.is_complex() or float(x.sum()) >= 0 else -x for x in (found, start))
    else:
        found, start = align(truth, found), align(truth, start)
        row |= {"snr": snr(truth, found), "snr_fit": snr(truth, start)}
        row |= {"ssim": ssim(truth, found), "ssim_fit": ssim(truth, start)}
    images = {"fit": start, "image": found} | ({} if truth is None else {"truth": truth})
    return found, {name: patterns.scale * _modulus(x) for name, x in images.items()}, row


def _modulus(x: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = (x.abs() if x.is_complex() else x).float().numpy()
    return values


def _figure(images: Images, limits: Limits, row: Row, facts: Row) -> Any:
    def told(name: str, key: str) -> str:
        return f"{name}: SNR {row[key]:.2f} dB, SSIM {row[key.replace('snr', 'ssim')]:.3f}" if key in row else name

    panels = [Panel(told("without prior", "snr_fit"), images["fit"])]
    panels.append(Panel(told(facts["method"].upper(), "snr"), images["image"]))
    other, label = ("truth", "truth") if "truth" in images else ("fit", "without prior")
    if other == "truth":
        panels.insert(0, Panel("truth", images["truth"]))
    panels.append(Panel(f"result - {label}", images["image"] - images[other], True))
    return outputs.comparison(panels, limits, f"{facts['input']}: {facts['masks']} masks, {facts['prior']}")


def _page(images: Images, limits: Limits, row: Row, facts: Row, curve: Any, figure: bytes | None) -> Page:
    height, width = facts["size"]
    about = f"{height} x {width} pixels from {facts['masks']} diffraction patterns ({facts['data']})."
    page = Page(f"Phase retrieval of {facts['input']}", about)
    names = {"image": facts["method"].upper(), "fit": "without prior", "truth": "truth"}
    pictures = {names[key]: outputs.gray(images[key], limits) for key in names if key in images}
    page.add(Heading("Result"), Facts(row, "Quality and cost"), Compare("The image", pictures))
    if figure is not None:
        page.add(Picture(figure, "truth, fit without prior, result and error, with a detail of each", "figure.png"))
    k, y, label = curve
    page.add(Heading("The run"), Curves(label, [Series(facts["method"], k, y)], "iteration", label))
    told = ("masks", "data", "method", "prior", "prior_lipschitz", "batch", "rho", "noise", "scale", "start", "device")
    page.add(Facts({name: facts[name] for name in told if facts[name] is not None}, "Settings"))
    return page.add(Run(facts["command"], facts["total_seconds"], facts["seed"], facts["version"], environment()))
