"""Pictures of a fitted classifier: the graph over its features, coefficients as colours."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs

DPI = 120
MOST = 150  # features drawn at the most: those with the largest coefficients


def edges_of(G: Any) -> NDArray[np.int64]:
    """The pairs (i, j) of the rows with two entries."""
    G = G.tocsr()
    rows = np.flatnonzero(np.diff(G.indptr) == 2)
    return np.stack([G.indices[G.indptr[rows]], G.indices[G.indptr[rows] + 1]], axis=1).astype(np.int64)


def layout(edges: NDArray[np.int64], size: int, seed: int = 0) -> NDArray[np.float64]:
    """Positions by springs along edges and repulsion between all (Fruchterman and Reingold)."""
    rng = np.random.default_rng(seed)
    place = rng.uniform(-1, 1, (size, 2))
    ideal = 1.5 / np.sqrt(size)
    for heat in np.linspace(0.2, 0.005, 120):
        apart = place[:, None] - place[None]
        distance = np.maximum(np.linalg.norm(apart, axis=2), 1e-6)
        force = (apart / distance[..., None] ** 2).sum(1) * ideal**2 - 0.05 * place
        if len(edges):
            along = place[edges[:, 0]] - place[edges[:, 1]]
            pull = along * np.linalg.norm(along, axis=1, keepdims=True) / ideal
            np.add.at(force, edges[:, 0], -pull)
            np.add.at(force, edges[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        place = place + force / length * np.minimum(length, heat)
    return np.asarray(place)


def draw_graph(model: Any, path: str | os.PathLike[str], names: list[str] | None = None) -> None:
    """Save the figure of the graph."""
    graph_figure(model, names).savefig(path, dpi=DPI)


def graph_figure(model: Any, names: list[str] | None = None) -> Any:
    """The features with the largest coefficients, joined by the graph, coloured by coefficient (first class)."""
    needs("matplotlib", "plot", "figures")
    from matplotlib.figure import Figure

    coef = model.coef_[0]
    shown = np.sort(np.argsort(-np.abs(coef), kind="stable")[:MOST])
    number = np.full(len(coef), -1)
    number[shown] = np.arange(len(shown))
    edges = number[edges_of(model.graph_)]
    edges = edges[(edges >= 0).all(axis=1)]
    place = layout(edges, len(shown))
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for i, j in edges:
        axes.plot(*place[[i, j]].T, color="0.75", linewidth=0.8, zorder=1)
    largest = float(np.abs(coef).max()) or 1.0
    size = 30 + 250 * np.abs(coef[shown]) / largest
    across, up = place.T
    spots = axes.scatter(across, up, size, coef[shown], cmap="RdBu_r", vmin=-largest, vmax=largest, edgecolors="0.3")
    spots.set_zorder(2)
    for feature in shown[np.argsort(-np.abs(coef[shown]))[:15]]:
        label = names[feature] if names else str(feature)
        axes.annotate(label, place[number[feature]], fontsize=7, ha="center", va="center", zorder=3)
    axes.set_axis_off()
    figure.colorbar(spots, label="coefficient", shrink=0.7)
    return figure
