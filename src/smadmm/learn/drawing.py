"""Pictures of a fitted estimator: its graph, its path, its probabilities, its objective against time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs

DPI = 120
MOST, LABELS, RINGS = 150, 15, 6  # features, names and groups drawn at the most: the largest
BINS = 10


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
        force = (apart / distance[..., None] ** 2).sum(1) * ideal**2 - place
        if len(edges):
            along = place[edges[:, 0]] - place[edges[:, 1]]
            pull = along * np.linalg.norm(along, axis=1, keepdims=True) / ideal
            np.add.at(force, edges[:, 0], -pull)
            np.add.at(force, edges[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        place = place + force / length * np.minimum(length, heat)
    return np.asarray(place)


def names_of(model: Any) -> list[str]:
    """The names of the features, or their numbers."""
    return [str(name) for name in getattr(model, "feature_names_in_", range(model.n_features_in_))]


def _figure(width: float, height: float) -> Any:
    needs("matplotlib", "plot", "figures")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def graph_figure(model: Any, problem: int = 0) -> Any:
    """The features with the largest standardised coefficients, joined by the graph; tied ones have rings."""
    coef = model.coef_standardized_[problem]
    shown = np.sort(np.argsort(-np.abs(coef), kind="stable")[:MOST])
    number = np.full(len(coef), -1)
    number[shown] = np.arange(len(shown))
    edges = number[edges_of(model.graph_)]
    edges = edges[(edges >= 0).all(axis=1)]
    place = layout(edges, len(shown))
    figure = _figure(7.5, 5.5)
    axes = figure.add_subplot()
    for i, j in edges:
        axes.plot(*place[[i, j]].T, color="0.8", linewidth=0.8, zorder=1)
    largest = float(np.abs(coef).max()) or 1.0
    size = 30 + 250 * np.abs(coef[shown]) / largest
    across, up = place.T
    spots = axes.scatter(across, up, size, coef[shown], cmap="RdBu_r", vmin=-largest, vmax=largest, edgecolors="0.3")
    spots.set_zorder(3)
    names = names_of(model)
    _ring_groups(axes, model.groups_[problem], coef, names, place, number)
    heaviest = shown[np.argsort(-np.abs(coef[shown]), kind="stable")[:LABELS]]
    for feature in heaviest[coef[heaviest] != 0]:
        at = place[number[feature]]
        axes.annotate(names[feature], at, (0, 10), textcoords="offset points", fontsize=7, ha="center", zorder=4)
    axes.set_axis_off()
    figure.colorbar(spots, label="standardised coefficient", shrink=0.7)
    return figure


def _ring_groups(axes: Any, groups: Any, coef: Any, names: list[str], place: Any, number: Any) -> None:
    """A ring around the members of the largest tied groups, and the names of these in a legend."""
    counts = np.bincount(groups)
    counts[0] = 0  # coefficients that are zero are no group
    for k, group in enumerate(g for g in np.argsort(-counts, kind="stable")[:RINGS] if counts[g] > 1):
        members = np.flatnonzero(groups == group)
        seen = number[members][number[members] >= 0]
        said = ", ".join(names[j] for j in members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
        sign = "±" if np.ptp(np.sign(coef[members])) else ""
        label = f"{said}: {sign}{abs(coef[members[0]]) if sign else coef[members[0]]:.2g}"
        across, up = place[seen].T
        axes.scatter(across, up, 420, facecolors="none", edgecolors=f"C{k}", linewidths=1.8, zorder=2, label=label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(title="tied to be equal", fontsize=7, title_fontsize=8, loc="upper center",
                    bbox_to_anchor=(0.5, 0.0), markerscale=0.4, frameon=False)  # fmt: skip


def path_figure(model: Any) -> Any:
    """Coefficients (of the first problem) and held-out loss along the path."""
    figure = _figure(7, 6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    path, names = model.path_, names_of(model)
    coef = path.unknowns[:, 0, : len(names)]
    top.plot(path.alphas, coef, linewidth=1)
    for j in np.argsort(-np.abs(coef[-1]), kind="stable")[:10]:
        top.annotate(names[j], (path.alphas[-1], coef[-1, j]), fontsize=7)
    top.set(ylabel="standardised coefficient", xscale="log")
    bottom.errorbar(path.alphas, path.mean, path.error, capsize=2)
    bottom.set(xlabel="alpha", ylabel="held-out loss")
    for axes in (top, bottom):
        axes.axvline(model.alpha_, color="0.6", linestyle="--")
    top.invert_xaxis()
    return figure


def calibration_figure(p: NDArray[np.float64], right: NDArray[np.bool_], label: str) -> Any:
    """How often what has probability p is right, in bins of equal size, with standard errors; below, the p."""
    order = np.argsort(p, kind="stable")
    bins = [rows for rows in np.array_split(order, min(BINS, max(1, len(p) // 10))) if len(rows)]
    said = np.array([p[rows].mean() for rows in bins])
    share = np.array([right[rows].mean() for rows in bins])
    count = np.array([len(rows) for rows in bins])
    error = np.sqrt(np.maximum(share * (1 - share), 0.25 / count) / count)  # not zero where all are right
    figure = _figure(5.5, 6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="perfect")
    top.errorbar(said, share, error, fmt="o-", capsize=2, label=f"{len(p)} rows in {len(bins)} bins")
    top.set(ylabel="observed share of rows", ylim=(-0.03, 1.03))
    top.legend(loc="upper left")
    bottom.hist(p, bins=30, range=(0.0, 1.0), color="0.6")
    bottom.set(xlabel=label, ylabel="rows")
    return figure


def objective_figure(model: Any) -> Any:
    """How far the objective of each problem is above its lowest value, against seconds, and the certificate."""
    histories = model.history_ if isinstance(model.history_, list) else [model.history_]
    figure = _figure(7, 3.2)
    left, right = figure.subplots(1, 2)
    for history in histories:
        seconds, objective = np.array(history["seconds"]), np.array(history["objective"])
        above = objective - objective.min()
        left.semilogy(seconds[above > 0], above[above > 0], "o-", markersize=3)
        right.semilogy(seconds, np.maximum(history["certificate"], 1e-300), "o-", markersize=3)
    right.axhline(model.tol, color="0.6", linestyle="--", label="tol")
    right.legend()
    left.set(xlabel="seconds", ylabel="objective above its end")
    right.set(xlabel="seconds", ylabel="certificate")
    return figure
