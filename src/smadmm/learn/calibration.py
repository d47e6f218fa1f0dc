"""Probabilities for losses that have none: p = 1 / (1 + exp(-a score)), with one slope a fitted on out-of-fold scores.

The curve goes through 1/2 at score 0 and the slope is the same for all classes, so that the most probable class is the
predicted one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.model_selection import StratifiedKFold

from smadmm.learn.loops import Array

FOLDS = 3


def probabilities(scores: Array, slope: float) -> Array:
    """Of the classes, from one column of scores (two classes) or one per class, which are scaled to sum to 1."""
    p = expit(np.clip(slope * scores, -500, 500))
    return np.hstack([1 - p, p]) if scores.shape[1] == 1 else np.asarray(p / p.sum(axis=1, keepdims=True))


def out_of_fold(y: Any, scores: Callable[[Any, Any], Array], seed: int) -> Array | None:
    """scores(train, test) of every row from a model that did not see it; None if a class is too small to be split."""
    labels = np.unique(y, return_inverse=True)[1]
    if np.bincount(labels).min() < FOLDS:
        return None
    parts = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels))
    found = [scores(train, test) for train, test in parts]
    out = np.empty((len(labels), found[0].shape[1]))
    for (_, test), part in zip(parts, found, strict=True):
        out[test] = part
    return out


def fitted_slope(scores: Array, number: Any, weight: Array) -> float:
    """The slope with the smallest log-loss; `number`: the class of each row. One wrong row in n + 2 is assumed."""
    scale = max(float(np.abs(scores).mean()), 1e-300)
    share = 1 / (len(number) + 2)

    def loss(log_slope: float) -> float:
        p = probabilities(scores, np.exp(log_slope) / scale)
        own = np.clip((1 - share) * p[np.arange(len(number)), number] + share / p.shape[1], 1e-300, 1.0)
        return -float(weight @ np.log(own))

    return float(np.exp(minimize_scalar(loss, bounds=(-7.0, 7.0), method="bounded").x) / scale)
