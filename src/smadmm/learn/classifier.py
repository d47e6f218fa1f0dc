"""Scikit-learn classifiers whose coefficients are tied along the edges of a graph over the features.

    min_z  1/N sum_i w_i l(b_i (a_i'z + z_0)) + alpha (|[G; I] z|_1 + ridge |z|^2 / 2)

over the coefficients z of standardised columns. The solver needs no tuning, and its answer is the minimiser with its
exact zeros and ties. More than two classes are fitted jointly (softmax) or one against the rest.
"""

from __future__ import annotations

import operator
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from smadmm.arguments import one_of
from smadmm.bars import tqdm
from smadmm.learn.answers import (
    SOFTMAX_LARGEST,
    along_path,
    fit_exact,
    fit_softmax,
    model_of,
    softmax_of,
    starts_with_auto,
)
from smadmm.learn.base import GraphGuided
from smadmm.learn.calibration import fitted_slope, out_of_fold, probabilities
from smadmm.learn.chunks import LabelOrder, OnlineFit
from smadmm.learn.exact import Point, strict
from smadmm.learn.leaving_out import Measure, margins_without
from smadmm.learn.pointwise import CLASSIFICATION
from smadmm.learn.scaling import column_sums
from smadmm.learn.standard import Standard
from smadmm.learn.tasks import AT_ZERO, PASSES, PUBLISHED, Array, Auto, Fit, Report, Task, default_passes

SOLVERS = ("auto", *PUBLISHED)
SHUFFLED_FROM = 10_000  # rows: from here on a shuffled copy is read in sequence
SHUFFLED_UP_TO = 1 << 30  # bytes of X: up to here a copy is affordable


def _bytes(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if issparse(X) else X.nbytes)


def _refuse_one_class(classes: Any) -> None:
    if len(classes) < 2:
        raise ValueError(f"a classifier needs at least two classes, got one class: {classes[0]}")


def _checked_shards(executor: Any, shards: Any) -> int | None:
    """The number of shards; None for a fit of all rows at once."""
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor is a concurrent.futures.Executor, got {type(executor).__name__}")
    if shards is None:
        if executor is not None:
            raise ValueError("an executor fits shards of the rows; say how many by shards=")
        return None
    count = operator.index(shards)
    if count < 1:
        raise ValueError(f"shards must be at least 1, got {shards}")
    return None if count == 1 else count


def _is_published(solver: Any) -> bool:
    """Whether the method comes with its settings; only whoever gives one waits for torch."""
    from smadmm.learn.published_loops import Published

    return isinstance(solver, Published)


class _Classifier(ClassifierMixin, GraphGuided):  # type: ignore[misc]
    """What the classifiers share: everything but where alpha comes from."""

    loss: str
    solver: Any
    multi_class: str
    class_weight: Any
    calibrate: bool
    max_epochs: int | None
    warm_start: bool
    verbose: int

    def _check_parameters(self) -> None:
        one_of("loss", self.loss, tuple(CLASSIFICATION))
        one_of("multi_class", self.multi_class, ("multinomial", "ovr"))
        known = self.solver in SOLVERS if isinstance(self.solver, str) else isinstance(self.solver, Auto)
        if not known and not _is_published(self.solver):
            raise ValueError(
                f"solver must be one of {', '.join(SOLVERS)}, or Auto(...) or Published(...), got {self.solver!r}"
            )
        self._check_penalty(self.max_epochs)
        if self.ridge and not self._exact:
            raise ValueError(f"ridge goes with solver='auto', got {self.solver!r}")

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        X, y = self._checked(X, y, reset=reset)
        check_classification_targets(y)
        return X, y

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

    @property
    def _exact(self) -> bool:
        return bool(self.solver == "auto" or (isinstance(self.solver, Auto) and self.solver == Auto()))

    def _is_softmax(self, unknowns: int) -> bool:
        """Whether the classes are fitted jointly."""
        wanted = self.multi_class == "multinomial" and self.loss == "logistic" and self._exact
        return wanted and len(self.classes_) > 2 and unknowns * len(self.classes_) <= SOFTMAX_LARGEST

    def _starts(self, count: int) -> list[Array | None]:
        """The coefficients of the last fit, one vector per problem; None where there are none of this size."""
        coef = getattr(self, "coef_", None)
        if coef is None or coef.shape != (count, self.n_features_in_):
            return [None] * count
        coef = coef.toarray() if issparse(coef) else coef
        return list(self._standard.unknowns(coef, self.intercept_, bool(self.fit_intercept)))

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, executor: Any = None, shards: int | None = None) -> Any:
        """Fit from the start, or from the last coefficients with warm_start.

        With `shards` so many parts of the rows are fitted on their own, as tasks of a concurrent.futures `executor`
        (None: one after the other), and averaged, each with the weight of its rows: close to the fit of all rows, but
        coefficients that vanish in one part only do not vanish. More than two classes are then one against the rest.
        """
        self._check_parameters()
        shards = _checked_shards(executor, shards)
        X, y = self._validated(X, y, reset=True)
        self.classes_ = np.unique(y)
        _refuse_one_class(self.classes_)
        weight = self._row_weights(y, X, sample_weight)
        kept = weight > 0
        if not kept.all():
            X, y, weight = X[kept], y[kept], weight[kept]
            if len(np.unique(y)) < 2:
                raise ValueError("the rows with positive weight are of one class; a classifier needs at least two")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        X, A = self._prepared(X, weight)
        shuffled = not self._exact or starts_with_auto(A, X.shape[1])  # read in sequence by stochastic passes
        shuffled = shuffled and X.shape[0] >= SHUFFLED_FROM and _bytes(X) <= SHUFFLED_UP_TO
        if shuffled:
            order = np.random.default_rng(seed).permutation(X.shape[0])
            X, y, weight = X[order], y[order], weight[order]
        rest = {"intercept": bool(self.fit_intercept), "shuffled": shuffled}
        mean_one = weight / weight.mean()
        tasks = [Task(X, target, mean_one, A, 0.0, self.loss, **rest) for target in self._signs(y)]
        A, self.alpha_ = self._penalty(tasks, float(weight.sum()), kept, seed)
        tasks = [replace(task, A=A, lam1=self.alpha_, ridge=self.ridge_) for task in tasks]
        if shards is None:
            fits = self._fit_all(tasks, seed)
        else:
            from smadmm.learn.sharding import fit_shards

            fits = fit_shards(self, tasks, seed, executor, shards)
        self._keep_unknowns(np.stack([fit.x for fit in fits]))
        self._keep_course(fits, warn=self._exact and shards is None)
        self._guard([fit.history["objective"][-1] for fit in fits])
        self.calibration_ = self._calibrated(tasks, y, seed)
        self._online: list[OnlineFit] | None = None
        return self

    def _guard(self, objectives: list[float]) -> None:
        """Say if zero coefficients would be better."""
        zero = AT_ZERO[self.loss]
        if not self._softmax and max(objectives) > zero * (1 + 1e-9):
            message = f"the objective is {max(objectives):.3g}, above the {zero:.3g} of zero coefficients; "
            warnings.warn(message + "raise max_epochs, or use solver='auto'", ConvergenceWarning, stacklevel=3)

    def _penalty(self, tasks: list[Task], rows: float, kept: Any, seed: int) -> tuple[Any, float]:
        """A and alpha."""
        A = tasks[0].A
        if not self._exact or self.loss == "sigmoid":  # not convex: a step to the fit without a row may lead uphill
            self.ridge_ = self.ridge or 0.0
            return A, self._weight_of_penalty(rows, A)
        return self._choose(A, rows, partial(self._left_out, tasks, rows))

    def _left_out(self, tasks: list[Task], rows: float, A: Any, ridge: float) -> Measure:
        """The losses of rows left out with this A and ridge, by alpha."""
        tasks, softmax = [replace(task, A=A, ridge=ridge) for task in tasks], self._is_softmax(A.shape[1])
        fits = along_path(tasks, softmax, self.max_epochs)

        def losses(alpha: float) -> Array:
            found, here = [fit.x for fit in fits(alpha)], [replace(task, lam1=alpha) for task in tasks]
            models = [softmax_of(here)] if softmax else [(model_of(task), A) for task in here]
            points = [np.concatenate(found)] if softmax else found
            every = zip(models, points, strict=True)
            left = [model.terms(margins_without(model, by, alpha, x, rows)) for (model, by), x in every]
            return np.asarray(np.sum(left, axis=0))

        return losses

    def _fit_all(self, tasks: list[Task], seed: int) -> list[Fit]:
        starts = self._starts(len(tasks)) if self.warm_start else [None] * len(tasks)
        self._softmax = self._is_softmax(tasks[0].size)
        if self._softmax:
            given = [x for x in starts if x is not None]
            start = Point(np.concatenate(given), np.zeros(len(tasks) * tasks[0].A.shape[0])) if given else None
            return fit_softmax(tasks, strict(self.tol, self.alpha_), self.max_epochs, start)[0]
        total = self.max_epochs or (PASSES if self._exact else default_passes(tasks[0].X))
        with tqdm(total=len(tasks) * total, unit="pass", disable=None if self.verbose else True) as bar:
            every = zip(tasks, starts, strict=True)
            return [self._fit_one(task, seed, start, bar.update) for task, start in every]

    def _fit_one(self, task: Task, seed: int, start: Array | None, report: Report) -> Fit:
        if self._exact:
            point = None if start is None else Point(start, np.zeros(task.A.shape[0]))
            tol = strict(self.tol, task.lam1)
            return fit_exact(task, self.max_epochs, tol, seed, start=point, report=report)[0]
        from smadmm.learn.fitting import fit_auto, fit_published
        from smadmm.learn.published_loops import Published

        solver = self.solver
        if isinstance(solver, Auto):
            momentum = solver.momentum
            return fit_auto(
                task,
                column_sums(task.X, task.weight),
                self.max_epochs,
                self.tol,
                seed,
                start=start,
                momentum=momentum,
                convex_pass=True,
                report=report,
            )
        method = solver if isinstance(solver, Published) else Published.from_data(solver, task)
        return fit_published(task, method, self.max_epochs or PASSES, self.tol, seed, report)

    def _calibrated(self, tasks: list[Task], y: Any, seed: int) -> float:
        """The slope of the probabilities; 1 where they are the loss's own or are not wanted."""
        if self.loss == "logistic" or not self.calibrate:
            return 1.0
        first = tasks[0]

        def scores(train: Any, test: Any) -> Array:
            fits = [self._fit_one(task.part(train), seed, None, lambda: None) for task in tasks]
            d = self.n_features_in_
            return np.stack([first.X[test] @ fit.x[:d] + fit.x[d:].sum() for fit in fits], axis=1)

        found = out_of_fold(first.X, y, scores, seed)
        number = np.searchsorted(self.classes_, y)
        return 1.0 if found is None else fitted_slope(found, number, first.weight)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Distance to the separating plane; one column per class for more than two classes."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities: the softmax of the scores, or those of `calibration_`, scaled to sum to 1."""
        scores = self._scores(X)
        if self._softmax:
            return np.asarray(np.exp(log_softmax(scores, axis=1)))
        return probabilities(scores, self.calibration_)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithm of the class probabilities."""
        check_is_fitted(self)
        if self._softmax:
            return np.asarray(log_softmax(self._scores(X), axis=1))
        return np.log(np.maximum(self.predict_proba(X), np.finfo(float).tiny))

    def calibration_plot(self, X: Any, y: Any) -> Any:
        """Whether the probabilities of these rows come true, as a matplotlib figure; best with rows held out.

        Of two classes the probability of the second one, of more that of the predicted class.
        """
        p, y = self.predict_proba(X), np.asarray(y)
        from smadmm.learn.drawing import calibration_figure

        if p.shape[1] == 2:
            return calibration_figure(p[:, 1], y == self.classes_[1], f"probability of {self.classes_[1]}")
        right = self.classes_[p.argmax(axis=1)] == y
        return calibration_figure(p.max(axis=1), right, "probability of the predicted class")


class GraphGuidedClassifier(_Classifier):
    """Linear classifier with |z_i - s z_j| penalised along the edges (i, j) of a graph, and |z_i| for every feature.

    Parameters
    ----------
    alpha : weight of the penalty. None tries .1 to 100 times 1 / (rows sqrt(k)), k penalties per feature (for plain l1
        what C = 1 means in scikit-learn), and takes the one that predicts rows left out best; with more than 50 rows
        per feature, in a stream and for the sigmoid loss it is that weight itself.
    graph : "auto" (learned from the data as "glasso" up to 1000 features, and dropped if rows left out are predicted
        better without), "glasso", "knn", "chain", an edge list (of numbers or names), a sparse adjacency or precision
        matrix, a networkx graph, `graph_` of an earlier fit, None (plain l1), or Rows(G) for a matrix G of your own.
    ridge : a second penalty, alpha * ridge |z|^2 / 2, for where many features each say a little. None means 0 if alpha
        is given, else the one of 0, 3 and 30 that predicts rows left out best. Streams go without.
    loss : "logistic", "sigmoid" (bounded, robust to wrong labels) or "squared_hinge".
    solver : "auto" sets itself and answers with the minimiser; Auto(exact=False) answers with the average of stochastic
        iterates, Auto(momentum=True, exact=False) ends with STORM. For comparisons: a published method by name
        ("smadmm", "sadmm", "svrg", "saga", "spider", "asvrg"), or Published(...) with step, penalty, batch size.
    multi_class : "multinomial" (softmax; logistic loss, up to 1500 unknowns, else one against the rest) or "ovr".
    fit_intercept : whether there is an unpenalised intercept.
    standardize : whether columns are brought to mean 0 (not sparse ones) and variance 1 for the fit. Ties then hold
        between `coef_standardized_`, and alpha does not depend on units.
    class_weight : None, "balanced" or a dict.
    calibrate : whether losses without probabilities of their own get a slope from three-fold out-of-fold scores.
    max_epochs : Newton steps or passes over the data at most; None means 100 steps, or 20 passes
        (more on small data).
    tol : stop when the certificate dist^2(0, dL) is at most this.
    warm_start : whether fit begins with the coefficients of the last one ("auto").
    random_state : seed of the order of the samples and of the choice of rows for the graph.
    verbose : 1 shows a progress bar on a terminal.

    After fit: `coef_`, `intercept_` in the units of X; `coef_standardized_`; `groups_`: 0 where a coefficient is zero,
    equal numbers where coefficients are tied; `n_nonzero_`; `alpha_`; `ridge_`; `graph_`; `certificate_` of that very
    point.

    >>> X, y = np.random.default_rng(0).standard_normal((200, 4)), np.repeat([0, 1], 100)
    >>> X[y == 1, :2] += 2
    >>> model = GraphGuidedClassifier(0.02, graph="chain", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9, bool((model.coef_ == 0).any())
    (True, True)
    """

    def __init__(
        self,
        alpha: float | None = None,
        *,
        graph: Any = "auto",
        ridge: float | None = None,
        loss: str = "logistic",
        solver: Any = "auto",
        multi_class: str = "multinomial",
        fit_intercept: bool = True,
        standardize: bool = True,
        class_weight: Any = None,
        calibrate: bool = True,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.alpha = alpha
        self.graph = graph
        self.ridge = ridge
        self.loss = loss
        self.solver = solver
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.max_epochs = max_epochs
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GraphGuidedClassifier:
        """Go on with a chunk of rows, in their order. The first call needs `classes` and learns the graph.

        The coefficients are averages of stochastic iterates; more than two classes are fitted one against the rest.
        """
        self._check_parameters()
        if not self._exact:
            raise ValueError(f"partial_fit goes with solver='auto', got {self.solver!r}")
        if self.ridge and getattr(self, "coef_", None) is None:
            raise ValueError(f"partial_fit goes without a ridge, got ridge={self.ridge}")
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all data at once; give partial_fit a dict of weights")
        known = self._known_classes(classes)
        X, y = self._validated(X, y, reset=getattr(self, "classes_", None) is None)
        if not np.isin(y, known).all():
            raise ValueError(f"label {y[~np.isin(y, known)][0]} is not among the classes {known}")
        _refuse_one_class(known)
        self.classes_ = known
        weight = self._row_weights(y, X, sample_weight)
        if getattr(self, "_online", None) is None:
            self._begin_stream(X, weight)
            self._order = LabelOrder(len(known))
        assert self._online is not None
        self._order.warn(np.searchsorted(known, y))
        X, kept = self._first.apply(X), weight > 0
        for online, target in zip(self._online, self._signs(y), strict=True):
            if kept.any():
                online.update(X[kept], target[kept], weight[kept])
        self._keep_stream()
        return self

    def _begin_stream(self, X: Any, weight: Array) -> None:
        """The graph and the columns' first means and scales, from the first chunk; later chunks correct the scales."""
        d, count = X.shape[1], 1 if len(self.classes_) == 2 else len(self.classes_)
        kept = weight > 0
        fitted = getattr(self, "coef_", None) is not None
        if not fitted:
            standard = self.standardize and kept.any()
            centred = bool(self.fit_intercept)
            self._standard = Standard.of(X[kept], weight[kept], centred) if standard else Standard.none(d)
        A = self._constraint(X, weight)
        self._first = self._standard
        options = (bool(self.fit_intercept), bool(self.standardize))
        starts = self._starts(count)
        alpha = self.alpha_ if fitted else self.alpha
        self._online = [OnlineFit(A, alpha, self.loss, *options, start) for start in starts]
        self._softmax, self.calibration_ = False, 1.0

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
