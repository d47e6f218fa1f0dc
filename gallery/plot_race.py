"""
A fair race of two methods
==========================

Compare two methods as a referee would want it: tuned with the same number of runs on other seeds, judged over several
seeds, with an interval of the difference.
"""

import matplotlib.pyplot as plt
import torch

from smadmm import ADMM, SVRG, Power, Problem, Storm, compare, solve, tune
from smadmm.losses import Logistic
from smadmm.operators import EdgeDifferences
from smadmm.protocol import caption, paired, same_effort
from smadmm.proxes import L1
from smadmm.xsteps import Exact

g = torch.Generator().manual_seed(0)
X = torch.randn(4000, 50, generator=g)
labels = torch.sign(X[:, :12].sum(1) - X[:, 12:24].sum(1) + 2 * torch.randn(4000, generator=g))
problem = Problem(Logistic(X, labels), L1(2e-3), EdgeDifferences([(i, i + 1) for i in range(49)], 50))
exact, budget, seeds = Exact(problem.A), 20_000, range(8)  # five passes over the data; the seeds that are reported


def smadmm(problem, seed, eta, rho):
    return ADMM(problem, Storm(16, Power(2.0, -2 / 3)), rho, Power(eta, 1 / 3), x_step=exact, seed=seed)


def svrg(problem, seed, eta, rho):
    return ADMM(problem, SVRG(16, 125), rho, eta, x_step=exact, seed=seed)


methods = {"SMADMM": smadmm, "SVRG-ADMM": svrg}
grids = {
    "SMADMM": {"eta": (0.125, 0.25, 0.5, 1.0), "rho": (1.0, 10.0, 100.0)},
    "SVRG-ADMM": {"eta": (0.5, 1.0, 2.0, 4.0), "rho": (0.1, 1.0, 10.0)},
}
tuned = {name: tune(method, grids[name], problem, budget, reported=seeds) for name, method in methods.items()}
print(f"each method was tuned with {same_effort(tuned)} runs", *(f"{name}: {t}" for name, t in tuned.items()), sep="\n")
runs = {
    name: [solve(method(problem, seed, **tuned[name].best), budget, seed=seed) for seed in seeds]
    for name, method in methods.items()
}
gap = paired(*[[result.history["objective"][-1] for result in results] for results in runs.values()])
print(f"objective of SMADMM minus that of SVRG-ADMM: {gap.mean:.2e} +- {gap.half:.1e} ({caption('seed', gap.n)})")

axes = compare(runs, "objective")
axes[0].set_ylim(0.26, 0.4)
axes[0].figure.suptitle("Two methods with equal tuning, means of eight seeds with their 95 % intervals")
plt.show()
