"""
Bring your own operator
=======================

Write a linear operator of your own, check its adjoint, and use it in a penalty: lines that bend rarely, from scattered
measurements.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.sparse import csr_array

from smadmm import Problem, solve
from smadmm.losses import LeastSquares
from smadmm.operators import EdgeDifferences, Operator
from smadmm.proxes import L1


class Bends(Operator):
    """(A x)_i = x_i - 2 x_{i+1} + x_{i+2}: zero where x is a straight line."""

    def __init__(self, size: int):
        self.in_shape, self.out_shape = (size,), (size - 2,)

    def forward(self, x):
        return x[:-2] - 2 * x[1:-1] + x[2:]

    def adjoint(self, y):
        x = y.new_zeros(len(y) + 2)
        x[:-2] += y
        x[1:-1] -= 2 * y
        x[2:] += y
        return x


size, rng = 120, np.random.default_rng(0)
A, x, y = Bends(size), torch.randn(size).double(), torch.randn(size - 2).double()
print(f"<A x, y> - <x, A'y> = {A(x) @ y - x @ A.T(y):.0e}, |A| = {A.norm():.3f}")  # the adjoint must be exact

truth = np.interp(np.arange(size), [0, 25, 60, 90, 119], [0.0, 1.0, 0.2, 0.9, 0.9])
place = rng.integers(0, size, 3000)  # every measurement sees one place, with much noise
seen = truth[place] + 0.5 * rng.standard_normal(3000)
loss = LeastSquares(csr_array((np.ones(3000), (np.arange(3000), place)), shape=(3000, size)), seen)
chain = EdgeDifferences([(i, i + 1) for i in range(size - 1)], size)
penalties = {"bends (yours)": (A, 3e-2), "steps (EdgeDifferences)": (chain, 3e-3)}

fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
fig.suptitle("3000 noisy measurements and curves with few bends (left) and few steps (right)")
for ax, (name, (operator, weight)) in zip(axes, penalties.items(), strict=True):
    result = solve(Problem(loss, L1(weight), operator), budget=300_000)
    error = float(np.sqrt(np.mean((result.x.numpy() - truth) ** 2)))
    print(f"{name:24s} root mean square error {error:.3f}, {result}")
    ax.plot(place, seen, ".", color="0.8", markersize=2)
    ax.plot(truth, "k--", label="truth")
    ax.plot(result.x.numpy(), label=name)
    ax.set(title=f"{name}: error {error:.3f}", xlabel="place", ylim=(-0.8, 1.8))
    ax.legend(loc="lower right")
plt.show()
