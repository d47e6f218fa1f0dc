"""Columns of mean 0 and variance 1, and coefficients in the user's units again.

    a'x + x_0 = ((a - m) / s)'z + z_0   for   x = z / s,   x_0 = z_0 - m'x

Sparse data keep m = 0. Constant columns keep s = 1. A row of weight w counts w times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from smadmm.learn.scaling import ROWS_AT_ONCE, Array, column_sums

DOUBLE_UP_TO = 20_000_000  # entries of X: up to here computing is in double precision


@dataclass(frozen=True)
class Standard:
    """Means m and scales s of the columns."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Any, weight: Array, centred: bool = True) -> Standard:
        """From the rows; the means stay 0 for sparse data, or if there is no intercept to take them."""
        mean, size = column_sums(X, weight).total / weight.sum(), _sizes(X)
        if issparse(X):
            square = X.copy()
            square.data = (square.data / size[square.indices]) ** 2
            variance = np.asarray(square.T @ weight) / weight.sum() - (mean / size) ** 2
        else:
            variance = np.zeros(X.shape[1])
            for rows in _parts(X):
                variance += weight[rows] @ ((X[rows] - mean) / size) ** 2
            variance /= weight.sum()
        scale = size * np.sqrt(np.maximum(variance, 0.0))
        tiny = scale <= 1e-12 * np.maximum(np.abs(mean), 1e-295)
        return cls(np.zeros_like(mean) if issparse(X) or not centred else mean, np.where(tiny, 1.0, scale))

    @classmethod
    def none(cls, features: int) -> Standard:
        return cls(np.zeros(features), np.ones(features))

    def apply(self, X: Any) -> Any:
        """A standardised copy."""
        if issparse(X):
            return csr_array((X.data / self.scale[X.indices], X.indices, X.indptr), shape=X.shape)
        out = np.empty(X.shape, np.float64 if X.size <= DOUBLE_UP_TO else X.dtype)
        for rows in _parts(X):
            out[rows] = (X[rows] - self.mean) / self.scale
        return out

    def unknowns(self, coef: Array, intercept: Array, fitted: bool) -> Array:
        """Rows z with the intercept as the last entry, from coefficients in the user's units."""
        z = coef * self.scale
        return np.column_stack([z, intercept + coef @ self.mean]) if fitted else z

    def coefficients(self, z: Array) -> tuple[Array, Array]:
        """coef and intercept in the user's units, from rows z."""
        d = len(self.scale)
        coef = z[:, :d] / self.scale
        return coef, z[:, d:].sum(axis=1) - coef @ self.mean


def _sizes(X: Any) -> Array:
    """Powers of two near the largest entries of the columns, so that squares neither overflow nor vanish."""
    ends = [X.max(axis=0), X.min(axis=0)]
    high, low = (end.toarray().ravel() if issparse(end) else np.asarray(end) for end in ends)
    most = np.maximum(np.abs(high), np.abs(low)).astype(np.float64)
    return np.asarray(np.ldexp(1.0, np.frexp(most)[1] - 1))


def _parts(X: Any) -> list[slice]:
    rows = max(1, ROWS_AT_ONCE // max(1, X.shape[1]))
    return [slice(i, i + rows) for i in range(0, X.shape[0], rows)]
