"""The stationarity certificate (Definition 2.1 of the paper):

    dist^2(0, dL) = |grad F(x) - A'lam|^2 + dist^2(B'lam, dh(y)) + |A x + B y - c|^2

First part: exact on all samples. On a sample it is estimated without bias from G group means d_1..d_G of grad f - A'lam
by (|sum d|^2 - sum |d|^2) / (G (G - 1)), with a jackknife interval.

Second part: exact for penalties with a closed form. A y-step y = prox_{h/r}(z) also hands out a subgradient, r (z - y)
in dh(y), so at an iterate dist(B'lam, dh(y)) <= |B'lam - r (z - y)| for every h that has a prox, with equality where
h is differentiable, as the phi of a gradient-step denoiser is (its weight is r). With A = I, B = -I, c = 0 this is
|rho (x - x_old) + (r - rho) (y - y_old)|. At other points a denoiser has the prox residual |r (y - prox_{h/r}(y +
B'lam/r))|, which vanishes at the same points. r is the solver's; the state holds it.

A small certificate alone can mislead (a flat plateau is nearly stationary): look at the objective too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smadmm.problem import Distance, Penalty, Problem, Prox
from smadmm.solver import State

GROUPS = 32
T_QUANTILE = 2.0395  # of Student's t with GROUPS - 1 degrees of freedom, two-sided 95 %


@dataclass(frozen=True)
class Certificate:
    """The three parts, each squared, and bounds.

    `low` and `high` bound the total with 95 % confidence when it was sampled; `subdifferential_low` and
    `subdifferential_high` bound the second part, which is exact where they are equal.
    """

    gradient: float
    subdifferential: float
    feasibility: float
    low: float
    high: float
    subdifferential_low: float
    subdifferential_high: float

    @property
    def total(self) -> float:
        """dist^2(0, dL)."""
        return self.gradient + self.subdifferential + self.feasibility


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2


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
    rs: Sequence[Any] = (),
    sample: int | None = None,
    seed: int = 0,
) -> Certificate:
    """The certificate at any (x, y, lam); rs are the solver's weights r of the blocks, which denoisers need."""
    if not rs:
        needed = [type(h).__name__ for h in problem.hs if not isinstance(h, Penalty)]
        if needed:
            raise ValueError(f"{needed[0]} has only a prox, whose residual depends on r; give the solver's rs")
        rs = (1.0,) * len(problem.hs)
    found = [h.distance(y, B.T(lam), r) for h, B, y, r in zip(problem.hs, problem.Bs, ys, rs, strict=True)]
    return _certificate(problem, x, ys, lam, found, (sample, seed))


def _certificate(
    problem: Problem,
    x: Tensor,
    ys: Sequence[Tensor],
    lam: Tensor,
    found: Sequence[Distance],
    sampled: tuple[int | None, int],
) -> Certificate:
    """The parts, given what is known of the second one."""
    Alam, (sample, seed) = problem.A.T(lam), sampled
    if sample is None:
        gradient, half = _square(problem.f.gradient((x,), (1.0,), problem.f.full()) - Alam), 0.0
    else:
        gradient, half = _sampled_gradient_part(problem, x, Alam, sample, seed)
    low, subdifferential, high = (sum(d[i] ** 2 for d in found) for i in range(3))
    feasibility = _square(problem.residual(problem.A(x), [B(y) for B, y in zip(problem.Bs, ys, strict=True)]))
    rest = subdifferential + feasibility
    ends = (max(gradient - half, 0.0) + rest, gradient + half + rest)
    return Certificate(
        gradient, subdifferential, feasibility, *ends, subdifferential_low=low, subdifferential_high=high
    )


def certify(
    problem: Problem, state: State, sample: int | None = None, *, averaged: bool = False, seed: int = 0
) -> Certificate:
    """The certificate of a state, at its last iterate or, with `averaged`, at its averages of x and lam.

    For the averages y is chosen as prox_{h/r}(A x - c - lam/r), which makes the second part at most r^2 times the third
    (B = -I).
    """
    if averaged:
        if state.mean is None:
            raise ValueError("this run keeps no averages; make the solver with average=Average()")
        rs = () if all(isinstance(h, Penalty) for h in problem.hs) else state.rs
        return certify_means(problem, state.mean.x, state.mean.lam, rs, sample=sample, seed=seed)
    if not state.zs:
        return certify_at(problem, state.x, state.ys, state.lam, rs=state.rs, sample=sample, seed=seed)
    found = []
    for h, B, y, z, r in zip(problem.hs, problem.Bs, state.ys, state.zs, state.rs, strict=True):
        found.append(_at_iterate(h, y, B.T(state.lam), z, r))
    return _certificate(problem, state.x, state.ys, state.lam, found, (sample, seed))


def _at_iterate(h: Prox, y: Tensor, g: Tensor, z: Tensor, r: Any) -> Distance:
    """dist(g, dh(y)) at y = prox_{h/r}(z): by its closed form, else from the subgradient r (z - y)."""
    if isinstance(h, Penalty):
        return h.distance(y, g, r)
    bound = float(torch.linalg.vector_norm(g - r * (z - y)))
    return Distance(bound if h.smooth else 0.0, bound, bound if h.of_a_function else math.inf)


def certify_means(
    problem: Problem, x: Tensor, lam: Tensor, rs: Sequence[Any] = (), *, sample: int | None = None, seed: int = 0
) -> Certificate:
    """The certificate at x and lam alone, with y = prox_{h/r}(A x - c - lam/r)."""
    if not problem.explicit:
        raise ValueError("the averaged certificate needs B = -I, so that y follows from x and lam")
    (h,), r = problem.hs, rs[0] if rs else 1.0
    z = problem.A(x) - lam / r
    z = z if problem.c is None else z - problem.c
    y = h.prox(z, 1 / r)
    return _certificate(problem, x, (y,), lam, [_at_iterate(h, y, -lam, z, r)], (sample, seed))
