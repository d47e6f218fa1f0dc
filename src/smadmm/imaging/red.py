"""Regularisation by denoising, beside ADMM: a gradient step with the denoiser's residual in the place of a gradient.

    x+ = x - step ( v + tau (x - D(x)) )

v is any estimator's: the full gradient gives RED-SD (steepest descent), that of a batch On-RED. It seeks a minimum of
F + h with grad h(x) = tau (x - D(x)): tau g for D = I - grad g, a Moreau envelope for the prox of a penalty. States are
those of ADMM: y is the last x and lam = -grad h(y), so that grad F(x) = lam where it stops moving.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smadmm.estimators import Estimator
from smadmm.problem import Distance, Penalty, Problem, Prox, Step
from smadmm.sampling import Rng
from smadmm.schedules import ScheduleLike, as_schedule
from smadmm.solver import ADMM, State
from smadmm.xsteps import XStep, linearised


@dataclass(frozen=True, eq=False)
class Residual(Prox):
    """The h of RED. Its `prox` is D and the z of a state is D(y), so D is asked with y and z in exchanged roles."""

    denoiser: Prox

    def __post_init__(self) -> None:
        self.__dict__.update(shape=self.denoiser.shape, dtype=self.denoiser.dtype)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return self.denoiser.prox(v, t)

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        return self.distance_after(self.prox(y, 1 / r), y, g, r)

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        """|g - r (y - D(y))|, exact where D is known to be a prox."""
        if not isinstance(self.denoiser, Penalty):
            return self.denoiser.distance_after(y, z, g, r)
        exact = float(torch.linalg.vector_norm(g - r * (y - z)))
        return Distance(exact, exact, exact)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        """p(D(y)) + r/2 |y - D(y)|^2, with p = r phi for a gradient step: r g(y)."""
        value = self.denoiser.value_after(y, z, r)
        return None if value is None else value + 0.5 * float(r) * float(torch.linalg.vector_norm(y - z)) ** 2


@dataclass(frozen=True)
class RED:
    """x+ = x - (v + tau (x - D(x))) / eta, for A = I, B = -I, c = 0 and one denoiser."""

    problem: Problem
    estimator: Estimator
    tau: float
    eta: ScheduleLike
    x_step: XStep = linearised
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.problem.explicit or self.problem.A.gram != 1 or self.problem.c is not None:
            raise ValueError("RED is for A = I, B = -I and c = 0; for other constraints use ADMM")
        if not isinstance(self.problem.h, Residual):
            object.__setattr__(self, "problem", replace(self.problem, h=Residual(self.problem.hs[0])))
        self._admm()

    def _admm(self) -> ADMM:
        """ADMM with the same parts: its checks and its first state are RED's too."""
        return ADMM(self.problem, self.estimator, self.tau, self.eta, x_step=self.x_step, seed=self.seed)

    def init(self, x: Tensor) -> State:
        """The state before iteration 1."""
        return self._admm().init(x)

    def step(self, s: State) -> State:
        """One iteration."""
        k, tau = s.k + 1, self.tau
        denoised = self.problem.hs[0].prox(s.x, 1 / tau)
        pull = torch.sub(s.x, denoised).mul_(tau)
        x = s.x - self.x_step(s.est.v + pull, as_schedule(self.eta)(k), tau)
        rng = Rng(self.seed, k, s.drawn)
        est = self.estimator.update(self.problem.f, s.est, x, k, rng)
        price = s.products + self.x_step.sfo
        new = State(k=k, x=x, ys=(s.x,), lam=-pull, est=est, Ax=x, Bys=(-s.x,), drawn=rng.drawn, products=price)
        return replace(new, zs=(denoised,), rs=(tau,))
