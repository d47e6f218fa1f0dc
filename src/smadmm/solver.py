"""Stochastic ADMM, one loop for all estimators: Algorithm 1 of the paper (Algorithm 2 with a denoiser as h).

    y+   = prox_{h/r}( y - B'(rho (A x + B y - c) - lam) / r )        line 3, H = r I - rho B'B, blocks in turn
    x+   = x - (eta Q + rho A'A)^{-1} ( v + A'(rho (A x + B y+ - c) - lam) )                           line 4
    lam+ = lam - rho (A x+ + B y+ - c)                                                                 line 5
    v+   = the estimator's, at x+                                                                      line 6

H may also be positive definite operators of your own (ysteps.py), and so may Q (`Exact` and `Conjugate` of xsteps.py).
rho may be a positive number or a tensor of row weights; where a rule sets the step s, eta, rho and r are
divided by it. A denoiser D = prox_phi is the prox of h = r phi: r is the weight of the prior then, and stays fixed.
A step is a pure function of its state; the randomness of iteration k is keyed by (seed, k).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from smadmm.estimators import Estimate, Estimator
from smadmm.operators.linear import Operator, Shape
from smadmm.problem import Problem
from smadmm.sampling import Rng
from smadmm.schedules import Power, Schedule, ScheduleLike, as_schedule
from smadmm.stepsize import StepSize, StepSizeRule
from smadmm.xsteps import Conjugate, Exact, Linearised, XStep, linearised
from smadmm.ysteps import InMetric

CHECKED_ITERATIONS = (1, 10, 1000, 100_000)  # where schedules are validated


@dataclass(frozen=True, eq=False)
class Mean:
    """Weighted averages of x and of the multiplier, and the sum of the weights."""

    x: Tensor
    lam: Tensor
    weight: float


@dataclass(frozen=True, eq=False)
class State:
    """All there is to know after iteration k. Ax and Bys are the products of x and ys, kept to be computed once.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> state = ADMM(problem, SGD(3), rho=1.0, eta=1.0).init(torch.zeros(3))
    >>> state.k, state.x, state.sfo
    (0, tensor([0., 0., 0.]), 3)
    """

    k: int
    x: Tensor
    ys: tuple[Tensor, ...]
    lam: Tensor
    est: Estimate
    Ax: Tensor
    Bys: tuple[Tensor, ...]
    drawn: int
    products: int = 0  # sample gradients that x-steps computed
    mean: Mean | None = None
    stepsize: StepSize | None = None
    zs: tuple[Tensor, ...] = ()  # what the proxes of the last y-step were applied to: y = prox_{h/r}(z) ...
    rs: tuple[Any, ...] = ()  # ... and their weights r; before the first step those it will have

    @property
    def y(self) -> Any:
        """The y of a problem with one block; the tuple of blocks otherwise."""
        return self.ys[0] if len(self.ys) == 1 else self.ys

    @property
    def sfo(self) -> int:
        """Sample gradients computed so far, by the estimator and by x-steps."""
        return self.est.sfo + self.products

    @property
    def answer(self) -> Tensor:
        """What the method returns: the average where it averages, else the point of its estimate.

        That is the last iterate, but for ASVRG, whose answer is the coupled point.
        """
        return self.est.at if self.mean is None else self.mean.x


@dataclass(frozen=True)
class Average:
    """Average x and the multiplier with weights weight(k), times s^2 where a rule sets the step s.

    `pull` in [0, 1) takes gradients at (1 - pull) x + pull mean.
    """

    weight: Schedule = Power(1.0)  # noqa: RUF009
    pull: float = 0.0

    def update(self, mean: Mean, x: Tensor, lam: Tensor, k: int, step: float) -> Mean:
        weight = self.weight(k) * step**2
        total = mean.weight + weight
        share = weight / total
        return Mean(torch.lerp(mean.x, x, share), torch.lerp(mean.lam, lam, share), total)


@dataclass(frozen=True, init=False)
class ADMM:
    """The solver: a problem, an estimator, schedules. rho, eta (the inverse step) and r take numbers or schedules.

    H, in the place of r, is a positive definite operator for every block.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solver = ADMM(problem, Spider(batch=3, every=1), rho=1.0, eta=1.0)
    >>> result = run(solver, torch.zeros(3), Stop(iterations=300), progress=False)
    >>> result.x
    tensor([0.7000, 0.7000, 0.7000])
    """

    problem: Problem
    estimator: Estimator
    rho: Schedule
    eta: Schedule
    rs: tuple[Schedule, ...]
    Hs: tuple[InMetric, ...] | None
    x_step: XStep
    seed: int
    average: Average | None
    stepsize: StepSizeRule | None

    def __init__(
        self,
        problem: Problem,
        estimator: Estimator,
        rho: ScheduleLike,
        eta: ScheduleLike,
        r: ScheduleLike | Sequence[ScheduleLike] | None = None,
        x_step: XStep = linearised,
        seed: int = 0,
        average: Average | None = None,
        stepsize: StepSizeRule | None = None,
        H: Operator | Sequence[Operator] | None = None,
    ):
        self.__dict__.update(problem=problem, estimator=estimator, rho=as_schedule(rho), eta=as_schedule(eta))
        if seed != int(seed) or seed < 0:
            raise ValueError(f"seed must be a non-negative whole number, got {seed}")
        self.__dict__.update(x_step=x_step, seed=seed, average=average, stepsize=stepsize)
        self.__dict__.update(rs=_proximal_weights(problem, self.rho, r), Hs=_metrics(problem, self.rho, r, H))
        _validate(self)

    def init(self, x: Tensor, y: Tensor | Sequence[Tensor] | None = None, lam: Tensor | None = None) -> State:
        """The state before iteration 1; y defaults to A x - c where B = -I and to zero otherwise, lam to zero."""
        p = self.problem
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}; use torch.as_tensor(x)")
        _refuse_shape("x", x, p.A.in_shape or p.f.shape, p.f.dtype)
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"x has dtype {x.dtype}; convert it to floating numbers, for example with x.double()")
        x = x.detach().clone()
        Ax = p.A(x)
        ys = self._first_ys(Ax, y)
        Bys = tuple(B(y_j) for B, y_j in zip(p.Bs, ys, strict=True))
        lam = torch.zeros_like(Ax) if lam is None else lam
        _refuse_shape("lam", lam, tuple(Ax.shape), Ax.dtype)
        rng = Rng(self.seed, 0)
        est = self.estimator.init(p.f, x, rng)
        mean = None if self.average is None else Mean(x, lam, 0.0)
        stepsize = None if self.stepsize is None else self.stepsize.init(x, est.v)
        s_1 = 1.0 if stepsize is None else stepsize.step
        rs = _numbers([r(1) / s_1 for r in self.rs])
        begun = State(k=0, x=x, ys=ys, lam=lam, est=est, Ax=Ax, Bys=Bys, drawn=rng.drawn)
        return replace(begun, mean=mean, stepsize=stepsize, rs=rs)

    def _first_ys(self, Ax: Tensor, y: Tensor | Sequence[Tensor] | None) -> tuple[Tensor, ...]:
        p = self.problem
        if y is not None:
            ys = (y,) if isinstance(y, Tensor) else tuple(y)
            if len(ys) != len(p.Bs):
                raise ValueError(f"the problem has {len(p.Bs)} blocks y, got {len(ys)}")
            for j, (B, y_j) in enumerate(zip(p.Bs, ys, strict=True), start=1):
                _refuse_shape(f"block {j} of y", y_j, B.in_shape or tuple(Ax.shape), Ax.dtype)
            return ys
        if p.explicit:
            return (Ax if p.c is None else Ax - p.c,)
        return tuple(Ax.new_zeros(Ax.shape if B.in_shape is None else B.in_shape) for B in p.Bs)

    def step(self, s: State) -> State:
        """One iteration of Algorithm 1."""
        p, k = self.problem, s.k + 1
        s_k = 1.0 if s.stepsize is None else s.stepsize.step
        rho, eta = self.rho(k) / s_k, self.eta(k) / s_k
        ys, Bys, zs, rs = list(s.ys), list(s.Bys), [], []
        for j, (h, B, r_j) in enumerate(zip(p.hs, p.Bs, self.rs, strict=True)):  # line 3
            w = _add(_less_blocks(s.lam, rho, Bys, p.c), -rho, s.Ax)  # lam - rho (A x + B y - c)
            r, h = r_j(k) / s_k, h.at(k)
            if self.Hs is None:
                z = _plus(ys[j], 1 / r, B.T(w))
            else:
                z, r = self.Hs[j](h, ys[j], B.T(w), rho, 1 / s_k)
            zs.append(z)
            rs.append(r)
            ys[j] = h.prox(z, 1 / r)
            Bys[j] = B(ys[j])
        base = _less_blocks(s.lam, rho, Bys, p.c)  # lam - rho (B y+ - c)
        w = _plus(base, -rho, s.Ax)  # lam - rho (A x + B y+ - c)
        x = s.x - self.x_step(s.est.v - p.A.T(w), eta, rho)  # line 4
        Ax = p.A(x)
        lam = _add(base, -rho, Ax)  # line 5: lam - rho (A x+ + B y+ - c)
        at, mean = x, None
        if self.average is not None and s.mean is not None:
            mean = self.average.update(s.mean, x, w, k, s_k)
            at = torch.lerp(x, mean.x, self.average.pull) if self.average.pull else x
        rng = Rng(self.seed, k, s.drawn)
        est = self.estimator.update(p.f, s.est, at, k, rng)  # line 6
        stepsize = None
        if self.stepsize is not None and s.stepsize is not None:
            stepsize = self.stepsize.update(s.stepsize, x, s.x, est.v, k)
        price = s.products + self.x_step.sfo
        new = State(k=k, x=x, ys=tuple(ys), lam=lam, est=est, Ax=Ax, Bys=tuple(Bys), drawn=rng.drawn, products=price)
        return replace(new, mean=mean, stepsize=stepsize, zs=tuple(zs), rs=_numbers(rs))

    def steps(self, s: State) -> Iterator[State]:
        """The states after s, one by one, without end."""
        while True:
            s = self.step(s)
            yield s


def _numbers(values: Sequence[Any]) -> tuple[Any, ...]:
    """Plain numbers or tensors, as checkpoints hold them, whatever schedules return."""
    return tuple(value if isinstance(value, Tensor) else float(value) for value in values)


def _plus(x: Tensor, scale: Any, y: Tensor) -> Tensor:
    """x + scale * y in one pass over memory."""
    return torch.addcmul(x, y, scale) if isinstance(scale, Tensor) else torch.add(x, y, alpha=scale)


def _add(x: Tensor, scale: Any, y: Tensor) -> Tensor:
    """The same in place, for an x of our own."""
    return x.addcmul_(y, scale) if isinstance(scale, Tensor) else x.add_(y, alpha=scale)


def _less_blocks(lam: Tensor, rho: Any, Bys: Sequence[Tensor], c: Tensor | None) -> Tensor:
    """lam - rho (sum_j B_j y_j - c)."""
    total = _plus(lam, -rho, Bys[0])
    for By in Bys[1:]:
        _add(total, -rho, By)
    return total if c is None else _add(total, rho, c)


def _refuse_shape(name: str, value: Tensor, shape: Shape | None, dtype: torch.dtype | None) -> None:
    if shape is not None and tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, but the problem needs {shape}")
    if dtype is not None and value.dtype != dtype:
        raise ValueError(
            f"{name} has dtype {value.dtype}, but the problem works in {dtype}; convert it with .to({dtype})"
        )


@dataclass(frozen=True)
class _Multiple:
    """k -> factor * schedule(k)."""

    schedule: Schedule
    factor: float

    def __call__(self, k: int) -> Any:
        return self.factor * self.schedule(k) if self.factor != 1 else self.schedule(k)


def _proximal_weights(
    problem: Problem, rho: Schedule, r: ScheduleLike | Sequence[ScheduleLike] | None
) -> tuple[Schedule, ...]:
    """r_j for every block: as given, else rho |B_j|^2 where B_j'B_j is a multiple of I, else 1.01 rho |B_j|^2."""
    if r is None:
        factors = [B.gram if B.gram is not None else 1.01 * B.norm().upper ** 2 for B in problem.Bs]
        return tuple(_Multiple(rho, factor) for factor in factors)
    given: tuple[ScheduleLike, ...] = tuple(r) if isinstance(r, Sequence) else (r,) * len(problem.Bs)
    if len(given) != len(problem.Bs):
        raise ValueError(f"the problem has {len(problem.Bs)} blocks y, got {len(given)} schedules r")
    schedules = tuple(as_schedule(value) for value in given)
    for h, B, schedule in zip(problem.hs, problem.Bs, schedules, strict=True):
        if isinstance(schedule(1), Tensor) and not h.separable:
            raise ValueError("a tensor r needs functions h that act entry by entry, such as L1 or Box")
        square = float(B.norm()) ** 2
        for k in CHECKED_ITERATIONS:
            least, lowest = rho(k) * square, float(torch.as_tensor(schedule(k), dtype=torch.float64).min())
            if isinstance(least, float) and lowest < least * (1 - 1e-9):
                raise ValueError(
                    f"r must be at least rho |B|^2 = {least:.4g} at k = {k}, got {lowest:.4g}; raise r or leave it out"
                )
    return schedules


def _refuse_changing_prior(solver: ADMM) -> None:
    """With a denoiser r decides what is solved, so it must not change on the way."""
    for h, r in zip(solver.problem.hs, solver.rs, strict=True):
        if h.ignores_step and (solver.stepsize is not None or len({r(k) for k in CHECKED_ITERATIONS}) > 1):
            how = f"from {r(1):.4g} to {r(CHECKED_ITERATIONS[-1]):.4g}" if solver.stepsize is None else "with the step"
            raise ValueError(
                f"r, the weight of the prior {type(h).__name__}, would change {how} on the way, and with it the "
                "problem; give numbers for rho and r, and no stepsize rule"
            )


def _metrics(
    problem: Problem, rho: Schedule, r: Any, H: Operator | Sequence[Operator] | None
) -> tuple[InMetric, ...] | None:
    """The y-steps of operators H, one for every block; None where r says what H is."""
    if H is None:
        return None
    if r is not None or isinstance(rho(1), Tensor):
        raise ValueError("H takes the place of r and needs a number rho; leave out r and row weights")
    given = (H,) if isinstance(H, Operator) else tuple(H)
    if len(given) != len(problem.Bs):
        raise ValueError(f"the problem has {len(problem.Bs)} blocks y, got {len(given)} operators H")
    return tuple(InMetric(H_j, B) for H_j, B in zip(given, problem.Bs, strict=True))


def _validate(solver: ADMM) -> None:
    """Positive parameters, and eta >= rho |A|^2 for the linearised x-step."""
    for k in CHECKED_ITERATIONS:
        rho, eta = solver.rho(k), solver.eta(k)
        for name, value in (("rho", rho), ("eta", eta)):
            lowest = float(value.min()) if isinstance(value, Tensor) else float(value)
            if not 0 < lowest < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {lowest} at k = {k}")
    weighted = isinstance(solver.rho(1), Tensor)
    if weighted and not all(h.separable for h in solver.problem.hs):
        raise ValueError("row weights (a tensor rho) need functions h that act entry by entry, such as L1 or Box")
    _refuse_changing_prior(solver)
    if isinstance(solver.x_step, (Exact, Conjugate)):
        shapes = (solver.x_step.A.in_shape, solver.problem.A.in_shape)
        if None not in shapes and shapes[0] != shapes[1]:
            raise ValueError(f"the x-step was made for x of shape {shapes[0]}, but the problem's A takes {shapes[1]}")
        if weighted and isinstance(solver.x_step, Exact):
            raise ValueError("the exact x-step needs a number rho; with row weights use Metric or Conjugate")
    if not isinstance(solver.x_step, Linearised):
        return
    square = float(solver.problem.A.norm()) ** 2
    for k in CHECKED_ITERATIONS:
        rho, eta = solver.rho(k), solver.eta(k)
        largest = float(rho.max()) if isinstance(rho, Tensor) else float(rho)
        if not isinstance(eta, Tensor) and eta < largest * square * (1 - 1e-9):
            raise ValueError(
                f"the linearised x-step needs step = 1/eta <= 1/(rho |A|^2) = {1 / (largest * square):.4g} at k = {k}, "
                f"got {1 / eta:.4g}; lower the step (raise eta) or use x_step=Exact(A)"
            )
