"""The published methods behind the classifier, compiled and generic: two forms of one thing, equal on the same batches.

The engine with an estimator of the paper's comparison and its schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.estimators import ASVRG, SAGA, SGD, SVRG, Estimator, Spider, Storm
from smadmm.learn.loops import Array, Task
from smadmm.operators.linear import Matrix
from smadmm.sampling import pass_batches, run_starts
from smadmm.schedules import Power
from smadmm.solver import ADMM
from smadmm.xsteps import Exact, linearised

DENSE_X_STEP = 2000  # unknowns: up to here the x-step has an inverse


@dataclass(frozen=True)
class Published:
    """A method as published: estimator by name, inverse step eta_k, penalty rho_k, momentum a_k."""

    method: str  # sadmm, svrg, saga, spider, asvrg, smadmm
    batch: int
    eta: Power
    rho: Power
    a: Power = Power(1.0)  # noqa: RUF009
    period: int = 1
    theta: float = 0.9
    first: int = 1
    exact: bool = True

    def estimator(self) -> Estimator:
        made: dict[str, Callable[[], Estimator]] = {
            "sadmm": lambda: SGD(self.batch),
            "smadmm": lambda: Storm(self.batch, self.a, self.first),
            "spider": lambda: Spider(self.batch, self.period),
            "svrg": lambda: SVRG(self.batch, self.period),
            "asvrg": lambda: ASVRG(self.batch, self.period, self.theta),
            "saga": lambda: SAGA(self.batch),
        }
        return made[self.method]()


def smoothness(task: Task) -> float:
    """L of grad F for the published methods."""
    f: Any = task.generic().f
    return float(f.lipschitz())


def published(method: str, task: Task, step: float | None, rho: float | None, batch: int | None) -> Published:
    """A published method with the settings given, the others from L and |A|; SMADMM with Theorem 3.2's exponents."""
    batch = min(task.n, 32 if batch is None else batch)
    eta = smoothness(task) if step is None else 1 / step
    square = Matrix(task.A).norm().upper ** 2
    exact = task.size <= DENSE_X_STEP
    penalty = 0.5 * eta / square if rho is None else rho
    growth = 1 / 3 if method == "smadmm" else 0.0
    if not exact:
        eta = max(eta, penalty * square)
    period = max(1, task.n // batch)
    first = min(task.n, 1000)
    momentum = Power(0.5, -2 / 3, lo=0.01, hi=1.0)
    return Published(method, batch, Power(eta, growth), Power(penalty, growth), momentum, period, 0.9, first, exact)


class GenericPublished:
    """A published method on the engine."""

    def __init__(self, task: Task, method: Published, seed: int = 0):
        problem = task.generic()
        x_step = Exact(problem.A) if method.exact else linearised
        self.method = method
        self.solver = ADMM(problem, method.estimator(), method.rho, method.eta, x_step=x_step, seed=seed)
        self.state = self.solver.init(torch.zeros(task.size, dtype=torch.float64))

    def advance(self, limit: int) -> None:
        """Iterate until `limit` sample gradients were computed."""
        while self.state.sfo < limit:
            self.state = self.solver.step(self.state)

    @property
    def iterations(self) -> int:
        return self.state.k

    @property
    def sfo(self) -> int:
        return self.state.sfo

    @property
    def last(self) -> tuple[Array, Array, Array]:
        """The answer (ASVRG's is its coupled point), y and lam."""
        return self.state.est.at.numpy(), self.state.y.numpy(), self.state.lam.numpy()


class CompiledPublished:
    """A published method in numba."""

    CHUNK = 4096  # batches a call, at most
    AHEAD = 8  # passes whose runs are drawn together

    def __init__(self, task: Task, method: Published, seed: int = 0):
        from smadmm.learn._kernels import constraint as constraint_kernels
        from smadmm.learn._kernels import published as published_kernel
        from smadmm.learn._kernels import samples as kernels

        self.task, self.method, self.seed = task, method, seed
        self.iterate, self.code = published_kernel.published, published_kernel.METHODS[method.method]
        self.samples = kernels.samples(task.X, task.target, task.weight, task.loss, task.intercept)
        self.A = constraint_kernels.constraint(task.A)
        self.state = published_kernel.new_published_state(np.zeros(task.size), self.code, task.A.shape[0], task.n)
        size = {"sadmm": method.batch, "smadmm": method.first}.get(method.method, 0)
        first = task.batches(seed, size, 0, 1)[0] if size else np.empty(0, dtype=np.int64)
        published_kernel.published_start(self.samples, self.code, self.state, first)
        self.drawn = size
        self.order = np.arange(task.n + method.batch) % task.n
        self.starts = np.empty(0, dtype=np.int64)  # drawn, but not used yet
        self.powers = tuple((s.c, s.p, s.lo, s.hi) for s in (method.rho, method.eta, method.a))
        self.inverse = np.zeros((0, 0))
        if method.exact:
            gram = (task.A.T @ task.A).toarray()
            ratio = float(f"{method.rho(1) / method.eta(1):.14g}")
            self.inverse = constraint_kernels.half(np.linalg.inv(np.eye(task.size) + ratio * gram))

    def _draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The next batches, as the generic loop draws them: an order of samples, and where in it each batch begins."""
        n, size = self.task.n, self.method.batch
        if not self.task.shuffled:
            return pass_batches(self.seed, n, 1, self.drawn, count * size).ravel(), np.arange(count) * size
        if len(self.starts) < count:
            self.starts = run_starts(self.seed, n, size, self.drawn // size, max(count, self.AHEAD * (n // size)))
        return self.order, self.starts[:count]

    def advance(self, limit: int) -> None:
        m = self.method
        price = m.batch * (1 + (m.method not in ("sadmm", "saga")))
        while self.sfo < limit:
            order, starts = self._draw(min(self.CHUNK, -(-(limit - self.sfo) // price)))
            arguments = (self.samples, self.A, self.task.lam1, self.inverse, self.code, m.period, m.theta, self.powers)
            used = self.iterate(*arguments, self.state, order, starts, m.batch, limit)
            self.drawn, self.starts = self.drawn + used * m.batch, self.starts[used:]

    @property
    def iterations(self) -> int:
        return int(self.state.counts[0])

    @property
    def sfo(self) -> int:
        return int(self.state.counts[1])

    @property
    def last(self) -> tuple[Array, Array, Array]:
        return self.state.at, self.state.y, self.state.lam
