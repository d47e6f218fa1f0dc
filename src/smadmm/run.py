"""run(): the loop with a clock, metrics, stop rules, a divergence guard and checkpoints.

The clock counts the steps alone: metrics, checkpoints and the progress bar are outside it, and metrics are outside the
count of sample gradients. A run that was stopped - by a rule, by Ctrl-C, SIGTERM, or killed - continues from its
checkpoint exactly as if it had never stopped.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from smadmm import checkpoint as checkpoints
from smadmm.certificate import certificate
from smadmm.history import History
from smadmm.losses.stream import StreamEnded
from smadmm.problem import Penalty, Problem
from smadmm.solver import State

EXPLOSION = 1e8  # growth of |x| that counts as divergence

Metric = Callable[[Any], float]


class Solver(Protocol):
    """What run() needs: ADMM has it, and so may a method of your own."""

    @property
    def problem(self) -> Problem: ...
    def init(self, x: Tensor) -> State: ...
    def step(self, s: State) -> State: ...


class Diverged(FloatingPointError):
    """The iterates are no longer finite or explode; `state` is the last good one, `history` what was recorded."""

    def __init__(self, message: str, state: State, history: History):
        super().__init__(message)
        self.state, self.history = state, history


@dataclass(frozen=True)
class Result:
    """Where a run ended, what it recorded, and why it stopped."""

    state: State
    history: History
    reason: str

    @property
    def x(self) -> Tensor:
        return self.state.x


@dataclass(frozen=True)
class Stop:
    """Stop rules; the first that holds ends the run.

    `certificate` and `patience` are looked at when metrics are recorded. Patience counts records in which the mean of
    the objective over a window of that many records did not fall below the best earlier such mean.
    """

    iterations: int | None = None
    sfo: int | None = None
    seconds: float | None = None
    certificate: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if all(rule is None for rule in vars(self).values()):
            raise ValueError("a run needs a stop rule: iterations, sfo, seconds, certificate or patience")
        for name, rule in vars(self).items():
            if rule is not None and not rule > 0:
                raise ValueError(f"{name} must be positive, got {rule}")

    def after_step(self, s: State, seconds: float) -> str | None:
        if self.iterations is not None and s.k >= self.iterations:
            return f"{s.k} iterations done"
        if self.sfo is not None and s.sfo >= self.sfo:
            return f"budget of {self.sfo} sample gradients used"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{self.seconds} seconds used"
        return None

    def after_record(self, history: History) -> str | None:
        column = "certificate_high" if "certificate_high" in history else "certificate"
        if self.certificate is not None and history[column][-1] <= self.certificate:
            return f"certificate {history[column][-1]:.3g} reached {self.certificate:.3g}"
        if self.patience is not None and history.rows >= 3 * self.patience:
            values, window = history["objective"], self.patience
            means = [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
            if min(means[-window:]) >= min(means[:-window]):
                return f"no progress in the objective over {window} records"
        return None


class _Recorder:
    """Adds rows to the history, outside the clock."""

    def __init__(
        self, problem: Problem, metrics: Mapping[str, Metric], objective: bool, certify: bool, sample: int | None
    ):
        self.problem, self.metrics, self.objective = problem, dict(metrics), objective
        self.certify, self.sample = certify, sample

    def row(self, s: State, seconds: float) -> dict[str, float]:
        row: dict[str, float] = {"k": s.k, "sfo": s.sfo, "seconds": seconds}
        if self.objective and self.problem.f.n is not None:
            value = self.problem.objective(s.x, s.ys)
            if value is not None:
                row["objective"] = value
        if self.certify:
            parts = certificate(self.problem, s, self.sample, seed=s.k)
            row.update(certificate=parts.total, gradient=parts.gradient)
            row.update(subdifferential=parts.subdifferential, feasibility=parts.feasibility)
            if self.sample is not None:
                row.update(certificate_high=parts.high)
        return row | {name: float(metric(s)) for name, metric in self.metrics.items()}


@contextmanager
def interruptible() -> Iterator[list[str]]:
    """Collects SIGINT and SIGTERM, unless ignored, instead of dying of them; a second SIGINT acts as usual."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number).name)
        signal.signal(number, previous[signal.Signals(number)])

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _guard(s: State, limit: float, last: State, history: History) -> None:
    size, slope = (float(torch.linalg.vector_norm(v)) for v in (s.x, s.est.v))
    if size <= limit and math.isfinite(slope):
        return
    if math.isfinite(size) and size <= limit:
        what, cause = "the gradient is not finite", "look for NaN or infinity in the data or the loss"
    else:
        what = f"|x| = {size:.3g} has exploded" if math.isfinite(size) else "x is not finite"
        cause = "the step 1/eta is likely too long for this problem: raise eta, or take smadmm.tuning.auto's"
    raise Diverged(f"{what} after iteration {s.k}; {cause}. The state of iteration {last.k} is kept", last, history)


class _Saver:
    """Writes the checkpoint every so many iterations or seconds."""

    def __init__(self, solver: Solver, path: str | os.PathLike[str] | None, iterations: int | None, seconds: float):
        self.path, self.iterations, self.seconds = path, iterations, seconds
        self.settings = checkpoints.describe(solver) if path is not None else {}
        self.last = time.monotonic()

    def due(self, k: int) -> bool:
        if self.path is None:
            return False
        if self.iterations is not None:
            return k % self.iterations == 0
        return time.monotonic() - self.last >= self.seconds

    def save(self, s: State, history: History, clock: float) -> None:
        if self.path is None:
            return
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder) or os.path.isdir(self.path):
            raise ValueError(f"the checkpoint {self.path} cannot be written: give a file in a folder that exists")
        checkpoints.save(self.path, s, self.settings, {"history": history.columns, "seconds": clock})
        self.last = time.monotonic()


def run(
    solver: Solver,
    start: Tensor | State,
    stop: Stop,
    *,
    every: int = 100,
    metrics: Mapping[str, Metric] | None = None,
    objective: bool = True,
    certify: bool = False,
    certify_sample: int | None = None,
    callback: Callable[[State], bool | None] | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_iterations: int | None = None,
    checkpoint_seconds: float = 30.0,
    resume: bool = False,
) -> Result:
    """Run a solver from x (or a state) until a stop rule holds.

    A row of history is recorded at the start, every `every` iterations and at the end. `callback(state)` may return
    True to stop. With `resume` the run continues from `checkpoint` if that file exists.
    """
    _check_arguments(solver, start, stop, every, checkpoint_iterations)
    certify = certify or stop.certificate is not None
    if certify and certify_sample is None and solver.problem.f.n is None:
        raise ValueError("a stream is certified from samples; give certify_sample, at least 32")
    recorder = _Recorder(solver.problem, metrics or {}, objective or stop.patience is not None, certify, certify_sample)
    saver = _Saver(solver, checkpoint, checkpoint_iterations, checkpoint_seconds)
    state, history, clock = _begin(solver, start, saver, resume)
    if not history.rows:
        history.append(recorder.row(state, clock))
    limit = EXPLOSION * (1 + float(torch.linalg.vector_norm(state.x)))
    reason = stop.after_step(state, clock)
    with interruptible() as signals, _bar(stop, state, progress) as bar:
        while reason is None:
            last = state
            begin = time.perf_counter()
            try:
                state = solver.step(last)
            except StreamEnded as ended:
                reason = str(ended)
                break
            clock += time.perf_counter() - begin
            _check_estimate(state, last)
            _guard_or_save(state, limit, last, history, saver, clock)
            reason = stop.after_step(state, clock)
            if callback is not None and callback(state):
                reason = reason or "stopped by the callback"
            if state.k % every == 0 or reason:
                history.append(recorder.row(state, clock))
                reason = reason or stop.after_record(history)
                _show(bar, history)
            bar.update(_progress(stop, state) - bar.n)
            if signals and not reason:
                reason = f"interrupted by {signals[0]}"
            if saver.due(state.k) and not reason:
                saver.save(state, history, clock)
    if history["k"][-1] != state.k and not reason.startswith("interrupted"):
        history.append(recorder.row(state, clock))
    saver.save(state, history, clock)
    return Result(state, history, reason)


def _check_arguments(solver: Solver, start: Any, stop: Any, every: int, checkpoint_iterations: int | None) -> None:
    if not isinstance(start, (Tensor, State)):
        raise TypeError(f"a run starts from a tensor x or a State, got {type(start).__name__}; use torch.from_numpy")
    if not isinstance(stop, Stop):
        raise TypeError(f"stop is a Stop, such as Stop(iterations=100), got {stop!r}")
    for name, value in (("every", every), ("checkpoint_iterations", checkpoint_iterations)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
    problem = solver.problem
    if stop.patience is not None and (problem.f.n is None or not all(isinstance(h, Penalty) for h in problem.hs)):
        raise ValueError("patience needs an objective, which a stream or a denoiser does not have; use another rule")


def _begin(solver: Solver, start: Tensor | State, saver: _Saver, resume: bool) -> tuple[State, History, float]:
    if resume and saver.path is None:
        raise ValueError("resume=True needs a checkpoint file; give checkpoint=path")
    if resume and saver.path is not None and os.path.exists(saver.path):
        device = start.device if isinstance(start, Tensor) else start.x.device
        state, extra = checkpoints.load(saver.path, saver.settings, device)
        return state, History(extra["history"]), extra["seconds"]
    begin = time.perf_counter()
    state = start if not isinstance(start, Tensor) else solver.init(start)
    clock = time.perf_counter() - begin
    saver.save(state, History(), clock)  # at once: a path that cannot be written to is found now, not hours later
    return state, History(), clock


def _check_estimate(s: State, last: State) -> None:
    """What an estimator may forget: to return an Estimate, and to count (a budget of gradients would never end)."""
    shape = tuple(getattr(getattr(s.est, "v", None), "shape", ()))
    if shape != tuple(s.x.shape):
        raise ValueError(
            f"an estimator's update returns an Estimate with v of shape {tuple(s.x.shape)}, "
            f"got {type(s.est).__name__} with v of shape {shape}"
        )
    if s.drawn > last.drawn and s.sfo <= last.sfo:
        raise ValueError(
            f"iteration {s.k} drew {s.drawn - last.drawn} samples, but the estimator's sfo stayed {s.sfo}; let its "
            "update return the earlier sfo plus the sample gradients it computed"
        )


def _guard_or_save(s: State, limit: float, last: State, history: History, saver: _Saver, clock: float) -> None:
    try:
        _guard(s, limit, last, history)
    except Diverged:
        saver.save(last, history, clock)
        raise


def _progress(stop: Stop, s: State) -> int:
    return s.sfo if stop.sfo is not None and stop.iterations is None else s.k


def _bar(stop: Stop, s: State, progress: bool) -> Any:
    total = stop.iterations if stop.iterations is not None else stop.sfo
    unit = "grad" if stop.sfo is not None and stop.iterations is None else "it"
    # disable=None: quiet when the output is not a terminal
    return tqdm(total=total, initial=_progress(stop, s), unit=unit, disable=None if progress else True, leave=False)


def _show(bar: Any, history: History) -> None:
    names = [
        name for name in history if name not in ("k", "sfo", "seconds", "gradient", "subdifferential", "feasibility")
    ]
    bar.set_postfix({name: f"{history[name][-1]:.4g}" for name in names[:4]}, refresh=False)
