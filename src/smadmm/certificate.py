"""The stationarity certificate (Definition 2.1 of the paper):

    dist^2(0, dL) = |grad F(x) - A'lam|^2 + dist^2(B'lam, dh(y)) + |A x + B y - c|^2

On all samples it is exact. On a sample the first part is estimated without bias from G group means d_1..d_G of
grad f - A'lam by (|sum d|^2 - sum |d|^2) / (G (G - 1)), with a jackknife interval. Where h has only a prox, the second
part is the prox residual r^2 |y - prox_{h/r}(y + B'lam/r)|^2, which vanishes at the same points.
A small certificate alone can mislead (a flat plateau is nearly stationary): look at the objective too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smadmm.problem import Penalty, Problem, Prox
from smadmm.solver import State

GROUPS = 32
T_QUANTILE = 2.0395  # of Student's t with GROUPS - 1 degrees of freedom, two-sided 95 %


@dataclass(frozen=True)
class Certificate:
    """The three parts, each squared; `low` and `high` bound the total with 95 % confidence when it was sampled."""

    gradient: float
    subdifferential: float
    feasibility: float
    low: float
    high: float

    @property
    def total(self) -> float:
        """dist^2(0, dL)."""
        return self.gradient + self.subdifferential + self.feasibility


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


def _subdifferential(h: Prox, y: Tensor, g: Tensor, r: float) -> float:
    if isinstance(h, Penalty):
        return h.subdifferential_distance(y, g) ** 2
    return r**2 * _square(y - h.prox(y + g / r, 1 / r))


def _sampled_gradient_part(problem: Problem, x: Tensor, Alam: Tensor, sample: int, seed: int) -> tuple[float, float]:
    """The unbiased estimate of |grad F(x) - A'lam|^2 and the half width of its interval."""
    size = int(sample) // GROUPS
    if size < 1:
        raise ValueError(f"a sampled certificate needs at least {GROUPS} samples, got {sample}")
    f = problem.f
    groups = [f.gradient((x,), (1.0,), batch) - Alam for batch in f.samples(seed, GROUPS, size)]
    rows = torch.stack([torch.view_as_real(d).flatten() if d.is_complex() else d.flatten() for d in groups]).double()
    gram = rows @ rows.T
    own, total = gram.diagonal(), gram.sum()
    estimate = float((total - own.sum()) / (GROUPS * (GROUPS - 1)))
    without = (total - 2 * gram.sum(1) + own) - (own.sum() - own)  # the same with group j left out
    leave = without / ((GROUPS - 1) * (GROUPS - 2))
    spread = math.sqrt((GROUPS - 1) / GROUPS * float(((leave - leave.mean()) ** 2).sum()))
    return estimate, T_QUANTILE * spread


def certify_at(
    problem: Problem,
    x: Tensor,
    ys: Sequence[Tensor],
    lam: Tensor,
    *,
    sample: int | None = None,
    seed: int = 0,
    r: float = 1.0,
) -> Certificate:
    """The certificate at (x, y, lam): from all samples, or estimated from `sample` of them."""
    Alam = problem.A.T(lam)
    if sample is None:
        gradient, half = _square(problem.f.gradient((x,), (1.0,), problem.f.full()) - Alam), 0.0
    else:
        gradient, half = _sampled_gradient_part(problem, x, Alam, sample, seed)
    subdifferential = sum(
        _subdifferential(h, y, B.T(lam), r) for h, B, y in zip(problem.hs, problem.Bs, ys, strict=True)
    )
    Bys = [B(y) for B, y in zip(problem.Bs, ys, strict=True)]
    feasibility = _square(problem.residual(problem.A(x), Bys))
    rest = subdifferential + feasibility
    return Certificate(gradient, subdifferential, feasibility, max(gradient - half, 0.0) + rest, gradient + half + rest)


def certify(
    problem: Problem, state: State, sample: int | None = None, *, averaged: bool = False, seed: int = 0, r: float = 1.0
) -> Certificate:
    """The certificate of a state, at its last iterate or, with `averaged`, at its averages of x and lam.

    For the averages y is chosen as prox_h(A x - c - lam), which makes the second part at most the third (B = -I).
    """
    if not averaged:
        return certify_at(problem, state.x, state.ys, state.lam, sample=sample, seed=seed, r=r)
    if state.mean is None:
        raise ValueError("this run keeps no averages; make the solver with average=Average()")
    return certify_means(problem, state.mean.x, state.mean.lam, sample, seed, r)


def certify_means(
    problem: Problem, x: Tensor, lam: Tensor, sample: int | None = None, seed: int = 0, r: float = 1.0
) -> Certificate:
    """The certificate at x and lam alone, with y = prox_{h/r}(A x - c - lam/r)."""
    if not problem.explicit:
        raise ValueError("the averaged certificate needs B = -I, so that y follows from x and lam")
    w = problem.A(x) - lam / r
    y = problem.hs[0].prox(w if problem.c is None else w - problem.c, 1 / r)
    return certify_at(problem, x, (y,), lam, sample=sample, seed=seed, r=r)
