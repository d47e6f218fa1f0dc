"""Losses on a stream: batches from an iterator, a generator or a torch DataLoader, finite or endless.

A stream is read once, in order; the loop says how many samples it has used, so a resumed run continues at the right
sample: a source that can be iterated again (a list, a DataLoader in fixed order) is read forward to it, and an iterator
that has moved past it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

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


class Stream(Loss):
    """E f(x, xi) with xi from `source`: items are tensors, or tuples of tensors, with one row per sample.

    `value(x, batch)` is the mean over a batch of such rows; `gradient` defaults to automatic differentiation.
    Items of any length are cut and joined to the batch size that the estimator asks for.

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
    ):
        self.function, self.source, self.exact_gradient = value, source, gradient
        self._iterator: Iterator[Any] | None = None
        self._buffer: list[tuple[Tensor, ...]] = []
        self._position = 0  # of the first sample in the buffer
        self._tuples = True
        self._last: tuple[int, int, Batch] | None = None

    def draw(self, rng: Rng, size: int) -> Batch:
        start = rng.take(size)
        if self._last is not None and self._last[:2] == (start, size):
            return self._last[2]  # the same step once more
        if start < self._position:
            self._rewind(start)
        self._fill(start - self._position + size)
        self._cut(start - self._position)
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

    def refuse_random_order(self) -> None:
        """Refuse a DataLoader that shuffles: read again, it gives other samples, and no run resumes exactly."""
        sampler = getattr(self.source, "sampler", None)
        batches = getattr(getattr(self.source, "batch_sampler", None), "sampler", None)
        if isinstance(sampler, SHUFFLED) or isinstance(batches, SHUFFLED):
            raise ValueError(
                "a DataLoader(shuffle=True) gives another order each time, so a run on it cannot resume exactly; "
                "shuffle the data set once and set shuffle=False, or leave checkpoint out"
            )

    def _rewind(self, start: int) -> None:
        self.refuse_random_order()
        if isinstance(self.source, Iterator):
            raise ValueError(
                f"the stream is at sample {self._position} and cannot go back to {start}; "
                "give a source that can be iterated again (a list, a DataLoader), or start a new run"
            )
        self._iterator, self._buffer, self._position = None, [], 0

    def _fill(self, count: int) -> None:
        """Read until the buffer holds `count` samples."""
        if self._iterator is None:
            self._iterator = iter(self.source)
        held = sum(len(item[0]) for item in self._buffer)
        while held < count:
            try:
                item = next(self._iterator)
            except StopIteration:
                raise StreamEnded(f"the stream ended after {self._position + held} samples") from None
            self._buffer.append(self._rows(item))
            held += len(self._buffer[-1][0])

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
