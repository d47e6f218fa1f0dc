"""The compiled loop of the published methods: the twin of the engine with the estimators of the comparison."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smadmm.compilation import compiled, inlined
from smadmm.learn._kernels.constraint import dual_step, lam_of_step, symmetric_product, y_of_step
from smadmm.learn._kernels.rows import FUSED, copy, row_add, row_dot, row_dots
from smadmm.learn._kernels.samples import full_gradient, slope, slopes

SADMM, STORM, SPIDER, SVRG, ASVRG, SAGA = range(6)
METHODS = {"sadmm": SADMM, "smadmm": STORM, "spider": SPIDER, "svrg": SVRG, "asvrg": ASVRG, "saga": SAGA}


class PublishedState(NamedTuple):
    """State of `published`; counts = [iterations, SFO]. v estimates the gradient at `at` (x itself but for ASVRG)."""

    x: np.ndarray
    at: np.ndarray
    v: np.ndarray
    y: np.ndarray
    lam: np.ndarray
    snap: np.ndarray  # SVRG, ASVRG: snapshot
    mean: np.ndarray  # SVRG, ASVRG: gradient at the snapshot;  SAGA: mean of table_i (a_i, 1)
    table: np.ndarray  # SAGA: last slope of every sample (length 1 otherwise)
    counts: np.ndarray


def new_published_state(x0, method, rows, samples):
    """State at x0 for `rows` rows of A; samples = N for SAGA, else 1."""
    d = x0.size
    return PublishedState(
        x0,
        x0.copy() if method == ASVRG else x0,
        np.zeros(d),
        np.zeros(rows),
        np.zeros(rows),
        x0.copy(),
        np.zeros(d),
        np.zeros(samples),
        np.zeros(2, np.int64),
    )


class PublishedWork(NamedTuple):
    """Scratch arrays of `published`."""

    old: np.ndarray  # x before the step
    r: np.ndarray  # -A'lamh, zero on entry and exit
    move: np.ndarray
    p: np.ndarray  # of constraint_kernels.py
    margins: np.ndarray  # at the new point and at the other


def new_published_work(d, inverse, rows, b):
    """For d unknowns, the inverse of the x-step, `rows` rows of A and batches of b samples."""
    size = len(inverse)
    return PublishedWork(np.zeros(d), np.zeros(max(d, size)), np.zeros(size), np.zeros(rows), np.zeros(2 * b))


@compiled(FUSED)
def published_start(samples, method, state, first):
    """v at x_0: mean over the samples `first` (SADMM, STORM) or the full gradient (the others: N SFO)."""
    X, target, weight, loss, intercept = samples
    x, v, counts = state.x, state.v, state.counts
    copy(x, state.at)
    copy(x, state.snap)
    if method == SADMM or method == STORM:
        base = x[-1] if intercept else 0.0
        total = 0.0
        v[:] = 0.0
        for i in first:
            c = weight[i] * target[i] * slope(loss, target[i] * (row_dot(X, i, x) + base)) / first.size
            total += c
            row_add(X, i, c, v)
        if intercept:
            v[-1] += total
        counts[1] += first.size
        return
    full_gradient(samples, x, v)
    copy(v, state.mean)
    counts[1] += target.size
    if method == SAGA:
        base = x[-1] if intercept else 0.0
        for i in range(target.size):
            state.table[i] = weight[i] * target[i] * slope(loss, target[i] * (row_dot(X, i, x) + base))


@inlined(FUSED)
def _published_estimate(samples, method, keep, old, state, batch, margins):
    """v += g - keep g(old) at `at` on one batch; SVRG, ASVRG: g - g(snap); SAGA: g - table."""
    X, target, weight, loss, intercept = samples
    at, v, table = state.at, state.v, state.table
    b, n = batch.size, target.size
    anchored = method == SVRG or method == ASVRG
    two = anchored or keep > 0.0
    other = state.snap if anchored else old
    factor = 1.0 if anchored else keep
    base = at[-1] if intercept else 0.0
    base_other = other[-1] if intercept else 0.0
    for s in range(b):
        i = np.uint64(batch[s])  # unsigned: no test for negative indices
        if two:
            m, m_other = row_dots(X, i, at, other)
            margins[s], margins[b + s] = target[i] * (m + base), target[i] * (m_other + base_other)
        else:
            margins[s] = target[i] * (row_dot(X, i, at) + base)
    slopes(loss, margins if two else margins[:b])
    share, total = 1.0 / b, 0.0
    for s in range(b):
        i = np.uint64(batch[s])
        c = weight[i] * target[i] * (margins[s] - factor * margins[b + s] if two else margins[s])
        if method == SAGA:
            fresh = c
            c -= table[i]
            table[i] = fresh
        total += c
        row_add(X, i, share * c, v)
    if intercept:
        v[-1] += share * total
    if method == SAGA:
        for j in range(v.size):
            state.mean[j] += b / n * (v[j] - state.mean[j])


@inlined(FUSED)
def _power(schedule, k):
    """`smadmm.schedules.Power` as (c, p, lo, hi)."""
    c, p, lo, hi = schedule
    return min(max(c * k**p, lo), hi)


@compiled(FUSED)
def published(samples, A, lam1, inverse, method, period, theta, powers, state, order, starts, b, limit, work):
    """Advance `state` until `limit` SFO are spent or the batches order[starts[t] : starts[t] + b] are used; how many were.

    Iteration k has its rho, eta and a from the three `powers`:
        y = prox_{h/rho}(A x - lam/rho);  x -= P (v + A'(rho (A x - y) - lam)) / eta;  lam -= rho (A x - y)
    P = (Q + (rho/eta) A'A)^-1, of which `inverse` is the half, rho/eta constant (exact x-step), or the identity if its
    shape is (0, 0) (linearised x-step, where Q = I - (rho/eta) A'A). Then v at the new point on the next batch:
        SADMM g;  STORM g + (1-a)(v - g(old)), the second gradient skipped where a >= 1;  SPIDER the same with a = 0;
        SVRG g - g(snap) + gradient(snap);  ASVRG the same at theta x + (1-theta) snap;  SAGA g - table + mean(table).
    SPIDER, SVRG, ASVRG: when k % period == 0, v = full gradient (N SFO, no batch) and snap = the new point.
    """
    x, at, v, y, lam, snap = state[:6]
    counts, n = state.counts, samples.target.size
    d, used, last = x.size, 0, False
    exact = inverse.shape[0] > 0
    restarts = method == SPIDER or method == SVRG or method == ASVRG
    from_mean = method == SVRG or method == ASVRG or method == SAGA
    old, r, move, p, margins = work
    copy(lam, p)
    before = 0.0
    while not last:
        counts[0] += 1
        k = float(counts[0])
        rho, step, a = _power(powers[0], k), 1.0 / _power(powers[1], k), _power(powers[2], k)
        full = restarts and counts[0] % period == 0
        keep = 1.0 - min(1.0, a) if method == STORM else (1.0 if method == SPIDER else 0.0)
        two = method == SVRG or method == ASVRG or keep > 0.0
        counts[1] += n if full else (2 * b if two else b)
        used += not full
        last = counts[1] >= limit or used == starts.size
        if last:
            y_of_step(A, None, lam1, before, rho, x, p, y)
        dual_step(A, None, lam1, before, rho, x, p, None, 0.0, r)
        before = rho
        if exact:
            for j in range(d):
                r[j] += v[j]
            symmetric_product(inverse, r, move)
        for j in range(d):
            old[j] = x[j]
            x[j] -= step * (move[j] if exact else r[j] + v[j])
            v[j] = state.mean[j] if from_mean else keep * v[j]
            r[j] = 0.0
        if method == ASVRG:
            for j in range(d):
                at[j] = theta * x[j] + (1.0 - theta) * snap[j]
        if full:
            full_gradient(samples, at, v)
            copy(at, snap)
            copy(v, state.mean)
        else:
            start = starts[used - 1]
            _published_estimate(samples, method, keep, old, state, order[start : start + b], margins)
    lam_of_step(A, None, before, x, p, lam)
    return used
