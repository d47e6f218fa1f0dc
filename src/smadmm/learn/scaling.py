"""What `auto` learns from the columns of the data, at no gradient's cost.

Q = diag(q) + m m',  q_j = s_j sqrt(f_j) (1 - m_j^2 / E x_j^2),  s_j the mean square of the non-zeros of column j,
f_j their frequency, m the mean row: rare features get long steps, and the mean that uncentred columns share is one
direction of its own. With an intercept q_last is tiny: the same as centring the columns, but they stay sparse.
R_i = 1/2 min_j q_j / (deg_j nnz_i A_ij^2), so that A'RA <= Q/2: rho = R/s, eta = 1/s suit every step s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

Array = NDArray[np.float64]

ROWS_AT_ONCE = 1 << 20  # entries of X that are looked at together
RARE_SEEN = 100  # samples of the rarer class that the convex start wants to see


@dataclass(frozen=True)
class Columns:
    """Weighted sums over the rows seen so far; add two to pool them."""

    rows: float
    total: Array
    squares: Array
    nonzeros: Array

    def __add__(self, other: Columns) -> Columns:
        return Columns(*(one + two for one, two in zip(vars(self).values(), vars(other).values(), strict=True)))


def column_sums(X: Any, weight: Array) -> Columns:
    """The statistics of the rows of X (dense or CSR), a row of weight w counting w times; some rows at a time."""
    rows = max(1, ROWS_AT_ONCE // max(1, X.nnz // X.shape[0] + 1 if issparse(X) else X.shape[1]))
    starts = range(0, X.shape[0], rows)
    first, *rest = (_sums(X[i : i + rows], weight[i : i + rows]) for i in starts)
    return sum(rest, start=first)


def _sums(X: Any, weight: Array) -> Columns:
    if issparse(X):
        square, seen = X.copy(), X.copy()
        square.data, seen.data = square.data.astype(np.float64) ** 2, (seen.data != 0).astype(np.float64)
        return Columns(float(weight.sum()), X.T @ weight, square.T @ weight, seen.T @ weight)
    squares = np.einsum("ij,ij,i->j", X, X, weight, dtype=np.float64)
    return Columns(float(weight.sum()), X.T @ weight, squares, np.einsum("ij,i->j", X != 0, weight))


def metric(columns: Columns, intercept: bool) -> tuple[Array, Array]:
    """q and m of Q = diag(q) + m m'."""
    rows = max(columns.rows, 1e-300)
    size = np.where(columns.nonzeros > 0, columns.squares / np.maximum(columns.nonzeros, 1e-300), 0.0)
    known = size > 0
    size[~known] = np.exp(np.mean(np.log(size[known]))) if known.any() else 1.0
    m = columns.total / rows
    spread = np.maximum(1 - m**2 / np.maximum(columns.squares / rows, 1e-300), 1e-6)
    q = size * np.sqrt((columns.nonzeros + 0.5) / (rows + 1.0)) * spread
    q = np.maximum(q, 1e-14 * q.max())
    if not intercept:
        return q, m
    return np.append(q, 1e-3 / (1.0 + np.sum(m**2 / q))), np.append(m, 1.0)


def row_weights(A: Any, q: Array) -> Array:
    """R with A'RA <= Q/2 for a CSR matrix A without empty rows."""
    if A.shape[0] == 0:
        return np.zeros(0)
    degree = np.bincount(A.indices, minlength=A.shape[1])
    length = np.diff(A.indptr)
    bound = q[A.indices] / (degree[A.indices] * np.repeat(length, length) * A.data**2)
    return np.asarray(0.5 * np.minimum.reduceat(bound, A.indptr[:-1]))


def batch_size(X: Any, A: Any) -> int:
    """A power of two near n/32, in 2..64; up to n/16 where an iteration's other work outweighs its samples."""
    n = X.shape[0]
    row = X.nnz / n if issparse(X) else X.shape[1]
    balanced = (A.shape[1] + A.nnz) / (4 * max(row, 1))
    return int(2 ** np.floor(np.log2(max(2, min(n / 32, 64), min(n / 16, balanced)))))


def convex_start(target: NDArray[np.float64]) -> int:
    """For how many samples the logistic loss replaces the sigmoid: until 100 of a rare (< 1/4) class were seen."""
    n = len(target)
    rare = int(min((target > 0).sum(), (target < 0).sum()))
    return 0 if rare >= n / 4 else int(min(n, RARE_SEEN * n / max(rare, 1)))
