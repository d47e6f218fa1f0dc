"""Learning from chunks as they come: the one-gradient form of `auto`, with its scaling from the rows seen so far."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, diags_array, issparse

from smadmm.learn.scaling import RARE_SEEN, Columns, column_sums
from smadmm.learn.tasks import Array, Task

if TYPE_CHECKING:
    from smadmm.learn.loops import AutoLoop

BATCH = 32
FEW_CHANGES, SORTED = 30, 0.2  # changes of label that are expected before the order is judged; share that is too few


class LabelOrder:
    """Whether the labels of a stream come in random order, by how often they change from row to row."""

    def __init__(self, classes: int):
        self.counts, self.changes, self.last, self.told = np.zeros(classes, dtype=np.int64), 0, -1, False

    def kept(self) -> Any:
        """As an array."""
        return np.array([self.changes, self.last, self.told, *self.counts], dtype=np.int64)

    @classmethod
    def restored(cls, kept: Any) -> LabelOrder:
        """As it was when it was kept."""
        order = cls(len(kept) - 3)
        (order.changes, order.last), order.told, order.counts = kept[:2].tolist(), bool(kept[2]), kept[3:].copy()
        return order

    def warn(self, number: Any) -> None:
        """Take the numbers of the classes of the next rows, and say once if they are sorted."""
        before = number[:1] if self.last < 0 else np.array([self.last])
        self.changes += int(np.count_nonzero(np.diff(np.append(before, number))))
        self.counts += np.bincount(number, minlength=len(self.counts))
        self.last = int(number[-1])
        rows = int(self.counts.sum())
        expected = rows - float(self.counts @ self.counts) / rows
        if not self.told and expected >= FEW_CHANGES and self.changes < SORTED * expected:
            self.told = True
            message = f"labels changed {self.changes} times in {rows} rows, random order gives about {expected:.0f}; "
            warnings.warn(message + "rows sorted by class spoil a stream: shuffle them", UserWarning, stacklevel=3)


def _loop(*task: Any, table: bool, start: Array) -> AutoLoop:
    from smadmm.learn.fitting import form

    return form().auto(*task, table=table, start=start)


class OnlineFit:
    """One pair of classes; `x` is the answer so far, `scale` that of the columns, whose coefficients A ties.

    Without a weight `alpha` of the penalty it is 1 / (rows seen so far x sqrt(penalties per feature)).
    """

    def __init__(
        self, A: Any, alpha: float | None, loss: str, intercept: bool, scaled: bool = False, start: Array | None = None
    ):
        self.A, self.alpha, self.loss, self.intercept, self.scaled = A, alpha, loss, intercept, scaled
        self.scale = np.ones(A.shape[1] - intercept)
        self.start = self.x = np.zeros(A.shape[1]) if start is None else start
        self.sfo, self.lam1 = 0, 0.0
        self.columns: Columns | None = None
        self.classes = np.zeros(2)  # how many of each were seen
        self.loop: AutoLoop | None = None
        self.moving = False

    def kept(self) -> dict[str, Any]:
        """All it needs to go on, as arrays."""
        assert self.columns is not None and self.loop is not None
        numbers = {"alpha": np.nan if self.alpha is None else self.alpha, "sfo": self.sfo, "moving": self.moving}
        arrays = {"scale": self.scale, "start": self.start, "x": self.x, "classes": self.classes}
        columns = {f"columns.{name}": part for name, part in vars(self.columns).items()}
        return numbers | arrays | columns | {f"loop.{name}": part for name, part in self.loop.kept().items()}

    @classmethod
    def restored(cls, A: Any, loss: str, intercept: bool, scaled: bool, kept: Mapping[str, Any]) -> OnlineFit:
        """As it was when it was kept."""
        alpha = None if np.isnan(kept["alpha"]) else float(kept["alpha"])
        online = cls(A, alpha, loss, intercept, scaled, np.asarray(kept["start"]))
        online.scale, online.x, online.classes = kept["scale"], kept["x"], kept["classes"]
        online.sfo, online.moving = int(kept["sfo"]), bool(kept["moving"])
        parts = _under("columns.", kept)
        online.columns = Columns(float(parts.pop("rows")), **parts)
        one = Task(np.zeros((1, len(online.scale))), np.ones(1), np.ones(1), A, 0.0, loss, intercept=intercept)
        online.loop = _loop(one, online.columns, table=False, start=online.start)
        try:
            online.loop.restore(_under("loop.", kept))
        except KeyError:
            raise ValueError(
                "the model was kept in the middle of a stream with numba, or without, and here it is the other way; "
                "go on where it was made"
            ) from None
        return online

    def __getstate__(self) -> dict[str, Any]:
        """As arrays, which skops and its like store without further types of ours."""
        A = csr_array(self.A)
        made = {"loss": self.loss, "intercept": self.intercept, "scaled": self.scaled, "kept": self.kept()}
        return made | {"A": [A.data, A.indices, A.indptr], "shape": list(A.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        A = csr_array(tuple(state.pop("A")), shape=state.pop("shape"))
        self.__dict__ = vars(OnlineFit.restored(A, **state))

    def update(self, X: Any, target: Array, weight: Array) -> None:
        """Take a chunk of rows, in their order; the weights count as they are."""
        here = column_sums(X, weight)
        columns = self.columns = here if self.columns is None else self.columns + here
        if self.scaled:
            variance = columns.squares / columns.rows - (columns.total / columns.rows) ** 2
            self.scale = np.where(variance > 0, np.sqrt(np.maximum(variance, 0.0)), 1.0)
        A = (
            csr_array(self.A @ diags_array(np.append(self.scale, np.ones(int(self.intercept)))))
            if self.scaled
            else self.A
        )
        usual = float(np.sqrt(len(self.scale) / A.nnz)) / columns.rows
        lam1 = self.lam1 = usual if self.alpha is None else self.alpha
        for rows, loss in self._parts(target):
            part = (X[rows], target[rows], weight[rows])
            self._advance(Task(*part, A, lam1, loss, intercept=self.intercept), columns)
        assert self.loop is not None
        blank = csr_array((1, X.shape[1]), dtype=X.dtype) if issparse(X) else np.zeros_like(X[:1])
        one = Task(blank, np.ones(1), np.ones(1), A, lam1, self.loss, intercept=self.intercept)
        self.loop.change_task(one, columns)  # a stored model holds no rows

    def _parts(self, target: Array) -> list[tuple[slice, str]]:
        """The chunk, cut where enough rows of the rarer class were seen to leave the convex start."""
        seen = self.classes + np.stack([np.cumsum(target < 0), np.cumsum(target > 0)], 1)
        self.classes = seen[-1].astype(np.float64)
        if self.loss != "sigmoid":
            return [(slice(None), self.loss)]
        rare, total = seen.min(1), seen.sum(1)
        ready = np.flatnonzero(rare >= np.minimum(RARE_SEEN, total / 4))
        first = int(ready[0]) if len(ready) else len(target)
        cuts = [(slice(0, first), "logistic"), (slice(first, len(target)), "sigmoid")]
        return [(rows, loss) for rows, loss in cuts if rows.start < rows.stop]

    def _advance(self, task: Task, columns: Columns) -> None:
        if self.loop is None:
            self.loop = _loop(task, columns, table=False, start=self.start)
        else:
            self.loop.change_task(task, columns)
        size = min(BATCH, task.n)
        batches = np.arange(task.n - task.n % size).reshape(-1, size)
        while not self.moving and len(batches):
            self.moving, batches = self.loop.begin(batches[0]), batches[1:]
        if len(batches):
            self.loop.advance(batches)
        rest = np.arange(task.n - task.n % size, task.n)[None]
        if self.moving and rest.size:
            self.loop.advance(rest)
        state = self.loop.state
        self.x, self.sfo = state.answer.numpy(), state.sfo


def _under(prefix: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): part for name, part in kept.items() if name.startswith(prefix)}
