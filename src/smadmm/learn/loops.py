"""The task of the classifier and its `auto` loop, compiled and generic: two forms of one thing, equal on equal batches.

The engine with a metric, a step that sets itself, schedule-free averaging and a measured control variate. The compiled
form (numba) does on the processor what the generic one does with smadmm.ADMM on torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.estimators import SGD, Correlated, Estimator, Measured, Storm
from smadmm.losses.glm import GLM, Logistic, Sigmoid, SquaredHinge
from smadmm.operators.linear import Matrix
from smadmm.problem import Problem
from smadmm.proxes import L1
from smadmm.sampling import Rng, pass_batches, reshuffled, run_batches, runs
from smadmm.schedules import Power
from smadmm.solver import ADMM, Average, State
from smadmm.stepsize import Decaying, DistanceOverGradients
from smadmm.xsteps import Metric

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
        from smadmm.learn._kernels import auto as kernels

        self.mode = kernels.TABLE if table else kernels.ONE_GRADIENT
        self.since = 0
        self.state: Any = None
        self.change_task(task, q, m, R)

    def change_task(self, task: Task, q: Array, m: Array, R: Array) -> None:
        from smadmm.learn._kernels import auto as auto_kernel
        from smadmm.learn._kernels import constraint as constraint_kernels
        from smadmm.learn._kernels import samples as kernels

        self.task, self.Q, self.R = task, auto_kernel.metric(q, m), R
        self.A = constraint_kernels.constraint(task.A)
        self.samples = kernels.samples(task.X, task.target, task.weight, task.loss, task.intercept)

    def begin(self, x: Array, batch: NDArray[np.int64], shrink: float = 1.0) -> bool:
        """Start at x; after an earlier start the gradients spent and the table are kept. False if the gradient is 0."""
        from smadmm.learn._kernels import auto as kernels

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
        from smadmm.learn._kernels import auto as kernels

        pace = self.state.pace
        pace[kernels.LOSS] = 0.0
        arguments = (self.samples, self.A, self.task.lam1, self.Q, self.R, self.constants, self.mode, self.since)
        kernels.auto(*arguments, self.state, batches)
        return float(pace[kernels.LOSS])

    def use_momentum(self) -> None:
        from smadmm.learn._kernels import auto as kernels

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
        stepsize: Any = Decaying(self.since) if self.since >= 0 else None
        stepsize = stepsize or DistanceOverGradients(self.metric, self.floor, C * self.shrink, RECENT)
        average = Average(Power(1.0, 1.0), PULL)
        options = {"x_step": self.metric, "average": average, "stepsize": stepsize, "seed": self.seed}
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
        self.state = replace(state, est=est, stepsize=solver.stepsize.init(start, est.v) if solver.stepsize else None)
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
