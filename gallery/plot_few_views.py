"""
Few views of real scans
=======================

See how many views of a whole turn four methods need to find the holes in the discs of the Helsinki challenge.
"""

import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import smadmm
from smadmm.io.matlab import read_matlab

# The scores are those that `smadmm reproduce htc2022` left in docs/results: every method with its default settings.
root = next(p for p in (Path.cwd(), *Path.cwd().parents) if (p / "docs/results/htc2022").is_dir())
rows = json.loads((root / "docs/results/htc2022/results.json").read_text(encoding="utf-8"))["rows"]
scores = {}
for row in rows:
    if "views" in row:
        scores.setdefault(row["method"], {}).setdefault(row["views"], []).append(row["mcc"])
for method, found in scores.items():
    print(f"{method:8s}", *(f"{views} views: {np.mean(each):.3f}" for views, each in found.items()))

# With the scans (Zenodo record 8041800) in the folder that SMADMM_DATA names, one of them is reconstructed, too.
scan = Path(os.environ.get("SMADMM_DATA", "")) / "htc2022_01a_full.mat"
images = {}
if scan.is_file():
    arrays = read_matlab(scan).arrays
    sinogram = next(np.asarray(a, np.float32) for key, a in arrays.items() if key.endswith("sinogram"))
    scanner = smadmm.fan(source_to_axis=410.66, source_to_detector=553.74, pitch=0.2)
    views = slice(0, 720, 24)  # 30 views of a whole turn, half a degree between neighbours of the scan
    images = smadmm.reconstruct(sinogram[views], np.arange(720)[views] / 2, geometry=scanner, size=512).shown

fig, axes = plt.subplots(1, 1 + len(images), figsize=(8 + 3 * len(images), 4), layout="constrained", squeeze=False)
fig.suptitle("Discs with holes from few views: below 60 views, a prior decides what is found")
for method, found in scores.items():
    axes[0, 0].plot(list(found), [1 - np.mean(each) for each in found.values()], "o-", label=method)
axes[0, 0].set(xlabel="views", ylabel="1 - Matthews correlation", yscale="log", xticks=[15, 30, 60])
axes[0, 0].legend()
for ax, (name, image) in zip(axes[0, 1:], images.items(), strict=True):
    ax.imshow(image[::-1], cmap="gray")  # views turn counterclockwise
    ax.set(title=f"{name}, 30 views", xticks=[], yticks=[])
plt.show()
