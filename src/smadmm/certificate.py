"""The stationarity certificate (Definition 2.1 of the paper):

    dist^2(0, dL) = |grad F(x) - A'lam|^2 + dist^2(B'lam, dh(y)) + |A x + B y - c|^2

First part: exact on all samples. On a sample it is estimated without bias from G group means d_1..d_G of grad f - A'lam
by (|sum d|^2 - sum |d|^2) / (G (G - 1)), with a jackknife interval.

Second part: exact for penalties with a closed form. A y-step y = prox_{h/r}(z) also hands out a subgradient, r (z - y)
in dh(y), so that dist(B'lam, dh(y)) <= |B'lam - r (z - y)| at an iterate, with equality where h is differentiable, as
the r phi of a gradient-step denoiser is. With A = I, B = -I, c = 0 this is |rho (x - x_old) + (r - rho) (y - y_old)|.
At other points a denoiser has the prox residual |r (y - prox_{h/r}(y + B'lam/r))|, which vanishes at the same points.
r is the solver's; the state holds it.

A small certificate alone can mislead (a flat plateau is nearly stationary): look at the objective too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smadmm.problem import Distance, Penalty, Problem, Step
from smadmm.records import Certificate
from smadmm.solver import State

GROUPS = 32
T_QUANTILE = 2.0395  # of Student's t with GROUPS - 1 degrees of freedom, two-sided 95 %


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
    rs: Sequence[Step] = (),
    sample: int | None = None,
    seed: int = 0,
) -> Certificate:
    """The certificate at any (x, y, lam); rs are the weights r of the solver, which functions known by a prox need."""
    unknown = [type(h).__name__ for h in problem.hs if not isinstance(h, Penalty)]
    if unknown and not rs:
        raise ValueError(f"{unknown[0]} has only a prox, whose residual depends on r; give rs, as a state holds them")
    weights = rs or (1.0,) * len(ys)
    distances = [h.distance(y, B.T(lam), r) for h, B, y, r in zip(problem.hs, problem.Bs, ys, weights, strict=True)]
    return _certificate(problem, x, ys, lam, distances, (sample, seed))


def _certificate(
    problem: Problem,
    x: Tensor,
    ys: Sequence[Tensor],
    lam: Tensor,
    distances: Sequence[Distance],
    sampled: tuple[int | None, int],
) -> Certificate:
    """All parts, given the distances of the second."""
    Alam, (sample, seed) = problem.A.T(lam), sampled
    if sample is None:
        gradient, half = _square(problem.f.gradient((x,), (1.0,), problem.f.full()) - Alam), 0.0
    else:
        gradient, half = _sampled_gradient_part(problem, x, Alam, sample, seed)
    low, subdifferential, high = (sum(distance[end] ** 2 for distance in distances) for end in range(3))
    feasibility = _square(problem.residual(problem.A(x), [B(y) for B, y in zip(problem.Bs, ys, strict=True)]))
    ends = (max(gradient - half, 0.0), gradient + half)
    least, most = (end + subdifferential + feasibility for end in ends)
    return Certificate(gradient, subdifferential, feasibility, least, most, low, high)


def certify(
    problem: Problem, state: State, sample: int | None = None, *, averaged: bool = False, seed: int = 0
) -> Certificate:
    """The certificate of a state, at its last iterate or, with `averaged`, at its averages of x and lam.

    ASVRG is certified at its answer, the coupled point.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solver = ADMM(problem, Spider(batch=3, every=1), rho=1.0, eta=1.0)
    >>> result = run(solver, torch.zeros(3), Stop(iterations=300), progress=False)
    >>> certify(problem, result.state).total < 1e-9
    True
    """
    if averaged:
        if state.mean is None:
            raise ValueError("this run keeps no averages; make the solver with average=Average()")
        return certify_means(problem, state.mean.x, state.mean.lam, state.rs, sample=sample, seed=seed)
    x = state.x if state.mean is not None else state.answer
    if not state.zs:
        return certify_at(problem, x, state.ys, state.lam, rs=state.rs, sample=sample, seed=seed)
    blocks = zip(problem.hs, problem.Bs, state.zs, state.ys, state.rs, strict=True)
    distances = [h.distance_after(z, y, B.T(state.lam), r) for h, B, z, y, r in blocks]
    return _certificate(problem, x, state.ys, state.lam, distances, (sample, seed))


def certify_means(
    problem: Problem, x: Tensor, lam: Tensor, rs: Sequence[Step] = (), *, sample: int | None = None, seed: int = 0
) -> Certificate:
    """The certificate at x and lam alone, with y = prox_{h/r}(A x - c - lam/r), for B = -I.

    It makes the second part at most r^2 times the third. For penalties every r does; it is 1.
    """
    if not problem.explicit:
        raise ValueError("the averaged certificate needs B = -I, so that y follows from x and lam")
    (h,) = problem.hs
    if not rs and not isinstance(h, Penalty):
        raise ValueError(f"{type(h).__name__} has only a prox, which depends on r; give rs, as a state holds them")
    r = 1.0 if isinstance(h, Penalty) else rs[0]
    z = problem.A(x) - lam / r
    z = z if problem.c is None else z - problem.c
    y = h.prox(z, 1 / r)
    return _certificate(problem, x, (y,), lam, [h.distance_after(z, y, -lam, r)], (sample, seed))
