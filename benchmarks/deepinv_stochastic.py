"""The race of gallery/plot_deepinv.py with deepinv, stored for the page, which is built without it.

    python benchmarks/deepinv_stochastic.py [OUT]

OUT gets results.json and table.md.
"""

import json
import runpy
import sys
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
import torch
from deepinv_admm import library

PAGE = Path(__file__).parent.parent / "gallery" / "plot_deepinv.py"


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
        "",
        "| groups per step | " + " | ".join(str(k) for k in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
        *("| " + " | ".join([name, *(f"{curve[k]:.1f}" for k in shown)]) + " |" for name, curve in curves.items()),
    ]
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
