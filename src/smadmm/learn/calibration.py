"""Probabilities for losses that have none: p = 1 / (1 + exp(-a score)), with one slope a fitted on out-of-fold scores.

The curve goes through 1/2 at score 0 and the slope is the same for all classes, so that the most probable class is the
predicted one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
from scipy.special import expit

from smadmm.learn.tasks import Array

FOLDS = 3
WRONG = 1e-3  # share of wrong labels: no probability of a finite sample is exactly 1


def probabilities(scores: Array, slope: float) -> Array:
    """Of the classes, from one column of scores (two classes) or one per class, which are scaled to sum to 1."""
    p = expit(np.clip(slope * scores, -500, 500))
    return np.hstack([1 - p, p]) if scores.shape[1] == 1 else np.asarray(p / p.sum(axis=1, keepdims=True))


def out_of_fold(X: Any, y: Any, scores: Callable[[Any, Any], Array], seed: int) -> Array | None:
    """scores(train, test) of every row from a model that did not see it; None if a class is too small to be split.

    Equal rows are in the same fold, in whatever order rows come: a row of weight w counts as w rows.
    """
    direction = np.random.default_rng(seed).standard_normal(X.shape[1])
    key = X @ direction if issparse(X) else np.einsum("ij,j->i", X, direction)
    fold = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        rank = np.unique(key[y == label], return_inverse=True)[1]
        if rank.max() < FOLDS - 1:
            return None
        fold[y == label] = rank % FOLDS
    parts = [scores(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
    out = np.empty((len(y), parts[0].shape[1]))
    for k, part in enumerate(parts):
        out[fold == k] = part
    return out


def fitted_slope(scores: Array, number: Any, weight: Array) -> float:
    """The slope with the smallest log-loss; `number`: the class of each row, of which a share is taken as wrong."""
    scale = max(float(np.average(np.abs(scores).mean(axis=1), weights=weight)), 1e-300)

    def loss(log_slope: float) -> float:
        p = probabilities(scores, np.exp(log_slope) / scale)
        own = np.clip((1 - WRONG) * p[np.arange(len(number)), number] + WRONG / p.shape[1], 1e-300, 1.0)
        return -float(weight @ np.log(own))

    return float(
        np.exp(minimize_scalar(loss, bounds=(-7.0, 7.0), method="bounded", options={"xatol": 1e-10}).x) / scale
    )
