"""Fitting one pair of classes: passes over the data, the convex start, the guards, and what is recorded on the way.

`auto` runs without tuning and without a horizon: its answer, the average of the iterates, may be read after any pass.
Below 256 rows it takes full batches until the certificate falls below `tol`: deterministic, and a row of weight w
counts exactly as w rows. If a pass met more loss than 1.1 times that of x = 0, `auto` starts again with half the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from smadmm.guard import EXPLOSION, trouble_of
from smadmm.learn.loops import AutoLoop, GenericAuto, glm_of, have_numba, problem_of
from smadmm.learn.published_loops import GenericPublished, Published, PublishedLoop
from smadmm.learn.scaling import Columns, batch_size, convex_start
from smadmm.learn.tasks import AT_ZERO, PASSES, Array, Fit, Indices, Report, Task, default_passes
from smadmm.problem import Loss
from smadmm.records import History
from smadmm.results import Diverged
from smadmm.running import Recorder
from smadmm.solver import State

FEW_ROWS = 256
FULL_BATCH_ITERATIONS = 2000
MARKS = (1, 2, 3, 5)  # passes after which the objective is recorded, and then every tenth


class Form(NamedTuple):
    """The loss and the loops of a fit, on the engine or compiled."""

    loss: Callable[[Task], Loss]
    auto: Callable[..., AutoLoop]
    published: Callable[..., PublishedLoop]


def form(compiled: bool | None = None) -> Form:
    """The compiled form where numba is installed, unless told otherwise."""
    if not (have_numba() if compiled is None else compiled):
        return Form(glm_of, GenericAuto, GenericPublished)
    from smadmm.learn.twins import CompiledAuto, CompiledLoss, CompiledPublished

    return Form(CompiledLoss, CompiledAuto, CompiledPublished)


class _Course:
    """A fit under way: its clock, its history, and when it ends."""

    def __init__(self, task: Task, tol: float, report: Report = lambda: None):
        problem = problem_of(task, form().loss(task))
        self.recorder = Recorder(problem, metrics={}, objective=True, certify=True, sample=None)
        self.history, self.seconds, self.tol, self.report = History(), 0.0, tol, report

    def timed(self, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - begin
        return result

    def record(self, state: State) -> float:
        """A row of the history at the state's answer; returns the certificate."""
        self.history.append(self.recorder.row(state, self.seconds))
        return self.history["certificate"][-1]

    def follow(self, passes: int, advance: Callable[[int], None], answer: Callable[[], State]) -> Fit:
        """Do pass after pass, until the certificate is at most `tol`."""
        number = 0
        for number in range(1, passes + 1):
            self.timed(partial(advance, number))
            self.report()
            marked = number in MARKS or number % 10 == 0 or number == passes
            if marked and self.record(answer()) <= self.tol:
                break
        return self.fit(answer(), number)

    def fit(self, state: State, passes: int) -> Fit:
        lam = state.lam if state.mean is None else state.mean.lam
        return Fit(state.answer.numpy(), passes, state.sfo, self.history, lam.numpy())


def _answering(state: State, x: torch.Tensor) -> State:
    """The state of a method that answers with x."""
    return replace(state, x=x, est=replace(state.est, at=x), mean=None)


def fit_auto(
    task: Task,
    columns: Columns,
    passes: int | None = None,
    tol: float = 1e-10,
    seed: int = 0,
    *,
    start: Array | None = None,
    momentum: bool = False,
    convex_pass: bool = False,
    report: Report = lambda: None,
) -> Fit:
    """`auto`: at most `passes` passes over the data (see `default_passes`; full batches to `tol` below 256 rows).

    The sigmoid loss starts with the logistic one: for a rare class only, or with `convex_pass` for a whole pass.
    """
    course = _Course(task, tol, report)
    if passes is None and task.n < FEW_ROWS:
        return _full_batches(course, form().auto(task, columns, table=False, start=start))
    passes = passes or default_passes(task.X)
    fitting = _Passes(task, columns, start, seed, (passes + 1) // 2 if momentum else None, convex_pass=convex_pass)
    course.record(fitting.answer())
    return course.follow(passes, fitting.advance, fitting.answer)


def _full_batches(course: _Course, loop: AutoLoop) -> Fit:
    """Iterations with all rows, until the certificate is at most `tol`."""
    everything = np.arange(loop.task.n)
    moving = course.timed(lambda: loop.begin(everything))
    certificate = course.record(loop.state)
    chunk, done = np.tile(everything, (50, 1)), 0
    while moving and certificate > course.tol and done < FULL_BATCH_ITERATIONS:
        course.timed(lambda: loop.advance(chunk))
        done += len(chunk)
        certificate = course.record(loop.state)
    return course.fit(loop.state, done + 1)


class _Passes:
    """Reshuffled passes of `auto` with the convex start and the guard."""

    def __init__(
        self,
        task: Task,
        columns: Columns,
        start: Array | None,
        seed: int,
        momentum_after: int | None,
        *,
        convex_pass: bool = False,
    ):
        self.task, self.columns, self.seed, self.momentum_after = task, columns, seed, momentum_after
        self.batch = min(batch_size(task.X, task.A), task.n)
        cold = start is None or not start.any()
        convex = task.n if convex_pass else convex_start(task.target)
        warm = convex if task.loss == "sigmoid" and cold else 0
        self.warm = -(-warm // self.batch)  # in batches
        first = replace(task, loss="logistic") if self.warm else task
        self.loop = form().auto(first, columns, table=True, start=start, seed=seed)
        self.used, self.shrink, self.loss, self.seen = 0, 1.0, 0.0, 0
        self.moving = False

    def answer(self) -> State:
        """The state at the average, or with momentum at the last iterate."""
        state = self.loop.state
        return state if self.momentum_after is None or not self.moving else _answering(state, state.x)

    def advance(self, number: int) -> None:
        """Pass `number`."""
        stop = -(-number * self.task.n // self.batch)
        if self.warm and self.warm <= stop:
            self._run(self.warm)
            self._leave_start()
        self._run(stop)
        if not self.warm:
            self._guard(stop + 1)
        if number == self.momentum_after and self.moving:
            self.loop.use_momentum()

    def _take(self, count: int) -> Indices:
        batches = self.task.batches(self.seed, self.batch, self.used, count)
        self.used += count
        return batches

    def _begin(self, stop: int) -> None:
        """Start, with the first batch that has a gradient."""
        self.moving = False
        while not self.moving and self.used < stop:
            self.moving = self.loop.begin(self._take(1)[0], self.shrink)

    def _run(self, stop: int) -> None:
        """Up to batch number `stop`."""
        if not self.moving:
            self._begin(stop)
        if self.used < stop:
            batches = self._take(stop - self.used)
            self.loss += self.loop.advance(batches)
            self.seen += batches.size

    def _leave_start(self) -> None:
        """From the logistic to the sigmoid loss."""
        self.loop.change_task(self.task, self.columns)
        self.loss, self.seen, self.warm = 0.0, 0, 0

    def _guard(self, stop: int) -> None:
        if self.seen and not self.loss / self.seen <= 1.1 * AT_ZERO[self.task.loss]:
            self.shrink /= 2
            self._begin(stop)
        self.loss, self.seen = 0.0, 0


def fit_published(
    task: Task,
    method: Published,
    passes: int = PASSES,
    tol: float = 1e-10,
    seed: int = 0,
    report: Report = lambda: None,
) -> Fit:
    """A published method for `passes` times n sample gradients."""
    course = _Course(task, tol, report)
    loop: PublishedLoop = course.timed(lambda: form().published(task, method, seed))

    def answer() -> State:
        state = loop.state
        return _answering(state, state.answer)

    def advance(number: int) -> None:
        before = loop.state
        loop.advance(number * task.n)
        wrong = trouble_of(loop.state, limit)
        if wrong:
            raise Diverged(f"{method.method}: {wrong}, or use solver='auto'", before, course.history)

    first = float(torch.linalg.vector_norm(loop.state.est.v)) / method.eta(1)
    limit = EXPLOSION * (1 + first)  # in units of the first step: data may be of any scale
    course.record(answer())
    return course.follow(passes, advance, answer)
