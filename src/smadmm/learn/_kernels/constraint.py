"""Compiled rows of the constraint A x = y, A = [G; I], and the steps that run over them.

With h = lam1 |.|_1 and p = lam + rho y the lines of an iteration over the rows of A need one loop, and no y:

    y = prox_{h/rho}(A x - lam/rho),  lam - rho (A x - y) = clip(lam - rho A x) =: lamh,  the entries cut off at +-lam1
    p = lamh + rho A x,  and after the x-step  lam = p - rho A x

so the next loop begins with lam, and y is formed only for those who read the state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smadmm.compilation import inlined
from smadmm.learn._kernels.rows import FUSED, SUMS, Csr, Edges, edges, entry, row_add, row_dot


class Constraint(NamedTuple):
    """`first` rows of G, then those of the identity for the columns 0, 1, ..."""

    G: Csr | Edges
    first: int


def constraint(A: Any) -> Constraint:
    """A SciPy CSR matrix with its trailing identity, if it has one, apart."""
    size = int(A.indices[-1]) + 1 if A.nnz else 0
    first, entries = A.shape[0] - size, A.nnz - size
    single = first >= 0 and bool((np.diff(A.indptr[first:]) == 1).all())
    if not (single and np.array_equal(A.indices[entries:], np.arange(size)) and (A.data[entries:] == 1).all()):
        first = A.shape[0]
    return Constraint(edges(A[:first]), first)


@inlined(FUSED)
def clip(w, t):
    """w cut off at +-t."""
    w = t if w > t else w
    return -t if w < -t else w


@inlined(FUSED)
def product(A, x, out):
    """out = A x."""
    for i in range(A.first):
        out[i] = row_dot(A.G, i, x)
    for j in range(out.size - A.first):
        out[A.first + j] = x[j]


@inlined(FUSED)
def dual_step(A, R, lam1, before, rho, x, p, lambar, e, r):
    """lamh = clip(lam - rho R A x), r -= A'lamh, lambar += e (lamh - lambar), where lam = p - before R A x.

    R = None: ones; lambar = None: no average.
    """
    both = before + rho
    for i in range(np.uint64(A.first)):  # unsigned: no test for negative indices
        Ax = entry(R, i) * row_dot(A.G, i, x)
        lamh = clip(p[i] - both * Ax, lam1)
        p[i] = lamh + rho * Ax
        if lambar is not None:
            lambar[i] += e * (lamh - lambar[i])
        row_add(A.G, i, -lamh, r)
    for j in range(p.size - A.first):
        i = np.uint64(A.first + j)
        Ax = entry(R, i) * x[j]
        lamh = clip(p[i] - both * Ax, lam1)
        p[i] = lamh + rho * Ax
        if lambar is not None:
            lambar[i] += e * (lamh - lambar[i])
        r[j] -= lamh


@inlined(FUSED)
def y_of_step(A, R, lam1, before, rho, x, p, y):
    """The y of the `dual_step` with these arguments, to be called before it."""
    product(A, x, y)
    for i in range(p.size):
        ro = entry(R, i) * rho
        w = y[i] - (p[i] - entry(R, i) * before * y[i]) / ro
        y[i] = w - clip(w, lam1 / ro)


@inlined(FUSED)
def lam_of_step(A, R, rho, x, p, lam):
    """lam after a `dual_step` with this rho and the x-step."""
    product(A, x, lam)
    for i in range(p.size):
        lam[i] = p[i] - entry(R, i) * rho * lam[i]


def half(M: Any) -> Any:
    """L with M = L + L' for a symmetric M: its lower triangle, half of its diagonal, zeros up to a multiple of 4."""
    d = len(M)
    L = np.zeros((-(-d // 4) * 4,) * 2)
    L[:d, :d] = np.tril(M) - np.diag(np.diag(M)) / 2
    return L


@inlined(SUMS)
def symmetric_product(L, r, out):
    """out = (L + L') r, four rows at a time: half of a symmetric matrix is read, and r less often."""
    out[:] = 0.0
    for j in range(0, r.size, 4):
        r0, r1, r2, r3 = r[j], r[j + 1], r[j + 2], r[j + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for k in range(j + 4):
            s0 += L[j, k] * r[k]
            s1 += L[j + 1, k] * r[k]
            s2 += L[j + 2, k] * r[k]
            s3 += L[j + 3, k] * r[k]
            out[k] += r0 * L[j, k] + r1 * L[j + 1, k] + r2 * L[j + 2, k] + r3 * L[j + 3, k]
        out[j] += s0
        out[j + 1] += s1
        out[j + 2] += s2
        out[j + 3] += s3
