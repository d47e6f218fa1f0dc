"""A scikit-learn classifier whose coefficients are tied along the edges of a graph over the features.

    min_x  1/N sum_i w_i l(b_i (a_i'x + x_0)) + alpha |[G; I] x|_1

The solver needs no tuning. More than two classes are fitted one against the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, issparse, vstack
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from tqdm import tqdm

from smadmm.arguments import one_of
from smadmm.learn.chunks import OnlineFit
from smadmm.learn.fitting import PASSES, Fit, Report, fit_auto, fit_published
from smadmm.learn.graphs import feature_graph
from smadmm.learn.loops import LOSSES, Array, Auto, Task
from smadmm.learn.published_loops import NAMES, Published
from smadmm.learn.scaling import Columns, column_sums

SOLVERS = ("auto", *NAMES)
SHUFFLED_FROM = 10_000  # rows: from here on a shuffled copy is read in sequence
SHUFFLED_UP_TO = 1 << 30  # bytes of X: up to here a copy is affordable


def _bytes(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if issparse(X) else X.nbytes)


def _has_probabilities(classifier: GraphGuidedClassifier) -> bool:
    if classifier.loss != "logistic":
        raise AttributeError(f"probabilities are defined by loss='logistic', not by loss={classifier.loss!r}")
    return True


def _refuse_one_class(classes: Any) -> None:
    if len(classes) < 2:
        raise ValueError(f"a classifier needs at least two classes, got one class: {classes[0]}")


class GraphGuidedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classifier with |x_i - s x_j| penalised along the edges (i, j) of a graph, and |x_i| for every feature.

    Parameters
    ----------
    alpha : weight of the penalty.
    graph : "glasso" (learned from the data), "knn", "chain", an edge list, a sparse adjacency or precision matrix, a
        networkx graph, None (plain l1), or Rows(G) for a matrix G of your own.
    loss : "sigmoid" (bounded, robust to wrong labels), "logistic" (has predict_proba) or "squared_hinge".
    solver : "auto" sets itself; Auto(momentum=True) makes it end with STORM. For comparisons: a published method by
        name ("smadmm", "sadmm", "svrg", "saga", "spider", "asvrg"), or Published(...) with step, penalty, batch size.
    fit_intercept : whether there is an unpenalised intercept.
    class_weight : None, "balanced" or a dict.
    max_epochs : passes over the data, counted in sample gradients; None means 20, or with "auto" and fewer than 256
        rows as many full passes as `tol` needs.
    tol : stop when the certificate dist^2(0, dL) is at most this.
    warm_start : whether fit begins with the coefficients of the last one ("auto").
    random_state : seed of the order of the samples and of the choice of rows for the graph.
    verbose : 1 shows a progress bar on a terminal.

    >>> X, y = np.random.default_rng(0).standard_normal((200, 4)), np.repeat([0, 1], 100)
    >>> X[y == 1, :2] += 2
    >>> GraphGuidedClassifier(1e-3, graph="chain", random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        alpha: float = 1e-5,
        *,
        graph: Any = "glasso",
        loss: str = "sigmoid",
        solver: Any = "auto",
        fit_intercept: bool = True,
        class_weight: Any = None,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.alpha = alpha
        self.graph = graph
        self.loss = loss
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_epochs = max_epochs
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        if not isinstance(self.solver, Auto | Published) and self.solver not in SOLVERS:
            raise ValueError(
                f"solver must be one of {', '.join(SOLVERS)}, or Auto(...) or Published(...), got {self.solver!r}"
            )
        if not self.alpha >= 0:
            raise ValueError(f"alpha must not be negative, got {self.alpha}")
        if self.max_epochs is not None and not self.max_epochs >= 1:
            raise ValueError(f"max_epochs must be at least 1, got {self.max_epochs}")

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C", reset=reset)
        check_classification_targets(y)
        return X, y

    def _constraint(self, X: Any, weight: Array) -> Any:
        """A = [G; I], with an empty column for the intercept."""
        self.graph_ = feature_graph(self.graph, X, self.random_state, weight)
        A = vstack([self.graph_, eye_array(X.shape[1])], format="csr")
        return csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], X.shape[1] + int(self.fit_intercept)))

    def _row_weights(self, y: Any, X: Any, sample_weight: Any) -> Array:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            counted = weight if self.class_weight == "balanced" else None
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=counted)
            weight = weight * factors[np.searchsorted(self.classes_, y)]
        return np.asarray(weight, dtype=np.float64)

    def _signs(self, y: Any) -> list[Array]:
        """The targets +-1 of every problem: one for two classes, one per class for more."""
        chosen = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        return [np.where(y == c, 1.0, -1.0) for c in chosen]

    def _starts(self, count: int) -> list[Array | None]:
        """The coefficients of the last fit, one vector per problem; None where there are none of this size."""
        coef = getattr(self, "coef_", None)
        if coef is None or coef.shape != (count, self.n_features_in_):
            return [None] * count
        return list(np.column_stack([coef, self.intercept_]) if self.fit_intercept else coef.copy())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphGuidedClassifier:
        """Fit from the start, or from the last coefficients with warm_start."""
        self._check_parameters()
        X, y = self._validated(X, y, reset=True)
        self.classes_ = np.unique(y)
        _refuse_one_class(self.classes_)
        weight = self._row_weights(y, X, sample_weight)
        kept = weight > 0
        if not kept.all():
            X, y, weight = X[kept], y[kept], weight[kept]
            if len(np.unique(y)) < 2:
                raise ValueError("the rows with positive weight are of one class; a classifier needs at least two")
        A, columns = self._constraint(X, weight), column_sums(X, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shuffled = X.shape[0] >= SHUFFLED_FROM and _bytes(X) <= SHUFFLED_UP_TO
        if shuffled:
            order = np.random.default_rng(seed).permutation(X.shape[0])
            X, y, weight = X[order], y[order], weight[order]
        rest = {"intercept": bool(self.fit_intercept), "shuffled": shuffled}
        mean_one = weight / weight.mean()
        tasks = [Task(X, target, mean_one, A, self.alpha, self.loss, **rest) for target in self._signs(y)]
        self._keep(self._fit_all(tasks, columns, seed))
        return self

    def _fit_all(self, tasks: list[Task], columns: Columns, seed: int) -> list[Fit]:
        starts = self._starts(len(tasks)) if self.warm_start else [None] * len(tasks)
        total = len(tasks) * (self.max_epochs or PASSES)
        with tqdm(total=total, unit="pass", disable=None if self.verbose else True) as bar:
            every = zip(tasks, starts, strict=True)
            return [self._fit_one(task, columns, seed, start, bar.update) for task, start in every]

    def _fit_one(self, task: Task, columns: Columns, seed: int, start: Array | None, report: Report) -> Fit:
        solver = Auto() if self.solver == "auto" else self.solver
        if isinstance(solver, Auto):
            momentum = solver.momentum
            return fit_auto(
                task, columns, self.max_epochs, self.tol, seed, start=start, momentum=momentum, report=report
            )
        method = solver if isinstance(solver, Published) else Published.from_data(solver, task)
        return fit_published(task, method, self.max_epochs or PASSES, self.tol, seed, report)

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
        self._online: list[OnlineFit] | None = None

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GraphGuidedClassifier:
        """Go on with a chunk of rows, in their order. The first call needs `classes` and learns the graph."""
        self._check_parameters()
        if self.solver not in ("auto", Auto()):
            raise ValueError(f"partial_fit goes with solver='auto', got {self.solver!r}")
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all data at once; give partial_fit a dict of weights")
        known = self._known_classes(classes)
        X, y = self._validated(X, y, reset=getattr(self, "classes_", None) is None)
        if not np.isin(y, known).all():
            raise ValueError(f"label {y[~np.isin(y, known)][0]} is not among the classes {known}")
        _refuse_one_class(known)
        self.classes_ = known
        weight = self._row_weights(y, X, sample_weight)
        targets = self._signs(y)
        if getattr(self, "_online", None) is None:
            A, intercept = self._constraint(X, weight), bool(self.fit_intercept)
            starts = self._starts(len(targets))
            self._online = [OnlineFit(A, self.alpha, self.loss, intercept, start) for start in starts]
        assert self._online is not None
        kept = weight > 0
        for online, target in zip(self._online, targets, strict=True):
            if kept.any():
                online.update(X[kept], target[kept], weight[kept])
        self._split([online.x for online in self._online])
        self.sfo_ = sum(online.sfo for online in self._online)
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        return self

    def _known_classes(self, classes: Any) -> Any:
        """The classes of the calls before, or those given to the first one."""
        before = getattr(self, "classes_", None)
        if before is None and classes is None:
            raise ValueError("the first call of partial_fit needs classes, the list of all labels that will come")
        if classes is None:
            return before
        given = unique_labels(classes)
        if before is not None and not np.array_equal(given, before):
            raise ValueError(f"classes {given} are not those of the calls before, {before}")
        return given

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Distance to the separating plane; one column per class for more than two classes."""
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
        """Class probabilities (loss="logistic"); for more than two classes the one-vs-rest ones, scaled to sum to 1."""
        p = expit(np.clip(self.decision_function(X), -500, 500))
        return np.stack([1 - p, p], axis=1) if p.ndim == 1 else np.asarray(p / p.sum(axis=1, keepdims=True))
