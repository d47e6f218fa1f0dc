"""A task as a problem of the engine, and `auto` on it.

`auto` is the one loop with a metric, a step that sets itself, schedule-free averaging and a measured control variate.
twins.py has its twin in numba: the same numbers on the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from smadmm.checkpoint import packed, unpacked
from smadmm.estimators import SGD, Correlated, Estimate, Estimator, Measured, Storm
from smadmm.learn.scaling import Columns, metric, row_weights
from smadmm.learn.tasks import Array, Indices, Task
from smadmm.losses.glm import GLM, Huber, Logistic, Sigmoid, Squared, SquaredHinge, Student
from smadmm.operators.linear import Matrix
from smadmm.problem import Loss, Problem
from smadmm.proxes import L1
from smadmm.sampling import Rng, Sampling, reshuffled, runs
from smadmm.schedules import Power
from smadmm.solver import ADMM, Average, Mean, State
from smadmm.stepsize import Decaying, DistanceOverGradients
from smadmm.xsteps import Metric

LOSSES: dict[str, type[GLM]] = {"sigmoid": Sigmoid, "logistic": Logistic, "squared_hinge": SquaredHinge}
REGRESSION: dict[str, type[GLM]] = {"squared": Squared, "huber": Huber, "student": Student}

C, MOVE, PULL, RECENT, MEMORY = 3.0, 1.0, 0.8, 6.0, 0.95  # the constants of `auto`


def glm_of(task: Task, sampling: Sampling | None = None) -> GLM:
    """F of a task as a loss of the engine."""
    sampling = sampling or (runs if task.shuffled else reshuffled)
    X = task.X.astype(np.float64, copy=False)
    return (LOSSES | REGRESSION)[task.loss](X, task.target, task.weight, sampling, task.intercept)


def problem_of(task: Task, f: Loss) -> Problem:
    """A task as a problem of the engine, with F in one of its forms."""
    return Problem(f, L1(task.lam1), Matrix(task.A))


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
        self.problem = problem_of(task, glm_of(task, self.given))
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
