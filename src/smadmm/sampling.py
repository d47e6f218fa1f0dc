"""Randomness as a function of (seed, k), and the ways to choose samples.

`Rng(seed, k)` is a NumPy generator keyed by both numbers (Philox), so iteration k draws the same samples whenever and
wherever it runs; nothing has to be stored to resume. It also knows how many samples were drawn before (`drawn`), which
is what passes over the data and streams go by; the loop keeps that one number in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Sampling = Callable[["Rng", int, int], Indices]  # rng, n, size -> indices in 0..n-1


class _Key(ISeedSequence):
    """The key of a Philox generator, handed over as its seed: Philox(key=...) asks the system for entropy first."""

    def __init__(self, seed: int, stream: int):
        # as unsigned integers: a list with a number beyond 2^63 would become floats and lose its last digits
        self.key = np.array([seed, stream], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        return self.key


def _philox(seed: int, stream: int) -> np.random.Philox:
    key: Any = _Key(seed, stream)  # the stubs of NumPy know SeedSequence only
    return np.random.Philox(key)


class Rng(np.random.Generator):
    """The generator of iteration k, with the number of samples drawn so far."""

    def __init__(self, seed: int, k: int, drawn: int = 0):
        if seed < 0:
            raise ValueError(f"seed must be a non-negative integer, got {seed}")
        super().__init__(_philox(seed, k))
        self.seed, self.k, self.drawn = seed, k, drawn

    def take(self, size: int) -> int:
        """Count `size` more samples as drawn; returns the position of the first of them."""
        start = self.drawn
        self.drawn += size
        return start


def next_kept(seed: int, k: int) -> int:
    """When one of 1, 2, ..., K is to be kept, each with probability 1/K whatever K: the one that replaces k.

    P(next > m) = k/m, from random numbers that no iteration uses.
    """
    u = 1 - np.random.Generator(_philox(seed, 3 * 2**62 + k)).random()
    return int(k / u) + 1


def iid(rng: Rng, n: int, size: int) -> Indices:
    """Independent draws with replacement: what the theorems are about."""
    rng.take(size)
    return rng.integers(n, size=size)


@lru_cache(maxsize=4)
def _permutation(seed: int, n: int, epoch: int) -> Indices:
    return np.random.Generator(_philox(seed, 2**63 + epoch)).permutation(n)


def _wrapped(start: int, size: int, n: int, order: Callable[[int], Indices]) -> Indices:
    """Positions start, ..., start + size - 1 of the passes order(0), order(1), ... of length n laid end to end."""
    pieces = []
    while size > 0:
        epoch, offset = divmod(start, n)
        piece = order(epoch)[offset : offset + size]
        pieces.append(piece)
        start, size = start + len(piece), size - len(piece)
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def reshuffled(rng: Rng, n: int, size: int) -> Indices:
    """Passes over the data, each in a new random order: every sample once per pass."""
    return _wrapped(rng.take(size), size, n, lambda epoch: _permutation(rng.seed, n, epoch))


def pass_batches(seed: int, n: int, size: int, first: int, count: int) -> Indices:
    """The batches `first`, ..., `first + count - 1` that a solver with this seed draws by `reshuffled`, one per row."""
    order = _wrapped(first * size, count * size, n, lambda epoch: _permutation(seed, n, epoch))
    return order.reshape(count, size)


def run_batches(seed: int, n: int, size: int, first: int, count: int) -> Indices:
    """The same for `runs`."""
    starts = run_starts(seed, n, size, first, count)
    batches: Indices = starts[:, None] + np.arange(size)
    batches[starts + size > n] %= n  # a division an entry only where a run passes the end
    return batches


def run_starts(seed: int, n: int, size: int, first: int, count: int) -> Indices:
    """The first samples of `run_batches`; sample n is sample 0 again."""
    each = max(1, n // size)
    passes = range(first // each, -(-(first + count) // each))
    starts = [_run_starts(seed, n, size, epoch) for epoch in passes] or [np.empty(0, dtype=np.int64)]
    skip = first - passes.start * each
    return np.concatenate(starts)[skip : skip + count]


@lru_cache(maxsize=4)
def _run_starts(seed: int, n: int, size: int, epoch: int) -> Indices:
    rng = np.random.Generator(_philox(seed, 2**63 + 2**62 + epoch))
    starts: Indices = (rng.permutation(max(1, n // size)) * size + rng.integers(n)) % n
    return starts


def runs(rng: Rng, n: int, size: int) -> Indices:
    """Runs of consecutive samples, in a new order and from a new offset every pass.

    For data that were shuffled beforehand: they are read in sequence, which is quicker.
    """
    batch: Indices = run_batches(rng.seed, n, size, rng.take(size) // size, 1)[0]
    return batch


def stride(rng: Rng, n: int, size: int) -> Indices:
    """Equispaced samples from a random offset: floor((j + u) n/size), j = 0..size-1; offsets differ within a pass.

    Every sample is equally likely; where size divides n, each comes once per pass. Batches are not independent, so this
    is outside the theorems; for views of a tomograph it is the better choice.
    """
    batches = -(-n // size)
    epoch, batch = divmod(rng.take(size) // size, batches)
    u = (_permutation(rng.seed, batches, epoch)[batch] + rng.random()) / batches
    views: Indices = np.minimum((np.arange(size) + u) * (n / size), n - 1).astype(np.int64)
    return views


@lru_cache(maxsize=4)
def _golden_order(n: int) -> Indices:
    golden = (np.sqrt(5) - 1) / 2
    return np.argsort(np.argsort(np.arange(n) * golden % 1, kind="stable"), kind="stable")


def golden(rng: Rng, n: int, size: int) -> Indices:
    """Passes in steps of the golden section: any few samples in a row are spread evenly, every sample once per pass."""

    def order(epoch: int) -> Indices:
        turned: Indices = (_golden_order(n) + _permutation(rng.seed, n, epoch)[0]) % n
        return turned

    return _wrapped(rng.take(size), size, n, order)


class Ordered:
    """The user's order of samples, repeated."""

    def __init__(self, order: Sequence[int]):
        self.order: Indices = np.asarray(order, dtype=np.int64)
        if self.order.ndim != 1 or not len(self.order):
            raise ValueError(f"an order is a non-empty list of sample numbers, got shape {self.order.shape}")

    def __call__(self, rng: Rng, n: int, size: int) -> Indices:
        if self.order.min() < 0 or self.order.max() >= n:
            raise ValueError(f"the order names sample {self.order.max()}, but there are only {n}")
        return _wrapped(rng.take(size), size, len(self.order), lambda epoch: self.order)
