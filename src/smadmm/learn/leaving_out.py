"""The weight of the penalty, and whether a graph helps, by leaving out one row at a time, from one fit to all rows.

On the face of the answer, x = Z u, the objective is smooth; its gradient without row i differs by the term of that row.
With u_i = Z'a_i, slope s_i and curvature c_i of the loss at the margin m_i and H = sum_j w_j c_j u_j u_j', one Newton
step gives

    m_i without row i  =  m_i + s_i g_i / (1 - c_i g_i),     g_i = u_i' H^-1 u_i,

and for a softmax the same with a gradient s_i and matrices c_i, g_i over the classes. A row of weight w counts as w
rows, of which one is left out. Weights are tried from large to small, each fit starting at the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax

from smadmm.learn.answers import Softmax
from smadmm.learn.exact import Model, faces
from smadmm.learn.loops import Array

FACTORS = 10.0 ** np.arange(2.0, -1.1, -0.5)  # of the weight that stands for C = 1
PATIENCE = 2  # weights without a new minimum that end the search
LEVERAGE = 0.99  # at most
ENTRIES = 20_000_000  # of the rows on the face: up to here one row is left out at a time
ROWS_PER_UNKNOWN = 50  # with more rows than that no weight near 1 / rows matters

Measure = Callable[[float], float]  # alpha -> loss of rows left out; each fit starts where the one before ended


def affordable(rows: float, unknowns: int) -> bool:
    """Whether it pays to leave out rows."""
    return rows < ROWS_PER_UNKNOWN * unknowns and rows * min(rows, unknowns) <= ENTRIES


def best_weight(choices: Sequence[tuple[Array, Measure]]) -> tuple[int, float]:
    """Which of the choices has the smallest loss of rows left out, and at which of its weights."""
    best = (np.inf, 0, float(choices[0][0][-1]))
    for number, (alphas, measure) in enumerate(choices):
        lowest, since = np.inf, 0
        for alpha in alphas:
            loss = measure(float(alpha))
            since = since + 1 if loss >= lowest else 0
            lowest, best = min(lowest, loss), min(best, (loss, number, float(alpha)))
            if since >= PATIENCE:
                break
    return best[1], best[2]


def left_out_loss(model: Model, A: Any, x: Array, rows: float) -> float:
    """The mean loss of rows under fits without them; `rows`: how many they are by their weights."""
    margins = model.margins(x)
    count = model.weight * (rows / model.n)
    if isinstance(model, Softmax):
        return model.value(_softmax_margins(model, A, x, margins, count))
    U = _on_face(model, faces(A, A @ x == 0))
    curvature = model.loss.curvature(margins, model.target)
    g = np.einsum("ij,ji->i", U, _solved((U.T * (count * curvature)) @ U, U.T))
    moved = model.loss.slope(margins, model.target) * g / (1 - np.minimum(curvature * g, LEVERAGE))
    return model.value(margins + moved)


def _on_face(model: Model, Z: Any) -> Array:
    """The rows u_i'."""
    U = model.X @ Z[: model.X.shape[1]]
    U = U.toarray() if hasattr(U, "toarray") else np.asarray(U)
    return U + Z[[-1]].toarray() if model.intercept else U


def _solved(H: Array, right: Array) -> Array:
    H[np.diag_indices_from(H)] += 1e-9 * np.trace(H) / max(len(H), 1) + 1e-300
    return np.asarray(cho_solve(cho_factor(H), right))


def _softmax_margins(model: Softmax, A: Any, x: Array, margins: Array, count: Array) -> Array:
    classes, size = model.classes, len(x) // model.classes
    p = softmax(margins, axis=1)
    slopes = p.copy()
    slopes[np.arange(model.n), model.label] -= 1
    parts = [slice(k * size, (k + 1) * size) for k in range(classes)]
    Z = faces(A, A @ x == 0)
    U = [_on_face(model, Z[part][:, np.diff(Z[part].tocsc().indptr) > 0]) for part in parts]
    ends = np.cumsum([0, *(u.shape[1] for u in U)])
    own = [slice(*ends[k : k + 2]) for k in range(classes)]
    H = np.empty((ends[-1], ends[-1]))
    for k in range(classes):
        for m in range(k + 1):
            H[own[k], own[m]] = (U[k].T * (count * p[:, k] * ((k == m) - p[:, m]))) @ U[m]
            H[own[m], own[k]] = H[own[k], own[m]].T
    inverse = _solved(H, np.eye(len(H)))
    g = np.empty((model.n, classes, classes))
    for k in range(classes):
        for m in range(k + 1):
            g[:, k, m] = g[:, m, k] = np.einsum("ij,ij->i", U[k] @ inverse[own[k], own[m]], U[m])
    curvature = p[:, :, None] * (np.eye(classes) - p[:, None, :])
    left = np.eye(classes) - LEVERAGE * (g @ curvature)
    return np.asarray(margins + np.linalg.solve(left, g @ slopes[:, :, None])[:, :, 0])
