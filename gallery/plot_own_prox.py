"""
Bring your own prox
===================

Write a penalty of your own, check it in one line, and see a nonconvex one undo the shrinkage of l1.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

from smadmm import ADMM, SVRG, Penalty, Problem, solve
from smadmm.losses import LeastSquares
from smadmm.proxes import L1


@dataclass(frozen=True)
class MCP(Penalty):
    """h(y) = sum_i w |y_i| - y_i^2 / (2 g) up to |y_i| = g w, constant from there: large entries are not shrunk."""

    w: float
    g: float
    separable, convex = True, False

    def prox(self, v, t):  # t < g
        small = torch.nn.functional.softshrink(v, t * self.w) / (1 - t / self.g)
        return torch.where(v.abs() <= self.g * self.w, small, v)

    def value(self, y):
        size = y.abs().clamp(max=self.g * self.w)
        return float((self.w * size - size**2 / (2 * self.g)).sum())

    def subdifferential_distance(self, y, g):
        slope = (self.w - y.abs() / self.g).clamp(min=0) * y.sgn()
        return float(torch.where(y == 0, (g.abs() - self.w).clamp(min=0), (g - slope).abs()).norm())


h, v = MCP(1.0, 2.0), torch.linspace(-3, 3, 601)
y = h.prox(v, 0.5)
print(f"dist((v - y)/t, dh(y)) = {h.subdifferential_distance(y, (v - y) / 0.5):.0e}")  # zero up to rounding
rng = torch.Generator().manual_seed(1)
truth = (torch.arange(80) % 8 == 0) * (torch.randn(80, generator=rng) + 1.5)
X = torch.randn(400, 80, generator=rng)
loss = LeastSquares(X, X @ truth + 2 * torch.randn(400, generator=rng))
fig, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained", width_ratios=(1, 1.5, 1.5))
fig.suptitle("Two proxes, and the coefficients they find: l1 shrinks all of them, MCP only the small ones")
for name, h, ax in (("l1", L1(0.4), axes[1]), ("MCP", MCP(0.4, 3.0), axes[2])):
    result = solve(ADMM(Problem(loss, h), SVRG(batch=20, every=20), rho=1.0, eta=5.0), budget=60_000)
    found = result.state.y  # y, not x: it has exact zeros
    error = float((found - truth).norm() / truth.norm())
    print(f"{name:4s} {int((found != 0).sum())} of 80 entries not zero, relative error {error:.3f}, {result}")
    axes[0].plot(v, h.prox(v, 1.0))
    ax.stem(truth, linefmt="0.7", markerfmt=" ", basefmt=" ", label="truth")
    ax.plot(found, "o", markersize=3, color="C3", label="found")
    ax.set(title=f"{name}: relative error {error:.3f}", xlabel="entry")
    ax.legend()
axes[0].set(title="prox of v: l1 and, steeper, MCP", xlabel="v")
plt.show()
