"""Fitting one pair of classes: passes over the data, the convex start, the guard, and what is recorded on the way.

`auto` runs without tuning and without a horizon: its answer, the average of the iterates, may be read after any pass.
Below 256 rows it takes full batches until the certificate falls below `tol`: deterministic, and a row of weight w
counts exactly as w rows. A guard restarts it with half the step if a pass met more loss than 1.1 times that of x = 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.certificate import Certificate
from smadmm.learn.loops import AT_ZERO, Array, AutoLoop, CompiledAuto, GenericAuto, Task, have_numba
from smadmm.learn.published_loops import CompiledPublished, GenericPublished, Published
from smadmm.learn.scaling import Columns, batch_size, convex_start, metric, row_weights
from smadmm.running import History

FEW_ROWS = 256
FULL_BATCH_ITERATIONS = 2000
MARKS = (1, 2, 3, 5, 10, 20)  # passes after which the objective is recorded, and then every tenth
EXPLOSION = 1e50

Report = Callable[[int], None]  # called with the number of passes done


@dataclass(frozen=True)
class Fit:
    """The answer and how it was found."""

    x: Array
    passes: int
    sfo: int
    history: History
    certificate: Certificate


class Oracle:
    """F and its gradient over all samples, outside every count."""

    def __init__(self, task: Task, compiled: bool):
        self.task, self.compiled = task, compiled
        if compiled:
            from smadmm.learn._kernels import samples as kernels

            self.samples = kernels.samples(task.X, task.target, task.weight, task.loss, task.intercept)
        else:
            self.f = task.generic().f

    def value(self, x: Array) -> float:
        if self.compiled:
            from smadmm.learn._kernels import samples as kernels

            return float(kernels.mean_loss(self.samples, x))
        return float(self.f.value(torch.from_numpy(x), self.f.full()))

    def gradient(self, x: Array) -> Array:
        if self.compiled:
            from smadmm.learn._kernels import samples as kernels

            g = np.empty(len(x))
            kernels.mean_gradient(self.samples, x, g)
            return g
        return np.asarray(self.f.gradient((torch.from_numpy(x),), (1.0,), self.f.full()).numpy())

    def objective(self, x: Array) -> float:
        return self.value(x) + self.task.lam1 * float(np.abs(self.task.A @ x).sum())

    def certificate(self, x: Array, lam: Array, y: Array | None = None) -> Certificate:
        """At (x, y, lam); without y it is prox_h(A x - lam), which makes the second part at most the third."""
        A, lam1 = self.task.A, self.task.lam1
        Ax = A @ x
        if y is None:
            y = np.sign(Ax - lam) * np.maximum(np.abs(Ax - lam) - lam1, 0.0)
        dual = np.where(y == 0, np.maximum(np.abs(lam) - lam1, 0.0), lam + lam1 * np.sign(y))
        first, second, third = (float(np.sum(v**2)) for v in (self.gradient(x) - A.T @ lam, dual, Ax - y))
        total = first + second + third
        return Certificate(first, second, third, low=total, high=total)


def auto_loop(task: Task, columns: Columns, table: bool, seed: int, compiled: bool) -> AutoLoop:
    """The loop of `auto` with its scaling from the column statistics."""
    q, m = metric(columns, task.intercept)
    return (CompiledAuto if compiled else GenericAuto)(task, q, m, row_weights(task.A, q), table, seed)


def use_compiled(compiled: bool | None) -> bool:
    return have_numba() if compiled is None else compiled


class _Recorder:
    """History rows outside the clock."""

    def __init__(self, oracle: Oracle):
        self.oracle, self.history, self.seconds = oracle, History(), 0.0

    def timed(self, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - begin
        return result

    def record(self, k: int, sfo: int, x: Array, certificate: Certificate) -> None:
        row = {"k": k, "sfo": sfo, "seconds": self.seconds, "objective": self.oracle.objective(x)}
        parts = {"certificate": certificate.total, "gradient": certificate.gradient}
        rest = {"subdifferential": certificate.subdifferential, "feasibility": certificate.feasibility}
        self.history.append({**row, **parts, **rest})


def fit_auto(
    task: Task,
    columns: Columns,
    passes: int | None = None,
    tol: float = 1e-10,
    seed: int = 0,
    start: Array | None = None,
    momentum: bool = False,
    compiled: bool | None = None,
    report: Report = lambda done: None,
) -> Fit:
    """`auto`: `passes` passes over the data (default 20; full batches to `tol` below 256 rows)."""
    compiled = use_compiled(compiled)
    recorder = _Recorder(Oracle(task, compiled))
    start = np.zeros(task.size) if start is None else start
    if passes is None and task.n < FEW_ROWS:
        return _full_batches(task, columns, tol, start, recorder, compiled)
    return _Passes(task, columns, seed, start, recorder, compiled).run(passes or 20, tol, momentum, report)


def _full_batches(task: Task, columns: Columns, tol: float, start: Array, recorder: _Recorder, compiled: bool) -> Fit:
    everything = np.arange(task.n)
    loop = auto_loop(task, columns, table=False, seed=0, compiled=compiled)
    moving = recorder.timed(lambda: loop.begin(start, everything, 1.0))
    certificate = recorder.oracle.certificate(start, np.zeros(task.A.shape[0]))
    recorder.record(0, loop.sfo, start, certificate)
    chunk, done = np.tile(everything, (50, 1)), 0
    while moving and certificate.total > tol and done < FULL_BATCH_ITERATIONS:
        recorder.timed(lambda: loop.advance(chunk))
        done += len(chunk)
        certificate = recorder.oracle.certificate(*loop.mean)
        recorder.record(done, loop.sfo, loop.mean[0], certificate)
    x = loop.mean[0] if done else start
    return Fit(x.copy(), done + 1, loop.sfo, recorder.history, certificate)


class _Passes:
    """Reshuffled passes with the convex start and the guard."""

    def __init__(self, task: Task, columns: Columns, seed: int, start: Array, recorder: _Recorder, compiled: bool):
        self.task, self.columns, self.seed, self.start, self.recorder = task, columns, seed, start, recorder
        self.batch = min(batch_size(task.X, task.A), task.n)
        warm = convex_start(task.target) if task.loss == "sigmoid" and not start.any() else 0
        self.warm = -(-warm // self.batch)  # in batches
        first = self._with_loss("logistic") if self.warm else task
        self.loop = auto_loop(first, columns, table=True, seed=seed, compiled=compiled)
        self.used, self.shrink, self.loss, self.seen = 0, 1.0, 0.0, 0
        self.moving = False

    def _with_loss(self, loss: str) -> Task:
        return replace(self.task, loss=loss)

    def _take(self, count: int) -> NDArray[np.int64]:
        batches = self.task.batches(self.seed, self.batch, self.used, count)
        self.used += count
        return batches

    def _begin(self, stop: int) -> None:
        """Start, with the first batch that has a gradient."""
        self.moving = False
        while not self.moving and self.used < stop:
            self.moving = self.loop.begin(self.start, self._take(1)[0], self.shrink)

    def _advance(self, stop: int) -> None:
        """Up to batch number `stop`."""
        if not self.moving:
            self._begin(stop)
        if self.used < stop:
            batches = self._take(stop - self.used)
            self.loss += self.loop.advance(batches)
            self.seen += batches.size

    def _switch(self) -> None:
        """From the logistic to the sigmoid loss."""
        q, m = metric(self.columns, self.task.intercept)
        self.loop.change_task(self.task, q, m, row_weights(self.task.A, q))
        self.loss, self.seen, self.warm = 0.0, 0, 0

    def _guard(self, stop: int) -> None:
        if self.seen and not self.loss / self.seen <= 1.1 * AT_ZERO[self.task.loss]:
            self.shrink /= 2
            self._begin(stop)
        self.loss, self.seen = 0.0, 0

    def _pass(self, number: int) -> None:
        stop = -(-number * self.task.n // self.batch)
        if self.warm and self.warm <= stop:
            self._advance(self.warm)
            self._switch()
        self._advance(stop)
        if not self.warm:
            self._guard(stop + 1)

    def run(self, passes: int, tol: float, momentum: bool, report: Report) -> Fit:
        recorder, loop = self.recorder, self.loop
        certificate = recorder.oracle.certificate(self.start, np.zeros(self.task.A.shape[0]))
        recorder.record(0, 0, self.start, certificate)
        number = 0
        for number in range(1, passes + 1):
            recorder.timed(partial(self._pass, number))
            if momentum and self.moving and number == (passes + 1) // 2:
                loop.use_momentum()
            report(number)
            if number in MARKS or number % 10 == 0 or number == passes:
                certificate = self._certificate(momentum)
                recorder.record(loop.iterations, loop.sfo, self._answer(momentum), certificate)
                if certificate.total <= tol:
                    break
        return Fit(self._answer(momentum).copy(), number, loop.sfo, recorder.history, certificate)

    def _answer(self, momentum: bool) -> Array:
        if not self.moving:
            return self.start
        return self.loop.last[0] if momentum else self.loop.mean[0]

    def _certificate(self, momentum: bool) -> Certificate:
        if not self.moving:
            return self.recorder.oracle.certificate(self.start, np.zeros(self.task.A.shape[0]))
        if momentum:
            x, y, lam = self.loop.last
            return self.recorder.oracle.certificate(x, lam, y)
        return self.recorder.oracle.certificate(*self.loop.mean)


def fit_published(
    task: Task,
    method: Published,
    passes: int = 20,
    tol: float = 1e-10,
    seed: int = 0,
    compiled: bool | None = None,
    report: Report = lambda done: None,
) -> Fit:
    """A published method for `passes` times n sample gradients."""
    compiled = use_compiled(compiled)
    oracle = Oracle(task, compiled)
    recorder = _Recorder(oracle)
    loop: Any = recorder.timed(lambda: (CompiledPublished if compiled else GenericPublished)(task, method, seed))
    certificate, number = oracle.certificate(np.zeros(task.size), np.zeros(task.A.shape[0])), 0
    recorder.record(0, loop.sfo, np.zeros(task.size), certificate)
    for number in range(1, passes + 1):
        recorder.timed(partial(loop.advance, number * task.n))
        report(number)
        if not np.abs(loop.last[0]).max(initial=0.0) < EXPLOSION:  # also where it is NaN
            raise FloatingPointError(
                f"{method.method} diverged in pass {number}: the step is too long for these data; "
                "lower `step`, or use method='auto', which sets it itself"
            )
        if number in MARKS or number % 10 == 0 or number == passes:
            x, y, lam = loop.last
            certificate = oracle.certificate(x, lam, y)
            recorder.record(loop.iterations, loop.sfo, x, certificate)
            if certificate.total <= tol:
                break
    return Fit(loop.last[0].copy(), number, loop.sfo, recorder.history, certificate)
