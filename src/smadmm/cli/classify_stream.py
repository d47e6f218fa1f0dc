"""`smadmm classify --stream`: one pass over rows that do not fit into memory, resumable at every chunk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smadmm.arguments import ArgumentError
from smadmm.bars import tqdm

UNFINISHED = "unfinished.npz"
SAVE_EVERY = 30.0  # seconds


def learn_stream(
    model: Any, source: str, target: str | None, folder: Path | None, resume: bool, say: Callable[[str], None]
) -> Any:
    """The model, fitted chunk by chunk; what is done is kept in the folder until the caller has saved the whole."""
    from smadmm.io.models import save_model
    from smadmm.io.row_stream import open_rows
    from smadmm.signals import deliver, interruptible

    kept = None if folder is None else folder / UNFINISHED
    model, seen = _begun(model, kept, resume)
    rows, total = open_rows(source, target), None
    if seen:
        features, classes = model.n_features_in_, model.classes_
        say(f"{source}: going on after row {seen}")
    else:
        total, features, classes = rows.survey()
        say(f"{source}: {total} rows in {rows.files} files, {features} features, classes {classes}")
    saved = time.monotonic()
    with interruptible() as signals, tqdm(total=total, unit="row", disable=None if model.verbose else True) as bar:
        for X, y in rows.chunks(seen, features):
            model.partial_fit(X, y, classes=classes)
            bar.update(len(y))
            if kept is not None and (signals or time.monotonic() - saved > SAVE_EVERY):
                save_model(kept, model)
                saved = time.monotonic()
            if signals:
                break
    deliver(signals)
    return model


def _begun(model: Any, kept: Path | None, resume: bool) -> tuple[Any, int]:
    """The model to go on with, and the rows that it has seen."""
    from smadmm.io.models import load_model

    there = kept is not None and kept.exists()
    if resume and not there:
        raise ArgumentError("there is no unfinished fit in {out} to resume; start without {resume}")
    if there and not resume:
        raise ArgumentError("{0} holds an unfinished fit; go on with {resume}, or remove it", kept)
    if not there or kept is None:
        return model, 0
    begun: Any = load_model(kept)
    begun.verbose = model.verbose
    if begun.loss != model.loss:
        raise ArgumentError("{0} was begun with {loss} {1}, not {2}; go on with that", kept, begun.loss, model.loss)
    return begun, int(begun._online[0].columns.rows)
