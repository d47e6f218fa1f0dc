"""Scikit-learn regression whose coefficients are tied along the edges of a graph over the features.

    min_z  1/N sum_i w_i l((a_i'z + z_0 - b_i) / t) + alpha (|[G; I] z|_1 + ridge |z|^2 / 2)

over the coefficients z of standardised columns and targets in units of t: their standard deviation, or for the robust
losses 1.4826 times their median absolute deviation. Huber's and Student's loss take the scale of the residuals from the
data: Huber fits and the median absolute residual in turn, until it stays; the residuals are taken as larger by
sqrt(n / (n - k)) where k unknowns were fitted to n rows. Student's loss is nonconvex and ignores far
outliers; it starts where Huber's ends.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from smadmm.arguments import one_of
from smadmm.learn.answers import ROUGHLY, Diary, fit_of
from smadmm.learn.base import GraphGuided
from smadmm.learn.chunks import OnlineFit
from smadmm.learn.exact import OUTER, Model, Point, faces, solve, strict, zero_point
from smadmm.learn.leaving_out import Measure, margins_without
from smadmm.learn.pointwise import HUBER, SQUARED, huber, student
from smadmm.learn.tasks import Array, Fit

LOSSES = ("squared", "huber", "student")
NORMAL = 1.4826  # standard deviation of normal noise per median absolute deviation
ROUNDS, STEADY = 10, 0.01  # fits that find the scale of the residuals; relative change that ends them


def median(values: Array, weight: Array) -> float:
    """The middle of the weight; between two values their mean."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    low, high = np.searchsorted(total, total[-1] * np.array([0.5 - 1e-12, 0.5 + 1e-12]))
    return float(0.5 * (values[order[low]] + values[order[min(high, len(order) - 1)]]))


def root_mean_square(values: Array, weight: Array) -> float:
    """Of values of any size, whose squares may overflow."""
    size = float(np.abs(values).max()) or 1.0
    return size * float(np.sqrt(np.average((values / size) ** 2, weights=weight)))


def spread(values: Array, weight: Array) -> float:
    """A robust standard deviation around zero; never zero."""
    middle = NORMAL * median(np.abs(values), weight)
    return middle or root_mean_square(values, weight) or 1.0


def noise(model: Model, A: Any, point: Point, rows: float) -> float:
    """The scale of the residuals, corrected for the unknowns that were fitted; at most that of the targets."""
    free = faces(A, A @ point.x == 0).shape[1]
    taken = float(np.sqrt(rows / max(rows - free, 1.0)))
    residual = model.margins(point.x) - model.target
    return min(spread(residual, model.weight) * taken, spread(model.target, model.weight))


def fit_regression(
    model: Model,
    A: Any,
    alpha: float,
    loss: str,
    tol: float,
    rows: float,
    steps: int | None = None,
    start: Point | None = None,
) -> tuple[Fit, Point, float]:
    """The fit, its point to start the next one from, and the scale of the residuals; `rows` by their weights."""
    diary, point, steps = Diary(), zero_point(A) if start is None else start, steps or OUTER
    if loss == "squared":
        point = solve(replace(model, loss=SQUARED), A, alpha, point, tol, steps=steps, seen=diary.seen)
        residual = model.margins(point.x) - model.target
        return fit_of(point, diary), point, root_mean_square(residual, model.weight)
    scale = noise(model, A, point, rows)
    for _ in range(ROUNDS):
        point = solve(replace(model, loss=huber(scale)), A, alpha, point, tol, steps=steps, seen=diary.seen)
        diary.spent += point.sfo
        before, scale = scale, noise(model, A, point, rows)
        if abs(scale - before) <= STEADY * before:
            break
    last = huber(scale) if loss == "huber" else student(scale)
    point = solve(replace(model, loss=last), A, alpha, point, tol, steps=steps, seen=diary.seen)
    return fit_of(point, diary), point, scale


class _Regressor(RegressorMixin, GraphGuided):  # type: ignore[misc]
    """What the regressors share: everything but where alpha comes from."""

    loss: str
    max_epochs: int | None
    warm_start: bool

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit from the start, or from the last coefficients with warm_start."""
        X, y, weight = self._validated(X, y, sample_weight, reset=True)
        kept = weight > 0
        if not kept.all():
            X, y, weight = X[kept], y[kept], weight[kept]
        X, A = self._prepared(X, weight)
        self._target = centre, unit = self._target_scale(y, weight)
        model = Model(X, (y - centre) / unit, weight / weight.mean(), SQUARED, bool(self.fit_intercept))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = float(weight.sum())
        A, self.alpha_ = self._penalty(model, A, rows, kept, seed)
        tol = strict(self.tol, self.alpha_)
        model = replace(model, ridge=self.ridge_ * self.alpha_)
        start = self._start(A)
        fit, _, scale = fit_regression(model, A, self.alpha_, self.loss, tol, rows, self.max_epochs, start)
        self._keep_unknowns(fit.x[None])
        self._leave_units()
        self.scale_ = unit * scale
        self._keep_course([fit], warn=True)
        self._online: list[OnlineFit] | None = None
        return self

    def _validated(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Any, Array, Array]:
        one_of("loss", self.loss, LOSSES)
        self._check_penalty(self.max_epochs)
        X, y = self._checked(X, y, y_numeric=True, reset=reset)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, np.asarray(y, dtype=np.float64), weight

    def _leave_units(self) -> None:
        """coef_ and intercept_ in the units of y."""
        centre, unit = self._target
        self.coef_, self.intercept_ = unit * self.coef_[0], float(unit * self.intercept_[0] + centre)

    def _target_scale(self, y: Array, weight: Array) -> tuple[float, float]:
        """Centre and unit of the targets."""
        robust = self.loss != "squared"
        middle = median(y, weight) if robust else float(np.average(y, weights=weight))
        centre = middle if self.fit_intercept else 0.0
        if not self.standardize:
            return centre, 1.0
        rest = y - middle
        unit = spread(rest, weight) if robust else root_mean_square(rest, weight)
        return centre, unit if unit > 1e-12 * abs(middle) else 1.0

    def _penalty(self, model: Model, A: Any, rows: float, kept: Any, seed: int) -> tuple[Any, float]:
        """A and alpha."""
        return self._choose(A, rows, partial(self._left_out, model, rows))

    def _left_out(self, model: Model, rows: float, A: Any, ridge: float) -> Measure:
        """The losses of rows left out with this A and ridge, by alpha; Huber's for Student's, which is not convex."""
        last: list[Point | None] = [None]
        squared = self.loss == "squared"
        measure = replace(model, loss=SQUARED if squared else huber(0.5 * spread(model.target, model.weight)))

        def losses(alpha: float) -> Array:
            tol, here = (ROUGHLY * alpha) ** 2 * A.shape[1], replace(model, ridge=ridge * alpha)
            kind = "squared" if squared else "huber"
            fit, last[0], scale = fit_regression(here, A, alpha, kind, tol, rows, self.max_epochs, last[0])
            here = replace(here, loss=SQUARED if squared else huber(scale, majorised=False))
            return measure.terms(margins_without(here, A, alpha, fit.x, rows))

        return losses

    def _start(self, A: Any) -> Point | None:
        before = getattr(self, "coef_standardized_", None)
        if not self.warm_start or before is None or before.shape[1] != self.n_features_in_:
            return None
        x = np.zeros(A.shape[1])
        x[: before.shape[1]] = before[0]
        return Point(x, np.zeros(A.shape[0]))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The expected target of every row."""
        return np.asarray(self._scores(X)).ravel()


class GraphGuidedRegressor(_Regressor):
    """Linear regression with |z_i - s z_j| penalised along the edges (i, j) of a graph, and |z_i| for every feature.

    Parameters
    ----------
    alpha : weight of the penalty, for standardised columns and targets; None is found as for GraphGuidedClassifier (for
        Student's loss by Huber's).
    graph, ridge : as for GraphGuidedClassifier.
    loss : "squared", "huber" or "student" (robust; nonconvex).
    fit_intercept, standardize, max_epochs, tol, warm_start, random_state : as for GraphGuidedClassifier; standardize is
        about the targets, too.

    After fit: `coef_`, `intercept_` in the units of X and y; `scale_` of the residuals; `coef_standardized_`,
    `groups_`, `n_nonzero_`, `alpha_`, `ridge_`, `graph_`, `certificate_` as for GraphGuidedClassifier.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 5))
    >>> y = 3 * X[:, 0] + rng.standard_normal(100)
    >>> GraphGuidedRegressor(0.5, graph=None).fit(X, y).n_nonzero_
    1
    """

    def __init__(
        self,
        alpha: float | None = None,
        *,
        graph: Any = "auto",
        ridge: float | None = None,
        loss: str = "squared",
        fit_intercept: bool = True,
        standardize: bool = True,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        warm_start: bool = False,
        random_state: Any = None,
    ):
        self.alpha = alpha
        self.graph = graph
        self.ridge = ridge
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.max_epochs = max_epochs
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphGuidedRegressor:
        """Go on with a chunk of rows, in their order. The first chunk is fitted as by `fit` before it is learned from:
        it gives the graph and the scales of the targets and residuals.

        The coefficients are averages of stochastic iterates.

        >>> rng = np.random.default_rng(0)
        >>> model = GraphGuidedRegressor(loss="huber")
        >>> for _ in range(20):
        ...     X = rng.standard_normal((100, 3))
        ...     model = model.partial_fit(X, X[:, 0] + 0.1 * rng.standard_t(2, 100))
        >>> bool(abs(model.coef_ - [1, 0, 0]).max() < 0.05)
        True
        """
        if self.ridge and getattr(self, "coef_", None) is None:
            raise ValueError(f"partial_fit goes without a ridge, got ridge={self.ridge}")
        X, y, weight = self._validated(X, y, sample_weight, reset=not hasattr(self, "coef_"))
        if getattr(self, "_online", None) is None:
            self._begin_stream(X, y, weight)
        assert self._online is not None
        (centre, unit), kept = self._target, weight > 0
        if kept.any():
            target = (y[kept] - centre) / (unit * self._residual_unit)
            self._online[0].update(self._first.apply(X[kept]), target, weight[kept])
        self._keep_stream(self._residual_unit)
        self._leave_units()
        return self

    def _begin_stream(self, X: Any, y: Array, weight: Array) -> None:
        """The graph, means, scales and units of the first chunk, or of the fit before; later chunks correct scales."""
        alpha = self.alpha_ if hasattr(self, "coef_") else self.alpha
        if not hasattr(self, "coef_"):
            self.fit(X, y, weight)
            self.n_iter_ = 0
        self._first, (centre, unit) = self._standard, self._target
        noise = {"squared": unit, "huber": HUBER * self.scale_, "student": self.scale_}[self.loss] / unit
        self._residual_unit = noise = noise or 1.0
        coef, intercept = self.densify().coef_[None], np.array([self.intercept_ - centre])
        options = (bool(self.fit_intercept), bool(self.standardize))
        start = self._standard.unknowns(coef, intercept, options[0])[0] / (unit * noise)
        alpha = None if alpha is None else alpha / noise
        self._online = [OnlineFit(self._rows_of(self.graph_), alpha, self.loss, *options, start)]
