"""Fits that answer with the minimiser itself: exact zeros and ties, and a certificate of that very point.

Newton's method (exact.py). With many unknowns and a graph `auto` runs first: its average and its multipliers say on
which face the answer lies, more or less, and Newton's steps begin there.

Softmax, K classes: the unknowns of the classes one after the other, A once per class, and

    F(x) = 1/N sum_i w_i (log sum_k exp(m_ik) - m_i,b_i),    d2F / dm_ik dm_il = w_i p_ik ([k = l] - p_il) / N
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import block_diag, csr_array
from scipy.special import logsumexp, softmax

from smadmm.learn.exact import LARGEST, OUTER, Model, Point, Seen, faces, newton, project, solve, zero_point
from smadmm.learn.pointwise import CLASSIFICATION
from smadmm.learn.scaling import column_sums
from smadmm.learn.tasks import Array, Fit, Report, Task
from smadmm.records import History

ROUGHLY = 0.03  # root mean square of grad F + A'mu of the fits on a path, in units of alpha
SOFTMAX_LARGEST = 1500  # unknowns of all classes together


def model_of(task: Task) -> Model:
    """F of a task."""
    ridge = task.ridge * task.lam1
    return Model(task.X, task.target, task.weight, CLASSIFICATION[task.loss], task.intercept, ridge=ridge)


class Diary:
    """The history of a fit by points."""

    def __init__(self, report: Report = lambda: None):
        self.history, self.begin, self.report, self.spent = History(), time.perf_counter(), report, 0

    def seen(self, point: Point) -> None:
        row = {"k": point.steps, "sfo": self.spent + point.sfo, "seconds": time.perf_counter() - self.begin}
        row |= {"objective": point.objective, "certificate": point.certificate, "gradient": point.gradient}
        self.history.append({**row, "subdifferential": 0.0, "feasibility": 0.0})
        self.report()


def fit_of(point: Point, diary: Diary) -> Fit:
    """The fit that ends with this point."""
    return Fit(point.x, point.steps, diary.spent + point.sfo, diary.history, -point.mu)


def fit_point(model: Model, task: Task, tol: float, steps: int, start: Point | None, seen: Seen) -> Point:
    """Newton from `start`; the sigmoid loss begins where a few steps of the logistic loss end."""
    point = zero_point(task.A) if start is None else start
    if task.loss == "sigmoid" and not point.x.any():
        convex = replace(model, loss=CLASSIFICATION["logistic"])
        point = replace(solve(convex, task.A, task.lam1, point, tol, steps=3), rho=0.0)
        point = Point(point.x, np.zeros_like(point.mu))
    return solve(model, task.A, task.lam1, point, tol, steps=steps, seen=seen)


def starts_with_auto(A: Any, features: int) -> bool:
    """Whether stochastic passes come first: with many unknowns, and edges between them."""
    return bool(A.shape[1] > LARGEST and A.shape[0] > features)


def fit_exact(
    task: Task,
    passes: int | None = None,
    tol: float = 1e-10,
    seed: int = 0,
    *,
    start: Point | None = None,
    report: Report = lambda: None,
) -> tuple[Fit, Point]:
    """The fit, and its point to start the next one from; `passes` bounds Newton's steps and the passes of `auto`."""
    model, diary = model_of(task), Diary(report)
    if start is None and starts_with_auto(task.A, task.X.shape[1]):
        from smadmm.learn.fitting import fit_auto

        columns = column_sums(task.X, task.weight)
        long = fit_auto(task, columns, passes, tol, seed, convex_pass=True, report=report)
        start, diary.spent = _on_faces(model, task, long), long.sfo
    point = fit_point(model, task, tol, passes or OUTER, start, diary.seen)
    return fit_of(point, diary), point


def _on_faces(model: Model, task: Task, long: Fit) -> Point:
    """The lowest of zero, the average, and the average on the faces to which A x + mu/rho shrinks."""
    v = [-long.lam + rho * (task.A @ long.x) for rho in (0.1, 1.0)]
    tried = [project(faces(task.A, np.abs(part) <= task.lam1), long.x) for part in v]
    tried = [np.zeros_like(long.x), long.x, *tried]

    def objective(x: Array) -> float:
        return model.objective(task.A, task.lam1, x, model.margins(x))

    return Point(min(tried, key=objective), -long.lam)


@dataclass(frozen=True)
class Softmax(Model):
    """F of K classes; `target` holds the numbers of the classes."""

    classes: int = 2

    @property
    def label(self) -> Any:
        return self.target.astype(np.int64)

    def margins(self, x: Array) -> Array:
        z = x.reshape(self.classes, -1)
        return np.asarray(self.X @ z[:, : self.X.shape[1]].T + z[:, self.X.shape[1] :].sum(axis=1))

    def terms(self, margins: Array) -> Array:
        own = np.take_along_axis(margins, self.label[:, None], axis=1)[:, 0]
        return np.asarray(self.weight * (logsumexp(margins, axis=1) - own) / self.n)

    @property
    def ridges(self) -> Array:
        return np.tile(super().ridges, self.classes)

    def gradient(self, x: Array, margins: Array) -> Array:
        c = softmax(margins, axis=1)
        c[np.arange(self.n), self.label] -= 1
        c *= (self.weight / self.n)[:, None]
        g = np.asarray(self.X.T @ c).T
        g = np.column_stack([g, c.sum(axis=0)]) if self.intercept else g
        return np.asarray(g.ravel() + self.ridges * x)

    def hessian(self, margins: Array) -> tuple[Array, int]:
        p, rows, size = softmax(margins, axis=1), 0, self.X.shape[1] + self.intercept
        H = np.empty((self.classes, size, self.classes, size))
        for k in range(self.classes):
            for m in range(k + 1):
                curvature = p[:, k] * ((k == m) - p[:, m])
                block, rows = self.weighted_gram(curvature)
                H[k, :, m], H[m, :, k] = block, block
        if self.intercept:  # together they are free to move, which would leave a step undetermined: their mean stays
            H[:, -1, :, -1] += self.classes**-2
        H = H.reshape(self.classes * size, -1)
        H[np.diag_indices_from(H)] += self.ridges
        return H, rows


def softmax_of(tasks: list[Task]) -> tuple[Softmax, Any]:
    """F of the tasks, one per class, fitted jointly, and their A."""
    first, classes = tasks[0], len(tasks)
    label = np.argmax(np.stack([task.target for task in tasks]), axis=0).astype(np.float64)
    model = Softmax(
        first.X, label, first.weight, CLASSIFICATION["logistic"], first.intercept, classes=classes,
        ridge=first.ridge * first.lam1,
    )  # fmt: skip
    return model, csr_array(block_diag([first.A] * classes, format="csr"))


def fit_softmax(
    tasks: list[Task], tol: float = 1e-10, steps: int | None = None, start: Point | None = None
) -> tuple[list[Fit], Point]:
    """One task per class, fitted jointly as a multinomial model."""
    first, classes, diary = tasks[0], len(tasks), Diary()
    model, A = softmax_of(tasks)
    point = newton(
        model, A, first.lam1, zero_point(A) if start is None else start, tol, steps=steps or OUTER, seen=diary.seen
    )
    if first.intercept:  # all may move together
        point.x.reshape(classes, -1)[:, -1] -= point.x.reshape(classes, -1)[:, -1].mean()
    whole = fit_of(point, diary)
    xs, lams = whole.x.reshape(classes, -1), whole.lam.reshape(classes, -1)
    return [replace(whole, x=x, lam=lam) for x, lam in zip(xs, lams, strict=True)], point


def along_path(train: list[Task], softmax: bool, steps: int | None) -> Callable[[float], list[Fit]]:
    """Rough fits from alpha to alpha, each from the one before."""
    starts: list[Point | None] = [None] * len(train)
    unknowns = train[0].size * (len(train) if softmax else 1)

    def fits(alpha: float) -> list[Fit]:
        tasks, tol = [replace(task, lam1=alpha) for task in train], (ROUGHLY * alpha) ** 2 * unknowns
        if softmax:
            found, starts[0] = fit_softmax(tasks, tol, steps, starts[0])
            return found
        both = [fit_exact(t, steps, tol, start=s) for t, s in zip(tasks, starts, strict=True)]
        starts[:] = [point for _, point in both]
        return [fit for fit, _ in both]

    return fits
