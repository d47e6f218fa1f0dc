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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from smadmm import checkpoint as checkpoints
from smadmm.certificate import certify as certificate_of
from smadmm.distributed import from_first, largest, place, refuse_drift
from smadmm.estimators import Estimate
from smadmm.extras import needs
from smadmm.io.files import locked
from smadmm.losses.stream import Stream, StreamEnded, StreamFailed, StreamLate
from smadmm.problem import FiniteSum, Penalty, Problem
from smadmm.sampling import next_kept
from smadmm.solver import State

EXPLOSION = 1e8  # growth of |x| that counts as divergence
NOT_FINITE = "look for NaN or infinity in the data or the loss"
PARTS = ("gradient", "subdifferential", "feasibility")  # of the certificate
NAMED = 5  # samples that an error names

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


class History(Mapping[str, list[float]]):
    """Columns by name: history["objective"][-1]. Rows that lack a column hold NaN there.

    >>> history = History({"k": [0, 100], "objective": [1.0, 0.5]})
    >>> history
    History(2 rows: k, objective)
    >>> history["objective"][-1]
    0.5
    """

    def __init__(self, columns: Mapping[str, list[float]] | None = None):
        self.columns: dict[str, list[float]] = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, row: Mapping[str, float]) -> None:
        length = self.rows
        for name in row:
            self.columns.setdefault(name, [math.nan] * length)
        for name, values in self.columns.items():
            values.append(row.get(name, math.nan))

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"History({self.rows} rows: {', '.join(self.columns)})"

    def to_dataframe(self) -> Any:
        """A pandas DataFrame."""
        return needs("pandas", None, "data frames").DataFrame(self.columns)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """A CSV file with a row per record."""
        from smadmm.io.files import write_csv

        write_csv(path, [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)])

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """A JSON file of columns; it has no NaN: missing values become null."""
        from smadmm.io.files import write_json

        write_json(path, self.columns)

    def plot(self, y: str = "objective", x: str = "sfo", ax: Any = None, **line: Any) -> Any:
        """Draw one column against another; returns the matplotlib axes."""
        plt = needs("matplotlib.pyplot", "plot", "figures")
        ax = plt.figure().add_subplot() if ax is None else ax
        ax.plot(self[x], self[y], **line)
        ax.set(xlabel=x, ylabel=y)
        return ax


class Reason(Enum):
    """Why a run ended.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solve(problem, budget=60).reason is Reason.GRADIENTS
    True
    """

    ITERATIONS = "all iterations done"
    GRADIENTS = "budget of sample gradients used"
    SECONDS = "time used"
    CERTIFICATE = "certificate reached"
    PATIENCE = "no more progress in the objective"
    CALLBACK = "stopped by the callback"
    STREAM_ENDED = "the stream has ended"
    SOURCE_FAILED = "the source of the stream failed"
    INTERRUPTED = "interrupted by a signal"
    OTHER_RANK = "stopped with another rank"


class Diverged(FloatingPointError):
    """The iterates are no longer finite or explode; `state` is the last good one, `history` what was recorded.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> try:
    ...     run(ADMM(problem, SGD(3), rho=1e-9, eta=1e-9), torch.zeros(3), Stop(iterations=99), progress=False)
    ... except Diverged as error:
    ...     print(error.state.k < 99)
    True
    """

    def __init__(self, message: str, state: State, history: History):
        super().__init__(message)
        self.state, self.history = state, history


@dataclass(frozen=True, repr=False)
class Result:
    """Where a run ended, what it recorded, and why it stopped; `x` is the answer of the method.

    `best` is the state with the smallest recorded certificate, where it was recorded. `random` is that of an iteration
    drawn uniformly from all of the run, the output of which the theorems speak, where it was asked for. Both go without
    what an estimator carries beside v.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> result = solve(problem, budget=600)
    >>> result.x.shape, result.interrupted
    (torch.Size([3]), False)
    """

    state: State
    history: History
    reason: Reason
    best: State | None = None
    random: State | None = None
    notes: tuple[str, ...] = ()  # what a person should know of the data that came

    @property
    def x(self) -> Tensor:
        """The answer: the average where the method averages, the coupled point of ASVRG, else the last iterate."""
        return self.state.answer

    @property
    def interrupted(self) -> bool:
        return self.reason is Reason.INTERRUPTED

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before using the answer."""
        cut = (f"the run was interrupted after {self.state.k} iterations",) if self.interrupted else ()
        return (*cut, *self.notes)

    def __repr__(self) -> str:
        parts = [f"x {' x '.join(map(str, self.x.shape)) or 'scalar'}"]
        for column, name in (("objective", "objective"), ("certificate", "dist^2")):
            if column in self.history:
                parts.append(f"{name} {self.history[column][-1]:.6g}")
        parts.append(f"{self.state.k} iterations, {self.state.sfo} sample gradients")
        parts.append(f"{self.history['seconds'][-1]:.3g} s, {self.reason.value}")
        return f"Result({', '.join(parts)})"

    def plot(self, y: str | None = None, x: str = "sfo", ax: Any = None, **line: Any) -> Any:
        """Draw a column of the history (the objective, or what else was recorded); returns the matplotlib axes."""
        recorded = [name for name in self.history if name not in ("k", "sfo", "seconds", *PARTS)]
        if y is None and not recorded:
            raise ValueError("this run recorded nothing to draw; run it with certify=True or with metrics")
        y = y or ("objective" if "objective" in recorded else recorded[0])
        return self.history.plot(y, x, ax, **line)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """x.npy, history.csv and run.json in a folder, made if need be."""
        from smadmm.io.files import output_folder, write_array, write_json

        target = output_folder(folder)
        write_array(target / "x.npy", self.x.detach().cpu().resolve_conj().numpy())
        self.history.to_csv(target / "history.csv")
        last = {name: column[-1] for name, column in self.history.items()}
        write_json(target / "run.json", {**last, "stopped": self.reason.value, "warnings": list(self.warnings)})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run: `result` is what it had reached, which the checkpoint holds, too, where there is one.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> error = smadmm.running.Interrupted(solve(problem, budget=60))
    >>> str(error)
    'after 30 iterations'
    """

    def __init__(self, result: Result):
        super().__init__(f"after {result.state.k} iterations")
        self.result = result


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


@contextmanager
def interruptible() -> Iterator[list[signal.Signals]]:
    """Collects SIGINT and SIGTERM, unless ignored, instead of dying of them; a second one acts as usual."""
    caught: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number))
        signal.signal(number, previous[signal.Signals(number)])

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def deliver(caught: list[signal.Signals]) -> None:
    """Let the first signal that `interruptible` has collected act as usual, now that the state is kept."""
    if caught:
        signal.raise_signal(caught[0])


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
                raise Diverged(self._why_not_finite(self.state), self.state, self.history)
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
        _check_estimate(self.state, last)
        trouble = trouble_of(self.state, self.limit)
        if trouble:
            trouble = self._why_not_finite(self.state) or trouble
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

    def _why_not_finite(self, s: State) -> str:
        """Which part of the problem first gave NaN or infinity; empty where none did, and the step is to blame."""
        for h, z, y in zip(self.solver.problem.hs, s.zs, s.ys, strict=False):
            if bool(torch.isfinite(z).all()) and not bool(torch.isfinite(y).all()):
                return f"the prox of {type(h).__name__} gave values that are not finite in iteration {s.k}; look there"
        x, v, f = s.est.at, s.est.v, self.solver.problem.f
        if bool(torch.isfinite(v).all()) or not bool(torch.isfinite(x).all()):
            return ""
        what = f"the gradient is not finite after iteration {s.k}" if s.k else "the gradient is not finite at the start"
        samples = bad_samples(f, x) if isinstance(f, FiniteSum) else []
        if samples:
            listed = ", ".join(map(str, samples[:NAMED])) + (", ..." if len(samples) > NAMED else "")
            return f"{what}; look for NaN or infinity in the data of sample {listed}, or in the loss there"
        if isinstance(f, Stream):
            return f"{what}; look for NaN or infinity in the stream before sample {s.drawn}, or in the loss"
        return f"{what}; {NOT_FINITE}"

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


def _check_estimate(s: State, last: State) -> None:
    """What an estimator may forget: to return an Estimate, and to count (a budget of gradients would never end)."""
    shape = tuple(getattr(getattr(s.est, "v", None), "shape", ()))
    if shape != tuple(s.x.shape):
        raise ValueError(
            f"an estimator's update returns an Estimate with v of shape {tuple(s.x.shape)}, "
            f"got {type(s.est).__name__} with v of shape {shape}"
        )
    if s.drawn > last.drawn and s.est.sfo <= last.est.sfo:
        raise ValueError(
            f"iteration {s.k} drew {s.drawn - last.drawn} samples, but the estimator's sfo stayed {s.est.sfo}; let its "
            "update return the earlier sfo plus the sample gradients it computed"
        )


def bad_samples(f: FiniteSum, x: Tensor, most: int = NAMED + 1) -> list[int]:
    """The first samples whose gradient at x is not finite, found by halving the parts that have some."""
    waiting: list[Tensor] = [f.everything]
    found: list[int] = []
    while waiting and len(found) < most:
        part = waiting.pop()
        if bool(torch.isfinite(f.gradient((x,), (1.0,), part)).all()):
            continue
        if len(part) == 1:
            found.append(int(part))
        else:
            waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return found


def trouble_of(s: State, limit: float) -> str | None:
    """What is wrong with a state, and the likely cause."""
    size, slope = (float(torch.linalg.vector_norm(v)) for v in (s.x, s.est.v))
    if size <= limit and math.isfinite(slope):
        return None
    if math.isfinite(size) and size <= limit:
        what, cause = "the gradient is not finite", NOT_FINITE
    elif not all(bool(y.isfinite().all()) for y in s.ys):
        what, cause = "y, which a prox or denoiser made, is not finite", "look for NaN or infinity there, or raise eta"
    else:
        what = f"|x| = {size:.3g} has exploded" if math.isfinite(size) else "x is not finite"
        cause = "the step 1/eta is likely too long for this problem: raise eta, or take smadmm.tuning.auto's"
    return f"{what} after iteration {s.k}; {cause}"
