"""Compiled rows of the constraint A x = y, A = [G; diag(c)], and the steps that run over them.

With h = lam1 |.|_1 and p = lam + rho y the lines of an iteration over the rows of A need one loop, and no y:

    y = prox_{h/rho}(A x - lam/rho),  lam - rho (A x - y) = clip(lam - rho A x) =: lamh,  the entries cut off at +-lam1
    p = lamh + rho A x,  and after the x-step  lam = p - rho A x

so the next loop begins with lam, and y is formed only for those who read the state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smadmm.learn.row_kernels import Csr, Pairs, compiled, compiled_sums, entry, pairs, row_add, row_dot


class Constraint(NamedTuple):
    """G: the first rows; c: the entries of the rows that follow, one in each of the columns 0, 1, ..."""

    G: Csr | Pairs
    c: np.ndarray


def constraint(A: Any) -> Constraint:
    """A SciPy CSR matrix with its trailing diagonal, if it has one, apart."""
    p = int(A.indices[-1]) + 1 if A.nnz else 0
    first = A.shape[0] - p
    single = first >= 0 and bool((np.diff(A.indptr[first:]) == 1).all())
    if not (single and np.array_equal(A.indices[A.nnz - p :], np.arange(p))):
        p, first = 0, A.shape[0]
    return Constraint(pairs(A[:first]), A.data[A.nnz - p :])


@compiled
def shrink(w, t):
    """Soft threshold: the prox of t|.|."""
    return w - max(-t, min(t, w))


@compiled
def product(A, x, out):
    """out = A x."""
    first = out.size - A.c.size
    for i in range(first):
        out[i] = row_dot(A.G, i, x)
    for j in range(A.c.size):
        out[first + j] = A.c[j] * x[j]


@compiled
def dual_step(A, R, lam1, before, rho, x, p, lambar, e, r):
    """lamh = clip(lam - rho R A x), r -= A'lamh, lambar += e (lamh - lambar), where lam = p - before R A x.

    R = None: ones; lambar = None: no average.
    """
    G, c = A
    first, both = p.size - c.size, before + rho
    for i in range(first):
        Ax = entry(R, i) * row_dot(G, i, x)
        lamh = max(-lam1, min(lam1, p[i] - both * Ax))
        p[i] = lamh + rho * Ax
        if lambar is not None:
            lambar[i] += e * (lamh - lambar[i])
        row_add(G, i, -lamh, r)
    for j in range(c.size):
        i = first + j
        Ax = entry(R, i) * c[j] * x[j]
        lamh = max(-lam1, min(lam1, p[i] - both * Ax))
        p[i] = lamh + rho * Ax
        if lambar is not None:
            lambar[i] += e * (lamh - lambar[i])
        r[j] -= c[j] * lamh


@compiled
def y_of_step(A, R, lam1, before, rho, x, p, y):
    """The y of the `dual_step` with these arguments, to be called before it."""
    product(A, x, y)
    for i in range(p.size):
        ro = entry(R, i) * rho
        y[i] = shrink(y[i] - (p[i] - entry(R, i) * before * y[i]) / ro, lam1 / ro)


@compiled
def lam_of_step(A, R, rho, x, p, lam):
    """lam after a `dual_step` with this rho and the x-step."""
    product(A, x, lam)
    for i in range(p.size):
        lam[i] = p[i] - entry(R, i) * rho * lam[i]


@compiled_sums
def symmetric_product(M, r, out):
    """out = M r, M symmetric, from the lower triangle, four rows at a time: half of M is read, and r less often."""
    d = r.size
    whole = d - d % 4
    out[:] = 0.0
    for j in range(0, whole, 4):
        r0, r1, r2, r3 = r[j], r[j + 1], r[j + 2], r[j + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for k in range(j):  # left of the diagonal block, and mirrored above it
            s0 += M[j, k] * r[k]
            s1 += M[j + 1, k] * r[k]
            s2 += M[j + 2, k] * r[k]
            s3 += M[j + 3, k] * r[k]
            out[k] += r0 * M[j, k] + r1 * M[j + 1, k] + r2 * M[j + 2, k] + r3 * M[j + 3, k]
        for k in range(j, j + 4):
            s0 += M[j, k] * r[k]
            s1 += M[j + 1, k] * r[k]
            s2 += M[j + 2, k] * r[k]
            s3 += M[j + 3, k] * r[k]
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
    for i in range(whole, d):
        s, r0 = M[i, i] * r[i], r[i]
        for k in range(i):
            s += M[i, k] * r[k]
            out[k] += M[i, k] * r0
        out[i] = s
