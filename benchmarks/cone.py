"""A cone beam of RTK, 64 x 64 x 64 voxels and 60 views: the default of `reconstruct` against FDK.

    python benchmarks/cone.py [OUT]

The object, ellipsoids in a cylinder, is projected on a grid twice as fine, to detectors twice as fine whose values are
averaged, and noise of 1 % of the mean square is added: no projector that reconstructs made the data. FDK is RTK's, with
its ramp filter, plain and smoothed by the Gaussian that gives it the highest SNR. OUT gets results.json and
table.md. It needs the extra `cone`.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

import smadmm
from smadmm import interop
from smadmm.imaging.metrics import snr

SIZE, VIEWS, DETECTOR, NOISE, SEED = 64, 60, 96, 0.01, 0
AXIS, BEHIND = 400.0, 600.0  # mm
PITCH = 1.2


def phantom(size):
    """Forty ellipsoids of random contrast in a cylinder, values in [0, 1]."""
    rng = np.random.default_rng(SEED)
    at = (np.mgrid[:size, :size, :size] - (size - 1) / 2) / (size / 2)
    volume = 0.4 * ((np.hypot(at[1], at[2]) < 0.85) & (np.abs(at[0]) < 0.8)).astype(np.float32)
    for _ in range(40):
        centre, radii = rng.uniform(-0.5, 0.5, 3), rng.uniform(0.06, 0.25, 3)
        inside = sum(((a - c) / r) ** 2 for a, c, r in zip(at, centre, radii, strict=True)) < 1
        volume[inside] = rng.uniform(0.1, 1.0)
    return volume


def means(array, axes):
    """Of pairs of neighbours along these axes."""
    for axis in axes:
        array = 0.5 * (
            array.take(range(0, array.shape[axis], 2), axis) + array.take(range(1, array.shape[axis], 2), axis)
        )
    return array


def main(out):
    torch.set_num_threads(1)
    geometry = interop.cone(np.arange(VIEWS) * 2 * np.pi / VIEWS, AXIS, BEHIND)
    fine = interop.from_rtk(geometry, (2 * SIZE,) * 3, (2 * DETECTOR,) * 2, voxel=0.5, pitch=PITCH / 2)
    dense = phantom(2 * SIZE)
    clean = means(fine(torch.from_numpy(dense)).numpy(), (1, 2))
    noise = np.random.default_rng(SEED).standard_normal(clean.shape, dtype=np.float32)
    data, truth = clean + NOISE * np.sqrt((clean**2).mean()) * noise, torch.from_numpy(means(dense, (0, 1, 2)))
    K = interop.from_rtk(geometry, (SIZE,) * 3, (DETECTOR,) * 2, pitch=PITCH)
    fdk = K.fdk(data)
    smoothed = {s: torch.from_numpy(gaussian_filter(fdk.numpy(), s)) if s else fdk for s in (0, 0.4, 0.6, 0.8, 1.0)}
    best = max(smoothed, key=lambda s: snr(truth, smoothed[s]))
    begin = time.process_time()
    result = smadmm.reconstruct(data, operator=K, start=fdk, truth=truth.numpy())
    rows = [
        {"method": "FDK", "snr": snr(truth, fdk)},
        {"method": "FDK, best smoothing", "snr": snr(truth, smoothed[best]), "width": best},
        {"method": "least squares, 10 steps", "snr": result.mean("snr_start")},
        {"method": "smadmm.reconstruct", "snr": result.mean("snr"), "cpu": time.process_time() - begin},
    ]
    for row in rows:
        print(row)
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(
        json.dumps({"command": "python benchmarks/cone.py OUT", "rows": rows}, indent=1) + "\n"
    )
    lines = [
        "# A cone beam, 64 x 64 x 64 voxels, 60 views",
        "",
        "| method | SNR, dB |",
        "|---|---|",
        *(f"| {row['method']} | {row['snr']:.2f} |" for row in rows),
    ]
    (out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
