"""The weight of the penalty, and whether a graph and a ridge help, by leaving out a row at a time, all from one fit.

On the face of the answer, x = Z u, the objective is smooth; its gradient without row i differs by the term of that row.
With u_i = Z'a_i, slope s_i and curvature c_i of the loss at the margin m_i and H = sum_j w_j c_j u_j u_j', one Newton
step gives

    m_i without row i  =  m_i + s_i g_i / (1 - c_i g_i),     g_i = u_i' H^-1 u_i,

and for a softmax the same with a gradient s_i and matrices c_i, g_i over the classes. An entry of u that row i alone
decides would go to the other side of zero without bound: it stops there, as the penalty would have it (and H has a
thousandth of the curvature of the parabola that touches |u|, so that the step is finite). A row of weight w counts as w
rows, of which one is left out. A ridge joins H. Weights are tried from large to small, each fit starting at the one
before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csc_array, issparse
from scipy.special import softmax

from smadmm.learn.answers import Softmax
from smadmm.learn.exact import Model, faces, inverse
from smadmm.learn.tasks import Array

FACTORS = 10.0 ** np.arange(2.0, -1.1, -0.5)  # of the weight that stands for C = 1
RIDGES = (3.0, 30.0)  # times alpha; the second if the first helps
PATIENCE = 2  # weights without a new minimum that end the search
DAMPING = 1e-3  # share of that curvature
ENTRIES = 20_000_000  # of the rows on the face: up to here one row is left out at a time
ROWS_PER_UNKNOWN = 50  # with more rows than that no weight near 1 / rows matters

Measure = Callable[[float], Array]  # alpha -> losses of rows left out; each fit starts where the one before ended


def affordable(rows: float, unknowns: int) -> bool:
    """Whether it pays to leave out rows."""
    return rows < ROWS_PER_UNKNOWN * unknowns and rows * min(rows, unknowns) <= ENTRIES


def best_weight(alphas: Array, measure: Measure) -> tuple[Array, float]:
    """The losses of rows left out with the smallest sum, and at which of the weights."""
    losses, best, since = np.array([np.inf]), float(alphas[-1]), 0
    for alpha in alphas.tolist():
        found = measure(alpha)
        since = 0 if found.sum() < losses.sum() else since + 1
        losses, best = (losses, best) if since else (found, alpha)
        if since >= PATIENCE:
            break
    return losses, best


def clearly_less(losses: Array, than: Array) -> bool:
    """By more than the standard error of the difference."""
    gain = than - losses
    return bool(gain.sum() > np.sqrt(len(gain)) * gain.std(ddof=1))


def margins_without(model: Model, A: Any, alpha: float, x: Array, rows: float) -> Array:
    """The margins of rows under fits without them; x is the fit to all, `rows` how many they are by their weights."""
    classes = model.classes if isinstance(model, Softmax) else 1
    margins, Z = model.margins(x), _by_class(faces(A, A @ x == 0), classes)
    u = (Z.T @ x) / np.asarray(abs(Z).sum(axis=0)).ravel()
    penalty = alpha * rows * np.asarray(abs(A @ Z).sum(axis=0)).ravel()
    U, own = _rows_on_face(model, Z, classes)
    slope, curvature = _derivatives(model, margins)
    count = model.weight * (rows / model.n)
    ridge = DAMPING * penalty / np.where(u == 0, 1.0, np.abs(u))
    ridge += rows * (abs(Z).T @ model.ridges)
    inverted = _inverse_hessian(U, own, curvature * count[:, None, None], ridge)
    g = np.empty_like(curvature)
    for k in range(classes):
        for m in range(k + 1):
            g[:, k, m] = g[:, m, k] = np.einsum("ij,ij->i", U[k] @ inverted[own[k], own[m]], U[m])
    pull = np.linalg.solve(np.eye(classes) - curvature @ g, slope[:, :, None])[:, :, 0]
    step = inverted @ np.concatenate([U[k].T * pull[:, k] for k in range(classes)])
    crossing = np.sign(u)[:, None] * (u[:, None] + step) < 0
    step = np.where(crossing & (penalty > 0)[:, None] & _alone(U, curvature, count), -u[:, None], step)
    moved = np.stack([np.einsum("ij,ji->i", U[k], step[own[k]]) for k in range(classes)], axis=1)
    return np.asarray(margins + moved.reshape(margins.shape))


def _derivatives(model: Model, margins: Array) -> tuple[Array, Array]:
    """Slopes (rows, classes) and curvatures (rows, classes, classes) of the loss of each row."""
    if not isinstance(model, Softmax):
        slope, curvature = model.loss.slope(margins, model.target), model.loss.curvature(margins, model.target)
        return slope[:, None], curvature[:, None, None]
    p = softmax(margins, axis=1)
    slope = p.copy()
    slope[np.arange(model.n), model.label] -= 1
    return slope, p[:, :, None] * (np.eye(model.classes) - p[:, None, :])


def _alone(U: list[Array], curvature: Array, count: Array) -> Any:
    """Which entries of u (first axis) are decided by which rows alone."""
    shares = [(rows**2 * curvature[:, [k], k]).T for k, rows in enumerate(U)]
    return np.concatenate([part > 0.5 * (part @ count)[:, None] for part in shares])


def _by_class(Z: Any, classes: int) -> Any:
    """Z with its columns in the order of the classes that they belong to."""
    first = csc_array(Z).indices[csc_array(Z).indptr[:-1]]
    return Z[:, np.argsort(first // (Z.shape[0] // classes), kind="stable")]


def _rows_on_face(model: Model, Z: Any, classes: int) -> tuple[list[Array], list[slice]]:
    """Per class the rows u_i', and which entries of u are the class's."""
    size, d, end = Z.shape[0] // classes, model.X.shape[1], 0
    U, own = [], []
    for k in range(classes):
        part = Z[k * size : (k + 1) * size]
        own.append(slice(end, end := end + len(np.unique(part.indices))))
        part = part[:, own[-1]]
        rows = model.X @ part[:d]
        rows = rows.toarray() if issparse(rows) else np.asarray(rows)
        U.append(rows + part[[d]].toarray() if model.intercept else rows)
    return U, own


def _inverse_hessian(U: list[Array], own: list[slice], curvature: Array, ridge: Array) -> Array:
    size = sum(rows.shape[1] for rows in U)
    H = np.empty((size, size))
    for k in range(len(U)):
        for m in range(k + 1):
            H[own[k], own[m]] = (U[k].T * curvature[:, k, m]) @ U[m]
            H[own[m], own[k]] = H[own[k], own[m]].T
    H[np.diag_indices_from(H)] += ridge + 1e-9 * np.trace(H) / max(size, 1) + 1e-300
    return inverse(H)
