"""
Stochastic plug-and-play for physics of deepinv
===============================================

Give a stacked physics of deepinv to stochastic solvers: its members are the samples, and a step needs one of them.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from smadmm import Stop, interop, run
from smadmm.denoisers import load
from smadmm.imaging.metrics import snr
from smadmm.imaging.pnp import pnp
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import OperatorLeastSquares
from smadmm.proxes import Denoised

SIZE, GROUPS, PASSES = 96, 12, 30
METHODS = {"all": ("spider", 12), "one, SADMM": ("sadmm", 1), "one, SMADMM": ("smadmm", 1)}


def race(truth, rho=0.01, eta=1.0):  # one pair for all methods, picked on the image of this page
    """60 views in 12 groups of 5: the SNR of each method after each of 30 passes over the data."""
    from deepinv.physics import StackedLinearPhysics, Tomography

    degrees = [torch.arange(k, 60, GROUPS) * 3.0 for k in range(GROUPS)]  # a group covers the half turn
    physics = StackedLinearPhysics([Tomography(angles=a, img_width=SIZE, normalize=False) for a in degrees])
    views = interop.from_deepinv(physics, (SIZE, SIZE))
    scale = 1 / max(float(A.norm()) for A in views)
    views, rng = [scale * A for A in views], np.random.default_rng(0)
    clean = [A(truth) for A in views]
    data = [b + 0.01 * b.std() * torch.from_numpy(rng.standard_normal(b.shape, np.float32)) for b in clean]
    loss, prior = OperatorLeastSquares(views, data), Denoised(load("ridge-ct"), image=True)
    found, measure, stop = {}, {"snr": lambda s: snr(truth, s.x)}, Stop(sfo=PASSES * GROUPS)
    for name, (method, batch) in METHODS.items():
        solver = pnp(loss, prior, method, batch, rho, eta)
        record = run(solver, truth * 0, stop, every=1, metrics=measure, objective=False, progress=False).history
        found[name] = [record["snr"][np.searchsorted(record["sfo"], k * GROUPS)] for k in range(PASSES + 1)]
    return found


# Without deepinv: what `python benchmarks/deepinv_stochastic.py` stored when it ran this page with it.
root = next(p for p in (Path.cwd(), *Path.cwd().parents) if (p / "docs/results").is_dir())
curves = json.loads((root / "docs/results/deepinv-stochastic/results.json").read_text(encoding="utf-8"))["curves"]
curves = race(abdomen_image(SIZE)) if find_spec("deepinv") else curves
fig, ax = plt.subplots(figsize=(9, 4), layout="constrained")
fig.suptitle("Plug-and-play on a physics of deepinv: one group of views per step gets much further than all of them")
for name, curve in curves.items():
    print(f"groups per step: {name}: {curve[-1]:.1f} dB after {PASSES} passes")
    ax.plot(curve, label=f"groups per step: {name}")
ax.set(xlabel="passes over all views", ylabel="SNR, dB", ylim=(8, None))
ax.legend()
plt.show()
