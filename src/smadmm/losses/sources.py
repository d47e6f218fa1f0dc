"""Sources of a stream that can begin at any sample: `start(sample)` gives the items from there on.

A resumed run then seeks instead of reading all that came before. Memory holds one piece of `chunk` rows at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.extras import needs

CHUNK = 8192  # rows at a time
LOOKED_AT = 8  # rows by which a checkpoint knows the data: they may be too large to be read for it
ENDINGS = (".parquet", ".arrow", ".feather")

Rows = tuple[Tensor, ...]


class ArrayRows:
    """The rows of arrays of one length: in memory, memory-mapped, HDF5, Zarr, anything that is sliced.

    >>> source = losses.ArrayRows(np.zeros((100, 3)), np.ones(100), chunk=40)
    >>> [len(y) for X, y in source.start(30)]
    [40, 30]
    """

    def __init__(self, *arrays: Any, chunk: int = CHUNK):
        lengths = {int(array.shape[0]) for array in arrays}
        if len(lengths) != 1 or chunk < 1:
            raise ValueError(f"arrays need one length and chunks at least a row, got {sorted(lengths)} and {chunk}")
        self.arrays, self.chunk, (self.length,) = arrays, chunk, lengths

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Rows]:
        return self.start(0)

    def start(self, sample: int) -> Iterator[Rows]:
        """The rows from this one on, in pieces."""
        for first in range(sample, self.length, self.chunk):
            yield tuple(_tensor(array[first : min(first + self.chunk, self.length)]) for array in self.arrays)

    def described(self) -> Any:
        """For checkpoints: shapes, types and a few rows."""
        numbers = np.linspace(0, self.length - 1, min(self.length, LOOKED_AT)).astype(int).tolist()
        told = []
        for array in self.arrays:
            rows = b"".join(_tensor(array[i : i + 1]).numpy().tobytes() for i in numbers)
            told.append(f"{tuple(array.shape)} {array.dtype} {hashlib.sha256(rows).hexdigest()[:16]}")
        return told


def _tensor(rows: Any) -> Tensor:
    return rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows))  # a copy: maps may be read-only


class TableRows:
    """The rows of Parquet, Arrow or Feather files with columns of numbers; needs pyarrow.

    `source` is a file, a folder (its files in the order of their names), a list of files or a pyarrow Dataset. Items
    are X, or (X, y) with a `target` column; `columns` are the features, by default all others. Row groups before the
    sample that is asked for are skipped by what the files say of themselves.

    >>> try:
    ...     losses.TableRows("readings.csv", target="label")
    ... except ValueError as error:
    ...     print(error)
    readings.csv holds no table; give files that end with .parquet, .arrow, .feather, or their folder
    """

    def __init__(
        self, source: Any, target: str | None = None, columns: Sequence[str] | None = None, chunk: int = CHUNK
    ):
        self.files, self.target, self.chunk = table_files(source), target, chunk
        self._pq = needs("pyarrow.parquet", None, "Parquet and Arrow files")
        every = self._names(self.files[0])
        self.names = [name for name in every if name != target] if columns is None else list(columns)
        for name in [*self.names, *([] if target is None else [target])]:
            if name not in every:
                raise ValueError(f"{self.files[0]} has no column {name!r}; it has {', '.join(every[:10])}")
        self._pieces = [(path, number, rows) for path in self.files for number, rows in enumerate(self._sizes(path))]
        self.length = sum(rows for *_, rows in self._pieces)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.start(0)

    def start(self, sample: int) -> Iterator[Any]:
        """The rows from this one on, in pieces."""
        for X, y in self.chunks(sample):
            yield torch.from_numpy(X) if y is None else (torch.from_numpy(X), torch.from_numpy(y))

    def chunks(self, sample: int = 0) -> Iterator[tuple[NDArray[Any], Any]]:
        """The same as arrays (X, y); y is None without a target, and may hold words."""
        first = 0
        for path, number, rows in self._pieces:
            if first + rows > sample:
                yield from self._read(path, number, max(0, sample - first))
            first += rows

    def targets(self) -> Iterator[NDArray[Any]]:
        """The column of the targets alone."""
        for path, number, _ in self._pieces:
            for batch in self._batches(path, number, [str(self.target)]):
                yield batch.column(0).to_numpy(zero_copy_only=False)

    def described(self) -> Any:
        """For checkpoints: the rows of every piece, and the columns."""
        return {"rows": [rows for *_, rows in self._pieces], "columns": self.names, "target": self.target}

    def _read(self, path: Path, number: int, skip: int) -> Iterator[tuple[NDArray[Any], Any]]:
        for batch in self._batches(path, number, [*self.names, *([] if self.target is None else [self.target])]):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            batch, skip = batch.slice(skip), 0
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in self.names]
            for name, column in zip(self.names, columns, strict=True):
                if column.dtype.kind not in "fiub" or (column.dtype.kind == "f" and not np.isfinite(column).all()):
                    raise ValueError(f"the column {name} of {path} holds {_odd(column)}; streams take finite numbers")
            y = None if self.target is None else np.array(batch.column(self.target).to_numpy(zero_copy_only=False))
            X = np.column_stack(columns)
            yield X if X.dtype.kind == "f" else X.astype(np.float64), y

    def _names(self, path: Path) -> list[str]:
        return [str(name) for name in self._opened(path)[0].names]

    def _sizes(self, path: Path) -> list[int]:
        """Rows of every row group, or of every record batch."""
        return self._opened(path)[1]

    def _opened(self, path: Path) -> tuple[Any, list[int]]:
        if path.suffix == ".parquet":
            with self._pq.ParquetFile(path) as file:
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
                return file.schema_arrow, sizes
        with _arrow(path) as file:
            return file.schema, [file.get_batch(i).num_rows for i in range(file.num_record_batches)]

    def _batches(self, path: Path, number: int, columns: list[str]) -> Iterator[Any]:
        if path.suffix == ".parquet":
            with self._pq.ParquetFile(path) as file:
                yield from file.iter_batches(self.chunk, row_groups=[number], columns=columns, use_threads=False)
            return
        with _arrow(path) as file:
            batch = file.get_batch(number).select(columns)
            for first in range(0, batch.num_rows, self.chunk):
                yield batch.slice(first, self.chunk)


def _arrow(path: Path) -> Any:
    return needs("pyarrow.ipc", None, "Arrow files").open_file(
        needs("pyarrow", None, "Arrow files").memory_map(str(path))
    )


def _odd(column: NDArray[Any]) -> str:
    return f"values of type {column.dtype}" if column.dtype.kind not in "f" else "NaN, infinity or missing values"


def table_files(source: Any) -> list[Path]:
    """The files of a table: one, those of a folder by name, a list, or those of a pyarrow Dataset."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        found = sorted(p for p in path.rglob("*") if p.suffix in ENDINGS) if path.is_dir() else [path]
    else:
        found = [Path(name) for name in getattr(source, "files", source)]
    if not found or not all(path.is_file() and path.suffix in ENDINGS for path in found):
        missing = next((path for path in found if not path.is_file() or path.suffix not in ENDINGS), source)
        raise ValueError(f"{missing} holds no table; give files that end with {', '.join(ENDINGS)}, or their folder")
    return found
