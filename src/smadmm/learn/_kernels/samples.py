"""Compiled losses and full gradients of linear models.

F(x) = 1/N sum_i w_i l(t_i(x)),     t_i = b_i m_i for classes, m_i - b_i for numbers,     m_i(x) = a_i'x (+ x_last)
"""

from __future__ import annotations

from math import factorial
from typing import Any, NamedTuple

import numpy as np

from smadmm.compilation import compiled, inlined
from smadmm.learn._kernels.rows import FUSED, csr, row_add, row_dot

SIGMOID, LOGISTIC, SQUARED_HINGE, SQUARED, HUBER, STUDENT = range(6)  # from SQUARED on for numbers
CODES = {
    "sigmoid": SIGMOID,
    "logistic": LOGISTIC,
    "squared_hinge": SQUARED_HINGE,
    "squared": SQUARED,
    "huber": HUBER,
    "student": STUDENT,
}


class Samples(NamedTuple):
    """X: Csr or C-contiguous array; target: +-1, or numbers; weight: mean 1; loss: a code above; intercept: is there an x_last."""

    X: object
    target: np.ndarray
    weight: np.ndarray
    loss: int
    intercept: bool


def samples(X: Any, target: Any, weight: Any, loss: str, intercept: bool) -> Samples:
    """The data as the kernels take them; nothing is copied that has the right form."""
    rows = np.ascontiguousarray(X) if isinstance(X, np.ndarray) else csr(X)
    return Samples(rows, target, weight, CODES[loss], intercept)


ROUND = 1.5 * 2.0**52  # z + ROUND: z rounded to an integer, which is also in the last bits
LOG2_HIGH, LOG2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # log 2 = high + low, high * integer is exact
TAYLOR = tuple(1 / factorial(k) for k in range(13, -1, -1))


@inlined(FUSED)
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


@inlined(FUSED)
def argument(loss, b, m):
    """t of the target b and the margin m."""
    return m - b if loss >= SQUARED else b * m


@inlined(FUSED)
def factor(loss, b):
    """dt/dm."""
    return 1.0 if loss >= SQUARED else b


@inlined(FUSED)
def slope(loss, t):
    """l'(t) for l(t) = 1/(1+e^t) | log(1+e^-t) | max(0, 1-t)^2 | t^2/2 | the same, linear from 1 on | 2 log(1+t^2/3)."""
    if loss == SQUARED:
        return t
    if loss == HUBER:
        return min(1.0, max(-1.0, t))
    if loss == STUDENT:
        return 4.0 * t / (3.0 + t * t)
    if loss == SQUARED_HINGE:
        return -2.0 * max(0.0, 1.0 - t)
    e = exp_minus(abs(t))
    if loss == SIGMOID:
        return -e / ((1.0 + e) * (1.0 + e))
    return -(e if t > 0 else 1.0) / (1.0 + e)


@inlined(FUSED)
def slopes(loss, t):
    """t := l'(t), entry by entry."""
    for s in range(t.size):
        t[s] = slope(loss, t[s])


@inlined(FUSED)
def value(loss, t):
    """l(t)."""
    if loss == SQUARED:
        return 0.5 * t * t
    if loss == HUBER:
        return 0.5 * t * t if abs(t) <= 1.0 else abs(t) - 0.5
    if loss == STUDENT:
        return 2.0 * np.log1p(t * t / 3.0)
    if loss == SQUARED_HINGE:
        return max(0.0, 1.0 - t) ** 2
    e = exp_minus(abs(t))
    if loss == SIGMOID:
        return (e if t > 0 else 1.0) / (1.0 + e)
    return np.log1p(e) + max(0.0, -t)


@inlined(FUSED)
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
            out[s] = value(loss, t[s])


@compiled(FUSED)
def mean_loss(samples, x):
    """1/N sum_i w_i l(t_i(x))."""
    X, target, weight, loss, intercept = samples
    base = x[-1] if intercept else 0.0
    total = 0.0
    for i in range(target.size):
        total += weight[i] * value(loss, argument(loss, target[i], row_dot(X, i, x) + base))
    return total / target.size


@inlined(FUSED)
def full_gradient(samples, x, g):
    """g = gradient of `mean_loss` at x."""
    X, target, weight, loss, intercept = samples
    n = target.size
    base = x[-1] if intercept else 0.0
    total = 0.0
    g[:] = 0.0
    for i in range(n):
        t = argument(loss, target[i], row_dot(X, i, x) + base)
        c = weight[i] * factor(loss, target[i]) * slope(loss, t) / n
        total += c
        row_add(X, i, c, g)
    if intercept:
        g[-1] += total


@compiled(FUSED)
def mean_gradient(samples, x, g):
    """g = gradient of `mean_loss` at x."""
    full_gradient(samples, x, g)
