"""
A challenge with real scans
===========================

See how far limited angles go on real data: the Helsinki Tomography Challenge 2022, whose score is a correlation.
"""

import json
import os
from pathlib import Path

import matplotlib.pyplot as plt

from smadmm.paper.htc2022 import LimitedRun, run_limited

# The scores are those that `smadmm reproduce htc2022` left in docs/results.
root = next(p for p in (Path.cwd(), *Path.cwd().parents) if (p / "docs/results/htc2022").is_dir())
rows = json.loads((root / "docs/results/htc2022/results.json").read_text(encoding="utf-8"))["rows"]
limited = [row for row in rows if "level" in row]
for row in limited:
    print(f"{row['degrees']:.0f} degrees: {row['mcc']:.3f} in {row['cpu']:.0f} s")

# With the scans (Zenodo record 8041800) in the folder that SMADMM_DATA names, one level is done again.
scans = os.environ.get("SMADMM_DATA", "")
if (Path(scans) / "htc2022_04a_limited.mat").is_file():
    print("done again:", run_limited(LimitedRun("04a", ""), scans))

fig, ax = plt.subplots(figsize=(9, 4), layout="constrained")
fig.suptitle("Discs with holes from a part of a turn: the score falls slowly down to 50 degrees, then fast")
ax.plot([row["degrees"] for row in limited], [row["mcc"] for row in limited], "o-")
ax.set(xlabel="degrees that are seen", ylabel="Matthews correlation coefficient", ylim=(0.7, 1.0))
ax.grid(alpha=0.3)
plt.show()
