"""What `reconstruct` costs with each prior, per iteration and as a whole, as multiples of the same with `ridge-ct`.

One thread, interleaved, CPU time: a whole run of 30 iterations and a short one, whose difference is the iterations'; a
ratio is the median over rounds. Also shown: the SNR, and how far the image of total variation is from one whose prox is
ten times as accurate.
"""

import os
import statistics
import sys
import time
from unittest import mock

import torch

from smadmm import reconstruct
from smadmm.imaging import priors
from smadmm.imaging.ct import ITERATIONS
from smadmm.imaging.metrics import snr
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

SIZES, VIEWS, NOISE = (256, 512), (60, 180), 40.0  # dB
PRIORS = ("tv", "ridge-ct", "ridge-ct-large")
SHORT, ROUNDS = 2, 3


def timed(sinogram, size, prior, iterations):
    begin = time.process_time()
    image = reconstruct(sinogram, size=size, prior=prior, iterations=iterations).image
    return time.process_time() - begin, image


def ratio(times, prior):
    return statistics.median(a / b for a, b in zip(times[prior], times["ridge-ct"], strict=True))


def measure(size, views):
    truth = abdomen_image(size)
    sinogram = simulated_sinogram(truth, views, NOISE)
    whole, step, images = {p: [] for p in PRIORS}, {p: [] for p in PRIORS}, {}
    for prior in PRIORS:
        timed(sinogram, size, prior, SHORT)  # compiles
    for _ in range(ROUNDS):
        for prior in PRIORS:
            seconds, images[prior] = timed(sinogram, size, prior, ITERATIONS)
            whole[prior].append(seconds)
            step[prior].append((seconds - timed(sinogram, size, prior, SHORT)[0]) / (ITERATIONS - SHORT))
    print(f"{size} x {size}, {views} views, {NOISE:g} dB")
    for prior in PRIORS:
        iteration = f"{1e3 * statistics.median(step[prior]):6.1f} ms per iteration, {ratio(step, prior):.2f} x ridge-ct"
        run = f"{statistics.median(whole[prior]):5.2f} s as a whole, {ratio(whole, prior):.2f} x"
        print(f"{prior:<16}{iteration};  {run};  SNR {snr(truth, images[prior]):.2f} dB", flush=True)
    with mock.patch.object(priors, "TV_ACCURACY", priors.TV_ACCURACY / 10):
        exact = reconstruct(sinogram, size=size, prior="tv").image
    change = float((exact - images["tv"]).norm() / exact.norm())
    print(f"with a prox ten times as accurate the image of tv changes by {change:.1e}", flush=True)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # it is read when libraries are loaded: start again with it
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    for size in SIZES:
        for views in VIEWS:
            measure(size, views)
