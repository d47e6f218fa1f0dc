"""A fitted classifier as a file: an NPZ archive of arrays, read without ever unpickling."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.io.files import atomic_write
from smadmm.io.limits import load_npz
from smadmm.io.scan import readable
from smadmm.learn.classifier import GraphGuidedClassifier
from smadmm.learn.standard import Standard

FORMAT = "smadmm classifier 2"


def save_model(path: str | os.PathLike[str], model: GraphGuidedClassifier) -> None:
    """Write what prediction and drawing need: classes, coefficients in both units, alpha, names, the graph."""
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
        graph_data=G.data,
        graph_indices=G.indices,
        graph_indptr=G.indptr,
    )
    atomic_write(Path(path), buffer.getvalue())


def _plain(values: object) -> np.ndarray:
    """Strings as text of fixed length: objects could not be read safely."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype == object else array


def load_model(path: str | os.PathLike[str]) -> GraphGuidedClassifier:
    """A classifier that predicts as the one that was saved."""
    from scipy.sparse import csr_matrix

    with readable(Path(path), "make a model with smadmm classify or save_model"):
        parts = load_npz(Path(path))
        if str(parts.get("format")) != FORMAT:
            raise ValueError(f"{path} is not a model of this smadmm classify")
        return _model(parts, csr_matrix)


def _model(parts: dict[str, Any], csr_matrix: Any) -> GraphGuidedClassifier:
    model = GraphGuidedClassifier(float(parts["alpha"]), loss=str(parts["loss"]))
    model.classes_, model.alpha_ = parts["classes"], float(parts["alpha"])
    model._softmax, model.calibration_ = bool(parts["softmax"]), float(parts["calibration"])
    model._standard, model.n_features_in_ = Standard(parts["mean"], parts["scale"]), parts["mean"].size
    if parts["names"].size:
        model.feature_names_in_ = parts["names"].astype(object)
    shape = (len(parts["graph_indptr"]) - 1, model.n_features_in_)
    model.graph_ = csr_matrix((parts["graph_data"], parts["graph_indices"], parts["graph_indptr"]), shape=shape)
    model._keep_unknowns(np.column_stack([parts["ties"], parts["unknowns"][:, -1]]))
    return model
