"""Labelled rows larger than memory, chunk by chunk: Parquet and Arrow files, LIBSVM files, or folders of them.

`chunks(row)` gives pairs (X, y) from that row on; what lies before is skipped without being parsed, and chunks begin at
the same rows wherever reading starts, as long as it starts where a chunk did.
"""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.arguments import ArgumentError, MissingError
from smadmm.extras import needs
from smadmm.io.libsvm import LINES
from smadmm.io.scan import ScanError
from smadmm.losses.sources import CHUNK, ENDINGS, TableRows, table_files

Chunk = tuple[Any, Any]


class LabelledTable:
    """Tables with a column of labels."""

    def __init__(self, path: Path, target: str | None, chunk: int = CHUNK):
        names = ", ".join(TableRows(path).names[:10])
        if target is None or target not in TableRows(path).names:
            raise ArgumentError("{target} must be the column of the labels in {0}, one of {1}", path, names)
        self._rows, self._pd = TableRows(path, target, chunk=chunk), needs("pandas", None, "tables")
        self.files = len(self._rows.files)

    def survey(self) -> tuple[int, int, Any]:
        """Rows, features and classes."""
        classes = np.unique(np.concatenate([np.unique(y) for y in self._rows.targets()]))
        return len(self._rows), len(self._rows.names), classes

    def chunks(self, row: int, features: int) -> Iterator[Chunk]:
        for X, y in self._rows.chunks(row):
            yield self._pd.DataFrame(X, columns=self._rows.names, copy=False), y


class LabelledLines:
    """LIBSVM files, plain or compressed."""

    def __init__(self, files: list[Path], chunk: int = CHUNK):
        self.paths, self.chunk, self.files = files, chunk, len(files)
        self._from_zero: bool | None = None

    def survey(self) -> tuple[int, int, Any]:
        """Rows, features and classes, by one look through all files."""
        rows, features, classes, lowest = 0, 0, np.empty(0), 1
        for lines in self._pieces(0):
            X, y = self._parsed(lines, None, True)
            rows, features, classes = rows + len(y), max(features, X.shape[1]), np.union1d(classes, y)
            lowest = min(lowest, int(X.indices.min())) if X.nnz else lowest
        if not rows:
            raise ScanError(self.paths[0], "holds no rows", LINES)
        self._from_zero = lowest == 0
        return rows, features - (not self._from_zero), classes

    def chunks(self, row: int, features: int) -> Iterator[Chunk]:
        if self._from_zero is None:
            self.survey()
        for lines in self._pieces(row):
            yield self._parsed(lines, features, bool(self._from_zero))

    def _lines(self) -> Iterator[bytes]:
        for path in self.paths:
            with _opened(path) as file:
                for line in file:
                    start = line.lstrip()[:1]
                    if start and start != b"#":
                        yield line if line.endswith(b"\n") else line + b"\n"

    def _pieces(self, row: int) -> Iterator[list[bytes]]:
        lines = islice(self._lines(), row, None)
        while piece := list(islice(lines, self.chunk)):
            yield piece

    def _parsed(self, lines: list[bytes], features: int | None, from_zero: bool) -> Chunk:
        load = needs("sklearn.datasets", "learn", "LIBSVM files").load_svmlight_file
        try:
            X, y = load(io.BytesIO(b"".join(lines)), n_features=features, zero_based=from_zero)
        except Exception as error:  # the parser raises what it likes
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ScanError(self.paths[0], f"cannot be read as LIBSVM data: {reason}", LINES) from error
        if not (np.isfinite(X.data).all() and np.isfinite(y).all()):
            raise ScanError(self.paths[0], "holds NaN or infinite numbers", "remove these rows")
        return X, y


def _opened(path: Path) -> Any:
    with open(path, "rb") as file:
        start = file.read(3)
    opened = bz2.open if start == b"BZh" else gzip.open if start.startswith(b"\x1f\x8b") else open
    return opened(path, "rb")


def open_rows(source: str, target: str | None, chunk: int = CHUNK) -> LabelledTable | LabelledLines:
    """The rows of a file or folder: tables where there are some, else LIBSVM files, in the order of their names."""
    path = Path(source)
    if not path.exists():
        raise MissingError("there is no file or folder {0}; check the path", path)
    files = (
        sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")) if path.is_dir() else [path]
    )
    if any(file.suffix in ENDINGS for file in files):
        table_files(path)
        return LabelledTable(path, target, chunk)
    wrong = next((file for file in files if file.suffix.lower() in (".csv", ".tsv", ".arff")), None)
    if wrong is not None or not files:
        raise ArgumentError("{stream} reads Parquet, Arrow or LIBSVM files; {0} has none", path)
    return LabelledLines(files, chunk)
