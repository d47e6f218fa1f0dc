"""Real scans without a truth: every k-th view is given, the others are predicted.

    python benchmarks/held_out.py FOLDER [OUT]

FOLDER holds tooth.h5 and sinogram_360_neutron_image.tif (TomoBank; a neutron radiography of the same kind); OUT gets
table.md. The error is |A x - b| / |b| at the views that were not given, over the detectors that see the object and work
(the inspection of all views finds those that do not). The axis is the one that `reconstruct` finds in the views that it
is given; all methods get it, and the sinogram as it prepares it: nobody is hurt by rings or dead detectors. svmbir
(default sharpness, its own projector) is a line if it is installed.
"""

import sys
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


def svmbir_prediction(rows, weights, angles, others, center):
    """The views it predicts, by its own projector; the sign of its axis offset that fits better."""
    import svmbir

    options = {"num_rows": rows.shape[1], "num_cols": rows.shape[1], "verbose": 0, "max_iterations": 100}
    found = []
    for offset in (center, -center):
        image = svmbir.recon(rows[:, None], angles, weights=weights[:, None], center_offset=offset, **options)
        again = svmbir.project(image, angles, rows.shape[1], center_offset=offset)[:, 0]
        there = svmbir.project(image, others, rows.shape[1], center_offset=offset)[:, 0]
        found.append((np.linalg.norm((again - rows) * (weights > 0)), there))
    return min(found, key=lambda each: each[0])[1]


def errors(b, degrees, step, good):
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
    try:
        known = np.ones_like(look.prepared) if look.weights is None else (look.weights > 0).astype(np.float32)
        found["svmbir"] = error(svmbir_prediction(look.prepared, known, angles, others, look.center))
    except ImportError:
        print("svmbir is not installed: left out")
    return found, seconds, result.settings["prior"]


def main(folder, out=None):
    lines = []
    for name, (file, options, steps) in SCANS.items():
        scan = read_sinogram(Path(folder) / file, **options)
        b = np.asarray(scan[0], dtype=np.float32) if len(scan.shape) == 3 else np.asarray(scan[:], dtype=np.float32)
        whole = inspect(b, scan.degrees)
        mean = whole.prepared.mean(0)
        good = mean > SEEN * mean.max()
        good &= True if whole.weights is None else (whole.weights > 0).any(0)
        for step in steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, seconds, prior = errors(b, scan.degrees, step, good)
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
