"""A fitted classifier as a file: an NPZ archive of arrays, read without ever unpickling."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np

from smadmm.io.files import atomic_write
from smadmm.learn.classifier import GraphGuidedClassifier

FORMAT = "smadmm classifier 1"


def save_model(path: str | os.PathLike[str], model: GraphGuidedClassifier) -> None:
    """Write what prediction needs: classes, coefficients, intercepts, loss, and the graph for drawing."""
    G = model.graph_
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        allow_pickle=False,
        format=np.array(FORMAT),
        classes=np.asarray(model.classes_),
        coef=model.coef_,
        intercept=model.intercept_,
        loss=np.array(model.loss),
        graph_data=G.data,
        graph_indices=G.indices,
        graph_indptr=G.indptr,
    )
    atomic_write(Path(path), buffer.getvalue())


def load_model(path: str | os.PathLike[str]) -> GraphGuidedClassifier:
    """A classifier that predicts as the one that was saved."""
    from scipy.sparse import csr_matrix

    try:
        with np.load(path, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is not a model of smadmm classify: {error}") from None
    if str(parts.get("format")) != FORMAT:
        raise ValueError(f"{path} is not a model of smadmm classify; make one with save_model")
    model = GraphGuidedClassifier(loss=str(parts["loss"]))
    model.classes_, model.coef_, model.intercept_ = parts["classes"], parts["coef"], parts["intercept"]
    model.n_features_in_ = model.coef_.shape[1]
    shape = (len(parts["graph_indptr"]) - 1, model.n_features_in_)
    model.graph_ = csr_matrix((parts["graph_data"], parts["graph_indices"], parts["graph_indptr"]), shape=shape)
    return model
