"""Losses on a stream: batches from an iterator, a generator or a torch DataLoader, finite or endless.

A stream is read once, in order; the loop says how many samples it has used, so a resumed run continues at the right
sample: a source that can be iterated again (a list, a DataLoader in fixed order) is read forward to it, and an iterator
that has moved past it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from smadmm.losses.autograd import autograd_gradient
from smadmm.problem import Batch, Loss
from smadmm.sampling import Rng

Gradient = Callable[[Sequence[Tensor], Sequence[float], Any], Tensor]


class StreamEnded(RuntimeError):
    """The source has no more samples."""


class Stream(Loss):
    """E f(x, xi) with xi from `source`: items are tensors, or tuples of tensors, with one row a sample.

    `value(x, batch)` is the mean over a batch of such rows; `gradient` defaults to automatic differentiation.
    Items of any length are cut and joined to the batch size that the estimator asks for.
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
        self._read(start - self._position)
        parts = self._read(size)
        columns = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        batch = columns if self._tuples else columns[0]
        self._last = (start, size, batch)
        return batch

    def _rewind(self, start: int) -> None:
        if isinstance(self.source, Iterator):
            raise ValueError(
                f"the stream is at sample {self._position} and cannot go back to {start}; "
                "give a source that can be iterated again (a list, a DataLoader), or start a new run"
            )
        self._iterator, self._buffer, self._position = None, [], 0

    def _read(self, count: int) -> list[tuple[Tensor, ...]]:
        """The next `count` samples, as pieces."""
        if self._iterator is None:
            self._iterator = iter(self.source)
        pieces: list[tuple[Tensor, ...]] = []
        while count > 0:
            if not self._buffer:
                self._buffer.append(self._next())
            item = self._buffer.pop()
            length = len(item[0])
            if length > count:
                self._buffer.append(tuple(t[count:] for t in item))
                item, length = tuple(t[:count] for t in item), count
            pieces.append(item)
            count -= length
            self._position += length
        return pieces

    def _next(self) -> tuple[Tensor, ...]:
        assert self._iterator is not None
        try:
            item = next(self._iterator)
        except StopIteration:
            raise StreamEnded(f"the stream ended after {self._position} samples") from None
        self._tuples = not isinstance(item, Tensor)
        return tuple(item) if self._tuples else (item,)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        return self.function(x, batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        if self.exact_gradient is not None:
            return self.exact_gradient(points, weights, batch)
        return autograd_gradient(self.function, points, weights, batch)
