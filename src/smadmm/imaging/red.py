"""Regularisation by denoising, beside ADMM: a gradient step with the denoiser's residual in the place of a gradient.

    x+ = x - step ( v + tau (x - D(x)) )

v is any estimator's: the full gradient gives RED-SD (steepest descent), that of a batch On-RED. States are those of
ADMM, with y = D(x) of the last step and lam = -tau (x - y), so that grad F(x) = lam where it stops moving.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smadmm.estimators import Estimator
from smadmm.problem import Problem
from smadmm.sampling import Rng
from smadmm.schedules import ScheduleLike, as_schedule
from smadmm.solver import ADMM, State
from smadmm.xsteps import XStep, linearised


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
        self._admm()

    def _admm(self) -> ADMM:
        """ADMM with the same parts: its checks and its first state are RED's too."""
        return ADMM(self.problem, self.estimator, self.tau, self.eta, x_step=self.x_step, seed=self.seed)

    def init(self, x: Tensor) -> State:
        """The state before iteration 1."""
        return self._admm().init(x)

    def step(self, s: State) -> State:
        """One iteration."""
        k = s.k + 1
        y = self.problem.hs[0].prox(s.x, 1 / self.tau)
        pull = torch.sub(s.x, y).mul_(self.tau)
        x = s.x - self.x_step(s.est.v + pull, as_schedule(self.eta)(k), self.tau)
        rng = Rng(self.seed, k, s.drawn)
        est = self.estimator.update(self.problem.f, s.est, x, k, rng)
        price = s.products + self.x_step.sfo
        new = State(k=k, x=x, ys=(y,), lam=-pull, est=est, Ax=x, Bys=(-y,), drawn=rng.drawn, products=price)
        return replace(new, zs=(s.x,), rs=(self.tau,))
