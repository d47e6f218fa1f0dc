"""What a volume will cost: time and memory, before it begins.

With P pixels, V views and D detectors an iteration takes p P + q P V seconds on a core: the denoiser and the Fourier
transforms go by pixels, the products with A by pixels and views. To look at a slice takes as long as L iterations; w
workers share the slices after they have begun:
    time = begin + slices/w (iterations + L) (p P + q P V),      memory = m + 4 (i P + s V D) bytes per process.
The constants are those of one core, measured by `benchmarks/slices.py` (docs/results/scale); on another machine the
time may be several times as long or short.
"""

from __future__ import annotations

import math

from smadmm.imaging.slices import Scan

PIXELS, PRODUCTS = 3.5e-7, 8.7e-10  # p and q, seconds
LOOKING = 12  # L
BEGIN = 1.6  # seconds
BASE, IMAGES, SINOGRAMS = 409e6, 106, 1  # m, i and s; from images of up to 1024 pixels each way
LARGE = 120.0  # seconds from which a job is large


def slice_seconds(scan: Scan) -> float:
    """Expected seconds of a slice on one core."""
    if scan.stop.iterations is None:
        return float(scan.stop.seconds or 0.0)
    pixels = scan.radon.height * scan.radon.width
    return (scan.stop.iterations + LOOKING) * pixels * (PIXELS + PRODUCTS * scan.radon.views)


def worker_bytes(scan: Scan) -> float:
    """Expected memory of a process."""
    return BASE + 4 * (
        IMAGES * scan.radon.height * scan.radon.width + SINOGRAMS * math.prod(scan.radon.out_shape or ())
    )


def expectation(scan: Scan, slices: int, workers: int | None) -> str | None:
    """A sentence on a large job; None: it is small. Workers None: their number is not known."""
    work = slices * slice_seconds(scan)
    if work < LARGE:
        return None
    each = f"{worker_bytes(scan) / 1e9:.1f} GB in each process"
    images = f"{4e-9 * slices * scan.radon.height * scan.radon.width:.1f} GB of images"
    if workers is None:
        return f"expected: about {_told(work)} of work for all workers together, {each}, {images}"
    seconds = BEGIN * (workers > 1) + math.ceil(slices / workers) * slice_seconds(scan)
    return f"expected: about {_told(seconds)}, {each}, {images}"


def _told(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h"
