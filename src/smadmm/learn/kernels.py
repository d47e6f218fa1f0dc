"""Compiled rows, losses and full gradients of linear classifiers.

    F(x) = 1/N sum_i w_i l(b_i m_i(x)),     m_i(x) = a_i'x (+ x_last with an intercept)

Rows of a dense array, of a compressed sparse matrix, or of a matrix with at most two entries a row (edges) are read by
the same functions. Fast-math: fused multiply-add, and re-association of sums over dense columns. What can be a plain
loop over arrays is one, without calls or tests for division by zero: such loops become vector instructions.
"""

from __future__ import annotations

from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

SIGMOID, LOGISTIC, SQUARED_HINGE = 0, 1, 2
CODES = {"sigmoid": SIGMOID, "logistic": LOGISTIC, "squared_hinge": SQUARED_HINGE}

compiled = njit(cache=True, error_model="numpy", fastmath={"contract"})
compiled_sums = njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


class Csr(NamedTuple):
    """Compressed sparse rows."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


class Pairs(NamedTuple):
    """A matrix with at most two entries per row: a in column left, b in column right (edges; b = 0 for one entry)."""

    left: np.ndarray
    right: np.ndarray
    a: np.ndarray
    b: np.ndarray


class Samples(NamedTuple):
    """X: Csr or C-contiguous array; target: +-1; weight: mean 1; loss: a code above; intercept: is there an x_last."""

    X: object
    target: np.ndarray
    weight: np.ndarray
    loss: int
    intercept: bool


def samples(X: Any, target: Any, weight: Any, loss: str, intercept: bool) -> Samples:
    """The data as the kernels take them; nothing is copied that has the right form."""
    rows = csr(X) if hasattr(X, "tocsr") else np.ascontiguousarray(X)
    return Samples(rows, target, weight, CODES[loss], intercept)


def csr(M: Any) -> Csr:
    """A SciPy CSR matrix as `Csr`."""
    return Csr(M.data, M.indices.astype(np.int32, copy=False), M.indptr.astype(np.int64, copy=False))


def compact(A: Any) -> Csr | Pairs:
    """A SciPy CSR matrix as `Pairs` if no row has more than two entries, else as `Csr`."""
    length = np.diff(A.indptr)
    if len(length) and (length.min() < 1 or length.max() > 2):
        return csr(A)
    first, last = A.indptr[:-1], A.indptr[1:] - 1
    second = np.where(length == 2, A.data[last], 0.0)
    return Pairs(A.indices[first].astype(np.int32), A.indices[last].astype(np.int32), A.data[first], second)


@compiled_sums
def _dense_dot(X, i, x):
    t = 0.0
    for j in range(X.shape[1]):
        t += X[i, j] * x[j]
    return t


@compiled
def _dense_add(X, i, c, g):
    for j in range(X.shape[1]):
        g[j] += c * X[i, j]


@compiled
def _dense_adds(X, i, c, g, e, t):
    for j in range(X.shape[1]):
        g[j] += c * X[i, j]
        t[j] += e * X[i, j]


@compiled
def _sparse_dot(X, i, x):
    data, indices, indptr = X
    t = 0.0
    for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):  # unsigned: no test for negative indices
        t += data[p] * x[np.uint64(indices[p])]
    return t


@compiled_sums
def _dense_dots(X, i, x, y):
    s, t = 0.0, 0.0
    for j in range(X.shape[1]):
        s += X[i, j] * x[j]
        t += X[i, j] * y[j]
    return s, t


@compiled
def _sparse_dots(X, i, x, y):
    data, indices, indptr = X
    s, t = 0.0, 0.0
    for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
        c, j = data[p], np.uint64(indices[p])
        s += c * x[j]
        t += c * y[j]
    return s, t


@compiled
def _sparse_add(X, i, c, g):
    data, indices, indptr = X
    for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
        g[np.uint64(indices[p])] += c * data[p]


@compiled
def _sparse_adds(X, i, c, g, e, t):
    data, indices, indptr = X
    for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
        g[np.uint64(indices[p])] += c * data[p]
        t[np.uint64(indices[p])] += e * data[p]


@compiled
def _pair_dot(X, i, x):
    return X.a[i] * x[np.uint64(X.left[i])] + X.b[i] * x[np.uint64(X.right[i])]


@compiled
def _pair_add(X, i, c, g):
    g[np.uint64(X.left[i])] += c * X.a[i]
    g[np.uint64(X.right[i])] += c * X.b[i]


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


def _choose(X, dense, pairs, sparse):
    if isinstance(X, types.Array):
        return dense
    return pairs if X.instance_class is Pairs else sparse


@overload(row_dot)
def _row_dot(X, i, x):
    dot = _choose(X, _dense_dot, _pair_dot, _sparse_dot)
    return lambda X, i, x: dot(X, i, x)


@overload(row_dots)
def _row_dots(X, i, x, y):
    dots = _dense_dots if isinstance(X, types.Array) else _sparse_dots
    return lambda X, i, x, y: dots(X, i, x, y)


@overload(row_add)
def _row_add(X, i, c, g):
    add = _choose(X, _dense_add, _pair_add, _sparse_add)
    return lambda X, i, c, g: add(X, i, c, g)


@overload(row_adds)
def _row_adds(X, i, c, g, e, t):
    adds = _dense_adds if isinstance(X, types.Array) else _sparse_adds
    return lambda X, i, c, g, e, t: adds(X, i, c, g, e, t)


@compiled_sums
def symmetric_product(M, r, out):
    """out = M r, M symmetric, from its lower triangle and 8 x 8 diagonal blocks: half of M is read, and r less often."""
    d = r.size
    whole = d - d % 8
    out[:] = 0.0
    for j in range(0, whole, 8):
        r0, r1, r2, r3, r4, r5, r6, r7 = r[j], r[j + 1], r[j + 2], r[j + 3], r[j + 4], r[j + 5], r[j + 6], r[j + 7]
        s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(j):  # left of the diagonal block, and mirrored above it
            s0 += M[j, k] * r[k]
            s1 += M[j + 1, k] * r[k]
            s2 += M[j + 2, k] * r[k]
            s3 += M[j + 3, k] * r[k]
            s4 += M[j + 4, k] * r[k]
            s5 += M[j + 5, k] * r[k]
            s6 += M[j + 6, k] * r[k]
            s7 += M[j + 7, k] * r[k]
            out[k] += (r0 * M[j, k] + r1 * M[j + 1, k] + r2 * M[j + 2, k] + r3 * M[j + 3, k]) + (
                r4 * M[j + 4, k] + r5 * M[j + 5, k] + r6 * M[j + 6, k] + r7 * M[j + 7, k]
            )
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
        out[j + 4], out[j + 5], out[j + 6], out[j + 7] = s4, s5, s6, s7
        for i in range(j, j + 8):
            s = out[i]
            for k in range(j, j + 8):
                s += M[i, k] * r[k]
            out[i] = s
    for i in range(whole, d):
        s, r0 = M[i, i] * r[i], r[i]
        for k in range(i):
            s += M[i, k] * r[k]
            out[k] += M[i, k] * r0
        out[i] = s


# --- losses -------------------------------------------------------------------------------------------------------
ROUND = 1.5 * 2.0**52  # z + ROUND: z rounded to an integer, which is also in the last bits
LOG2_HIGH, LOG2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # log 2 = high + low, high * integer is exact
TAYLOR = tuple(1 / factorial(k) for k in range(13, -1, -1))


@compiled
def exp_minus(t):
    """e^-t for t >= 0 (708 at most: what follows is 1e-308) to 2e-16: 2^k e^r, |r| <= log(2)/2; no call, no branch."""
    t = 708.0 if t > 708.0 else t
    rounded = ROUND - t / np.log(2.0)
    k = rounded - ROUND
    r = -t - k * LOG2_HIGH - k * LOG2_LOW
    e = 0.0
    for c in TAYLOR:
        e = e * r + c
    bits = np.int64((np.float64(rounded).view(np.int64) + 1023) << 52)
    return e * bits.view(np.float64)


@compiled
def slope(loss, t):
    """l'(t) for l(t) = 1/(1+e^t) | log(1+e^-t) | max(0, 1-t)^2."""
    if loss == SQUARED_HINGE:
        return -2.0 * max(0.0, 1.0 - t)
    e = exp_minus(abs(t))
    if loss == SIGMOID:
        return -e / ((1.0 + e) * (1.0 + e))
    return -(e if t > 0 else 1.0) / (1.0 + e)


@compiled
def slopes(loss, t):
    """t := l'(t), entry by entry."""
    for s in range(t.size):
        t[s] = slope(loss, t[s])


@compiled
def value(loss, t):
    """l(t)."""
    if loss == SQUARED_HINGE:
        return max(0.0, 1.0 - t) ** 2
    e = exp_minus(abs(t))
    if loss == SIGMOID:
        return (e if t > 0 else 1.0) / (1.0 + e)
    return np.log1p(e) + max(0.0, -t)


@compiled
def losses(loss, t, out):
    """out = l(t), entry by entry; a loop a loss, as the logarithm has no vector form."""
    if loss == LOGISTIC:
        for s in range(t.size):
            out[s] = value(LOGISTIC, t[s])
    elif loss == SIGMOID:
        for s in range(t.size):
            out[s] = value(SIGMOID, t[s])
    else:
        for s in range(t.size):
            out[s] = value(SQUARED_HINGE, t[s])


@compiled
def shrink(w, t):
    """Soft threshold: the prox of t|.|."""
    return w - max(-t, min(t, w))


@compiled
def mean_loss(samples, x):
    """1/N sum_i w_i l(b_i m_i(x))."""
    X, target, weight, loss, intercept = samples
    base = x[-1] if intercept else 0.0
    total = 0.0
    for i in range(target.size):
        total += weight[i] * value(loss, target[i] * (row_dot(X, i, x) + base))
    return total / target.size


@compiled
def mean_gradient(samples, x, g):
    """g = gradient of `mean_loss` at x."""
    X, target, weight, loss, intercept = samples
    n = target.size
    base = x[-1] if intercept else 0.0
    total = 0.0
    g[:] = 0.0
    for i in range(n):
        c = weight[i] * target[i] * slope(loss, target[i] * (row_dot(X, i, x) + base)) / n
        total += c
        row_add(X, i, c, g)
    if intercept:
        g[-1] += total
