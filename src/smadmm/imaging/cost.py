"""What a volume will cost: time and memory, before it begins.

With P pixels, V views and D detectors an iteration takes p P + q P V seconds on a core: the denoiser and the Fourier
transforms go by pixels, the products with A by pixels and views. A slice is its iterations, and as much again as some
of them for looking at the data; w workers share the slices, and begin after the trial on the one in the middle:
    time = begin + trial + slices/w (iterations + 6) (p P + q P V),      memory = m + 4 (i P + s V D) bytes per worker.
The constants are those of `benchmarks/slices.py` (docs/results/scale), of one core; another machine has others, so a
figure may be wrong by a factor of two or three.
"""

from __future__ import annotations

import math

from smadmm.imaging.slices import Scan

PIXELS, PRODUCTS = 3.1e-7, 4.1e-9  # p and q, seconds
LOOKING = 6  # iterations' worth of looking at a slice
TRIAL = 30  # iterations' worth of a trial
BEGIN = 3.0  # seconds until a worker has begun
BASE, IMAGES, SINOGRAMS = 450e6, 60, 12  # m, i and s
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
