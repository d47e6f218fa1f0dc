"""The loops behind the classifier, compiled and generic: two forms of one thing, equal on the same batches.

`auto`:      the engine with a metric, a pace, schedule-free averaging and a measured control variate
`published`: the engine with an estimator of the paper's comparison and its schedules

The compiled forms (numba) do on the processor what the generic ones do with smadmm.ADMM on torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.estimators import ASVRG, SAGA, SGD, SVRG, Correlated, Estimator, Measured, Spider, Storm
from smadmm.losses.glm import GLM, Logistic, Sigmoid, SquaredHinge
from smadmm.operators.linear import Matrix
from smadmm.pace import Decaying, DistanceOverGradients
from smadmm.problem import Problem
from smadmm.proxes import L1
from smadmm.sampling import Rng, pass_batches, reshuffled, run_batches, run_starts, runs
from smadmm.schedules import Power, Schedule
from smadmm.solver import ADMM, Average, State
from smadmm.xsteps import Exact, Metric, linearised

Array = NDArray[np.float64]
LOSSES: dict[str, type[GLM]] = {"sigmoid": Sigmoid, "logistic": Logistic, "squared_hinge": SquaredHinge}
AT_ZERO = {"sigmoid": 0.5, "logistic": float(np.log(2)), "squared_hinge": 1.0}  # the loss of x = 0

C, MOVE, PULL, RECENT, MEMORY = 3.0, 1.0, 0.8, 6.0, 0.95  # the constants of `auto`


def have_numba() -> bool:
    """Is the compiled form available?"""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Task:
    """1/n sum_i w_i l(b_i (a_i'x + x_last)) + lam1 |A x|_1 for one pair of classes; the weights have mean 1."""

    X: Any  # dense, C-contiguous, or CSR
    target: Array
    weight: Array
    A: Any  # CSR, one column an unknown
    lam1: float
    loss: str
    intercept: bool
    shuffled: bool = False  # the rows are in random order: batches are runs of them, read in sequence

    def batches(self, seed: int, size: int, first: int, count: int) -> NDArray[np.int64]:
        """What a solver with this seed draws, one batch a row."""
        return (run_batches if self.shuffled else pass_batches)(seed, self.n, size, first, count)

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def size(self) -> int:
        return int(self.A.shape[1])

    def generic(self, sampling: Any = None) -> Problem:
        """The same as a Problem of the engine."""
        sampling = sampling or (runs if self.shuffled else reshuffled)
        X = self.X.astype(np.float64, copy=False)
        f = LOSSES[self.loss](X, self.target, self.weight, sampling, self.intercept)
        return Problem(f, L1(self.lam1), Matrix(self.A))


class AutoLoop(Protocol):
    """What the fit needs of a loop: both forms have it."""

    def begin(self, x: Array, batch: NDArray[np.int64], shrink: float) -> bool: ...
    def advance(self, batches: NDArray[np.int64]) -> float: ...
    def change_task(self, task: Task, q: Array, m: Array, R: Array) -> None: ...
    def use_momentum(self) -> None: ...
    @property
    def sfo(self) -> int: ...
    @property
    def iterations(self) -> int: ...
    @property
    def mean(self) -> tuple[Array, Array]: ...
    @property
    def last(self) -> tuple[Array, Array, Array]: ...


class CompiledAuto:
    """`auto` in numba. `table`: the control variate, else one gradient (streams)."""

    def __init__(self, task: Task, q: Array, m: Array, R: Array, table: bool, seed: int = 0):
        from smadmm.learn import auto_kernel as kernels

        self.mode = kernels.TABLE if table else kernels.ONE_GRADIENT
        self.since = 0
        self.state: Any = None
        self.change_task(task, q, m, R)

    def change_task(self, task: Task, q: Array, m: Array, R: Array) -> None:
        from smadmm.learn import auto_kernel, constraint_kernels, kernels

        self.task, self.Q, self.R = task, auto_kernel.metric(q, m), R
        self.A = constraint_kernels.constraint(task.A)
        self.samples = kernels.samples(task.X, task.target, task.weight, task.loss, task.intercept)

    def begin(self, x: Array, batch: NDArray[np.int64], shrink: float = 1.0) -> bool:
        """Start at x; after an earlier start the gradients spent and the table are kept. False if the gradient is 0."""
        from smadmm.learn import auto_kernel as kernels

        old, rows = self.state, self.task.n if self.mode == kernels.TABLE else 1
        self.constants = kernels.Constants(C * shrink, MOVE * shrink, PULL, RECENT, MEMORY)
        state = kernels.new_auto_state(x, self.task.A.shape[0], rows)
        if old is not None:
            state = state._replace(table=old.table, gbar=old.gbar)
            state.counts[1] = old.counts[1]
        self.state = state
        kernels.auto_start(self.samples, self.Q, self.constants, self.mode, state, batch)
        return bool(state.pace[kernels.FLOOR] > 0)

    def advance(self, batches: NDArray[np.int64]) -> float:
        """One iteration a batch; the sum of the losses met on the way."""
        from smadmm.learn import auto_kernel as kernels

        pace = self.state.pace
        pace[kernels.LOSS] = 0.0
        arguments = (self.samples, self.A, self.task.lam1, self.Q, self.R, self.constants, self.mode, self.since)
        kernels.auto(*arguments, self.state, batches)
        return float(pace[kernels.LOSS])

    def use_momentum(self) -> None:
        from smadmm.learn import auto_kernel as kernels

        self.mode, self.since = kernels.MOMENTUM, int(self.state.counts[0])

    @property
    def iterations(self) -> int:
        return int(self.state.counts[0])

    @property
    def sfo(self) -> int:
        return int(self.state.counts[1])

    @property
    def mean(self) -> tuple[Array, Array]:
        return self.state.xbar, self.state.lambar

    @property
    def last(self) -> tuple[Array, Array, Array]:
        return self.state.z, self.state.y, self.state.lam


class GenericAuto:
    """`auto` on the engine: the same numbers, any torch device, no numba."""

    def __init__(self, task: Task, q: Array, m: Array, R: Array, table: bool, seed: int = 0):
        self.table, self.seed, self.since = table, seed, -1
        self.state: State | None = None
        self.shrink, self.floor, self.spent = 1.0, 0.0, 0
        self.change_task(task, q, m, R)

    def change_task(self, task: Task, q: Array, m: Array, R: Array) -> None:
        self.task, self.R = task, torch.from_numpy(R)
        self.problem, self.metric = task.generic(_Given()), Metric(torch.from_numpy(q), torch.from_numpy(m))

    def _estimator(self, batch: int) -> Estimator:
        if self.since >= 0:
            since = self.since
            return Storm(batch, lambda k: float(k - since) ** (-2 / 3))
        return Measured(batch, self.metric, MEMORY) if self.table else SGD(batch)

    def _solver(self, batch: int) -> ADMM:
        pace: Any = Decaying(self.since) if self.since >= 0 else None
        pace = pace or DistanceOverGradients(self.metric, self.floor, C * self.shrink, RECENT)
        average = Average(Power(1.0, 1.0), PULL)
        options = {"x_step": self.metric, "average": average, "pace": pace, "seed": self.seed}
        return ADMM(self.problem, self._estimator(batch), self.R, 1.0, **options)

    def begin(self, x: Array, batch: NDArray[np.int64], shrink: float = 1.0) -> bool:
        """The floor of the step moves the margins of the first batch by `MOVE` (root mean square)."""
        f: Any = self.problem.f
        self.shrink, start, old = shrink, torch.from_numpy(x.copy()), self.state
        f.sampling.batch = batch
        if old is None:
            est = self._estimator(len(batch)).init(f, start, Rng(self.seed, 0))
        else:
            kept = replace(old.est, along=0.0, across=0.0) if isinstance(old.est, Correlated) else old.est
            est = self._estimator(len(batch)).update(f, kept, start, 0, Rng(self.seed, 0))
        direction = self.metric.inverse(est.v)
        weight = f.sample_weight[torch.from_numpy(batch)]
        margins = f._rows(torch.from_numpy(batch)).forward(direction)
        moved = float((weight * margins.square()).sum() / weight.sum())
        self.floor = MOVE * shrink * float((est.v * direction).sum() / moved) ** 0.5 if moved > 0 else 1.0
        solver = self._solver(len(batch))
        state = solver.init(start)
        self.state = replace(state, est=est, pace=solver.pace.init(start, est.v) if solver.pace else None)
        return moved > 0

    def advance(self, batches: NDArray[np.int64]) -> float:
        assert self.state is not None
        f: Any = self.problem.f
        total = 0.0
        for batch in batches:
            f.sampling.batch = batch
            self.state = self._solver(len(batch)).step(self.state)
            total += len(batch) * float(f.value(self.state.est.at, torch.from_numpy(batch)))
        return total

    def use_momentum(self) -> None:
        self.since = self.iterations

    @property
    def iterations(self) -> int:
        return self.state.k if self.state else 0

    @property
    def sfo(self) -> int:
        return self.state.sfo if self.state else 0

    @property
    def mean(self) -> tuple[Array, Array]:
        assert self.state is not None and self.state.mean is not None
        return self.state.mean.x.numpy(), self.state.mean.lam.numpy()

    @property
    def last(self) -> tuple[Array, Array, Array]:
        assert self.state is not None
        return self.state.x.numpy(), self.state.y.numpy(), self.state.lam.numpy()


class _Given:
    """A sampling that hands out the batch it was given."""

    batch: NDArray[np.int64]

    def __call__(self, rng: Rng, n: int, size: int) -> NDArray[np.int64]:
        rng.take(size)
        return self.batch


@dataclass(frozen=True)
class Published:
    """A method as published: estimator by name, inverse step eta_k, penalty rho_k, momentum a_k."""

    method: str  # sadmm, svrg, saga, spider, asvrg, smadmm
    batch: int
    eta: Schedule
    rho: Schedule
    a: Schedule = Power(1.0)  # noqa: RUF009
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


def _values(schedule: Schedule, ks: NDArray[np.int64]) -> Array:
    """A schedule at many k at once."""
    if isinstance(schedule, Power):
        powers = schedule.c * ks.astype(np.float64) ** schedule.p
        return np.minimum(np.maximum(powers, schedule.lo), schedule.hi)
    return np.array([float(schedule(int(k))) for k in ks])


class CompiledPublished:
    """A published method in numba."""

    CHUNK = 4096  # iterations a call, at most

    def __init__(self, task: Task, method: Published, seed: int = 0):
        from smadmm.learn import constraint_kernels, kernels, published_kernel

        self.task, self.method, self.seed = task, method, seed
        self.code = published_kernel.METHODS[method.method]
        self.samples = kernels.samples(task.X, task.target, task.weight, task.loss, task.intercept)
        self.A = constraint_kernels.constraint(task.A)
        self.state = published_kernel.new_published_state(np.zeros(task.size), task.A.shape[0], task.n)
        size = {"sadmm": method.batch, "smadmm": method.first}.get(method.method, 0)
        first = task.batches(seed, size, 0, 1)[0] if size else np.empty(0, dtype=np.int64)
        published_kernel.published_start(self.samples, self.code, self.state, first)
        self.drawn = size
        self.order = np.arange(task.n + method.batch) % task.n
        self.inverse = np.zeros((0, 0))
        if method.exact:
            gram = (task.A.T @ task.A).toarray()
            ratio = float(f"{method.rho(1) / method.eta(1):.14g}")
            self.inverse = np.linalg.inv(np.eye(task.size) + ratio * gram)

    def _draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The next batches, as the generic loop draws them: an order of samples, and where in it each batch begins."""
        n, size = self.task.n, self.method.batch
        if self.task.shuffled:
            return self.order, run_starts(self.seed, n, size, self.drawn // size, count)
        return pass_batches(self.seed, n, 1, self.drawn, count * size).ravel(), np.arange(count) * size

    def advance(self, limit: int) -> None:
        from smadmm.learn import published_kernel

        m = self.method
        restarts, price = m.method in ("spider", "svrg", "asvrg"), m.batch * (1 + (m.method not in ("sadmm", "saga")))
        while self.sfo < limit:
            count = min(self.CHUNK, -(-(limit - self.sfo) // price))
            ks = np.arange(self.iterations + 1, self.iterations + 1 + count)
            eta, rho, a = (_values(s, ks) for s in (m.eta, m.rho, m.a))
            drawing = ks % m.period != 0 if restarts else np.full(count, True)  # the others take full gradients
            starts = np.zeros(count, dtype=np.int64)
            order, starts[drawing] = self._draw(int(drawing.sum()))
            arguments = (self.samples, self.A, self.task.lam1, self.inverse, self.code, m.period, m.theta)
            used = published_kernel.published(*arguments, rho, eta, a, self.state, order, starts, m.batch, limit)
            self.drawn += int(drawing[:used].sum()) * m.batch

    @property
    def iterations(self) -> int:
        return int(self.state.counts[0])

    @property
    def sfo(self) -> int:
        return int(self.state.counts[1])

    @property
    def last(self) -> tuple[Array, Array, Array]:
        return self.state.at, self.state.y, self.state.lam
