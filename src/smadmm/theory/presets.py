"""Solvers with the theorems' literal constants, the start of the proofs, and bounds for a solver.

With Q = I (exact x-step) and H = I. The literal constants are of no practical use (steps far too short); they are here
to be looked at, and because what a theorem says is only said of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.estimators import Storm
from smadmm.operators.linear import Identity
from smadmm.problem import Penalty, Problem
from smadmm.schedules import Schedules
from smadmm.solver import ADMM, State
from smadmm.theory.checking import own_constants
from smadmm.theory.measuring import h_ends, measure, q_ends
from smadmm.theory.theorems import Bound, ConstantTheorem, DynamicTheorem, Numbers, Theorem
from smadmm.tuning import DENSE, start_of
from smadmm.xsteps import Conjugate, Exact, XStep


def theorem_constant(
    problem: Problem, K: int, numbers: Numbers | None = None, *, corrected: bool = True, seed: int = 0
) -> ADMM:
    """SMADMM with the constants of Theorem 3.1 for K iterations; `numbers` are measured where they are not given.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.theorem_constant(problem, K=1000).estimator.batch
    1
    """
    theorem = ConstantTheorem.literal(measure(problem) if numbers is None else numbers, corrected)
    if theorem.least_K > K:
        raise ArgumentError(
            "{K} is {0}, but a <= 1 needs at least {1:.0f} iterations; raise it", K, theorem.least_K + 1
        )
    return _solver(problem, theorem.schedules(K), seed)


def theorem_dynamic(problem: Problem, numbers: Numbers | None = None, *, corrected: bool = True, seed: int = 0) -> ADMM:
    """SMADMM with the constants of Theorem 3.2; `numbers` are measured where they are not given.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.theorem_dynamic(problem).estimator.first
    1
    """
    theorem = DynamicTheorem.literal(measure(problem) if numbers is None else numbers, corrected)
    return _solver(problem, theorem.schedules(), seed)


def _solver(problem: Problem, s: Schedules, seed: int) -> ADMM:
    shape = problem.A.in_shape or problem.f.shape
    exact = shape is None or math.prod(shape) <= DENSE or problem.A.gram is not None
    step: XStep = Exact(problem.A, shape) if exact else Conjugate(problem.A)
    H = [Identity(B.in_shape) for B in problem.Bs]
    return ADMM(problem, Storm(1, s.a, s.first), s.rho, s.eta, x_step=step, H=H, seed=seed)


def start(solver: ADMM, x: Tensor) -> State:
    """The state that the proofs begin with: A'lam = v, so that the first change of lam is bounded like the others.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> state = theory.start(theory.theorem_dynamic(problem), torch.zeros(2, dtype=torch.float64))
    >>> torch.allclose(problem.A.T(state.lam), state.est.v)
    True
    """
    s, A = solver.init(x), solver.problem.A
    if A.gram is not None:  # A'A = g I and A square: the inverse of A' is A/g
        lam = A(s.est.v) / A.gram
    else:
        lam = torch.linalg.solve(A.dense(tuple(x.shape), x.dtype).mH, s.est.v.reshape(-1)).reshape(s.Ax.shape)
    return replace(s, lam=lam)


def numbers_of(solver: ADMM, x: Tensor | None = None, seed: int = 0) -> Numbers:
    """The numbers of a solver's problem, with its own Q and H at iteration 1.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.numbers_of(theory.theorem_dynamic(problem)).H_min
    1.0
    """
    Q, H = q_ends(solver), h_ends(solver)
    if Q is None or H is None or not min(Q[0], H[0]) > 0:
        raise ValueError(f"Q has eigenvalues in {Q}, H in {H}; the theorems need both known and positive")
    return replace(measure(solver.problem, x, seed), phi_min=Q[0], phi_max=Q[1], H_min=H[0], H_max=H[1])


def theorem_of(solver: ADMM, K: int, numbers: Numbers, corrected: bool = True) -> Theorem:
    """The theorem that a solver's rho goes by, with the solver's own constants; refused where they do not meet it."""
    growth = float(solver.rho(8)) / float(solver.rho(1))
    name = {True: "3.1", False: "3.2"}[math.isclose(growth, 1)]
    theorem = replace(own_constants(solver, name, numbers, K), corrected=corrected)
    wrong = theorem.unmet() if math.isclose(growth, 1) or math.isclose(growth, 2) else [f"rho_8/rho_1 = {growth:.4g}"]
    if wrong:
        raise ValueError(f"Theorem {name} gives no bound: {'; '.join(wrong)}; look at theory.check(solver)")
    return theorem


def bound(
    solver: ADMM,
    K: int,
    x: Tensor | None = None,
    *,
    floor: float = 0.0,
    numbers: Numbers | None = None,
    corrected: bool = True,
) -> Bound:
    """What the theorem that rho goes by says of K iterations from x, for F + h >= floor.

    It says so only where `check(solver)` finds nothing to fail, of a run from `start(solver, x)`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.bound(theory.theorem_dynamic(problem), 100).value > 1
    True
    """
    p = solver.problem
    x = start_of(p) if x is None else x
    s = start(solver, x)
    numbers = numbers_of(solver, x) if numbers is None else numbers
    if not all(isinstance(h, Penalty) for h in p.hs):
        raise ValueError("the bound needs the value of h at the start; a denoiser has none")
    smooth = float(p.f.value(x, p.f.full()))
    values = [h.value(y) for h, y in zip(p.hs, s.ys, strict=True) if isinstance(h, Penalty)]
    gap = p.residual(s.Ax, s.Bys)
    pull = float((s.lam.conj() * gap).real.sum()) - 0.5 * solver.rho(1) * float(torch.linalg.vector_norm(gap)) ** 2
    return Bound(theorem_of(solver, K, numbers, corrected), K, smooth + sum(values) - pull, floor)
