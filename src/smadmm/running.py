"""run(): the loop with a clock, metrics, stop rules, a divergence guard and checkpoints.

The clock counts the steps alone: metrics, checkpoints and the progress bar are outside it, and metrics are outside the
count of sample gradients. A run that was stopped - by a rule, by Ctrl-C, SIGTERM, or killed - continues from its
checkpoint exactly as if it had never stopped.

A signal takes effect as it would without run(), only after the state is kept: Ctrl-C raises KeyboardInterrupt, SIGTERM
ends the program, and a handler of your own is called; if that returns, so does run(), with what it has.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from smadmm import checkpoint as checkpoints
from smadmm.bars import tqdm
from smadmm.certificate import certify as certificate_of
from smadmm.distributed import from_first, largest, place, refuse_drift
from smadmm.estimators import Estimate
from smadmm.guard import EXPLOSION, check_estimate, trouble_of, why_not_finite
from smadmm.io.files import locked
from smadmm.losses.stream import Stream, StreamEnded, StreamFailed, StreamLate
from smadmm.problem import Penalty, Problem
from smadmm.records import PARTS, History
from smadmm.results import Diverged, Interrupted, Reason, Result
from smadmm.sampling import next_kept
from smadmm.signals import deliver, interruptible
from smadmm.solver import State

T = TypeVar("T")
Measure = Callable[[Any], float]  # a state -> a number for the history


class Solver(Protocol):
    """What run() needs: ADMM has it, and so may a method of your own."""

    @property
    def problem(self) -> Problem: ...
    @property
    def seed(self) -> int: ...
    def init(self, x: Tensor) -> State: ...
    def step(self, s: State) -> State: ...


@dataclass(frozen=True)
class Stop:
    """Stop rules; the first that holds ends the run.

    `certificate` and `patience` are looked at when metrics are recorded. Patience counts records in which the mean of
    the objective over a window of that many records did not fall below the best earlier such mean.

    >>> Stop(iterations=1000, seconds=60)
    Stop(iterations=1000, sfo=None, seconds=60, certificate=None, patience=None)
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

    def after_step(self, s: State, seconds: float) -> Reason | None:
        if self.iterations is not None and s.k >= self.iterations:
            return Reason.ITERATIONS
        if self.sfo is not None and s.sfo >= self.sfo:
            return Reason.GRADIENTS
        if self.seconds is not None and seconds >= self.seconds:
            return Reason.SECONDS
        return None

    def after_record(self, history: History) -> Reason | None:
        if self.certificate is not None and _certified(history)[-1] <= self.certificate:
            return Reason.CERTIFICATE
        if self.patience is not None and history.rows >= 3 * self.patience:
            values, window = history["objective"], self.patience
            means = [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
            if min(means[-window:]) >= min(means[:-window]):
                return Reason.PATIENCE
        return None


def _certified(history: History) -> list[float]:
    """What certificates are judged by: the upper ends of sampled ones."""
    return history["certificate_high" if "certificate_high" in history else "certificate"]


@dataclass(frozen=True)
class Recorder:
    """Makes the rows of a history, outside the clock: at the answer of the method."""

    problem: Problem
    metrics: Mapping[str, Measure]
    objective: bool
    certify: bool
    sample: int | None

    def row(self, s: State, seconds: float, costly: bool = True) -> dict[str, float]:
        """Without what is `costly`: the objective and the certificate."""
        row: dict[str, float] = {"k": s.k, "sfo": s.sfo, "seconds": seconds}
        if costly and self.objective and self.problem.f.n is not None:
            zs = s.zs if s.mean is None else ()  # the value of a denoiser is known at the last y, not at averages
            value = self.problem.objective(s.answer, s.ys, zs, s.rs)
            if value is not None:
                row["objective"] = value
        if costly and self.certify:
            averaged = s.mean is not None and self.problem.explicit
            parts = certificate_of(self.problem, s, self.sample, averaged=averaged, seed=s.k)
            row.update(certificate=parts.total, gradient=parts.gradient)
            row.update(subdifferential=parts.subdifferential, feasibility=parts.feasibility)
            if self.sample is not None:
                row.update(certificate_high=parts.high)
        return row | {name: float(metric(s)) for name, metric in self.metrics.items()}


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

    def save(self, s: State, extra: Mapping[str, Any], others: Mapping[str, State]) -> None:
        if self.path is None or place()[0]:
            return
        checkpoints.save(self.path, s, self.settings, extra, others)
        self.last = time.monotonic()


def _without_tables(s: State) -> State:
    """The state to keep, not to go on from: of an estimate v, its point and its price."""
    return replace(s, est=Estimate(s.est.v, s.est.at, s.est.sfo))


class _Ends(Exception):
    """A run is to end while it waits for data."""

    def __init__(self, reason: Reason):
        super().__init__(reason.value)
        self.reason = reason


class _Running:
    """A run under way: its state, history and clock, and the states that it keeps (`best`, `random`)."""

    def __init__(self, solver: Solver, stop: Stop, recorder: Recorder, saver: _Saver, random: bool, sparse: int):
        self.solver, self.stop, self.recorder, self.saver, self.sparse = solver, stop, recorder, saver, sparse
        self.history, self.clock, self.lowest = History(), 0.0, math.inf
        self.kept: dict[str, State] = {}
        self.signals: list[signal.Signals] = []
        self.notes: tuple[str, ...] = ()
        self.next = 1 if random else 0  # the iteration of this run that becomes `random`

    def begin(self, start: Tensor | State, resume: bool) -> None:
        path = self.saver.path
        if resume and path is None:
            raise ValueError("resume=True needs a checkpoint file; give checkpoint=path")
        if resume and path is not None and from_first(lambda: b"there" if os.path.exists(path) else b""):
            device = (start if isinstance(start, Tensor) else start.x).device
            content = from_first(lambda: Path(path).read_bytes())
            self.state, extra = checkpoints.parse(content, path, self.saver.settings, device)
            self.history, self.clock = History(extra["history"]), extra["seconds"]
            self.first, self.notes = extra.get("first", 0), tuple(extra.get("notes", ()))
            self._keep_on(extra)
        else:
            self.state = self._patiently(lambda: start if not isinstance(start, Tensor) else self.solver.init(start))
            self.first = self.state.k
            if not bool(torch.isfinite(self.state.est.v).all()):
                raise Diverged(why_not_finite(self.solver.problem, self.state), self.state, self.history)
            self.save()  # at once: a path that cannot be written to is found now, not hours later
        if not self.history.rows:
            self.record()
        self.limit = EXPLOSION * (1 + float(torch.linalg.vector_norm(self.state.x)))

    def _keep_on(self, extra: Mapping[str, Any]) -> None:
        """What the checkpoint kept; a random iterate can be drawn from all iterations or not at all."""
        f, bookmark = self.solver.problem.f, extra.get("stream")
        if bookmark is not None and isinstance(f, Stream):
            f.reopen(bookmark)
        self.kept = {name: extra[name] for name in ("best", "random") if name in extra}
        if "best" in self.kept:
            self.lowest = min(value for value in _certified(self.history) if not math.isnan(value))
        if not self.next:
            self.kept.pop("random", None)
        elif "random" in self.kept:
            self.next = next_kept(self.solver.seed, self.kept["random"].k - self.first)
        elif self.state.k > self.first:
            raise ValueError(f"{self.saver.path} was written without random_iterate; go on without it, or start anew")

    def step(self) -> Reason | None:
        """One iteration, timed and checked."""
        last = self.state
        try:
            self.state = self._patiently(lambda: self.solver.step(last))
        except StreamEnded:
            return Reason.STREAM_ENDED
        except _Ends as end:
            return end.reason
        except Exception:  # of the source, or of a rank that is lost
            self.save()
            raise
        check_estimate(self.state, last)
        trouble = trouble_of(self.state, self.limit)
        if trouble:
            trouble = why_not_finite(self.solver.problem, self.state) or trouble
            self.state = last
            self.save()
            raise Diverged(f"{trouble}. The state of iteration {last.k} is kept", last, self.history)
        done = self.state.k - self.first
        if done == self.next:
            self.kept["random"], self.next = _without_tables(self.state), next_kept(self.solver.seed, done)
        return self.stop.after_step(self.state, self.clock)

    def _patiently(self, work: Callable[[], T], timed: bool = True) -> T:
        """The work, tried again while its data are late, unless there is a reason to stop."""
        while True:
            begin = time.perf_counter()
            try:
                return work()
            except StreamLate:
                timed = True  # the wait for data counts, whatever they are for
                spent = self.clock + time.perf_counter() - begin
                if self.signals:
                    raise _Ends(Reason.INTERRUPTED) from None
                if self.stop.seconds is not None and self.history.rows and spent >= self.stop.seconds:
                    raise _Ends(Reason.SECONDS) from None
            finally:
                self.clock += time.perf_counter() - begin if timed else 0.0

    def record(self, last: bool = False) -> Reason | None:
        refuse_drift(self.state.x, self.state.k)
        costly = last or self.history.rows % self.sparse == 0
        try:
            row = self._patiently(lambda: self.recorder.row(self.state, self.clock, costly), timed=False)
        except _Ends as end:
            return end.reason
        self.history.append(row)
        if costly and self.recorder.certify and _certified(self.history)[-1] < self.lowest:
            self.kept["best"], self.lowest = _without_tables(self.state), _certified(self.history)[-1]
        return self.stop.after_record(self.history) if costly and self.state.k else None

    def save(self) -> None:
        f = self.solver.problem.f
        extra = {"history": self.history.columns, "seconds": self.clock, "first": self.first}
        if isinstance(f, Stream):
            self.notes = f.notes or self.notes
            extra |= {"notes": self.notes, "stream": f.bookmark(self.state.drawn)}
        self.saver.save(self.state, extra, self.kept)

    def result(self, reason: Reason) -> Result:
        best, random = self.kept.get("best"), self.kept.get("random")
        return Result(self.state, self.history, reason, best, random, self.notes)

    @property
    def in_gradients(self) -> bool:
        """Whether progress is counted in sample gradients, not in iterations."""
        return self.stop.sfo is not None and self.stop.iterations is None

    @property
    def progress(self) -> int:
        return self.state.sfo if self.in_gradients else self.state.k

    def bar(self, shown: bool) -> Any:
        total = self.stop.sfo if self.in_gradients else self.stop.iterations
        unit = "grad" if self.in_gradients else "it"
        # disable=None: quiet when the output is not a terminal
        hidden = None if shown and place()[0] == 0 else True
        return tqdm(total=total, initial=self.progress, unit=unit, disable=hidden, leave=False)

    def show(self, bar: Any) -> None:
        names = [name for name in self.history if name not in ("k", "sfo", "seconds", *PARTS)]
        bar.set_postfix({name: f"{self.history[name][-1]:.4g}" for name in names[:4]}, refresh=False)


def run(
    solver: Solver,
    start: Tensor | State,
    stop: Stop,
    *,
    every: int = 100,
    metrics: Mapping[str, Measure] | None = None,
    objective: bool = True,
    certify: bool = False,
    certify_sample: int | None = None,
    sparse: int = 1,
    random_iterate: bool = False,
    callback: Callable[[State], bool | None] | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_iterations: int | None = None,
    checkpoint_seconds: float = 30.0,
    resume: bool = False,
) -> Result:
    """Run a solver from x (or a state) until a stop rule holds.

    A row of history is recorded at the start, every `every` iterations and at the end. `callback(state)` may return
    True to stop. With `resume` the run continues from `checkpoint` if that file exists. The objective and the
    certificate, which cost full gradients, are in every `sparse`-th row and in the last. `random_iterate` keeps the
    state of an iteration drawn at random: `Result.random`. A checkpoint that exists is refused without `resume`. After
    Ctrl-C the state is kept and `Interrupted`, a KeyboardInterrupt, is raised.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solver = ADMM(problem, Spider(batch=3, every=1), rho=1.0, eta=1.0)
    >>> run(solver, torch.zeros(3), Stop(certificate=1e-6), every=10, progress=False).reason
    <Reason.CERTIFICATE: 'certificate reached'>
    """
    _check_arguments(
        solver, start, stop, {"every": every, "sparse": sparse, "checkpoint_iterations": checkpoint_iterations}
    )
    certify = certify or stop.certificate is not None
    if certify and certify_sample is None and solver.problem.f.n is None:
        raise ValueError("a stream is certified from samples; give certify_sample, at least 32")
    recorder = Recorder(solver.problem, metrics or {}, objective or stop.patience is not None, certify, certify_sample)
    saver = _Saver(solver, checkpoint, checkpoint_iterations, checkpoint_seconds)
    running = _Running(solver, stop, recorder, saver, random_iterate, sparse)
    with _alone(checkpoint, solver.problem.f, resume):
        running.begin(start, resume)
        reason, signals = _advance(running, every, callback, progress)
    result = running.result(reason)
    try:
        deliver(signals)
    except KeyboardInterrupt:
        raise Interrupted(result) from None
    if result.interrupted and not signals:  # another rank was
        raise Interrupted(result)
    return result


@contextmanager
def _alone(path: str | os.PathLike[str] | None, f: Any, resume: bool) -> Iterator[None]:
    """The checkpoint for this run alone; of several ranks the first looks, and what it finds stops all."""
    with ExitStack() as held:

        def look() -> bytes:
            if path is not None:
                _refuse_to_lose(path, f, resume)
                held.enter_context(locked(path))
            return b""

        from_first(look)
        yield


def _refuse_to_lose(path: str | os.PathLike[str], f: Any, resume: bool) -> None:
    """Refuse a checkpoint that cannot be written, would be lost, or could not be resumed exactly."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))) or os.path.isdir(path):
        raise ValueError(f"the checkpoint {path} cannot be written: give a file in a folder that exists")
    if os.path.exists(path) and not resume:
        raise ValueError(f"the checkpoint {path} exists; go on with it by resume=True, remove it, or choose another")
    if isinstance(f, Stream):
        f.refuse_random_order()


def _advance(
    running: _Running, every: int, callback: Callable[[State], bool | None] | None, progress: bool
) -> tuple[Reason, list[signal.Signals]]:
    """Iterate until there is a reason to stop, then record and save."""
    reason = agreed(running.stop.after_step(running.state, running.clock))
    with interruptible() as running.signals, running.bar(progress) as bar:
        while reason is None:
            try:
                reason = running.step()
            except StreamFailed as error:
                error.result = running.result(Reason.SOURCE_FAILED)
                raise
            if reason is Reason.STREAM_ENDED:
                break
            if callback is not None and callback(running.state):
                reason = reason or Reason.CALLBACK
            reason = agreed(reason or (Reason.INTERRUPTED if running.signals else None))
            ends = reason is not None and reason is not Reason.INTERRUPTED
            if running.state.k % every == 0 or ends:
                reached = running.record(last=ends)
                reason = reason or reached
                running.show(bar)
            bar.update(running.progress - bar.n)
            if running.saver.due(running.state.k) and not reason:
                running.save()
    if running.history["k"][-1] != running.state.k and reason is not Reason.INTERRUPTED:
        running.record(last=True)
    running.save()
    return reason, running.signals


def agreed(reason: Reason | None) -> Reason | None:
    """What stops one rank stops all, after the same iteration."""
    kind = 0 if reason is None else 2 if reason is Reason.INTERRUPTED else 1
    shared = largest(kind)
    return reason if shared == kind else Reason.INTERRUPTED if shared == 2 else Reason.OTHER_RANK


def _check_arguments(solver: Solver, start: Any, stop: Any, counts: Mapping[str, int | None]) -> None:
    if not isinstance(start, (Tensor, State)):
        raise TypeError(f"a run starts from a tensor x or a State, got {type(start).__name__}; use torch.from_numpy")
    if not isinstance(stop, Stop):
        raise TypeError(f"stop is a Stop, such as Stop(iterations=100), got {stop!r}")
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
    if not bool(torch.isfinite(start if isinstance(start, Tensor) else start.x).all()):
        raise ValueError("the first x holds NaN or infinity; start from finite numbers, such as torch.zeros")
    problem = solver.problem
    if stop.patience is not None and (problem.f.n is None or not all(isinstance(h, Penalty) for h in problem.hs)):
        raise ValueError("patience needs an objective, which a stream or a denoiser does not have; use another rule")
    if stop.patience is not None and counts["sparse"] != 1:
        raise ValueError("patience looks at the objective in every row; leave sparse at 1")
