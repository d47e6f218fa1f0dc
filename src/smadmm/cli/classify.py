"""`smadmm classify` fits a table or LIBSVM file, says what was found, saves the model; `smadmm predict` applies it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from smadmm.arguments import ArgumentError, one_of
from smadmm.cli.app import app, resumable, writing
from smadmm.cli.classify_stream import UNFINISHED, learn_stream
from smadmm.cli.options import Data, OnlyCPU, Overwrite, Quiet, Resume, Seed, Threads
from smadmm.io.files import write_csv
from smadmm.io.libsvm import Dataset, load_libsvm
from smadmm.io.limits import text_of
from smadmm.io.scan import ScanError, readable
from smadmm.io.tables import kind_of, load_table
from smadmm.report.figures import not_drawn, write_figure

HEAVIEST = 10


Source = Annotated[
    str, typer.Argument(metavar="DATA", help="CSV, TSV, Parquet, Feather, ARFF, LIBSVM file, or the name of a set.")
]
Target = Annotated[str | None, typer.Option(help="Column of the labels in a table.")]
Impute = Annotated[
    bool, typer.Option("--impute", help="Fill gaps: numbers by their mean in the training data, words by 'missing'.")
]


@app.command(rich_help_panel="Data")
def classify(
    context: typer.Context,
    source: Source,
    test: Annotated[str | None, typer.Option(help="File to measure the accuracy on.")] = None,
    out: Annotated[str | None, typer.Option("--out", help="Folder for the model and the picture.")] = None,
    target: Target = None,
    impute: Impute = False,
    graph: Annotated[
        str, typer.Option(help="auto, glasso, knn, chain, none, or a file of edges: two features per line.")
    ] = "auto",
    alpha: Annotated[float | None, typer.Option(help="Weight of the penalty; default by rows left out.")] = None,
    loss: Annotated[str, typer.Option(help="logistic, sigmoid or squared_hinge.")] = "logistic",
    method: Annotated[str, typer.Option(help="auto, smadmm, sadmm, svrg, saga, spider or asvrg.")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="DATA, a file or folder of Parquet, Arrow or LIBSVM, exceeds memory.")
    ] = False,
    resume: Resume = False,
    data: Data = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    device: OnlyCPU = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Fit a classifier whose coefficients are tied along a graph."""
    torch.set_num_threads(threads)
    from smadmm.learn.classifier import SOLVERS, GraphGuidedClassifier

    one_of("method", method, SOLVERS)
    folder = None if out is None else context.with_resource(writing(out, "model.npz", overwrite))
    fitted = GraphGuidedClassifier(
        alpha, graph=_graph(graph), loss=loss, solver=method, max_epochs=epochs, random_state=seed,
        verbose=int(not quiet),
    )  # fmt: skip
    if stream:
        _refuse_with_stream(method, epochs, impute)
        with resumable() if folder else nullcontext():
            fitted = learn_stream(fitted, source, target, folder, resume, typer.echo)
        for line in _learned(fitted, test and load_rows(test, data, fitted.n_features_in_, target), folder):
            typer.echo(line)
        return
    if resume:
        raise ArgumentError("{resume} goes on with an unfinished fit of {stream}; a fit in memory starts anew")
    try:
        train = load_rows(source, data, target=target, impute=impute)
        held_out = None
        if test is not None:
            means = train.X.mean() if kind_of(Path(source)) else None
            held_out = load_rows(test, data, train.X.shape[1], target, impute, means=means)
        for line in _fit(fitted, train, held_out, folder):
            typer.echo(line)
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written. Fewer --epochs end sooner", err=True)
        raise typer.Exit(130) from None


def _refuse_with_stream(method: str, epochs: int | None, impute: bool) -> None:
    """Options that need all rows at once."""
    if method != "auto":
        raise ArgumentError("{stream} goes with {method} auto, got {0}", method)
    if epochs is not None or impute:
        raise ArgumentError("{stream} reads the rows once, as they are; leave out {epochs} and {impute}")


def _learned(model: Any, held_out: Any, folder: Path | None) -> Iterator[str]:
    """Save a model that was fitted to a stream, and say what was found."""
    from smadmm.io.models import save_model

    if held_out:
        yield f"accuracy on {held_out.name} {model.score(held_out.X, held_out.y):.4f}"
    yield f"{model.n_iter_} chunks, {model.sfo_} sample gradients; alpha {model.alpha_:.3g}"
    yield from _findings(model)
    if folder is not None:
        save_model(folder / "model.npz", model)
        (folder / UNFINISHED).unlink(missing_ok=True)
        yield f"model.npz is in {folder}; apply it with: smadmm predict {folder / 'model.npz'} DATA"


@app.command(rich_help_panel="Data")
def predict(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="model.npz of smadmm classify, or its folder.")],
    source: Source,
    out: Annotated[str | None, typer.Option("--out", help="Folder for predictions.csv.")] = None,
    target: Target = None,
    impute: Impute = False,
    data: Data = None,
    overwrite: Overwrite = False,
) -> None:
    """Apply a model of smadmm classify: predictions with probabilities, and the accuracy if there are labels."""
    path = Path(model) / "model.npz" if Path(model).is_dir() else Path(model)
    if not path.exists():
        raise ValueError(f"there is no model {path}; make one with: smadmm classify TRAIN --out DIR")
    folder = None if out is None else context.with_resource(writing(out, "predictions.csv", overwrite))
    from smadmm.io.models import load_model

    classifier = load_model(path)
    means = dict(zip(getattr(classifier, "feature_names_in_", ()), classifier._standard.mean, strict=False))
    rows = load_rows(source, data, None, target, impute, labelled=False, means=means)
    for line in _apply(classifier, rows, folder):
        typer.echo(line)


def _graph(name: str) -> Any:
    """A graph by name, or the edges of a file with two features per line, counted from 0."""
    if name in ("auto", "glasso", "knn", "chain"):
        return name
    if name == "none":
        return None
    if not Path(name).exists():
        raise ValueError(f"graph {name!r} is neither auto, glasso, knn, chain, none nor a file of edges")
    with readable(Path(name), "a file of edges has two features per line"):
        text = text_of(Path(name))
        ends = np.array([words for line in text.splitlines() if (words := line.partition("#")[0].split())], dtype=str)
        if ends.ndim != 2 or ends.shape[1] != 2:
            raise ValueError(f"{name} is not a file of edges, two features per line")
        return ends.astype(np.int64) if all(end.isdecimal() for end in ends.ravel()) else ends.tolist()


def _fit(model: Any, train: Dataset, held_out: Dataset | None, folder: Path | None) -> Iterator[str]:
    """Fit, and say line by line what was found."""
    from smadmm.io.models import save_model
    from smadmm.learn.drawing import DPI, edges_of

    model.fit(train.X, train.y)
    rows, features = train.X.shape
    edges = len(edges_of(model.graph_))
    counted = "" if hasattr(model, "feature_names_in_") else " (counted from 0)"
    classes = ", ".join(map(str, model.classes_))
    yield f"{train.name}: {rows} rows, {features} features{counted}, {edges} edges, classes {classes}"
    if left_out := getattr(train.X, "attrs", {}).get("left_out"):
        yield f"left out, as they tell rows apart and nothing more: {', '.join(left_out)}"
    yield f"accuracy on the training data {model.score(train.X, train.y):.4f}"
    if held_out is not None:
        X, told = _as_trained(model, held_out)
        yield from told
        yield f"accuracy on {held_out.name} {model.score(X, held_out.y):.4f}"
    zeros, groups = model.coef_.size - model.n_nonzero_, sum(len(np.unique(row[row > 0])) for row in model.groups_)
    values = "1 value" if groups == 1 else f"{groups} values"
    yield f"{zeros} of {model.coef_.size} coefficients are zero, others have {values}; alpha {model.alpha_:.3g}"
    yield f"{model.n_iter_} passes, {model.sfo_} sample gradients"
    yield from _findings(model)
    if folder is not None:
        save_model(folder / "model.npz", model)
        write_figure(folder / "graph.png", model.plot, DPI)
        missing = not_drawn("graph.png needs")
        written = "model.npz is" if missing else "model.npz and graph.png are"
        yield f"{written} in {folder}; apply it with: smadmm predict {folder / 'model.npz'} DATA"
        yield from missing


def _findings(model: Any) -> Iterator[str]:
    """The heaviest coefficients, and the edges that tie the heaviest equal ones."""
    from smadmm.learn.drawing import edges_of

    edges, named = edges_of(model.graph_), getattr(model, "feature_names_in_", range(model.n_features_in_))
    for name, coef in zip(model.classes_[-len(model.coef_) :], model.coef_, strict=True):
        heaviest = _largest(np.abs(coef))
        told = ", ".join(f"{named[j]}: {coef[j]:+.3g}" for j in heaviest) or "all are zero"
        yield f"class {name}: heaviest coefficients {told}"
        strongest = _largest(np.abs(coef[edges]).min(axis=1)) if len(edges) else ()
        if len(strongest):
            pairs = ", ".join(f"{named[i]}-{named[j]}" for i, j in edges[strongest])
            yield f"class {name}: edges between the heaviest {pairs}"


def _largest(weights: Any) -> Any:
    """Where the largest are, without zeros."""
    order = np.argsort(-weights, kind="stable")[:HEAVIEST]
    return order[weights[order] > 0]


def _as_trained(model: Any, rows: Dataset) -> tuple[Any, list[str]]:
    """The features that a model was trained with, and a line on words that it does not know."""
    from smadmm.io.tables import aligned

    names = getattr(model, "feature_names_in_", None)
    if names is not None and hasattr(rows.X, "columns"):
        X, new = aligned(rows.X, names)
        unknown = f"{rows.name} has words that the model does not know, which count for nothing: {', '.join(new)}"
        return X, [unknown] if new else []
    if rows.X.shape[1] < model.n_features_in_:
        rows.X.resize((rows.X.shape[0], model.n_features_in_))
    return rows.X, []


def _apply(classifier: Any, rows: Dataset, folder: Path | None) -> Iterator[str]:
    """Predict with a saved model."""
    X, told = _as_trained(classifier, rows)
    yield from told
    predicted, p = classifier.predict(X), classifier.predict_proba(X)
    if len(rows.y) and np.isin(rows.y, classifier.classes_).all():
        yield f"accuracy on {rows.name} {np.mean(predicted == rows.y):.4f} ({len(predicted)} rows)"
    else:
        yield f"{rows.name}: {len(predicted)} rows; for an accuracy name their column of labels with --target"
    if folder is None:
        counts = ", ".join(f"{np.sum(predicted == name)} {name}" for name in classifier.classes_)
        yield f"predicted: {counts}; with --out DIR each row and its probabilities are written"
    else:
        head = ["prediction", *(f"probability of {name}" for name in classifier.classes_)]
        lines = [dict(zip(head, [y, *q], strict=True)) for y, q in zip(predicted.tolist(), p.tolist(), strict=True)]
        write_csv(folder / "predictions.csv", lines)
        yield f"predictions.csv is in {folder}"


def load_rows(
    source: str,
    data: str | None,
    features: int | None = None,
    target: str | None = None,
    impute: bool = False,
    labelled: bool = True,
    means: Mapping[str, float] | None = None,
) -> Dataset:
    """The rows of a table, or of a LIBSVM file with at least so many features."""
    path = Path(source)
    if kind_of(path):
        return load_table(path, target, impute, labelled, means)
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(4096)
        if b"\0" in start and not start.startswith((b"BZh", b"\x1f\x8b")):
            raise ScanError(
                path, "is neither a table nor a LIBSVM file", "give CSV, TSV, Parquet, Feather, ARFF or LIBSVM"
            )
    return load_libsvm(source, data=data, n_features=features)
