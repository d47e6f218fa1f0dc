"""Strong correlations between the columns of a matrix, dense or sparse, in bounded memory.

With the columns z_i = x_i / (sqrt(n) sd_i) and u_i = mean_i / sd_i the correlation is r_ij = z_i'z_j - u_i u_j. Dense
columns are centred first (u = 0). For sparse ones only pairs that share a row have z_i'z_j != 0: these come from a
sparse product, and of the others |r_ij| = |u_i u_j| exceeds a bound only for the largest |u_j|. Pairs are made for
a chunk of columns at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags_array, issparse
from sklearn.utils import check_array, check_random_state

CHUNK = 8_000_000  # entries of a chunk of R
DENSE_BELOW = 2000  # up to this many features sparse rows are made dense: faster, and centred exactly


@dataclass(frozen=True)
class Pairs:
    """Pairs of columns i[e], j[e] and their associations r[e]."""

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    r: NDArray[np.float64]

    def where(self, keep: NDArray[np.bool_]) -> Pairs:
        return Pairs(self.i[keep], self.j[keep], self.r[keep])


def subsample(X: Any, weight: Any, rows: int, random_state: Any) -> tuple[Any, Any]:
    """At most `rows` rows of X, checked, as float64, and their weights; chosen by random_state if there are more."""
    if X.shape[0] > rows:
        chosen = np.sort(_generator(random_state).permutation(X.shape[0])[:rows])
        X = X.tocsr()[chosen] if issparse(X) else np.asarray(X)[chosen]
        weight = None if weight is None else weight[chosen]
    X = check_array(X, accept_sparse="csc", dtype=np.float64)
    return X, np.ones(X.shape[0]) if weight is None else weight


def _generator(random_state: Any) -> Any:
    if random_state is None:
        return np.random.default_rng()
    return random_state if isinstance(random_state, np.random.Generator) else check_random_state(random_state)


class Correlations:
    """Correlations between the columns of X that are not constant; `features` are the numbers these have in X.

    A row of weight w counts as w rows.
    """

    def __init__(self, X: Any, weight: Any = None):
        weight = np.ones(X.shape[0]) if weight is None else weight
        self.rows = float(weight.sum())
        root = np.sqrt(weight)
        if issparse(X) and X.shape[1] <= DENSE_BELOW:
            X = X.toarray()
        self.sparse = issparse(X)
        if self.sparse:
            mean, square = X.T @ weight / self.rows, X.multiply(X).T @ weight / self.rows
            X = (diags_array(root) @ X).tocsc()
            variance = square - mean * mean
            varying = variance > 1e-10 * square  # below, the difference is rounding
        else:
            mean = weight @ X / self.rows
            X = (X - mean) * root[:, None]
            variance = (X * X).sum(axis=0) / self.rows
            varying = np.sqrt(variance) > 1e-10 * np.abs(mean)
        self.features = np.flatnonzero(varying)
        deviation = np.sqrt(variance[varying])
        if self.sparse:
            self.Z = (X[:, self.features] @ diags_array(1 / (deviation * np.sqrt(self.rows)))).tocsc()
            self.by_rows = self.Z.tocsr()
            self.u = mean[varying] / deviation
            self.by_size = np.argsort(-np.abs(self.u), kind="stable")
        else:
            self.Z = X[:, self.features] / (deviation * np.sqrt(self.rows))

    def within(self, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The correlation matrix of some columns."""
        Z = self.Z[:, columns]
        R = (Z.T @ Z).toarray() - np.outer(self.u[columns], self.u[columns]) if self.sparse else Z.T @ Z
        R = np.clip((R + R.T) / 2, -1.0, 1.0)
        np.fill_diagonal(R, 1.0)
        return np.asarray(R, dtype=np.float64)

    def above(self, bound: float) -> Iterator[Pairs]:
        """All pairs i != j with |r| > bound, in both orders, chunk by chunk of i."""
        m = len(self.features)
        apart = _larger_products(self.u, bound) if self.sparse else np.zeros(m, dtype=np.int64)
        entries = np.minimum(self._sharing(), m) + apart if self.sparse else np.full(m, m)
        for chunk in np.split(np.arange(m), _cuts(entries)):
            pairs = self._sparse_above(chunk, apart[chunk], bound) if self.sparse else self._dense_above(chunk, bound)
            yield pairs.where(pairs.i != pairs.j)

    def _sharing(self) -> NDArray[np.int64]:
        """For every column, the entries in the rows that it has an entry in: the work of its products."""
        pattern = self.Z.copy()
        pattern.data = np.ones_like(pattern.data)
        return np.asarray(pattern.T @ (pattern @ np.ones(pattern.shape[1])), dtype=np.int64)

    def _dense_above(self, chunk: NDArray[np.int64], bound: float) -> Pairs:
        R = self.Z[:, chunk].T @ self.Z
        i, j = np.nonzero(np.abs(R) > bound)
        return Pairs(chunk[i], j, R[i, j])

    def _sparse_above(self, chunk: NDArray[np.int64], apart: NDArray[np.int64], bound: float) -> Pairs:
        m, u = len(self.features), self.u
        shared = (self.Z[:, chunk].T @ self.by_rows).tocoo()
        i, j = chunk[shared.row], shared.col.astype(np.int64)
        together = Pairs(i, j, shared.data - u[i] * u[j])
        k = np.repeat(chunk, apart)
        largest = self.by_size[np.arange(len(k)) - np.repeat(np.cumsum(apart) - apart, apart)]
        new = ~np.isin(k * m + largest, i * m + j) if len(k) else np.zeros(0, dtype=bool)
        k, largest = k[new], largest[new]
        strong = together.where(np.abs(together.r) > bound)
        return Pairs(
            np.concatenate([strong.i, k]),
            np.concatenate([strong.j, largest]),
            np.concatenate([strong.r, -u[k] * u[largest]]),
        )


def _larger_products(u: NDArray[np.float64], bound: float) -> NDArray[np.int64]:
    """For every i, the number of j with |u_i u_j| > bound."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.searchsorted(np.sort(-np.abs(u)), -bound / np.abs(u)), dtype=np.int64)


def _cuts(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where to cut the columns into chunks of about CHUNK entries."""
    return np.flatnonzero(np.diff(np.cumsum(entries) // CHUNK)) + 1
