"""The race of gallery/plot_deepinv.py with deepinv, stored for the page, which is built without it.

    python benchmarks/deepinv_stochastic.py tune
    python benchmarks/deepinv_stochastic.py [OUT]

`tune` runs every method with all pairs of rho and eta on another image and prints its best pair; the page has one pair
for all, picked on its own image.
OUT gets results.json and table.md.
"""

import contextlib
import itertools
import json
import runpy
import sys
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from deepinv_admm import library

PAGE = Path(__file__).parent.parent / "gallery" / "plot_deepinv.py"
RHOS, ETAS = (0.001, 0.003, 0.01, 0.03), (0.5, 1.0, 2.0, 4.0)


def tune():
    library()
    torch.set_num_threads(1)
    mpl.use("Agg")
    page = runpy.run_path(str(PAGE))
    rng = np.random.default_rng(0)  # ellipses, none of which is in the image of the page
    y, x = np.mgrid[: page["SIZE"], : page["SIZE"]] / (page["SIZE"] - 1) * 2 - 1
    image = 0.4 * (np.hypot(x / 0.85, y / 0.7) < 1)
    for _ in range(12):
        a, b, u, v = rng.uniform(0.05, 0.25, 2).tolist() + rng.uniform(-0.5, 0.5, 2).tolist()
        image[np.hypot((x - u) / a, (y - v) / b) < 1] = rng.uniform(0.2, 0.7)
    curves = {}
    for pair in itertools.product(RHOS, ETAS):
        with contextlib.suppress(RuntimeError):  # one diverges
            curves[pair] = page["race"](torch.from_numpy(image.astype(np.float32)), *pair)
    for name in page["METHODS"]:
        reached = {pair: found[name][-1] for pair, found in curves.items()}
        best = max(reached, key=reached.get)
        print(f"{name}: rho, eta = {best}, {reached[best]:.2f} dB of", {k: round(v, 2) for k, v in reached.items()})


def main(out):
    torch.set_num_threads(1)
    mpl.use("Agg")
    library()
    found = runpy.run_path(str(PAGE))["curves"]
    curves = {name: [round(float(value), 3) for value in curve] for name, curve in found.items()}
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "command": "python benchmarks/deepinv_stochastic.py OUT",
        "deepinv": version("deepinv"),
        "curves": curves,
    }
    (out / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    shown = (5, 10, 20, 30)
    lines = [
        "# Stochastic plug-and-play for a physics of deepinv",
        "",
        "SNR in dB after so many passes over 60 views in 12 groups (`gallery/plot_deepinv.py`).",
        "One pair of rho and eta for all, picked on this image: with it SADMM is ahead of SMADMM.",
        "",
        "| groups per step | " + " | ".join(str(k) for k in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
        *("| " + " | ".join([name, *(f"{curve[k]:.1f}" for k in shown)]) + " |" for name, curve in curves.items()),
    ]
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tune() if sys.argv[1:] == ["tune"] else main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
