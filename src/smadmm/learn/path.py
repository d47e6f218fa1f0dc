"""The weight of the penalty by cross-validation along a path.

The path begins at alpha = |grad F(0)|_inf, where all coefficients are zero (F at the best intercept), and falls by
10^(1/4) from step to step; every fit starts at the one before. It ends when the mean held-out loss has been above its
minimum for five steps and by more than a standard error, or after eight steps without a new minimum, or six decades
below its beginning. The answer is the alpha of the smallest mean loss, or by the one-standard-error rule the largest
alpha whose mean is within a standard error of it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from smadmm.learn.answers import ROUGHLY, along_path, model_of
from smadmm.learn.classifier import _Classifier
from smadmm.learn.exact import Model, Point
from smadmm.learn.pointwise import SQUARED, huber, student
from smadmm.learn.regressor import _Regressor, fit_regression, spread
from smadmm.learn.tasks import Array, Task

FALL = 10**-0.25
DECADES = 6
PATIENCE, CLEARLY = 8, 5

Step = Callable[[float], tuple[Array, float]]  # alpha -> unknowns, one row per problem, and the held-out loss


@dataclass(frozen=True)
class Path:
    """Alphas from large to small; losses held out (alphas, folds); unknowns of all rows (alphas, problems, size)."""

    alphas: Array
    losses: Array
    unknowns: Array

    @property
    def mean(self) -> Array:
        return np.asarray(self.losses.mean(axis=1))

    @property
    def error(self) -> Array:
        """Standard errors of the means."""
        return np.asarray(self.losses.std(axis=1, ddof=1) / np.sqrt(self.losses.shape[1]))

    @property
    def best(self) -> int:
        return int(self.mean.argmin())

    @property
    def within_one_error(self) -> int:
        """The largest alpha whose mean is within a standard error of the smallest."""
        return int(np.flatnonzero(self.mean <= self.mean[self.best] + self.error[self.best])[0])

    def chosen(self, one_standard_error: bool) -> float:
        return float(self.alphas[self.within_one_error if one_standard_error else self.best])


def follow_path(folds: Sequence[Step], everything: Step, highest: float, alphas: Any = None) -> Path:
    """All folds down the path, step by step."""
    given = np.sort(np.asarray(alphas, dtype=float))[::-1] if alphas is not None else None
    grid: Any = highest * FALL ** np.arange(4 * DECADES + 1) if given is None else given
    losses: list[list[float]] = []
    for alpha in grid:
        losses.append([fold(float(alpha))[1] for fold in folds])
        if given is None and _past_the_minimum(np.array(losses)):
            break
    reached = grid[: len(losses)]
    return Path(reached, np.array(losses), np.stack([everything(float(alpha))[0] for alpha in reached]))


def _past_the_minimum(losses: Array) -> bool:
    mean = losses.mean(axis=1)
    best = int(mean.argmin())
    error = losses[best].std(ddof=1) / np.sqrt(losses.shape[1])
    since = len(mean) - 1 - best
    return since >= PATIENCE or (since >= CLEARLY and mean[-1] > mean[best] + error)


def highest_alpha(model: Model) -> float:
    """|dF/dz|_inf over the coefficients at z = 0 and the best intercept."""
    x = np.zeros(model.X.shape[1] + model.intercept)
    for _ in range(20 * model.intercept):
        margins = model.margins(x)
        slope = float(model.weight @ model.loss.slope(margins, model.target))
        x[-1] -= slope / max(float(model.weight @ model.loss.curvature(margins, model.target)), 1e-12)
    return float(np.abs(model.gradient(x, model.margins(x))[: model.X.shape[1]]).max(initial=0.0)) or 1.0


class _Plotted:
    """The picture of a path."""

    path_: Path

    def path_plot(self) -> Any:
        """Coefficients (of the first problem) and held-out loss along the path, as a matplotlib figure."""
        from smadmm.learn.drawing import path_figure

        return path_figure(self)


class GraphGuidedClassifierCV(_Plotted, _Classifier):
    """GraphGuidedClassifier with the weight of the penalty chosen by cross-validation along a path.

    Parameters
    ----------
    alphas : weights to try; None finds both ends from the data.
    cv : number of folds, or a splitter of scikit-learn.
    one_standard_error : whether the largest alpha within a standard error of the best one is taken: fewer coefficients.

    The others are those of GraphGuidedClassifier; the solver is "auto", and before the path begins a
    graph that does not help goes, and a ridge is chosen. After fit also `path_`, with `alphas`, `losses` held out and
    `unknowns`; `path_plot()` draws it. The held-out loss is the loss of the fit.

    >>> X, y = np.random.default_rng(0).standard_normal((200, 4)), np.repeat([0, 1], 100)
    >>> X[y == 1, :2] += 2
    >>> model = GraphGuidedClassifierCV(graph=None, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9, bool(model.alpha_ > 0)
    (True, True)
    """

    alpha = None
    solver = "auto"

    def __init__(
        self,
        alphas: Any = None,
        *,
        cv: Any = 5,
        one_standard_error: bool = False,
        graph: Any = "auto",
        ridge: float | None = None,
        loss: str = "logistic",
        multi_class: str = "multinomial",
        fit_intercept: bool = True,
        standardize: bool = True,
        class_weight: Any = None,
        calibrate: bool = True,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.alphas = alphas
        self.cv = cv
        self.one_standard_error = one_standard_error
        self.graph = graph
        self.ridge = ridge
        self.loss = loss
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.max_epochs = max_epochs
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    warm_start = False

    def _penalty(self, tasks: list[Task], rows: float, kept: Any, seed: int) -> tuple[Any, float]:
        A, _ = super()._penalty(tasks, rows, kept, seed)
        tasks = [replace(task, A=A, ridge=self.ridge_) for task in tasks]
        number = np.zeros(len(tasks[0].target)) if len(tasks) > 1 else tasks[0].target
        for k, task in enumerate(tasks[1:], 1):
            number = np.where(task.target > 0, k, number)
        splits = _splits(self.cv, number, kept, seed)
        steps = [self._steps([t.part(train) for t in tasks], [t.part(test) for t in tasks]) for train, test in splits]
        highest = max(highest_alpha(model_of(task)) for task in tasks)
        self.path_ = follow_path(steps, self._steps(tasks, tasks), highest, self.alphas)
        return tasks[0].A, self.path_.chosen(self.one_standard_error)

    def _steps(self, train: list[Task], held_out: list[Task]) -> Step:
        """Fits of these rows from alpha to alpha, each from the one before."""
        softmax = self._is_softmax(train[0].size)
        fits = along_path(train, softmax, self.max_epochs)

        def step(alpha: float) -> tuple[Array, float]:
            x = np.stack([fit.x for fit in fits(alpha)])
            margins = np.stack([model_of(task).margins(row) for task, row in zip(held_out, x, strict=True)], axis=1)
            return x, _held_out_loss(held_out, margins, softmax)

        return step


def _held_out_loss(tasks: list[Task], margins: Array, softmax: bool) -> float:
    if softmax:
        own = np.stack([task.target > 0 for task in tasks], axis=1)
        return -float(tasks[0].weight @ log_softmax(margins, axis=1)[own]) / len(margins)
    return sum(model_of(task).value(margins[:, k]) for k, task in enumerate(tasks))


def _splits(cv: Any, y: Array, kept: Any, seed: int, classifier: bool = True) -> list[tuple[Any, Any]]:
    """The folds: shuffled if only their number is given; given ones without the rows that were left out."""
    if isinstance(cv, numbers.Integral):
        smallest = int(np.unique(y, return_counts=True)[1].min()) if classifier else len(y)
        kind = StratifiedKFold if classifier else KFold
        return list(kind(max(2, min(int(cv), smallest)), shuffle=True, random_state=seed).split(y, y))
    if isinstance(cv, Iterable):
        number = np.cumsum(kept) - 1
        return [tuple(number[np.asarray(rows)[kept[rows]]] for rows in split) for split in cv]
    return list(check_cv(cv, y, classifier=classifier).split(np.zeros((len(y), 1)), y))


class GraphGuidedRegressorCV(_Plotted, _Regressor):
    """GraphGuidedRegressor with the weight of the penalty chosen by cross-validation along a path.

    The parameters are those of GraphGuidedRegressor and, for the path, of GraphGuidedClassifierCV. The held-out loss of
    the robust losses has the scale of the residuals of all rows.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 5))
    >>> y = 3 * X[:, 0] + rng.standard_normal(100)
    >>> GraphGuidedRegressorCV(graph=None).fit(X, y).score(X, y) > 0.8
    True
    """

    alpha = None
    warm_start = False

    def __init__(
        self,
        alphas: Any = None,
        *,
        cv: Any = 5,
        one_standard_error: bool = False,
        graph: Any = "auto",
        ridge: float | None = None,
        loss: str = "squared",
        fit_intercept: bool = True,
        standardize: bool = True,
        max_epochs: int | None = None,
        tol: float = 1e-10,
        random_state: Any = None,
    ):
        self.alphas = alphas
        self.cv = cv
        self.one_standard_error = one_standard_error
        self.graph = graph
        self.ridge = ridge
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.max_epochs = max_epochs
        self.tol = tol
        self.random_state = random_state

    def _penalty(self, model: Model, A: Any, rows: float, kept: Any, seed: int) -> tuple[Any, float]:
        A, _ = super()._penalty(model, A, rows, kept, seed)
        named = {"squared": lambda scale: SQUARED, "huber": huber, "student": student}
        measure = named[self.loss](0.5 * spread(model.target, model.weight))
        splits = _splits(self.cv, model.target, kept, seed, classifier=False)
        shares = [float(model.weight[train].sum()) / model.n for train, _ in splits]
        steps = [
            self._steps(_part(model, train), replace(_part(model, test), loss=measure), A, rows * share)
            for (train, test), share in zip(splits, shares, strict=True)
        ]
        start = model if self.loss == "squared" else replace(model, loss=huber(spread(model.target, model.weight)))
        self.path_ = follow_path(steps, self._steps(model, model, A, rows), highest_alpha(start), self.alphas)
        return A, self.path_.chosen(self.one_standard_error)

    def _steps(self, train: Model, held_out: Model, A: Any, rows: float) -> Step:
        last: list[Point | None] = [None]

        def step(alpha: float) -> tuple[Array, float]:
            model, tol = replace(train, ridge=self.ridge_ * alpha), (ROUGHLY * alpha) ** 2 * A.shape[1]
            fit, last[0], _ = fit_regression(model, A, alpha, self.loss, tol, rows, self.max_epochs, last[0])
            return fit.x[None], held_out.value(held_out.margins(fit.x))

        return step


def _part(model: Model, rows: Any) -> Model:
    weight = model.weight[rows]
    return replace(model, X=model.X[rows], target=model.target[rows], weight=weight / weight.mean())
