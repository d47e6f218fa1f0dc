"""
A challenge with real scans
===========================

See how far limited angles go on real data: the Helsinki Tomography Challenge 2022, whose score is a correlation.
"""

import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import smadmm
from smadmm.io.matlab import read_matlab

# The scores are those that `smadmm reproduce htc2022` left in docs/results.
root = next(p for p in (Path.cwd(), *Path.cwd().parents) if (p / "docs/results/htc2022").is_dir())
rows = json.loads((root / "docs/results/htc2022/results.json").read_text(encoding="utf-8"))["rows"]
limited = [row for row in rows if "level" in row]
for row in limited:
    print(f"{row['degrees']:.0f} degrees: {row['mcc']:.3f} in {row['cpu']:.0f} s")

# With the scans (Zenodo record 8041800) in the folder that SMADMM_DATA names, one of them is reconstructed, too.
scan = Path(os.environ.get("SMADMM_DATA", "")) / "htc2022_01a_full.mat"
image = None
if scan.is_file():
    arrays = read_matlab(scan).arrays
    sinogram = next(np.asarray(a, np.float32) for key, a in arrays.items() if key.endswith("sinogram"))
    scanner = smadmm.fan(source_to_axis=410.66, source_to_detector=553.74, pitch=0.2)
    views = slice(0, 720, 24)  # 30 views of a whole turn, half a degree between neighbours of the scan
    image = smadmm.reconstruct(sinogram[views], np.arange(720)[views] / 2, geometry=scanner, size=512).image[::-1]

fig, axes = plt.subplots(1, 1 if image is None else 2, figsize=(9, 4), layout="constrained", squeeze=False)
fig.suptitle("Discs with holes from a part of a turn: the score falls slowly down to 50 degrees, then fast")
axes[0, 0].plot([row["degrees"] for row in limited], [row["mcc"] for row in limited], "o-")
axes[0, 0].set(xlabel="degrees that are seen", ylabel="Matthews correlation coefficient", ylim=(0.7, 1.0))
axes[0, 0].grid(alpha=0.3)
if image is not None:
    axes[0, 1].imshow(image, cmap="gray")
    axes[0, 1].set(title="30 views of a whole turn", xticks=[], yticks=[])
plt.show()
