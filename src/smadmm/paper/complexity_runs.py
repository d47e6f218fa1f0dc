"""The population problem of the complexity experiment, and one method on it as a job.

Nothing but sampling is random, as the gradients have a closed form:

    f(x; xi) = sum_j alpha_j (1 + e_j / 2) r(x_j) + <w, x>,   r(t) = t^2 / (1 + t^2),   e_j = +-1,   w ~ N(0, I/d)
    h(y) = .01 |y|_1,   A = I + superdiagonal / 2,   d = 20,   alpha in [.5, 1],   x_0 = 1.5

Each x is a stack of independent runs, one row per seed, so all seeds go through one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.estimators import SGD, Estimator, Spider, Storm
from smadmm.losses.inverse import combine
from smadmm.operators.linear import Matrix
from smadmm.problem import Batch, Loss, Problem
from smadmm.proxes import L1
from smadmm.sampling import Rng
from smadmm.schedules import Power
from smadmm.solver import ADMM, State
from smadmm.xsteps import Exact

SIZE = 20
ONE = torch.ones((), dtype=torch.float64)
WEIGHT = 0.01
L = 3.0  # of the sample gradients: max alpha (1 + 1/2) |r''|


def slope_of_r(t: Tensor) -> Tensor:
    """r'(t) = 2 t / (1 + t^2)^2."""
    return 2 * t / torch.addcmul(ONE, t, t).square_()


class Population(Loss):
    """The population problem, for `runs` independent runs at once; a batch holds the means of e and of w."""

    dtype = torch.float64
    bounded_gradients = True

    def __init__(self, runs: int):
        self.shape = (runs, SIZE)
        self.alpha = torch.linspace(0.5, 1.0, SIZE, dtype=torch.float64)

    def draw(self, rng: Rng, size: int) -> Batch:
        rng.take(size)
        plus = rng.binomial(size, 0.5, size=self.shape) / size  # the share of e_j = +1: 1 + mean(e_j)/2 = 1/2 + plus
        noise = rng.standard_normal(self.shape) / math.sqrt(size * SIZE)
        return self.alpha * torch.from_numpy(plus).add_(0.5), torch.from_numpy(noise)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        scale, noise = batch
        total: Tensor = (scale * x * x / (1 + x * x) + noise * x).sum()
        return total

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        scale, noise = batch
        slopes = combine([slope_of_r(x) for x in points], weights)
        return torch.addcmul(sum(weights) * noise, scale, slopes)

    def mean_gradient(self, x: Tensor) -> Tensor:
        """grad F, exactly."""
        return self.alpha * slope_of_r(x)


def distances(f: Population, A: Matrix, s: State) -> Tensor:
    """dist^2(0, dL) of every run."""
    y, lam = s.ys[0], s.lam
    gradient = f.mean_gradient(s.x) - A.adjoint(lam)
    at_zero = (lam.abs() - WEIGHT).clamp(min=0)
    dual = torch.where(y == 0, at_zero, lam + WEIGHT * y.sign())
    return (gradient.square() + dual.square() + (s.Ax - y).square()).sum(-1)


@dataclass(frozen=True)
class ComplexityRun:
    """A method with the parameters of the largest of its budgets, and how many runs."""

    method: str
    variant: str
    budgets: tuple[int, ...]
    runs: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.variant}-T{self.budgets[-1]}-of{len(self.budgets)}-r{self.runs}-s{self.seed}"


def _settings(method: str, variant: str, T: int) -> tuple[Estimator, Power]:
    """The estimator, and eta = rho; each method's factor of L is the best of a coarse grid."""
    root = T ** (1 / 3)
    if (method, variant) == ("smadmm", "dynamic"):
        return Storm(1, Power(2.0, -2 / 3, hi=1.0), first=1), Power(L / 2, 1 / 3)
    if (method, variant) == ("smadmm", "constant"):
        return Storm(1, 4 / root**2, first=int(np.ceil(root))), Power(0.3 * L * root)
    if method == "spider":
        inner = max(2, int(root / 2))
        return Spider(inner, inner, restart=int(root**2 / 4)), Power(2 * L)
    if variant == "sqrt":
        return SGD(int(T**0.5)), Power(0.9 * L)
    return SGD(1), Power(2 * L)


def run_complexity(job: ComplexityRun, data: str | None) -> dict[str, Any]:
    """Mean dist^2 over the second half of each budget: `levels`, budgets x runs."""
    f = Population(job.runs)
    matrix = torch.eye(SIZE, dtype=torch.float64) + 0.5 * torch.diag(torch.ones(SIZE - 1, dtype=torch.float64), 1)
    A = Matrix(matrix, batch=(job.runs,))
    estimator, eta = _settings(job.method, job.variant, job.budgets[-1])
    problem = Problem(f, L1(WEIGHT), A)
    solver = ADMM(problem, estimator, rho=eta, eta=eta, x_step=Exact(A), seed=job.seed)
    state = solver.init(torch.full(f.shape or (), 1.5, dtype=torch.float64))
    sums = torch.zeros(len(job.budgets), job.runs, dtype=torch.float64)
    counts = torch.zeros(len(job.budgets), 1, dtype=torch.float64)
    while state.sfo < job.budgets[-1]:
        state = solver.step(state)
        stride = max(1, state.k // 500)  # about a thousand looks at each half
        if state.k % stride == 0:
            value = distances(f, A, state)
            for row, T in enumerate(job.budgets):
                if T / 2 < state.sfo <= T:
                    sums[row] += value
                    counts[row] += 1
    return {"levels": (sums / counts).tolist()}
