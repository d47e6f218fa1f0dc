"""Real scans without a truth: every k-th view is given, the others are predicted.

    python -m venv V && V/bin/pip install svmbir
    python benchmarks/held_out.py FOLDER [OUT [V/bin/python]]

FOLDER holds tooth.h5 (of tomopy) and sinogram_360_neutron_image.tif (of sarepy); OUT gets table.md. The error is |A x -
b| / |b| at the views that were not given, over the detectors that see the object and work (the inspection of all views
finds those that do not). The axis is the one that `reconstruct` finds in the views that it is given; all methods get
it, and the sinogram as it prepares it: nobody is hurt by rings or dead detectors. svmbir (default sharpness, its own
projector) runs in an environment of its own.
"""

import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import smadmm
from smadmm.imaging.geometry import cgls
from smadmm.imaging.inspection import inspect
from smadmm.io.sinogram import read_sinogram
from smadmm.operators import Radon
from smadmm.operators.radon import hann

SCANS = {
    "tooth": ("tooth.h5", {}, (2, 4)),
    "neutron": ("sinogram_360_neutron_image.tif", {"angles": "0:360:end", "air": 47000}, (2, 8)),
}
SEEN = 0.03  # of the largest mean value: what lies below is air


def sirt(radon, b, weights, steps=100):
    """x += C A'(W R (b - A x)), R and C the inverse sums of rows and columns, not below zero."""
    rows = 1 / radon(torch.ones(radon.in_shape)).clamp(min=1e-3)
    columns = 1 / radon.adjoint(weights).clamp(min=1e-3)
    x = torch.zeros(radon.in_shape)
    for _ in range(steps):
        x = (x + columns * radon.adjoint(weights * rows * (b - radon(x)))).clamp(min=0)
    return x


def svmbir_prediction(python, known, center, **arrays):
    """The views that svmbir predicts, computed by another Python; None where that has no svmbir."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "given.npz", weights=known, center=center, **arrays)
        script = Path(__file__).with_name("svmbir_prediction.py")
        done = subprocess.run([python, str(script), folder], capture_output=True, text=True)
        if done.returncode:
            print(f"svmbir is left out: {done.stderr.strip().splitlines()[-1]}")
            return None
        return np.load(Path(folder) / "predicted.npy")


def errors(b, degrees, step, good, python):
    """The error of each method, in per cent, and the seconds of ours."""
    given = np.zeros(len(b), bool)
    given[::step] = True
    angles, others = np.deg2rad(degrees[given]), np.deg2rad(degrees[~given])
    begin = time.process_time()
    result = smadmm.reconstruct(b[given], degrees[given])
    seconds = time.process_time() - begin
    look, side, detectors = result.inspection, len(result.image), b.shape[1]
    seen, left_out = (Radon(side, a, detectors, 1.0, look.center) for a in (angles, others))
    rows = torch.from_numpy(look.prepared)
    weights = torch.ones_like(rows) if look.weights is None else torch.from_numpy(look.weights > 0).float()
    tv = smadmm.reconstruct(b[given], degrees[given], prior="tv")
    images = {
        "default": torch.from_numpy(result.image),
        "FBP, Hann": seen.fbp(rows, hann),
        "CGLS, best of 10, 20, 40": [cgls(seen, rows, n, weights) for n in (10, 20, 40)],
        "SIRT 100": sirt(seen, rows, weights),
        "TV": torch.from_numpy(tv.image),
    }

    def error(predicted):
        wrong = (np.asarray(predicted) - b[~given])[:, good]
        return 100 * float(np.linalg.norm(wrong) / np.linalg.norm(b[~given][:, good]))

    found = {}
    for name, image in images.items():
        found[name] = min(error(left_out(each)) for each in (image if isinstance(image, list) else [image]))
    there = svmbir_prediction(python, weights.numpy(), look.center, rows=look.prepared, angles=angles, others=others)
    if there is not None:
        found["svmbir"] = error(there)
    return found, seconds, result.settings["prior"]


def main(folder, out=None, python=sys.executable):
    lines = []
    for name, (file, options, steps) in SCANS.items():
        scan = read_sinogram(Path(folder) / file, **options)
        b = np.asarray(scan[0], dtype=np.float32)
        whole = inspect(b, scan.degrees)
        mean = whole.prepared.mean(0)
        good = mean > SEEN * mean.max()
        good &= True if whole.weights is None else (whole.weights > 0).any(0)
        for step in steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, seconds, prior = errors(b, scan.degrees, step, good, python)
            lines.append((f"{name}, {len(b[::step])} of {len(b)} views", found, seconds, prior))
            print(lines[-1], flush=True)
    names = list(lines[0][1])
    table = ["| data | " + " | ".join(names) + " | prior of the default | CPU s |", "|" + "---|" * (len(names) + 3)]
    for title, found, seconds, prior in lines:
        best = min(found.values())
        cells = [f"**{v:.2f}**" if v == best else f"{v:.2f}" for v in found.values()]
        table.append(f"| {title} | " + " | ".join(cells) + f" | {prior} | {seconds:.1f} |")
    text = "# Views that were left out: error in per cent\n\n" + __doc__.split("\n\n", 2)[2] + "\n" + "\n".join(table)
    print(text)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "table.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
