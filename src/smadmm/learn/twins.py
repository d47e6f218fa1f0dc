"""The loops of the classifier and their loss in numba: twins of those on the engine, on the processor.

The kernels advance arrays in place; `state` is the engine's, copied from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.estimators import Estimate
from smadmm.learn._kernels import auto as auto_kernels
from smadmm.learn._kernels import published as published_kernels
from smadmm.learn._kernels.constraint import constraint, half
from smadmm.learn._kernels.samples import Samples, mean_gradient, mean_loss, samples
from smadmm.learn.loops import MEMORY, MOVE, PULL, RECENT, AutoLoop, C
from smadmm.learn.published_loops import Published, PublishedLoop
from smadmm.learn.scaling import Columns
from smadmm.learn.tasks import Array, Indices, Task
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import pass_batches, run_starts
from smadmm.solver import Mean, State


def _samples(task: Task) -> Samples:
    return samples(task.X, task.target, task.weight, task.loss, task.intercept)


def _engine_state(task: Task, arrays: Any, x: Array, at: Array, drawn: int) -> State:
    """The state of a kernel as the engine's."""
    z, u, v, y, lam = (torch.from_numpy(part.copy()) for part in (x, at, arrays.v, arrays.y, arrays.lam))
    k, sfo = arrays.counts.tolist()
    Ax = torch.from_numpy(task.A @ x)
    return State(k, z, (y,), lam, Estimate(v, u, sfo), Ax, Bys=(-y,), drawn=drawn)


class CompiledLoss(FiniteSum):
    """F of a task: what is recorded during a fit, faster than with torch and without a copy of the data."""

    def __init__(self, task: Task):
        super().__init__(task.n)
        self.task, self.all = task, _samples(task)
        self.shape, self.dtype = (task.size,), torch.float64

    def _chosen(self, batch: Batch) -> Samples:
        if batch is self.everything:
            return self.all
        task, rows = self.task, batch.numpy()
        return samples(task.X[rows], task.target[rows], task.weight[rows], task.loss, task.intercept)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        return torch.tensor(mean_loss(self._chosen(batch), x.numpy()), dtype=self.dtype)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        chosen, total, g = self._chosen(batch), np.zeros(self.task.size), np.empty(self.task.size)
        for x, weight in zip(points, weights, strict=True):
            mean_gradient(chosen, x.numpy(), g)
            total += weight * g
        return torch.from_numpy(total)


class CompiledAuto(AutoLoop):
    """`auto` in numba."""

    def change_task(self, task: Task, columns: Columns) -> None:
        super().change_task(task, columns)
        self.Q, self.A, self.samples = auto_kernels.metric(self.q, self.m), constraint(task.A), _samples(task)

    def reset(self) -> None:
        super().reset()
        rows = self.task.n if self.table else 1
        self.arrays = auto_kernels.new_auto_state(self.start, self.task.A.shape[0], rows)

    def kept(self) -> dict[str, Any]:
        return {**self.arrays._asdict(), "constants": np.array(getattr(self, "constants", np.zeros(5)))}

    def restore(self, kept: Mapping[str, Any]) -> None:
        fields = {name: np.array(kept[name]) for name in auto_kernels.AutoState._fields}
        self.arrays = auto_kernels.AutoState(**fields)
        self.constants = auto_kernels.Constants(*np.asarray(kept["constants"]).tolist())

    @property
    def _mode(self) -> int:
        if self.since is not None:
            return auto_kernels.MOMENTUM
        return auto_kernels.TABLE if self.table else auto_kernels.ONE_GRADIENT

    def begin(self, batch: Indices, shrink: float = 1.0) -> bool:
        old = self.arrays
        self.reset()
        self.arrays = self.arrays._replace(table=old.table, gbar=old.gbar)
        self.arrays.counts[1] = old.counts[1]
        self.constants = auto_kernels.Constants(C * shrink, MOVE * shrink, PULL, RECENT, MEMORY)
        work = auto_kernels.new_work(self.task.size, 0, len(batch))
        start = {"state": self.arrays, "batch": batch, "work": work}
        auto_kernels.auto_start(self.samples, self.Q, self.constants, self._mode, **start)
        return bool(self.arrays.pace[auto_kernels.FLOOR] > 0)

    def advance(self, batches: Indices) -> float:
        self.arrays.pace[auto_kernels.LOSS] = 0.0
        work = auto_kernels.new_work(self.task.size, self.task.A.shape[0], batches.shape[1])
        now = {"mode": self._mode, "since": self.since or 0, "state": self.arrays, "batches": batches, "work": work}
        auto_kernels.auto(self.samples, self.A, self.task.lam1, self.Q, self.R, self.constants, **now)
        return float(self.arrays.pace[auto_kernels.LOSS])

    @property
    def state(self) -> State:
        a, pace = self.arrays, self.arrays.pace
        state = _engine_state(self.task, a, a.z, a.u, int(pace[auto_kernels.SEEN]))
        x, lam = torch.from_numpy(a.xbar.copy()), torch.from_numpy(a.lambar.copy())
        return replace(state, mean=Mean(x, lam, float(pace[auto_kernels.WEIGHT])))


class CompiledPublished(PublishedLoop):
    """A published method in numba."""

    CHUNK = 4096  # batches per call, at most
    AHEAD = 8  # passes whose runs are drawn together

    def __init__(self, task: Task, method: Published, seed: int = 0):
        self.task, self.method, self.seed = task, method, seed
        self.code = published_kernels.METHODS[method.method]
        self.period, first, exact = method.details(task)
        self.samples, self.A = _samples(task), constraint(task.A)
        self.arrays = published_kernels.new_published_state(np.zeros(task.size), self.code, task.A.shape[0], task.n)
        self.drawn = {"sadmm": method.batch, "smadmm": first}.get(method.method, 0)
        batch = task.batches(seed, self.drawn, 0, 1)[0] if self.drawn else np.empty(0, dtype=np.int64)
        published_kernels.published_start(self.samples, self.code, self.arrays, batch)
        self.order = np.arange(task.n + method.batch) % task.n
        self.starts = np.empty(0, dtype=np.int64)  # drawn, but not used yet
        self.powers = tuple((s.c, s.p, s.lo, s.hi) for s in (method.rho, method.eta, method.a))
        self.inverse = np.zeros((0, 0))
        if exact:
            gram = (task.A.T @ task.A).toarray()
            ratio = float(f"{method.rho(1) / method.eta(1):.14g}")
            self.inverse = half(np.linalg.inv(np.eye(task.size) + ratio * gram))
        self.work = published_kernels.new_published_work(task.size, self.inverse, task.A.shape[0], method.batch)

    def _draw(self, count: int) -> tuple[Indices, Indices]:
        """The next batches, as the generic loop draws them: an order of samples, and where in it each batch begins."""
        n, size = self.task.n, self.method.batch
        if not self.task.shuffled:
            return pass_batches(self.seed, n, 1, self.drawn, count * size).ravel(), np.arange(count) * size
        if len(self.starts) < count:
            self.starts = run_starts(self.seed, n, size, self.drawn // size, max(count, self.AHEAD * (n // size)))
        return self.order, self.starts[:count]

    def advance(self, limit: int) -> None:
        m, counts = self.method, self.arrays.counts
        price = m.batch * (1 + (m.method not in ("sadmm", "saga")))
        choices = {"method": self.code, "period": self.period, "theta": m.theta, "powers": self.powers}
        while counts[1] < limit:
            order, starts = self._draw(min(self.CHUNK, -(-(limit - int(counts[1])) // price)))
            now = {"state": self.arrays, "order": order, "starts": starts, "b": m.batch, "limit": limit}
            now["work"] = self.work
            used = published_kernels.published(self.samples, self.A, self.task.lam1, self.inverse, **choices, **now)
            self.drawn, self.starts = self.drawn + used * m.batch, self.starts[used:]

    @property
    def state(self) -> State:
        return _engine_state(self.task, self.arrays, self.arrays.x, self.arrays.at, self.drawn)
