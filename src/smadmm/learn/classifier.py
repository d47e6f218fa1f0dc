"""A scikit-learn classifier whose coefficients are tied along the edges of a graph over the features.

    min_x  1/N sum_i w_i l(b_i (a_i'x + x_0)) + alpha |[G; I] x|_1

`method="auto"` needs no tuning. More than two classes are fitted one against the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from tqdm import tqdm

from smadmm.learn.chunks import StreamFit
from smadmm.learn.fitting import Fit, fit_auto, fit_published, use_compiled
from smadmm.learn.graphs import feature_graph
from smadmm.learn.loops import LOSSES, Array, Task
from smadmm.learn.published_loops import published
from smadmm.learn.scaling import column_sums

METHODS = ("auto", "smadmm", "sadmm", "svrg", "saga", "spider", "asvrg")


SHUFFLED_FROM = 10_000  # rows: from here on a shuffled copy is read in sequence
SHUFFLED_UP_TO = 1 << 30  # bytes of X: up to here a copy is affordable


def _bytes(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if hasattr(X, "tocsr") else X.nbytes)


def _has_probabilities(classifier: GraphGuidedClassifier) -> bool:
    if classifier.loss != "logistic":
        raise AttributeError(f"probabilities are defined by loss='logistic', not by loss={classifier.loss!r}")
    return True


class GraphGuidedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classifier with |x_i - s x_j| penalised along the edges (i, j) of a graph, and |x_i| for every feature.

    Parameters
    ----------
    alpha : weight of the penalty.
    graph : "glasso" (learned from the data), "knn", "chain", an edge list, a sparse adjacency or precision matrix, a
        networkx graph, or None (plain l1).
    loss : "sigmoid" (bounded, robust to wrong labels), "logistic" (has predict_proba) or "squared_hinge".
    method : "auto" (sets itself), or a published one: "smadmm", "sadmm", "svrg", "saga", "spider", "asvrg".
    fit_intercept : is there an unpenalised intercept.
    class_weight : None, "balanced" or a dict.
    max_epochs : passes over the data, counted in sample gradients; None is 20, and below 256 rows as many full passes
        as `tol` needs (method="auto").
    tol : stop when the certificate dist^2(0, dL) is below.
    step, rho, batch_size : of the published methods; None takes them from the data.
    momentum : finish `auto` with STORM, for a last iterate with a small certificate, instead of averaging.
    variant : "differences" (rows x_i - s x_j) or "adjacency" (the signed adjacency matrix, as the paper reads).
    """

    def __init__(
        self,
        alpha: float = 1e-5,
        *,
        graph: Any = "glasso",
        loss: str = "sigmoid",
        method: str = "auto",
        fit_intercept: bool = True,
        class_weight: Any = None,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        step: float | None = None,
        rho: float | None = None,
        batch_size: int | None = None,
        momentum: bool = False,
        variant: str = "differences",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.alpha = alpha
        self.graph = graph
        self.loss = loss
        self.method = method
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_epochs = max_epochs
        self.tol = tol
        self.step = step
        self.rho = rho
        self.batch_size = batch_size
        self.momentum = momentum
        self.variant = variant
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not self.alpha >= 0:
            raise ValueError(f"alpha must not be negative, got {self.alpha}")
        if self.max_epochs is not None and not self.max_epochs >= 1:
            raise ValueError(f"max_epochs must be at least 1, got {self.max_epochs}")
        for name in ("step", "rho", "batch_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def _constraint(self, X: Any, weight: Array | None) -> Any:
        """A = [G; I], with an empty column for the intercept."""
        from scipy.sparse import csr_array, eye_array, vstack

        G = feature_graph(self.graph, X, self.random_state, self.variant, weight)
        self.graph_ = G
        if G.shape[0]:
            G = G[np.diff(G.indptr) > 0]  # rows of an adjacency matrix may be empty
        A = vstack([G, eye_array(X.shape[1])], format="csr")
        return csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], X.shape[1] + int(self.fit_intercept)))

    def _row_weights(self, y: Any, X: Any, sample_weight: Any, classes: Any) -> Array:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            factors = compute_class_weight(
                self.class_weight,
                classes=classes,
                y=y,
                sample_weight=weight if self.class_weight == "balanced" else None,
            )
            weight = weight * factors[np.searchsorted(classes, y)]
        return np.asarray(weight, dtype=np.float64)

    def _signs(self, y: Any) -> list[Array]:
        """The targets +-1 of every problem: one for two classes, one a class for more."""
        chosen = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        return [np.where(y == c, 1.0, -1.0) for c in chosen]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphGuidedClassifier:
        """Fit from the start, or from the last coefficients with warm_start."""
        self._check_parameters()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        check_classification_targets(y)
        previous = (self.coef_, self.intercept_) if self.warm_start and hasattr(self, "coef_") else None
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least two classes, got one class: {self.classes_[0]}")
        weight = self._row_weights(y, X, sample_weight, self.classes_)
        kept = weight > 0
        if not kept.all():
            X, y, weight = X[kept], y[kept], weight[kept]
            if len(np.unique(y)) < 2:
                raise ValueError("the rows with positive weight are of one class; a classifier needs at least two")
        A = self._constraint(X, weight)
        columns = column_sums(X, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shuffled = X.shape[0] >= SHUFFLED_FROM and _bytes(X) <= SHUFFLED_UP_TO
        if shuffled:
            order = np.random.default_rng(seed).permutation(X.shape[0])
            X, y, weight = X[order], y[order], weight[order]
        mean_one = weight / weight.mean()
        targets = self._signs(y)
        fits = []
        epochs = self.max_epochs or 20
        with tqdm(total=len(targets) * epochs, unit="pass", disable=None if self.verbose else True) as bar:
            for number, target in enumerate(targets):
                task = Task(X, target, mean_one, A, self.alpha, self.loss, bool(self.fit_intercept), shuffled)
                start = None if previous is None else self._joined(previous, number)
                fits.append(self._fit_one(task, columns, seed, start, lambda done: bar.update(1)))
        self._keep(fits)
        return self

    def _fit_one(self, task: Task, columns: Any, seed: int, start: Array | None, report: Any) -> Fit:
        if self.method == "auto":
            return fit_auto(task, columns, self.max_epochs, self.tol, seed, start, self.momentum, report=report)
        settings = published(self.method, task, self.step, self.rho, self.batch_size)
        return fit_published(task, settings, self.max_epochs or 20, self.tol, seed, report=report)

    def _joined(self, previous: tuple[Any, Any], number: int) -> Array:
        coef, intercept = previous
        tail = [intercept[number]] if self.fit_intercept else []
        return np.concatenate([coef[number], tail]).astype(np.float64)

    def _split(self, xs: list[Array]) -> None:
        stacked = np.stack(xs)
        self.coef_ = stacked[:, : self.n_features_in_]
        self.intercept_ = stacked[:, -1] if self.fit_intercept else np.zeros(len(xs))

    def _keep(self, fits: list[Fit]) -> None:
        self._split([fit.x for fit in fits])
        one = len(fits) == 1
        self.n_iter_ = max(fit.passes for fit in fits)
        self.sfo_ = sum(fit.sfo for fit in fits)
        self.history_ = fits[0].history if one else [fit.history for fit in fits]
        self.certificate_ = fits[0].certificate if one else [fit.certificate for fit in fits]
        self._streams: list[StreamFit] | None = None

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GraphGuidedClassifier:
        """Go on with a chunk of rows, in their order. The first call needs `classes` and learns the graph."""
        self._check_parameters()
        first = getattr(self, "_streams", None) is None
        fresh = not hasattr(self, "classes_")
        if fresh and classes is None:
            raise ValueError("the first call of partial_fit needs classes, the list of all labels that will come")
        if fresh or classes is not None:
            given = unique_labels(classes)
            if not fresh and not np.array_equal(given, self.classes_):
                raise ValueError(f"classes {given} are not those of the calls before, {self.classes_}")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C", reset=fresh)
        check_classification_targets(y)
        known = given if fresh else self.classes_
        if not np.isin(y, known).all():
            raise ValueError(f"label {y[~np.isin(y, known)][0]} is not among the classes {known}")
        if len(known) < 2:
            raise ValueError(f"a classifier needs at least two classes, got one class: {known[0]}")
        self.classes_ = known
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all data at once; give partial_fit a dict of weights")
        weight = self._row_weights(y, X, sample_weight, self.classes_)
        if first:
            self._start_streams(X, weight)
        assert self._streams is not None
        kept = weight > 0
        for stream, target in zip(self._streams, self._signs(y), strict=True):
            if kept.any():
                stream.update(X[kept], target[kept], weight[kept])
        self._split([stream.x for stream in self._streams])
        self.sfo_ = sum(stream.sfo for stream in self._streams)
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        return self

    def _start_streams(self, X: Any, weight: Array) -> None:
        if self.method != "auto":
            raise ValueError(f"partial_fit goes with method='auto', got {self.method!r}")
        A = self._constraint(X, weight)
        previous = (self.coef_, self.intercept_) if hasattr(self, "coef_") else None
        count = 1 if len(self.classes_) == 2 else len(self.classes_)
        starts = [None if previous is None else self._joined(previous, number) for number in range(count)]
        compiled, intercept = use_compiled(None), bool(self.fit_intercept)
        self._streams = [StreamFit(A, self.alpha, self.loss, intercept, compiled, start) for start in starts]

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Distance to the separating plane, one column a class for more than two classes."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        scores = np.asarray(X @ self.coef_.T) + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities (loss="logistic"); for more than two classes the one-vs-rest ones, made to sum to 1."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
            return np.stack([1 - p, p], axis=1)
        p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
        return np.asarray(p / np.maximum(p.sum(axis=1, keepdims=True), 1e-300))
