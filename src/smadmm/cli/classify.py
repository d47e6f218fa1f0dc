"""`smadmm classify`: fit from LIBSVM files, tell what was found, save the model, apply it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from smadmm.arguments import one_of
from smadmm.cli.app import app
from smadmm.cli.options import Data, OnlyCPU, Quiet, Seed, Threads
from smadmm.io.files import atomic_write, output_folder
from smadmm.io.libsvm import Dataset, load_libsvm
from smadmm.report.figures import not_drawn, write_figure

HEAVIEST = 10


@app.command(rich_help_panel="Data")
def classify(
    source: Annotated[str, typer.Argument(metavar="DATA", help="LIBSVM file (plain, .bz2, .gz) or the name of a set.")],
    test: Annotated[str | None, typer.Option(help="LIBSVM file to measure the accuracy on.")] = None,
    model: Annotated[str | None, typer.Option(help="Apply this saved model to DATA instead of fitting.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder for the model, the picture, the predictions.")
    ] = None,
    graph: Annotated[
        str, typer.Option(help="glasso, knn, chain, none, or a file of edges: two features per line, from 0.")
    ] = "glasso",
    alpha: Annotated[float, typer.Option(help="Weight of the penalty.")] = 1e-5,
    loss: Annotated[str, typer.Option(help="sigmoid, logistic or squared_hinge.")] = "sigmoid",
    method: Annotated[str, typer.Option(help="auto, smadmm, sadmm, svrg, saga, spider or asvrg.")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    data: Data = None,
    seed: Seed = 0,
    device: OnlyCPU = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Fit a classifier whose coefficients are tied along a graph, or apply a saved one."""
    torch.set_num_threads(threads)
    try:
        if model is not None:
            rows = load_rows(source, data)
            lines = _apply(model, rows, None if out is None else output_folder(out))
        else:
            from smadmm.learn.classifier import SOLVERS, GraphGuidedClassifier

            one_of("method", method, SOLVERS)
            fitted = GraphGuidedClassifier(
                alpha, graph=_graph(graph), loss=loss, solver=method, max_epochs=epochs, random_state=seed,
                verbose=int(not quiet),
            )  # fmt: skip
            train = load_rows(source, data)
            held_out = None if test is None else load_rows(test, data, train.X.shape[1])
            lines = _fit(fitted, train, held_out, None if out is None else output_folder(out))
        for line in lines:
            typer.echo(line)
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written. Fewer --epochs end sooner", err=True)
        raise typer.Exit(130) from None


def _graph(name: str) -> Any:
    """A graph by name, or the edges of a file with two features per line, counted from 0."""
    if name in ("glasso", "knn", "chain"):
        return name
    if name == "none":
        return None
    if not Path(name).exists():
        raise ValueError(f"graph {name!r} is neither glasso, knn, chain, none nor a file of edges")
    try:
        return np.loadtxt(name, dtype=np.int64, ndmin=2, encoding="utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{name} is not a file of edges, two whole numbers per line: {error}") from None


def _fit(model: Any, train: Dataset, held_out: Dataset | None, folder: Path | None) -> Iterator[str]:
    """Fit, and say line by line what was found."""
    from smadmm.io.models import save_model
    from smadmm.learn.drawing import DPI, edges_of, graph_figure

    model.fit(train.X, train.y)
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


def _findings(model: Any) -> Iterator[str]:
    """The heaviest coefficients, and the edges that tie the heaviest equal ones."""
    from smadmm.learn.drawing import edges_of

    edges = edges_of(model.graph_)
    for name, coef in zip(model.classes_[-len(model.coef_) :], model.coef_, strict=True):
        heaviest = np.argsort(-np.abs(coef), kind="stable")[:HEAVIEST]
        yield f"class {name}: heaviest coefficients " + ", ".join(f"{j}: {coef[j]:+.3g}" for j in heaviest)
        if len(edges):
            weight = np.abs(coef[edges]).min(axis=1)
            strongest = np.argsort(-weight, kind="stable")[:HEAVIEST]
            pairs = ", ".join(f"{i}-{j}" for i, j in edges[strongest])
            yield f"class {name}: edges between the heaviest {pairs}"


def _apply(model: str, rows: Dataset, folder: Path | None) -> Iterator[str]:
    """Predict with a saved model."""
    from smadmm.io.models import load_model

    path = Path(model) / "model.npz" if Path(model).is_dir() else Path(model)
    if not path.exists():
        raise ValueError(f"there is no model {path}; make one with: smadmm classify TRAIN --out DIR")
    classifier = load_model(path)
    if rows.X.shape[1] < classifier.n_features_in_:
        rows.X.resize((rows.X.shape[0], classifier.n_features_in_))
    predicted = classifier.predict(rows.X)
    if np.isin(rows.y, classifier.classes_).all():
        yield f"accuracy on {rows.name} {np.mean(predicted == rows.y):.4f} ({len(predicted)} rows)"
    else:
        yield f"{rows.name}: {len(predicted)} rows; its labels are not the model's classes, so there is no accuracy"
    if folder is not None:
        atomic_write(folder / "predictions.txt", "".join(f"{label:g}\n" for label in predicted).encode())
        yield f"predictions.txt is in {folder}"


def load_rows(source: str, data: str | None, features: int | None = None) -> Dataset:
    """The rows of a LIBSVM file, with at least so many features."""
    return load_libsvm(source, data=data, n_features=features)
