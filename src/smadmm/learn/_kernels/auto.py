"""The compiled `auto` loop: the twin of the engine with a metric, a pace, averaging and a measured control variate.

It advances a state in place, one iteration a row of `batches`, so it can be called in chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smadmm.compilation import compiled, inlined
from smadmm.learn._kernels.constraint import dual_step, lam_of_step, y_of_step
from smadmm.learn._kernels.rows import FUSED, SUMS, copy, row_add, row_adds, row_dot
from smadmm.learn._kernels.samples import argument, factor, losses, slopes

ONE_GRADIENT, TABLE, MOMENTUM = 0, 1, 2  # estimators
STEP, SPEED, REACH, FLOOR, WALK, WEIGHT, ALONG, ACROSS, LOSS, SEEN = range(10)  # entries of AutoState.pace


class Metric(NamedTuple):
    """Q = diag(q) + m m' and its inverse diag(1/q) - kappa h h', h = m/q, kappa = 1/(1 + m'h).

    m = the mean row (a, 1): without this term every step runs along the mean of uncentred columns. With an intercept and
    q_last -> 0 it is the same as centring the columns, which would destroy their sparsity.
    """

    q: np.ndarray
    m: np.ndarray
    inverse: np.ndarray
    h: np.ndarray
    kappa: float


def metric(q, m):
    """The Metric of q and m."""
    return Metric(q, m, 1.0 / q, m / q, 1.0 / (1.0 + np.dot(m, m / q)))


class Constants(NamedTuple):
    """Of `auto`: reach and first move of the step, gradient point, memory of |v|^2, memory of gamma."""

    c: float = 3.0  # step = c * distance / gradient
    move: float = 1.0  # rms change of its own batch's margins by the first step
    beta: float = 0.8  # u = (1-beta) z + beta xbar
    recent: float = 6.0  # mean of |v|^2 with weights about k^recent
    ema: float = 0.95


class AutoState(NamedTuple):
    """Everything `auto` carries. pace is indexed by STEP ...; counts = [iterations, SFO]."""

    z: np.ndarray
    u: np.ndarray
    xbar: np.ndarray
    v: np.ndarray
    y: np.ndarray
    lam: np.ndarray
    lambar: np.ndarray
    start: np.ndarray  # z_0, from where distance is measured
    gbar: np.ndarray  # mean over all N samples of table_i (a_i, 1)
    table: np.ndarray  # last slope of every sample; 0 = never seen (length 1 unless TABLE)
    pace: np.ndarray
    counts: np.ndarray


def new_auto_state(x0, rows, samples):
    """State at x0 (copied) for `rows` rows of A; samples = N for TABLE, else 1."""
    d = x0.size
    zero = np.zeros(d)
    return AutoState(
        x0.copy(),
        x0.copy(),
        x0.copy(),
        zero.copy(),
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(rows),
        x0.copy(),
        zero.copy(),
        np.zeros(samples),
        np.zeros(10),
        np.zeros(2, np.int64),
    )


class Work(NamedTuple):
    """Scratch arrays of one call."""

    t: np.ndarray  # the sum of table_i a_i
    old: np.ndarray  # u before the step
    old_v: np.ndarray
    p: np.ndarray  # of constraint_kernels.py
    margins: np.ndarray  # at u and at the old u
    losses: np.ndarray


def new_work(d, rows, b):
    """For d unknowns, `rows` rows of A and batches of b samples."""
    return Work(np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(rows), np.zeros(2 * b), np.zeros(b))


@inlined(FUSED)
def _sample(samples, mode, keep, old, state, batch, work):
    """v += mean over the batch of (slope_i(u) - keep slope_i(old)) a_i;  t += mean of table_i a_i; table := slope_i(u)."""
    X, target, weight, loss, intercept = samples
    u, v, table, pace = state.u, state.v, state.table, state.pace
    t, margins = work.t, work.margins
    b = batch.size
    base = u[-1] if intercept else 0.0
    base_old = old[-1] if intercept else 0.0
    for s in range(b):
        i = np.uint64(batch[s])  # unsigned: no test for negative indices
        margins[s] = argument(loss, target[i], row_dot(X, i, u) + base)
        if keep > 0.0:
            margins[b + s] = argument(loss, target[i], row_dot(X, i, old) + base_old)
    losses(loss, margins[:b], work.losses)
    slopes(loss, margins if keep > 0.0 else margins[:b])
    share, total, total_t, total_loss = 1.0 / b, 0.0, 0.0, 0.0
    for s in range(b):
        i = np.uint64(batch[s])
        total_loss += weight[i] * work.losses[s]
        h = weight[i] * factor(loss, target[i]) * (margins[s] - keep * margins[b + s] if keep > 0.0 else margins[s])
        total += h
        if mode == TABLE:
            total_t += table[i]
            row_adds(X, i, share * h, v, share * table[i], t)
            table[i] = h
        else:
            row_add(X, i, share * h, v)
    if intercept:
        v[-1] += share * total
        t[-1] += share * total_t
    pace[LOSS] += total_loss
    pace[SEEN] += b
    state.counts[1] += 2 * b if keep > 0.0 else b


@inlined(SUMS)
def _estimate(samples, Q, constants, mode, keep, old, state, batch, work):
    """v, which is zero on entry (as work.t is, also on exit), where `keep` is used from work.old_v; returns |v|^2_{Q^-1}.

    gamma = <g, t - gbar> / |t - gbar|^2 (moving averages of earlier batches, clipped to [0, 1]), v = g - gamma (t - gbar).
    """
    v, gbar, pace, t = state.v, state.gbar, state.pace, work.t
    inverse, h, kappa = Q.inverse, Q.h, Q.kappa
    _sample(samples, mode, keep, old, state, batch, work)
    share = batch.size / samples.target.size
    gamma = 0.0
    if mode == TABLE and pace[ACROSS] > 0.0:
        gamma = min(1.0, max(0.0, pace[ALONG] / pace[ACROSS]))
    along, across, size, hg, hw, hv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(v.size):
        if mode == TABLE:
            g, w = v[j], t[j] - gbar[j]
            along += g * w * inverse[j]
            across += w * w * inverse[j]
            hg += h[j] * g
            hw += h[j] * w
            gbar[j] += share * (g - t[j])
            v[j] = g - gamma * w
            t[j] = 0.0
        else:
            v[j] += keep * work.old_v[j]
        size += v[j] * v[j] * inverse[j]
        hv += h[j] * v[j]
    pace[ALONG] += (1.0 - constants.ema) * (along - kappa * hg * hw - pace[ALONG])
    pace[ACROSS] += (1.0 - constants.ema) * (across - kappa * hw * hw - pace[ACROSS])
    return size - kappa * hv * hv


@inlined(FUSED)
def _set_step(constants, size, state):
    """s_k = max(c reach, floor) / sqrt(k mean|v|^2), size = |v|^2 at k."""
    pace = state.pace
    k = state.counts[0] + 1.0
    pace[SPEED] += (constants.recent + 1.0) / (k + constants.recent) * (size - pace[SPEED])
    pace[STEP] = max(constants.c * pace[REACH], pace[FLOOR]) / np.sqrt(k * pace[SPEED] + 1e-300)


@compiled(SUMS)
def auto_start(samples, Q, constants, mode, state, batch, work):
    """First estimate at z_0, and the floor of the step: it moves the margins of this batch by `move` (rms)."""
    X, intercept = samples.X, samples.intercept
    d = state.v.size
    t = work.old
    size = _estimate(samples, Q, constants, mode, 0.0, state.u, state, batch, work)
    hv = 0.0
    for j in range(d):
        hv += Q.h[j] * state.v[j]
    for j in range(d):
        t[j] = state.v[j] * Q.inverse[j] - Q.kappa * hv * Q.h[j]
    base = t[-1] if intercept else 0.0
    moved, total = 0.0, 0.0
    for i in batch:
        moved += samples.weight[i] * (row_dot(X, i, t) + base) ** 2
        total += samples.weight[i]
    if moved > 0.0:
        state.pace[FLOOR] = constants.move * np.sqrt(size * total / moved)
    _set_step(constants, size, state)


@compiled(SUMS)
def auto(samples, A, lam1, Q, R, constants, mode, since, state, batches, work):
    """Advance `state` by one iteration per row of `batches`. With s = pace[STEP], rho = R/s, eta = 1/s:

    y = prox_{h/rho}(A z - lam/rho);  lamh = lam - rho (A z - y);  z -= s Q^-1 (v - A'lamh);  lam -= rho (A z - y)
    xbar, lambar: means of z, lamh with weights s^2 k;  u = (1-beta) z + beta xbar
    reach = max over k of (|z - z_0|_Q^2 - sum s^2 |v - A'lamh|^2_{Q^-1}) / |z - z_0|_Q
    v at u on the batch:  ONE_GRADIENT g,  TABLE g - gamma (t - gbar);  s = max(c reach, floor)/sqrt(k mean|v|^2_{Q^-1})
    MOMENTUM (Theorem 3.2 from iteration `since` on, j = k - since): v = g + (1-a)(v - g(old u)), a = j^(-2/3), s ~ j^(-1/3)
    """
    z, u, xbar, v, y, lam, lambar, start = state[:8]
    pace, counts = state.pace, state.counts
    d, beta, last = z.size, constants.beta, batches.shape[0] - 1
    old, p = work.old, work.p
    copy(lam, p)
    q, _, inverse, h, kappa = Q
    before = 0.0
    for k_ in range(batches.shape[0]):
        s = pace[STEP]
        counts[0] += 1
        k = counts[0]
        pace[WEIGHT] += s * s * k
        e = s * s * k / pace[WEIGHT]
        if k_ == last:
            y_of_step(A, R, lam1, before, 1.0 / s, z, p, y)
        if mode == MOMENTUM:
            copy(u, old)
            copy(v, work.old_v)
        dual_step(A, R, lam1, before, 1.0 / s, z, p, lambar, e, v)  # v := v - A'lamh
        before = 1.0 / s
        far, walk, hv, along = 0.0, 0.0, 0.0, 0.0
        for j in range(d):
            hv += h[j] * v[j]
        for j in range(d):
            move = v[j] * inverse[j]
            walk += v[j] * move
            z[j] -= s * (move - kappa * hv * h[j])
            away = q[j] * (z[j] - start[j])
            far += (z[j] - start[j]) * away
            along += h[j] * away
            xbar[j] += e * (z[j] - xbar[j])
            u[j] = (1.0 - beta) * z[j] + beta * xbar[j]
            v[j] = 0.0
        far += along * along
        pace[WALK] += s * s * (walk - kappa * hv * hv)
        if far > 0.0 and mode != MOMENTUM:
            pace[REACH] = max(pace[REACH], (far - pace[WALK]) / np.sqrt(far))
        if mode == MOMENTUM:
            j_ = float(k - since)
            _estimate(samples, Q, constants, mode, 1.0 - j_ ** (-2.0 / 3.0), old, state, batches[k_], work)
            pace[STEP] *= (j_ / (j_ + 1.0)) ** (1.0 / 3.0)
        else:
            _set_step(constants, _estimate(samples, Q, constants, mode, 0.0, old, state, batches[k_], work), state)
    lam_of_step(A, R, before, z, p, lam)
