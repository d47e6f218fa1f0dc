"""The classifier's task, and `auto` on the engine.

`auto` is the one loop with a metric, a step that sets itself, schedule-free averaging and a measured control variate.
twins.py has its twin in numba: the same numbers on the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.checkpoint import packed, unpacked
from smadmm.estimators import SGD, Correlated, Estimate, Estimator, Measured, Storm
from smadmm.learn.scaling import Columns, metric, row_weights
from smadmm.losses.glm import GLM, Huber, Logistic, Sigmoid, Squared, SquaredHinge, Student
from smadmm.operators.linear import Matrix
from smadmm.problem import Loss, Problem
from smadmm.proxes import L1
from smadmm.sampling import Rng, Sampling, pass_batches, reshuffled, run_batches, runs
from smadmm.schedules import Power
from smadmm.solver import ADMM, Average, Mean, State
from smadmm.stepsize import Decaying, DistanceOverGradients
from smadmm.xsteps import Metric

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
LOSSES: dict[str, type[GLM]] = {"sigmoid": Sigmoid, "logistic": Logistic, "squared_hinge": SquaredHinge}
REGRESSION: dict[str, type[GLM]] = {"squared": Squared, "huber": Huber, "student": Student}
AT_ZERO = {"sigmoid": 0.5, "logistic": float(np.log(2)), "squared_hinge": 1.0}  # the loss of x = 0

C, MOVE, PULL, RECENT, MEMORY = 3.0, 1.0, 0.8, 6.0, 0.95  # the constants of `auto`


@dataclass(frozen=True)
class Auto:
    """The solver that needs no tuning; it answers with the minimiser itself, its exact zeros and ties.

    With exact=False the answer is the average of stochastic iterates; with `momentum` they end with STORM, and the
    answer is the last one, which has a smaller certificate than the average.

    >>> Auto(momentum=True)
    Auto(momentum=True, exact=True)
    """

    momentum: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Task:
    """1/n sum_i w_i l(a_i'x + x_last, b_i) + lam1 |A x|_1 for one pair of classes, or a target; weights of mean 1."""

    X: Any  # dense, C-contiguous, or CSR
    target: Array
    weight: Array
    A: Any  # CSR, one column per unknown
    lam1: float
    loss: str
    intercept: bool
    ridge: float = 0.0  # ridge * lam1 |x|^2 / 2 is a part of F for the exact solver
    shuffled: bool = False  # the rows are in random order: batches are runs of them, read in sequence

    def batches(self, seed: int, size: int, first: int, count: int) -> Indices:
        """What a solver with this seed draws, one batch per row."""
        return (run_batches if self.shuffled else pass_batches)(seed, self.n, size, first, count)

    def part(self, rows: Any) -> Task:
        """The same problem on some of the rows."""
        weight = self.weight[rows]
        return replace(self, X=self.X[rows], target=self.target[rows], weight=weight / weight.mean())

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def size(self) -> int:
        """The number of unknowns."""
        return int(self.A.shape[1])

    def glm(self, sampling: Sampling | None = None) -> GLM:
        """F as a loss of the engine."""
        sampling = sampling or (runs if self.shuffled else reshuffled)
        X = self.X.astype(np.float64, copy=False)
        return (LOSSES | REGRESSION)[self.loss](X, self.target, self.weight, sampling, self.intercept)

    def problem(self, f: Loss) -> Problem:
        """The task as a problem of the engine, with F in one of its forms."""
        return Problem(f, L1(self.lam1), Matrix(self.A))


def have_numba() -> bool:
    """Whether the compiled form is available."""
    return find_spec("numba") is not None


class AutoLoop(ABC):
    """`auto` under way, from `start` on; `table`: with the control variate, else one gradient per sample (chunks)."""

    def __init__(self, task: Task, columns: Columns, table: bool, start: Array | None = None, seed: int = 0):
        self.table, self.seed = table, seed
        self.start = np.zeros(task.size) if start is None else start
        self.since: int | None = None  # the iteration after which momentum began
        self.change_task(task, columns)
        self.reset()

    def change_task(self, task: Task, columns: Columns) -> None:
        """Go on with another loss, or with other rows."""
        self.task = task
        self.q, self.m = metric(columns, task.intercept)
        self.R = row_weights(task.A, self.q)

    def reset(self) -> None:
        """Go to the start, before any iteration."""
        self.since = None if self.since is None else 0

    @abstractmethod
    def begin(self, batch: Indices, shrink: float = 1.0) -> bool:
        """Start, or start again: the gradients spent and the table are kept. False if the gradient is zero."""

    @abstractmethod
    def advance(self, batches: Indices) -> float:
        """One iteration per batch; returns the sum of the losses met on the way."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The engine's state, which later iterations leave alone."""

    @abstractmethod
    def kept(self) -> dict[str, Any]:
        """All it needs to go on, beside the task, as arrays."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what was kept."""

    def use_momentum(self) -> None:
        """STORM and a falling step from here on."""
        self.since = self.state.k


class GenericAuto(AutoLoop):
    """`auto` on the engine, without numba."""

    def change_task(self, task: Task, columns: Columns) -> None:
        super().change_task(task, columns)
        self.given = _Given()
        self.problem = task.problem(task.glm(self.given))
        self.metric = Metric(torch.from_numpy(self.q), torch.from_numpy(self.m))

    def reset(self) -> None:
        super().reset()
        x = torch.from_numpy(self.start.copy())
        Ax = self.problem.A(x)
        mean, est = Mean(x, torch.zeros_like(Ax), 0.0), Estimate(torch.zeros_like(x), x, 0)
        self._state = State(0, x, (Ax,), mean.lam, est, Ax, Bys=(-Ax,), drawn=0, mean=mean)

    @property
    def state(self) -> State:
        return self._state

    def kept(self) -> dict[str, Any]:
        return {**packed(self._state), "floor": getattr(self, "floor", 0.0), "shrink": getattr(self, "shrink", 1.0)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.floor, self.shrink = float(kept["floor"]), float(kept["shrink"])
        self._state = unpacked({name: part for name, part in kept.items() if name not in ("floor", "shrink")})

    def _estimator(self, batch: int) -> Estimator:
        return Measured(batch, self.metric, MEMORY) if self.table and self.since is None else SGD(batch)

    def _rule(self) -> DistanceOverGradients:
        return DistanceOverGradients(self.metric, self.floor, C * self.shrink, RECENT)

    def _solver(self, batch: int) -> ADMM:
        average, since, R = Average(Power(1.0, 1.0), PULL), self.since, torch.from_numpy(self.R)
        choices: dict[str, Any] = {"x_step": self.metric, "average": average, "seed": self.seed}
        if since is None:
            return ADMM(self.problem, self._estimator(batch), R, 1.0, stepsize=self._rule(), **choices)
        storm = Storm(batch, lambda k: float(k - since) ** (-2 / 3))
        return ADMM(self.problem, storm, R, 1.0, stepsize=Decaying(since), **choices)

    def begin(self, batch: Indices, shrink: float = 1.0) -> bool:
        """The floor of the step moves the margins of the first batch by `MOVE` (root mean square)."""
        old = self._state.est
        self.reset()
        new = self._state
        self.shrink, self.given.batch = shrink, batch
        estimator, rng = self._estimator(len(batch)), Rng(self.seed, 0)
        if old.sfo == 0:
            est = estimator.init(self.problem.f, new.x, rng)
        else:
            kept = replace(old, along=0.0, across=0.0) if isinstance(old, Correlated) else old
            est = estimator.update(self.problem.f, kept, new.x, 0, rng)
        direction = self.metric.inverse(est.v)
        moved = self._moved(direction.numpy(), batch)
        self._state = replace(new, est=est, drawn=rng.drawn)
        if moved > 0:
            self.floor = MOVE * shrink * (float((est.v * direction).sum()) / moved) ** 0.5
            self._state = replace(self._state, stepsize=self._rule().init(new.x, est.v))
        return moved > 0

    def _moved(self, direction: Array, batch: Indices) -> float:
        """The mean square change of the margins of a batch along a direction."""
        weight, d = self.task.weight[batch], self.task.X.shape[1]
        margins = self.task.X[batch] @ direction[:d] + direction[d:].sum()
        return float((weight * margins**2).sum() / weight.sum())

    def advance(self, batches: Indices) -> float:
        total, solver = 0.0, self._solver(batches.shape[1])
        for batch in batches:
            self.given.batch = batch
            self._state = solver.step(self._state)
            total += len(batch) * float(self.problem.f.value(self._state.est.at, torch.from_numpy(batch)))
        return total


class _Given:
    """A sampling that hands out the batch it was given."""

    batch: Indices

    def __call__(self, rng: Rng, n: int, size: int) -> Indices:
        rng.take(size)
        return self.batch
