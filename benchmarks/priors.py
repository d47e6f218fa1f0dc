"""What an iteration of `reconstruct` costs with each prior, as a multiple of that with `ridge-ct`.

One thread, interleaved, CPU time; an iteration's is the difference of a long run and a short one, and a ratio is the
median over rounds. Also shown: the SNR, and how far total variation is from one solved ten times as accurately.
"""

import os
import statistics
import sys
import time
from unittest import mock

import torch

from smadmm import reconstruct
from smadmm.imaging import priors
from smadmm.imaging.metrics import snr
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

SIZES, VIEWS, NOISE = (256, 512), 180, 40.0  # dB
PRIORS = ("none", "tv", "ridge-ct", "ridge-ct-large")
SHORT, LONG, ROUNDS = 2, 12, 5


def seconds(sinogram, size, prior, iterations):
    begin = time.process_time()
    reconstruct(sinogram, size=size, prior=prior, iterations=iterations)
    return time.process_time() - begin


def measure(size):
    truth = abdomen_image(size)
    sinogram = simulated_sinogram(truth, VIEWS, NOISE)
    times = {prior: [] for prior in PRIORS}
    images = {prior: reconstruct(sinogram, size=size, prior=prior).image for prior in PRIORS}
    for _ in range(ROUNDS):
        for prior in PRIORS:
            long, short = (seconds(sinogram, size, prior, n) for n in (LONG, SHORT))
            times[prior].append((long - short) / (LONG - SHORT))
    print(f"{size} x {size}, {VIEWS} views, {NOISE:g} dB")
    for prior, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["ridge-ct"], strict=True))
        told = f"{1e3 * statistics.median(values):8.1f} ms an iteration   {ratio:5.2f} x ridge-ct"
        print(f"{prior:<16}{told}   SNR {snr(truth, images[prior]):.2f} dB", flush=True)
    with mock.patch.object(priors, "TV_ACCURACY", priors.TV_ACCURACY / 10):
        exact = reconstruct(sinogram, size=size, prior="tv").image
    change = float((exact - images["tv"]).norm() / exact.norm())
    print(f"total variation, its prox ten times as accurate: an image that differs by {change:.1e}", flush=True)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # it is read when libraries are loaded: start again with it
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    for size in SIZES:
        measure(size)
