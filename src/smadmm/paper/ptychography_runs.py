"""One ptychographic scan as a job: a method, its SNR after some numbers of passes over the positions, and its seconds
of the processor.

The object has the modulus .4 + .6 A and the phase 1.5 (B - 1/2), A and B the middles of images; the probe is a disc
with curved phases that covers half of the object each way; positions are a square grid, moved by up to 2 pixels; counts
are Poisson. An unknown probe is a Gaussian with three quarters of the curvature at first, for every method.

Ours is `retrieve` as it is; the fit is what it begins with. The peers are those of ptychi, each twice: with the step
and the batch that ptychi has by default (STEPS, BATCH), and with those, and a number of passes, that were best on
another object, and each with no fewer passes than ours takes at most.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm import retrieve
from smadmm.extras import needs
from smadmm.imaging.priors import ComplexProx
from smadmm.imaging.probe import redescribed
from smadmm.imaging.probe_guess import guessed_probe
from smadmm.imaging.scan_fit import fit_scan
from smadmm.imaging.scan_plan import ScanPlan, scan_snr
from smadmm.losses import PtychographyLoss
from smadmm.operators import Ptychography
from smadmm.paper.robustness_runs import read_crops
from smadmm.sampling import Rng

PEERS = {"epie": "ePIE", "rpie": "rPIE", "lsqml": "LSQML"}
PEERS |= {f"{name} tuned": f"{title} tuned" for name, title in PEERS.items()}
STEPS, BATCH = {"epie": 0.1, "rpie": 0.1, "lsqml": 0.9}, 100  # of ptychi; steps: alpha, of LSQML the scaler
MARKS, PASSES = (10, 25, 50, 100), {"known": 241, "unknown": 332}  # no fewer than `retrieve` takes at most
EDGE = 2  # pixels around the object that ptychi asks for


@dataclass(frozen=True)
class ScanRun:
    """A method on a scan of side x side positions."""

    method: str  # default, or one of PEERS
    images: str
    image: int
    size: int
    side: int
    photons: float  # per position, without an object
    probe: str  # known or unknown
    seed: int
    fingerprint: str = ""
    step: float = 0.0  # of a peer, as are batch and passes
    batch: int = 0
    passes: int = 0

    @property
    def name(self) -> str:
        scan = f"{self.images}{self.image}-{self.size}-{self.side**2}-{self.photons:.0e}-{self.probe}-s{self.seed}"
        return f"{self.method.replace(' ', '-')}-{scan}" + (
            f"-{self.step:g}-b{self.batch}-p{self.passes}" if self.passes else ""
        )

    @property
    def sees(self) -> tuple[str, ...]:
        """Data and luck that must not be in tuning and in what is reported."""
        return f"{self.images} {self.image}", f"seed {self.seed}"


@dataclass(frozen=True)
class Scan:
    """What is measured: `probe` is the true one."""

    truth: Tensor
    probe: NDArray[np.complex64]
    positions: NDArray[np.float64]
    counts: NDArray[np.float32]
    light: Tensor


def _field(window: int, photons: float, curvature: float, gaussian: bool = False) -> NDArray[np.complex64]:
    u = np.arange(window) - window / 2 + 0.5
    square = (u[:, None] ** 2 + u**2) / (0.34 * window) ** 2
    size = np.exp(-0.7 * square) if gaussian else np.exp(-(square**4))
    probe = size * np.exp(1j * curvature * np.pi * (0.34 * window) ** 2 * square / (3 * window))
    scaled: NDArray[np.complex64] = (probe * (photons / (size**2).sum()) ** 0.5).astype(np.complex64)
    return scaled


def first_guess(window: int, photons: float) -> NDArray[np.complex64]:
    """Of an unknown probe."""
    return _field(window, photons, 0.75, gaussian=True)


def make_scan(modulus: Tensor, phase: Tensor, side: int, photons: float, seed: int) -> Scan:
    size, rng = len(modulus), Rng(seed, 2**57)
    window, truth = size // 2, torch.polar(0.4 + 0.6 * modulus, 1.5 * (phase - 0.5))
    steps = np.linspace(0, size - window, side)
    grid = np.array([(row, column) for row in steps for column in steps])
    positions = np.rint(grid + rng.uniform(-2, 2, grid.shape)).clip(0, size - window)
    probe = _field(window, photons, 1.0)
    operator = Ptychography(torch.from_numpy(probe), positions, (size, size))
    counts = rng.poisson(operator(truth).abs().double().numpy() ** 2).astype(np.float32)
    return Scan(truth, probe, positions, counts, operator.light())


def run_scan(job: ScanRun, data: str | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = read_crops(data, job.images, job.size, middle=True)
    made = make_scan(found[job.image], found[(job.image + 1) % len(found)], job.side, job.photons, job.seed)
    given = made.probe if job.probe == "known" else first_guess(job.size // 2, job.photons)
    if job.method == "default":
        return _ours(made, given, job)
    with _quiet():
        curve, seconds = [], 0.0
        for passes, image, spent in _ptychi(made, given, job):
            curve.append((passes, scan_snr(made.truth, image, made.light)))
            seconds = spent
            if not math.isfinite(curve[-1][1]):
                break
    return {"snr": curve[-1][1], "passes": passes, "cpu": seconds, "curve": curve}


def _ours(made: Scan, given: NDArray[np.complex64], job: ScanRun) -> dict[str, Any]:
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = retrieve(made.counts, positions=made.positions, probe=given, shape=(job.size, job.size),
                          quantity="intensities", refine_probe=job.probe == "unknown")  # fmt: skip
    spent, (row,) = time.process_time() - begin, result.slices
    images = _without_prior(made, given, job.probe == "unknown") | {"snr": torch.from_numpy(result.image)}
    quality = {name: scan_snr(made.truth, image, made.light) for name, image in images.items()}
    return quality | {"passes": round(row["sfo"] / len(made.counts)), "cpu": spent}


def _without_prior(made: Scan, given: NDArray[np.complex64], blind: bool) -> dict[str, Tensor]:
    """A constant, the fit that `retrieve` begins with, and that fit denoised once at the level of its error."""
    operator = Ptychography(torch.from_numpy(given), made.positions, tuple(made.truth.shape))
    loss, ones = PtychographyLoss(operator, torch.from_numpy(made.counts).sqrt()), torch.ones_like(made.truth)
    if blind:
        guess, _ = guessed_probe(loss, known=True)
        loss = redescribed(loss, guess, made.positions)
    loss, fit = fit_scan(loss, blind)
    prox = ComplexProx(ScanPlan().found_prior(loss, fit).prox(1.0))
    return {"constant": ones, "fit": fit.image, "one denoising": prox.prox(fit.image, 1.0)}


@contextmanager
def _quiet() -> Iterator[None]:
    """ptychi logs, warns, and makes a device the default of torch, which slows down every call."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.set_default_device(None)


def _ptychi(made: Scan, given: NDArray[np.complex64], job: ScanRun) -> Iterator[tuple[int, Tensor, float]]:
    """Passes, object and seconds so far of a peer."""
    api = needs("ptychi.api", None, "peers of ptychography")
    task = needs("ptychi.api.task", None, "peers of ptychography").PtychographyTask
    blind, window, size = job.probe == "unknown", len(given), job.size + 2 * EDGE
    options = {"epie": api.EPIEOptions, "rpie": api.RPIEOptions, "lsqml": api.LSQMLOptions}[job.method.split()[0]]()
    options.data_options.fft_shift = False
    reconstructor, thing, probe = options.reconstructor_options, options.object_options, options.probe_options
    reconstructor.default_device, reconstructor.random_seed = api.Devices.CPU, job.seed
    reconstructor.batch_size, reconstructor.displayed_loss_function = job.batch, None
    probe.optimizable = thing.remove_object_probe_ambiguity.enabled = blind
    if job.method.startswith("lsqml"):
        reconstructor.rescale_probe_intensity_in_first_epoch = blind
        thing.optimal_step_size_scaler = probe.optimal_step_size_scaler = job.step
    else:
        thing.alpha = probe.alpha = job.step
    thing.determine_position_origin_coords_by = api.ObjectPosOriginCoordsMethods.SPECIFIED
    thing.position_origin_coords = np.full(2, EDGE + (window - 1) / 2)  # ptychi's positions are those of the middle
    begin, done = time.process_time(), 0
    running = task(options, diffraction_data=made.counts, object_data=np.ones((1, size, size), np.complex64),
                   probe_data=given[None, None] / window,  # its Fourier transform is not unitary
                   probe_position_x_px=made.positions[:, 1],
                   probe_position_y_px=made.positions[:, 0])  # fmt: skip
    for passes in sorted({*(mark for mark in MARKS if mark < job.passes), job.passes}):
        running.run(passes - done)
        done, spent = passes, time.process_time() - begin
        image = running.get_data_to_cpu("object", as_numpy=True)[0, EDGE:-EDGE, EDGE:-EDGE]
        yield passes, torch.from_numpy(image.astype(np.complex64)), spent
        begin = time.process_time() - spent  # what is measured meanwhile is not its time
