"""
A scan from its file, defects and all
=====================================

Read a Data Exchange file as a beamline writes it, reconstruct it, and see what was found wrong with it and repaired.
"""

import tempfile
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

import smadmm
from smadmm.io.phantoms import abdomen_image
from smadmm.io.sinogram import read_sinogram
from smadmm.operators import Radon

# A scan with an axis 3.4 detectors off the middle, uneven detectors, a dead one, and zingers.
rng = np.random.default_rng(0)
truth, degrees = 0.04 * abdomen_image(160), np.arange(240) * 0.75
clean = Radon(160, np.deg2rad(degrees), 240, centre=3.4)(truth).numpy()
gain, dark = 1 + 0.1 * rng.standard_normal(240), 100.0
counts = rng.poisson(100_000 * gain * np.exp(-clean)) + dark
counts[:, 140] = dark + 5
counts[rng.integers(0, 240, 80), rng.integers(0, 240, 80)] += 200_000
path = Path(tempfile.mkdtemp()) / "scan.h5"
with h5py.File(path, "w") as file:
    file["exchange/data"] = counts[:, None].astype(np.uint32)  # views x slices x detectors
    file["exchange/data_white"] = (rng.poisson(100_000 * gain, (20, 1, 240)) + dark).astype(np.uint32)
    file["exchange/data_dark"] = np.full((20, 1, 240), dark, np.uint32)
    file["exchange/theta"] = degrees

scan = read_sinogram(path)
print(*scan.notes, sep="\n")
result = smadmm.reconstruct(scan, size=160, truth=truth.numpy())
print(*result.notes, sep="\n")
careless = smadmm.reconstruct(scan, size=160, truth=truth.numpy(), raw=True)

fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
fig.suptitle("A scan with defects: as measured, what was not trusted, and images without and with repairs")
axes[0].imshow(scan[0], cmap="gray", aspect="auto", vmax=np.quantile(clean, 0.999))
axes[0].set(title="sinogram of the file", xlabel="detector", ylabel="view")
views, detectors = np.nonzero(result.inspection.weights == 0)
axes[1].scatter(detectors, views, s=2, color="black")
axes[1].set(title="rays without weight", xlabel="detector", xlim=(0, 240), ylim=(240, 0))
for ax, (name, answer) in zip(axes[2:], {"taken as it is": careless, "repaired": result}.items(), strict=True):
    ax.imshow(answer.image, cmap="gray", vmin=0.01, vmax=0.025)
    ax.set_title(f"{name}: {answer.mean('snr'):.1f} dB")
    ax.set_axis_off()
plt.show()
