"""Learning from chunks as they come: the one-gradient form of `auto`, with its scaling from the rows seen so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from smadmm.learn.fitting import Oracle, auto_loop
from smadmm.learn.loops import Array, AutoLoop, Task
from smadmm.learn.scaling import RARE_SEEN, Columns, column_sums, metric, row_weights

BATCH = 32


class StreamFit:
    """One pair of classes, chunk after chunk; `x` is the answer so far."""

    def __init__(self, A: Any, lam1: float, loss: str, intercept: bool, compiled: bool, start: Array | None = None):
        self.A, self.lam1, self.loss, self.intercept, self.compiled = A, lam1, loss, intercept, compiled
        self.start = np.zeros(A.shape[1]) if start is None else start
        self.columns: Columns | None = None
        self.classes = np.zeros(2)  # how many of each were seen
        self.loop: AutoLoop | None = None
        self.moving = False

    def update(self, X: Any, target: Array, weight: Array) -> None:
        """Take a chunk of rows, in their order; the weights count as they are."""
        here = column_sums(X, weight)
        self.columns = here if self.columns is None else self.columns + here
        for rows in self._parts(target):
            self._advance(X[rows], target[rows], weight[rows])

    def _parts(self, target: Array) -> list[slice]:
        """The chunk, cut where enough of the rarer class were seen to leave the convex start."""
        seen = self.classes + np.stack([np.cumsum(target < 0), np.cumsum(target > 0)], 1)
        self.classes = seen[-1].astype(np.float64)
        if self.loss != "sigmoid":
            self.losses = [self.loss]
            return [slice(None)]
        rare, total = seen.min(1), seen.sum(1)
        ready = np.flatnonzero(rare >= np.minimum(RARE_SEEN, total / 4))
        first = int(ready[0]) if len(ready) else len(target)
        cuts = [(slice(0, first), "logistic"), (slice(first, len(target)), "sigmoid")]
        kept = [(rows, loss) for rows, loss in cuts if rows.start < rows.stop]
        self.losses = [loss for _, loss in kept]
        return [rows for rows, _ in kept]

    def _advance(self, X: Any, target: Array, weight: Array) -> None:
        assert self.columns is not None
        task = Task(X, target, weight, self.A, self.lam1, self.losses.pop(0), self.intercept)
        q, m = metric(self.columns, self.intercept)
        if self.loop is None:
            self.loop = auto_loop(task, self.columns, table=False, seed=0, compiled=self.compiled)
        else:
            self.loop.change_task(task, q, m, row_weights(self.A, q))
        size = min(BATCH, task.n)
        batches = np.arange(task.n - task.n % size).reshape(-1, size)
        while not self.moving and len(batches):
            self.moving, batches = self.loop.begin(self.start, batches[0], 1.0), batches[1:]
        if len(batches):
            self.loop.advance(batches)
        rest = np.arange(task.n - task.n % size, task.n)[None]
        if self.moving and rest.size:
            self.loop.advance(rest)

    @property
    def x(self) -> Array:
        return self.loop.mean[0] if self.loop is not None and self.moving else self.start

    @property
    def sfo(self) -> int:
        return self.loop.sfo if self.loop is not None else 0

    def certificate(self, X: Any, target: Array, weight: Array) -> Any:
        """On one chunk of rows."""
        task = Task(X, target, weight / weight.mean(), self.A, self.lam1, self.loss, self.intercept)
        lam = self.loop.mean[1] if self.loop is not None and self.moving else np.zeros(self.A.shape[0])
        return Oracle(task, self.compiled).certificate(self.x, lam)
