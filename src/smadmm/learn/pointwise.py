"""Losses of one margin z = a'x with target b: value, slope and curvature in z, entry by entry, in NumPy.

    logistic       log(1 + exp(-b z))                      b = -1, +1
    squared_hinge  max(0, 1 - b z)^2
    sigmoid        1 / (1 + exp(b z))                      nonconvex
    squared        1/2 (z - b)^2                           b any number
    huber          1/2 r^2 for |r| <= d, else d |r| - d^2/2,  r = z - b,  d = 1.345 s
    student        2 s^2 log(1 + r^2 / (3 s^2))            nonconvex, t distribution with 3 degrees of freedom

`curvature` is that of a convex model; for student and the tails of huber that of the quadratic majoriser, slope / r.
s is the scale of the residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
Pointwise = Callable[[Array, Array], Array]

HUBER = 1.345  # in residual scales: 95 % efficient for normal noise
FREEDOM = 3.0


class PointLoss(NamedTuple):
    """l, dl/dz and a curvature d2l/dz2 that is not negative."""

    value: Pointwise
    slope: Pointwise
    curvature: Pointwise


def _logistic_curvature(z: Array, b: Array) -> Array:
    p = expit(z)
    return np.asarray(p * (1 - p))


def _sigmoid_slope(z: Array, b: Array) -> Array:
    s = expit(-b * z)
    return np.asarray(-b * s * (1 - s))


def _sigmoid_curvature(z: Array, b: Array) -> Array:
    s = expit(-b * z)
    return np.asarray(s * (1 - s) * np.maximum(np.abs(1 - 2 * s), 0.1))


CLASSIFICATION = {
    "logistic": PointLoss(lambda z, b: np.logaddexp(0.0, -b * z), lambda z, b: -b * expit(-b * z), _logistic_curvature),
    "squared_hinge": PointLoss(
        lambda z, b: np.maximum(0.0, 1 - b * z) ** 2,
        lambda z, b: -2 * b * np.maximum(0.0, 1 - b * z),
        lambda z, b: np.where(b * z < 1, 2.0, 0.0),
    ),
    "sigmoid": PointLoss(lambda z, b: expit(-b * z), _sigmoid_slope, _sigmoid_curvature),
}

SQUARED = PointLoss(lambda z, b: 0.5 * (z - b) ** 2, lambda z, b: z - b, lambda z, b: np.ones_like(z))


def huber(scale: float, majorised: bool = True) -> PointLoss:
    """Huber's loss for residuals of this scale; its own curvature if not `majorised`."""
    d = HUBER * scale
    tails = 1.0 if majorised else 0.0
    return PointLoss(
        lambda z, b: np.where(np.abs(z - b) <= d, 0.5 * (z - b) ** 2, d * np.abs(z - b) - 0.5 * d * d),
        lambda z, b: np.clip(z - b, -d, d),
        lambda z, b: np.where(np.abs(z - b) <= d, 1.0, tails * d / np.maximum(np.abs(z - b), d)),
    )


def student(scale: float) -> PointLoss:
    """Minus the log-likelihood of Student's t, times the square of the scale."""
    square = FREEDOM * scale**2
    half = 0.5 * (FREEDOM + 1)
    return PointLoss(
        lambda z, b: half * scale**2 * np.log1p((z - b) ** 2 / square),
        lambda z, b: 2 * half * scale**2 * (z - b) / (square + (z - b) ** 2),
        lambda z, b: 2 * half * scale**2 / (square + (z - b) ** 2),
    )
