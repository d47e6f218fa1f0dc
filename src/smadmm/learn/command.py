"""`smadmm classify`: fit from LIBSVM files, tell what was found, save the model, apply it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.data.libsvm import load_libsvm
from smadmm.files import atomic_write, output_folder
from smadmm.learn.classifier import GraphGuidedClassifier
from smadmm.learn.drawing import DPI, edges_of, graph_figure
from smadmm.learn.files import load_model, save_model
from smadmm.report.figures import not_drawn, write_figure

HEAVIEST = 10


@dataclass(frozen=True)
class Settings:
    """What the command line sets."""

    graph: str
    alpha: float
    loss: str
    method: str
    epochs: int | None
    seed: int
    progress: bool


def _graph(name: str) -> Any:
    """A graph by name, or the edges of a file with two features a line, counted from 0."""
    if name in ("glasso", "knn", "chain"):
        return name
    if name == "none":
        return None
    if not Path(name).exists():
        raise ValueError(f"graph {name!r} is neither glasso, knn, chain, none nor a file of edges")
    try:
        return np.loadtxt(name, dtype=np.int64, ndmin=2, encoding="utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{name} is not a file of edges, two whole numbers a line: {error}") from None


def fit(source: str, test: str | None, out: str | None, settings: Settings, data: str | None) -> Iterator[str]:
    """Fit, and say line by line what was found."""
    folder = None if out is None else output_folder(out)
    train = load_libsvm(source, data=data)
    held_out = load_libsvm(test, data=data, n_features=train.X.shape[1]) if test is not None else None
    model = GraphGuidedClassifier(
        settings.alpha,
        graph=_graph(settings.graph),
        loss=settings.loss,
        method=settings.method,
        max_epochs=settings.epochs,
        random_state=settings.seed,
        verbose=int(settings.progress),
    ).fit(train.X, train.y)
    rows, features = train.X.shape
    edges = len(edges_of(model.graph_))
    counted = f"{features} features, counted from 0, {edges} edges"
    yield f"{train.name}: {rows} rows, {counted}, classes {model.classes_}"
    yield f"accuracy on the training data {model.score(train.X, train.y):.4f}"
    if held_out is not None:
        yield f"accuracy on {held_out.name} {model.score(held_out.X, held_out.y):.4f}"
    yield f"{model.n_iter_} passes, {model.sfo_} sample gradients"
    yield from _findings(model)
    if folder is not None:
        save_model(folder / "model.npz", model)
        write_figure(folder / "graph.png", lambda: graph_figure(model), DPI)
        missing = not_drawn("graph.png needs")
        written = "model.npz is" if missing else "model.npz and graph.png are"
        yield f"{written} in {folder}; apply it with: smadmm classify --model {folder / 'model.npz'} DATA"
        yield from missing


def _findings(model: GraphGuidedClassifier) -> Iterator[str]:
    """The heaviest coefficients, and the edges that tie the heaviest equal ones."""
    for name, coef in zip(model.classes_[-len(model.coef_) :], model.coef_, strict=True):
        heaviest = np.argsort(-np.abs(coef), kind="stable")[:HEAVIEST]
        yield f"class {name}: heaviest coefficients " + ", ".join(f"{j}: {coef[j]:+.3g}" for j in heaviest)
        edges = edges_of(model.graph_)
        if len(edges):
            weight = np.abs(coef[edges]).min(axis=1)
            strongest = np.argsort(-weight, kind="stable")[:HEAVIEST]
            pairs = ", ".join(f"{i}-{j}" for i, j in edges[strongest])
            yield f"class {name}: edges between the heaviest {pairs}"


def apply(model: str, source: str, out: str | None, data: str | None) -> Iterator[str]:
    """Predict with a saved model."""
    folder = None if out is None else output_folder(out)
    path = Path(model) / "model.npz" if Path(model).is_dir() else Path(model)
    if not path.exists():
        raise ValueError(f"there is no model {path}; make one with: smadmm classify TRAIN --out DIR")
    classifier = load_model(path)
    rows = load_libsvm(source, data=data, n_features=classifier.n_features_in_)
    predicted = classifier.predict(rows.X)
    if np.isin(rows.y, classifier.classes_).all():
        yield f"accuracy on {rows.name} {np.mean(predicted == rows.y):.4f} ({len(predicted)} rows)"
    else:
        yield f"{rows.name}: {len(predicted)} rows; its labels are not the model's classes, so there is no accuracy"
    if folder is not None:
        atomic_write(folder / "predictions.txt", "".join(f"{label:g}\n" for label in predicted).encode())
        yield f"predictions.txt is in {folder}"
