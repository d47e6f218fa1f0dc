"""
Learning from a stream
======================

Solve a problem whose samples pass by once and are never stored, and know how far you are from a solution without ever
seeing a full gradient.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import softplus

from smadmm import ADMM, SGD, Power, Problem, Stop, Storm, run
from smadmm.losses import Stream
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1

truth = torch.zeros(60)
truth[10:25], truth[35:50] = 1.0, -0.5


def arriving(seed=0):
    """An endless source: chunks of 100 samples with noisy labels, as a sensor or a DataLoader gives them."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        X = torch.randn(100, 60, generator=rng)
        yield X, torch.sign(X @ truth + torch.randn(100, generator=rng))


def loss(x, batch):
    X, labels = batch
    return softplus(-labels * (X @ x)).mean()


def error(state):
    """One minus the cosine of the angle to the truth: labels tell a direction only."""
    return 1 - float(torch.nn.functional.cosine_similarity(state.x, truth, dim=0))


chain = EdgeDifferences([(i, i + 1) for i in range(59)], 60)
fig, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
fig.suptitle(
    "60,000 gradients on samples that are seen once: distance to stationarity, error, and the coefficients at the end"
)
for name, estimator in (("SADMM", SGD(20)), ("SMADMM", Storm(20, Power(2.0, -2 / 3)))):
    problem = Problem(Stream(loss, arriving()), L1(1e-3), chain)
    solver = ADMM(problem, estimator, rho=0.5, eta=Power(2.0, 1 / 3))
    stop = Stop(iterations=3000 if name == "SADMM" else 1500)  # SMADMM takes two gradients per sample
    result = run(solver, torch.zeros(60), stop, every=50, metrics={"error": error}, certify=True, certify_sample=6400)
    print(f"{name:7s} {result}")
    for ax, column in zip(axes, ("certificate", "error"), strict=False):
        result.history.plot(column, "sfo", ax, label=name)
        ax.set(yscale="log", xlabel="sample gradients", ylabel=column)
    axes[2].plot(result.x / result.x.abs().max(), label=name)
axes[2].plot(truth, "k--", linewidth=1, label="truth")
axes[2].set(xlabel="coefficient", title="largest scaled to 1")
axes[0].legend()
axes[2].legend()
plt.show()
