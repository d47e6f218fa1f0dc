"""What the estimators share: columns, graph, penalty, and coefficients in the user's units.

min_z  F(z) + alpha (|[G; I] z|_1 + ridge |z|^2 / 2),    z: coefficients of standardised columns, coef_ = z / scale
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, eye_array, issparse, vstack
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from smadmm.learn.exact import faces
from smadmm.learn.graphs import feature_graph
from smadmm.learn.leaving_out import FACTORS, RIDGES, Measure, affordable, best_weight, clearly_less
from smadmm.learn.standard import Standard
from smadmm.learn.tasks import Array, Fit


class GraphGuided(BaseEstimator):  # type: ignore[misc]
    """A linear model with |z_i - s z_j| penalised along the edges (i, j) of a graph, and |z_i| for every feature."""

    alpha: float | None
    coef_: Any
    intercept_: Any
    graph: Any
    graph_: Any
    ridge: float | None
    ridge_: float
    fit_intercept: bool
    standardize: bool
    tol: float
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_penalty(self, max_epochs: int | None) -> None:
        for name in ("alpha", "ridge", "tol"):
            value = getattr(self, name)
            known = isinstance(value, numbers.Real) and 0 <= float(value) < np.inf
            if not known and (value is not None or name == "tol"):
                raise ValueError(f"{name} must be a number that is not negative, got {value!r}")
        if max_epochs is not None and not (isinstance(max_epochs, numbers.Integral) and max_epochs >= 1):
            raise ValueError(f"max_epochs must be a whole number of at least 1, got {max_epochs!r}")

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """X and y as arrays; where a column of a data frame holds no numbers, the error names it."""
        kinds = [np.float64, np.float32]
        try:
            X, y = validate_data(self, X, y, accept_sparse="csr", dtype=kinds, order="C", **options)
        except (TypeError, ValueError) as error:
            wrong = _without_numbers(X)
            if wrong is None:
                raise
            cure = "encode it first, for example by OneHotEncoder in a pipeline"
            raise ValueError(f"the column {wrong!r} does not hold numbers; {cure}") from error
        return X, y

    def _weight_of_penalty(self, rows: float, A: Any) -> float:
        """alpha, or 1 / (rows sqrt(k)) with k penalties per feature: for plain l1 what C = 1 means in scikit-learn."""
        if self.alpha is not None:
            return float(self.alpha)
        return float(np.sqrt(self.n_features_in_ / A.nnz)) / max(rows, 1e-300)

    @property
    def _standard(self) -> Standard:
        return Standard(self._mean, self._scale)

    @_standard.setter
    def _standard(self, standard: Standard) -> None:  # kept as arrays: one type less to trust in a stored model
        self._mean, self._scale = standard.mean, standard.scale

    @property
    def _finds_graph(self) -> bool:
        return isinstance(self.graph, str) and self.graph == "auto"

    def _choose(self, A: Any, rows: float, measured: Callable[[Any, float], Measure]) -> tuple[Any, float]:
        """A, or that without edges, and alpha: what was given, or what predicts rows left out best; sets `ridge_`.

        `measured(A, ridge)(alpha)` are losses of rows left out; alphas come from large to small. A ridge has to be
        clearly better.
        """
        self.ridge_ = self.ridge or 0.0
        graphs = [A, A[-self.n_features_in_ :]] if self._finds_graph and self.graph_.shape[0] else [A]
        free = self.alpha is None
        if not affordable(rows, A.shape[1]) or not (free or len(graphs) > 1):
            return A, self._weight_of_penalty(rows, A)

        def tried(G: Any, ridge: float, most: float = np.inf) -> tuple[Array, float]:
            alphas = self._weight_of_penalty(rows, G) * (FACTORS if free else np.ones(1))
            return best_weight(alphas[alphas <= most], measured(G, ridge))

        found = [tried(G, self.ridge_) for G in graphs]
        best = min(found, key=lambda each: each[0].sum())
        if best is not found[0]:
            self.graph_ = self.graph_[:0]
            A = graphs[-1]
        for ridge in RIDGES if free and self.ridge is None else ():
            other = tried(A, ridge, best[1])  # what a ridge does, the penalty need not do
            if not clearly_less(other[0], best[0]):
                break
            best, self.ridge_ = other, ridge
        return A, best[1]

    def _prepared(self, X: Any, weight: Array) -> tuple[Any, Any]:
        """The columns as they are fitted, and A = [G; I] with an empty column for the intercept."""
        self._standard = Standard.none(X.shape[1])
        if self.standardize:
            self._standard = Standard.of(X, weight, bool(self.fit_intercept))
            X = self._standard.apply(X)
        return X, self._constraint(X, weight)

    def _constraint(self, X: Any, weight: Array) -> Any:
        names = getattr(self, "feature_names_in_", None)
        self.graph_ = feature_graph(self.graph, X, self.random_state, weight, names)
        return self._rows_of(self.graph_)

    def _rows_of(self, G: Any) -> Any:
        """A = [G; I] with an empty column for the intercept."""
        A = vstack([G, eye_array(G.shape[1])], format="csr")
        return csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], G.shape[1] + int(self.fit_intercept)))

    def _keep_unknowns(self, z: Array) -> None:
        """Coefficients from rows z, one per problem."""
        d = self.n_features_in_
        self.coef_, self.intercept_ = self._standard.coefficients(z)
        self.coef_standardized_ = z[:, :d]
        A = csr_array(vstack([self.graph_, eye_array(d)], format="csr"))
        self.groups_ = np.zeros(self.coef_.shape, dtype=np.int64)
        for groups, row in zip(self.groups_, self.coef_standardized_, strict=True):
            Z = faces(A, A @ row == 0)
            groups[np.diff(Z.indptr) > 0] = Z.indices + 1
        self.n_nonzero_ = int(np.count_nonzero(self.coef_))

    def _keep_stream(self, unit: float = 1.0) -> None:
        """The coefficients so far of `_online`, whose unknowns are in this unit."""
        first, scale = self._first, self._online[0].scale
        self._standard = Standard(first.mean, first.scale * scale)
        unknowns = unit * np.stack([online.x for online in self._online])
        unknowns[:, : len(scale)] *= scale
        self._keep_unknowns(unknowns)
        self.sfo_, self.alpha_ = sum(online.sfo for online in self._online), unit * self._online[0].lam1
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        for stale in ("certificate_", "history_"):  # of a fit before
            self.__dict__.pop(stale, None)

    def _keep_course(self, fits: list[Fit], warn: bool) -> None:
        """What is known of the fits, and a warning if they are not done."""
        one = len(fits) == 1 or all(fit.history is fits[0].history for fit in fits)
        self.n_iter_ = max(fit.passes for fit in fits)
        self.sfo_ = fits[0].sfo if one else sum(fit.sfo for fit in fits)
        self.history_ = fits[0].history if one else [fit.history for fit in fits]
        self.certificate_ = fits[0].certificate if one else [fit.certificate for fit in fits]
        worst = max(fit.certificate.total for fit in fits)
        if warn and not worst <= self.tol:
            message = f"the certificate is {worst:.1e} after {self.n_iter_} passes, above tol = {self.tol:.1e}; "
            warnings.warn(message + "raise max_epochs or alpha", ConvergenceWarning, stacklevel=3)

    def _scores(self, X: Any) -> Array:
        """Margins, one column per problem."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_)

    def plot(self, label: Any = None) -> Any:
        """The graph with coefficients as colours and tied features in rings, as a matplotlib figure.

        `label`: the class whose coefficients are drawn; the first problem otherwise.
        """
        check_is_fitted(self)
        from smadmm.learn.drawing import graph_figure

        known = np.asarray(getattr(self, "classes_", [])).tolist()[-len(self.coef_standardized_) :]
        if label is not None and label not in known:
            raise ValueError(f"label {label!r} is not a class with coefficients; there are {known}")
        return graph_figure(self, 0 if label is None else known.index(label))

    def objective_plot(self) -> Any:
        """The objective and the certificate against time, as a matplotlib figure."""
        if not hasattr(self, "history_"):
            raise ValueError("there is no history to draw; call fit (a stream and a loaded model have none)")
        from smadmm.learn.drawing import objective_figure

        return objective_figure(self)

    def sparsify(self) -> Any:
        """Store coef_ as a sparse matrix: smaller and faster to apply where most coefficients are zero."""
        check_is_fitted(self)
        self.coef_ = csr_matrix(self.coef_)
        return self

    def densify(self) -> Any:
        """Store coef_ as an array again."""
        check_is_fitted(self)
        self.coef_ = self.coef_.toarray() if issparse(self.coef_) else self.coef_
        return self


def _without_numbers(X: Any) -> Any:
    """The first column of a data frame that does not hold numbers; None if there is none."""
    for name in getattr(X, "columns", ()):
        column = np.asarray(X[name])
        try:
            column.astype(np.float64)
        except (TypeError, ValueError):
            return name
        if column.dtype.kind in "mM":  # times, which NumPy counts, but not beside numbers
            return name
    return None
