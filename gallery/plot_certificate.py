"""
A certificate as a stopping rule
================================

Stop a run when the distance to stationarity is small enough, instead of guessing a number of iterations, and see what
each power of ten buys.
"""

import matplotlib.pyplot as plt
import torch

from smadmm import ADMM, SAGA, Problem, Stop, run
from smadmm.losses import Logistic
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1
from smadmm.xsteps import Exact

g = torch.Generator().manual_seed(0)
X = torch.randn(2000, 40, generator=g, dtype=torch.float64)
labels = torch.sign(X[:, :10].sum(1) - X[:, 10:20].sum(1) + 2 * torch.randn(2000, generator=g, dtype=torch.float64))
chain = EdgeDifferences([(i, i + 1) for i in range(39)], 40)
problem = Problem(Logistic(X, labels), L1(2e-3), chain)
solver = ADMM(problem, SAGA(batch=10), rho=1.0, eta=1.0, x_step=Exact(chain))


def solved(tolerance):
    """dist^2(0, dL) = |grad F(x) - A'lam|^2 + dist^2(B'lam, dh(y)) + |A x + B y|^2 is recorded every 50 iterations."""
    limits = Stop(certificate=tolerance, iterations=20_000)
    return run(solver, torch.zeros(40, dtype=torch.float64), limits, every=50, progress=False)


best = solved(1e-16)  # as good as the solution
history, lowest = best.history, best.history["objective"][-1]
fig, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
fig.suptitle("A run and where a certificate stops it (left), and how far the answer is from the solution then (right)")
parts = {"certificate": "k-", "gradient": "C0:", "subdifferential": "C1:", "feasibility": "C2:"}
for name, line in parts.items():
    axes[0].semilogy(history["k"], [max(value, 1e-18) for value in history[name]], line, label=name)
for tolerance in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
    result = solved(tolerance)
    gap = result.history["objective"][-1] - lowest
    distance = float((result.x - best.x).norm() / best.x.norm())
    print(
        f"{tolerance:.0e}: {result.reason.value} at {result.state.k}, objective {gap:.1e} above, x {distance:.1e} off"
    )
    axes[0].plot(result.state.k, result.history["certificate"][-1], "o", color="C3")
    axes[1].loglog(tolerance, gap, "s", color="C0", label="objective minus its minimum" if tolerance == 1e-2 else None)
    axes[1].loglog(tolerance, distance, "o", color="C3", label="relative error of x" if tolerance == 1e-2 else None)
axes[0].set(xlabel="iteration", ylabel="squared distance", ylim=(1e-17, None))
axes[1].set(xlabel="certificate at which the run is stopped")
for ax in axes:
    ax.legend()
plt.show()
