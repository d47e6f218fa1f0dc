"""Losses on a stream: batches from an iterator, a generator or a torch DataLoader, finite or endless.

A stream is read once, in order; the loop says how many samples it has used, so a resumed run continues at the right
sample. How a source gets there:

    start(sample)               it seeks: returns an iterable of the items from that sample on (losses/sources.py)
    state_dict, load_state_dict it is told its own state, which the checkpoint keeps (StatefulDataLoader)
    iterated again              a list, a DataLoader in fixed order: it is read forward, what comes before is dropped
    an iterator                 the same, once; one that has moved past the sample is refused
    live=True                   it cannot go back: the run goes on with what comes, and its result says so

Items are asked for in a thread of their own, one at a time, so that a run can look at its stop rules and at signals
while data are late.
"""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from smadmm.distributed import place
from smadmm.losses.autograd import autograd_gradient
from smadmm.problem import Batch, Loss
from smadmm.sampling import Rng

SHUFFLED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
Gradient = Callable[[Sequence[Tensor], Sequence[float], Any], Tensor]


class StreamEnded(RuntimeError):
    """The source has no more samples.

    >>> issubclass(losses.StreamEnded, Exception)
    True
    """


class StreamLate(RuntimeError):
    """The next samples have not come yet; asking again goes on waiting for them."""


class StreamFailed(RuntimeError):
    """The source raised an error, which is the cause of this one; `result` is what the run had reached, if it had.

    >>> f = losses.Stream(lambda x, batch: (x - batch).square().mean(), (1 / 0 for _ in range(3)))
    >>> try:
    ...     f.samples(seed=0, groups=1, size=4)
    ... except losses.StreamFailed as error:
    ...     print(error)
    the source of the stream failed after 0 samples: ZeroDivisionError: division by zero
    """

    result: Any = None


@runtime_checkable
class Seekable(Protocol):
    """A source that can begin at any sample."""

    def start(self, sample: int) -> Iterable[Any]: ...


@runtime_checkable
class Stateful(Protocol):
    """A source that knows where it is, as torchdata's StatefulDataLoader does."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _Reader:
    """next(iterator) in a thread, one item at a time, when asked: waiting can be given up and taken up again."""

    def __init__(self, iterator: Iterator[Any]):
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting = False
        threading.Thread(target=_serve, args=(iterator, self._asked, self._given), daemon=True).start()
        weakref.finalize(self, self._asked.put, False)

    def next(self, seconds: float | None) -> Any:
        if not self._waiting:
            self._asked.put(True)
            self._waiting = True
        try:
            item, error = self._given.get(timeout=seconds)
        except queue.Empty:
            raise StreamLate(f"no samples came within {seconds} s") from None
        self._waiting = False
        if error is not None:
            raise error
        return item


def _serve(iterator: Iterator[Any], asked: queue.SimpleQueue[bool], given: queue.SimpleQueue[Any]) -> None:
    while asked.get():
        try:
            given.put((next(iterator), None))
        except BaseException as error:  # the thread that waits for the item raises it
            given.put((None, error))


def _plain(state: Any) -> Any:
    """The state of a source as JSON can hold it."""
    if isinstance(state, dict):
        return {"entries": [[key, _plain(value)] for key, value in state.items()]}
    if isinstance(state, (list, tuple)):
        return [_plain(value) for value in state]
    if isinstance(state, Tensor):
        return {"tensor": state.tolist(), "dtype": str(state.dtype).removeprefix("torch.")}
    if isinstance(state, bytes):
        return {"bytes": state.hex()}
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise TypeError(f"the state of the source holds a {type(state).__name__}, which a checkpoint cannot keep")


def _restored(state: Any) -> Any:
    if isinstance(state, list):
        return [_restored(value) for value in state]
    if not isinstance(state, dict):
        return state
    if "entries" in state:
        return {key: _restored(value) for key, value in state["entries"]}
    if "bytes" in state:
        return bytes.fromhex(state["bytes"])
    return torch.tensor(state["tensor"], dtype=getattr(torch, state["dtype"]))


class Stream(Loss):
    """E f(x, xi) with xi from `source`: items are tensors, or tuples of tensors, with one row per sample.

    `value(x, batch)` is the mean over a batch of such rows; `gradient` defaults to automatic differentiation.
    Items of any length are cut and joined to the batch size that the estimator asks for. `live` is for a source that
    cannot go back, such as a sensor. While data are late, a run looks at its stop rules every `wait` seconds.

    >>> chunks = (torch.randn(8, 3) for _ in range(10))
    >>> f = losses.Stream(lambda x, batch: (x - batch).square().mean(), chunks)
    >>> print(f.n)
    None
    """

    def __init__(
        self,
        value: Callable[[Tensor, Any], Tensor],
        source: Iterable[Any],
        gradient: Gradient | None = None,
        *,
        live: bool = False,
        wait: float = 1.0,
    ):
        if not wait > 0:
            raise ValueError(f"wait is the seconds between two looks at the stop rules, above 0, got {wait}")
        self.function, self.source, self.exact_gradient = value, source, gradient
        self._live, self._wait = live, wait
        self._reader: _Reader | None = None
        self._buffer: list[tuple[Tensor, ...]] = []
        self._position = 0  # of the first sample in the buffer
        self._marks: list[tuple[int, Any]] = []  # where items began, and the state of the source there
        self._tuples = True
        self._last: tuple[int, int, Batch] | None = None
        self._joined: int | None = None  # the sample at which a run went on with what came

    def draw(self, rng: Rng, size: int) -> Batch:
        start = rng.take(size)
        if self._last is not None and self._last[:2] == (start, size):
            return self._last[2]  # the same step once more
        if start != self._position:
            self._seek(start)
        self._fill(size)
        batch = self._join(self._cut(size))
        self._last = (start, size, batch)
        return batch

    def samples(self, seed: int, groups: int, size: int) -> list[Batch]:
        """The samples that come next; they stay in the stream, to be drawn later."""
        self._fill(groups * size)
        kept, position = list(self._buffer), self._position
        batches = [self._join(self._cut(size)) for _ in range(groups)]
        self._buffer, self._position = kept, position
        return batches

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of a run on this stream."""
        if self._joined is None:
            return ()
        return (f"the stream is live: from sample {self._joined} on the run used what came after it was resumed",)

    def refuse_random_order(self) -> None:
        """Refuse a DataLoader that shuffles: read again, it gives other samples, and no run resumes exactly."""
        sampler = getattr(self.source, "sampler", None)
        batches = getattr(getattr(self.source, "batch_sampler", None), "sampler", None)
        if isinstance(self.source, Stateful) or self._live:
            return
        if isinstance(sampler, SHUFFLED) or isinstance(batches, SHUFFLED):
            raise ValueError(
                "a DataLoader(shuffle=True) gives another order each time, so a run on it cannot resume exactly; "
                "shuffle the data set once and set shuffle=False, or leave checkpoint out"
            )

    # --- where the source stands

    def bookmark(self, sample: int) -> tuple[int, Any] | None:
        """Where the item of this sample began and the state of the source there, if it has one; JSON can hold it."""
        return next((mark for mark in reversed(self._marks) if mark[0] <= sample), None)

    def reopen(self, bookmark: tuple[int, Any]) -> None:
        """Take the source to a bookmark."""
        assert isinstance(self.source, Stateful)  # the checkpoint would have refused another source
        position, state = bookmark
        self.source.load_state_dict(_restored(state))
        self._open(self.source, position)

    def _forget(self) -> None:
        """Drop the marks before that of the sample which a run may have to go back to."""
        needed = self._position if self._last is None else self._last[0]
        before = [mark for mark in self._marks if mark[0] <= needed]
        self._marks = before[-1:] + self._marks[len(before) :]

    def _open(self, items: Iterable[Any], position: int) -> None:
        self._reader, self._buffer, self._position = _Reader(iter(items)), [], position
        self._marks, self._last = [], None

    def _seek(self, start: int) -> None:
        """To sample `start`; what lies before it is not kept."""
        if self._live:
            self._joined = start if start else self._joined
            self._position = start
            return
        if isinstance(self.source, Seekable) and not self._position <= start <= self._position + self._held:
            self._open(self.source.start(start), start)
            return
        if start < self._position:
            self._rewind(start)
        if isinstance(self.source, Iterator) and start > self._position + self._held:
            warnings.warn(
                f"the run goes on at sample {start}: of the stream, which is at sample {self._position}, all before it "
                "is read and dropped; give live=True to go on with what comes, or a source with start(sample)",
                stacklevel=2,
            )
        while self._position < start:
            self._fill(1)
            self._cut(min(self._held, start - self._position))

    def _rewind(self, start: int) -> None:
        self.refuse_random_order()
        if isinstance(self.source, Iterator):
            raise ValueError(
                f"the stream is at sample {self._position} and cannot go back to {start}; give a source that can be "
                "iterated again (a list, a DataLoader) or has start(sample), or live=True to go on with what comes"
            )
        self._open(self.source, 0)

    # --- reading

    @property
    def _held(self) -> int:
        return sum(len(item[0]) for item in self._buffer)

    def _fill(self, count: int) -> None:
        """Read until the buffer holds `count` samples."""
        held = self._held
        while held < count:
            rows = self._rows(self._next(self._position + held))
            self._buffer.append(rows)
            held += len(rows[0])

    def _next(self, sample: int) -> Any:
        """The next item, which begins with this sample."""
        if self._reader is None:
            self._open(self.source.start(0) if isinstance(self.source, Seekable) else self.source, self._position)
        assert self._reader is not None
        if isinstance(self.source, Stateful) and (not self._marks or self._marks[-1][0] < sample):
            self._forget()
            self._marks.append((sample, _plain(self.source.state_dict())))
        try:
            # ranks wait for data: a step that one of them begins anew would ask the others for what they have sent
            return self._reader.next(self._wait if place()[1] == 1 else None)
        except StreamLate:
            raise
        except StopIteration:
            raise StreamEnded(f"the stream ended after {sample} samples") from None
        except Exception as error:
            told = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise StreamFailed(f"the source of the stream failed after {sample} samples: {told}") from error

    def _rows(self, item: Any) -> tuple[Tensor, ...]:
        """An item of the source as a tuple of tensors with one row per sample."""
        single = isinstance(item, (Tensor, np.ndarray))
        if not single and not isinstance(item, (tuple, list)):
            raise TypeError(f"a stream gives tensors or tuples of them, one row per sample, got {type(item).__name__}")
        rows = tuple(torch.as_tensor(part) for part in ((item,) if single else item))
        if any(part.ndim == 0 or len(part) != len(rows[0]) for part in rows):
            raise ValueError(
                f"the parts of a stream's item have shapes {[tuple(p.shape) for p in rows]}; rows must match"
            )
        self._tuples = not single
        return rows

    def _cut(self, count: int) -> list[tuple[Tensor, ...]]:
        """Take `count` samples from the front of the buffer, as pieces."""
        pieces: list[tuple[Tensor, ...]] = []
        self._position += count
        while count > 0:
            item = self._buffer.pop(0)
            if len(item[0]) > count:
                self._buffer.insert(0, tuple(part[count:] for part in item))
                item = tuple(part[:count] for part in item)
            pieces.append(item)
            count -= len(item[0])
        return pieces

    def _join(self, pieces: list[tuple[Tensor, ...]]) -> Batch:
        columns = tuple(torch.cat(column) for column in zip(*pieces, strict=True))
        return columns if self._tuples else columns[0]

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        return self.function(x, batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        if self.exact_gradient is not None:
            return self.exact_gradient(points, weights, batch)
        return autograd_gradient(self.function, points, weights, batch)
