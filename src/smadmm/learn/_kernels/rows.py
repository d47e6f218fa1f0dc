"""Compiled rows of a matrix: dense, compressed sparse, or the edges of a graph, read by the same functions.

Fast-math: fused multiply-add, and re-association of sums over dense columns. What can be a plain loop over arrays is
one, without calls or tests for division by zero: such loops become vector instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from smadmm.compilation import inlined

FUSED = {"contract"}
SUMS = {"contract", "reassoc", "nsz"}


class Csr(NamedTuple):
    """Compressed sparse rows; data = None: every entry is 1 (half of the memory to read, and no multiplication)."""

    data: np.ndarray | None
    indices: np.ndarray
    indptr: np.ndarray


class Edges(NamedTuple):
    """Rows e_left + sign e_right, sign = +-1: a byte, as these rows are read in every iteration."""

    left: np.ndarray
    right: np.ndarray
    sign: np.ndarray


def csr(M: Any) -> Csr:
    """A SciPy CSR matrix as `Csr`."""
    data = None if (M.data == 1).all() else M.data
    return Csr(data, M.indices.astype(np.int32, copy=False), M.indptr.astype(np.int64, copy=False))


def edges(M: Any) -> Csr | Edges:
    """A SciPy CSR matrix as `Edges` if it is one, else as `Csr`."""
    if not ((np.diff(M.indptr) == 2).all() and (M.data[::2] == 1).all() and (np.abs(M.data) == 1).all()):
        return csr(M)
    ends = M.indices.astype(np.int32).reshape(-1, 2)
    return Edges(ends[:, 0].copy(), ends[:, 1].copy(), M.data[1::2].astype(np.int8))


@inlined(FUSED)
def copy(source, target):
    """target := source."""
    for j in range(target.size):
        target[j] = source[j]


def entry(data, p):
    """data[p], or 1 where data is None."""
    raise TypeError("only compiled code can call this")


@overload(entry, inline="always")
def _entry(data, p):
    if isinstance(data, types.NoneType):
        return lambda data, p: 1.0
    return lambda data, p: data[p]


@inlined(SUMS)
def _dense_dot(X, i, x):
    t = 0.0
    for j in range(X.shape[1]):
        t += X[i, j] * x[j]
    return t


@inlined(SUMS)
def _dense_dots(X, i, x, y):
    s, t = 0.0, 0.0
    for j in range(X.shape[1]):
        s += X[i, j] * x[j]
        t += X[i, j] * y[j]
    return s, t


@inlined(FUSED)
def _dense_add(X, i, c, g):
    for j in range(X.shape[1]):
        g[j] += c * X[i, j]


@inlined(FUSED)
def _dense_adds(X, i, c, g, e, t):
    for j in range(X.shape[1]):
        g[j] += c * X[i, j]
        t[j] += e * X[i, j]


@inlined(FUSED)
def _places(X, i):
    """Where the entries of row i are; unsigned numbers, as for these there is no test for negative indices."""
    i = np.uint64(i)
    return range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + np.uint64(1)]))


@inlined(FUSED)
def _sparse_dot(X, i, x):
    data, indices, _ = X
    t = 0.0
    for p in _places(X, i):
        t += entry(data, p) * x[np.uint64(indices[p])]
    return t


@inlined(FUSED)
def _sparse_dots(X, i, x, y):
    data, indices, _ = X
    s, t = 0.0, 0.0
    for p in _places(X, i):
        c, j = entry(data, p), np.uint64(indices[p])
        s += c * x[j]
        t += c * y[j]
    return s, t


@inlined(FUSED)
def _sparse_add(X, i, c, g):
    data, indices, _ = X
    for p in _places(X, i):
        g[np.uint64(indices[p])] += c * entry(data, p)


@inlined(FUSED)
def _sparse_adds(X, i, c, g, e, t):
    data, indices, _ = X
    for p in _places(X, i):
        j = np.uint64(indices[p])
        g[j] += c * entry(data, p)
        t[j] += e * entry(data, p)


@inlined(FUSED)
def _edge_dot(X, i, x):
    return x[np.uint64(X.left[i])] + X.sign[i] * x[np.uint64(X.right[i])]


@inlined(FUSED)
def _edge_add(X, i, c, g):
    g[np.uint64(X.left[i])] += c
    g[np.uint64(X.right[i])] += c * X.sign[i]


def row_dot(X, i, x):
    """a_i'x over the columns of X."""
    raise TypeError("only compiled code can call this")


def row_dots(X, i, x, y):
    """a_i'x, a_i'y in one reading of the row."""
    raise TypeError("only compiled code can call this")


def row_add(X, i, c, g):
    """g += c a_i."""
    raise TypeError("only compiled code can call this")


def row_adds(X, i, c, g, e, t):
    """g += c a_i, t += e a_i in one reading of the row."""
    raise TypeError("only compiled code can call this")


def _choose(X, dense, sparse, edge=None):
    if isinstance(X, types.Array):
        return dense
    return edge if X.instance_class is Edges else sparse


@overload(row_dot, inline="always")
def _row_dot(X, i, x):
    dot = _choose(X, _dense_dot, _sparse_dot, _edge_dot)
    return lambda X, i, x: dot(X, i, x)


@overload(row_dots, inline="always")
def _row_dots(X, i, x, y):
    dots = _choose(X, _dense_dots, _sparse_dots)
    return lambda X, i, x, y: dots(X, i, x, y)


@overload(row_add, inline="always")
def _row_add(X, i, c, g):
    add = _choose(X, _dense_add, _sparse_add, _edge_add)
    return lambda X, i, c, g: add(X, i, c, g)


@overload(row_adds, inline="always")
def _row_adds(X, i, c, g, e, t):
    adds = _choose(X, _dense_adds, _sparse_adds)
    return lambda X, i, c, g, e, t: adds(X, i, c, g, e, t)
