"""A fitted classifier as a file: an NPZ archive of arrays, read without ever unpickling."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.io.files import atomic_write
from smadmm.io.limits import load_npz
from smadmm.io.scan import readable
from smadmm.learn import GraphGuidedClassifier, GraphGuidedClassifierCV
from smadmm.learn.chunks import LabelOrder, OnlineFit
from smadmm.learn.graphs import Rows
from smadmm.learn.standard import Standard

FORMAT = "smadmm classifier 2"


def save_model(path: str | os.PathLike[str], model: GraphGuidedClassifier) -> None:
    """Write what prediction, drawing and partial_fit need: classes, coefficients in both units, alpha, names, graph."""
    if not isinstance(model, GraphGuidedClassifier | GraphGuidedClassifierCV) or not hasattr(model, "coef_"):
        raise TypeError(
            f"save_model keeps a fitted GraphGuidedClassifier, got {type(model).__name__}; of a pipeline, save the "
            "last step, or keep the whole pipeline with joblib.dump"
        )
    G, standard = model.graph_, model._standard
    names = getattr(model, "feature_names_in_", np.empty(0))
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        allow_pickle=False,
        format=np.array(FORMAT),
        classes=_plain(model.classes_),
        unknowns=standard.unknowns(model.coef_standardized_ / standard.scale, model.intercept_, True),
        ties=model.coef_standardized_,
        mean=standard.mean,
        scale=standard.scale,
        names=_plain(names),
        loss=np.array(model.loss),
        alpha=np.array(model.alpha_),
        softmax=np.array(model._softmax),
        calibration=np.array(model.calibration_),
        parameters=np.array(json.dumps(_parameters(model))),
        graph_data=G.data,
        graph_indices=G.indices,
        graph_indptr=G.indptr,
        **_stream_of(model),
    )
    atomic_write(Path(path), buffer.getvalue())


def _parameters(model: GraphGuidedClassifier) -> dict[str, Any]:
    """Those that are a word or a number; alpha, ridge and graph as they were found, alpha, graph and loss elsewhere."""
    every = {**model.get_params(deep=False), "ridge": getattr(model, "ridge_", None)}
    plain = {name: value for name, value in every.items() if name not in ("alpha", "graph", "loss")}
    return {name: value for name, value in plain.items() if value is None or isinstance(value, str | int | float)}


def _stream_of(model: GraphGuidedClassifier) -> dict[str, Any]:
    """What partial_fit needs to go on, where the model learns from a stream."""
    online = getattr(model, "_online", None)
    if not online:
        return {}
    weight = [] if model.class_weight is None else [model.class_weight.get(c, 1.0) for c in model.classes_]
    kept = {f"online.{i}.{name}": part for i, fit in enumerate(online) for name, part in fit.kept().items()}
    shared = {"first_mean": model._first.mean, "first_scale": model._first.scale, "class_weight": weight}
    shared["order"] = model._order.kept()
    numbers = {"intercept": model.fit_intercept, "standardize": model.standardize, "chunks": model.n_iter_}
    return {f"stream.{name}": np.asarray(part) for name, part in (kept | shared | numbers).items()}


def _go_on(model: GraphGuidedClassifier, parts: dict[str, Any]) -> None:
    """Take up the stream that the model learned from."""
    stream = {name.removeprefix("stream."): part for name, part in parts.items() if name.startswith("stream.")}
    if not stream:
        return
    model.fit_intercept, model.standardize = bool(stream["intercept"]), bool(stream["standardize"])
    model._first, model.n_iter_ = Standard(stream["first_mean"], stream["first_scale"]), int(stream["chunks"])
    if stream["class_weight"].size:
        model.class_weight = dict(zip(model.classes_.tolist(), stream["class_weight"].tolist(), strict=True))
    A, options = model._rows_of(model.graph_), (model.loss, model.fit_intercept, model.standardize)
    model._online, model._order = [], LabelOrder.restored(stream["order"])
    for i in range(1 if len(model.classes_) == 2 else len(model.classes_)):
        of_one = {name.removeprefix(f"online.{i}."): p for name, p in stream.items() if name.startswith(f"online.{i}.")}
        model._online.append(OnlineFit.restored(A, *options, of_one))
    model.sfo_ = sum(online.sfo for online in model._online)


def _plain(values: object) -> np.ndarray:
    """Strings as text of fixed length: objects could not be read safely."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype == object else array


def load_model(path: str | os.PathLike[str]) -> GraphGuidedClassifier:
    """The classifier that was saved, with its parameters; alpha, ridge and graph are those that were found."""
    from scipy.sparse import csr_matrix

    with readable(Path(path), "make a model with smadmm classify or save_model"):
        parts = load_npz(Path(path))
        if str(parts.get("format")) != FORMAT:
            raise ValueError(f"{path} is not a model of this smadmm classify")
        return _model(parts, csr_matrix)


def _model(parts: dict[str, Any], csr_matrix: Any) -> GraphGuidedClassifier:
    given = json.loads(str(parts["parameters"])) if "parameters" in parts else {}
    model = GraphGuidedClassifier(float(parts["alpha"]), loss=str(parts["loss"]), **given)
    model.classes_, model.alpha_ = parts["classes"], float(parts["alpha"])
    if model.ridge is not None:  # streams have none
        model.ridge_ = model.ridge
    model._softmax, model.calibration_ = bool(parts["softmax"]), float(parts["calibration"])
    model._standard, model.n_features_in_ = Standard(parts["mean"], parts["scale"]), parts["mean"].size
    if parts["names"].size:
        model.feature_names_in_ = parts["names"].astype(object)
    shape = (len(parts["graph_indptr"]) - 1, model.n_features_in_)
    model.graph_ = csr_matrix((parts["graph_data"], parts["graph_indices"], parts["graph_indptr"]), shape=shape)
    model._keep_unknowns(np.column_stack([parts["ties"], parts["unknowns"][:, -1]]))
    model.graph = Rows(model.graph_)  # to go on learning with
    _go_on(model, parts)
    return model
