"""
Bring your own estimator
========================

Add a gradient estimator in a dozen lines and race it against those of the package, with sample gradients counted alike.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

from smadmm import ADMM, SGD, Estimate, Estimator, Power, Problem, Spider, Storm, compare, solve
from smadmm.losses import Logistic
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1


@dataclass(frozen=True)
class PAGE(Estimator):
    """v = grad F(x) with probability p, else v + g_S(x) - g_S(x_old) (Li et al., ICML 2021)."""

    batch: int
    p: float

    def init(self, f, x, rng):
        return Estimate(f.gradient((x,), (1.0,), f.full()), x, f.n)

    def update(self, f, e, x, k, rng):
        if rng.random() < self.p:
            full = self.init(f, x, rng)
            return Estimate(full.v, x, e.sfo + full.sfo)
        change = f.gradient((x, e.at), (1.0, -1.0), f.draw(rng, self.batch))  # two points, one batch
        return Estimate(e.v + change, x, e.sfo + 2 * self.batch)


g = torch.Generator().manual_seed(0)
X = torch.randn(4000, 60, generator=g, dtype=torch.float64)
labels = torch.sign(X[:, :15].sum(1) - X[:, 15:30].sum(1) + 2 * torch.randn(4000, generator=g, dtype=torch.float64))
problem = Problem(Logistic(X, labels), L1(1e-3), EdgeDifferences([(i, i + 1) for i in range(59)], 60))
estimators = {  # batches of 20 samples; full gradients, where there are any, every 100 iterations or so
    "SADMM": SGD(20),
    "SMADMM": Storm(20, Power(2.0, -2 / 3)),
    "SPIDER-ADMM": Spider(20, 100),
    "PAGE-ADMM (yours)": PAGE(20, 0.01),
}
results = {name: solve(ADMM(problem, e, rho=0.5, eta=3.0), budget=200_000) for name, e in estimators.items()}
for name, result in results.items():
    print(f"{name:18s} {result}")
axes = compare(results, "certificate")
axes[0].figure.suptitle("Distance to stationarity of four estimators in one loop, over gradients and over seconds")
plt.show()
