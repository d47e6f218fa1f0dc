"""MATLAB files: version 5 and 7 by scipy, version 7.3 as the HDF5 it is. Fields of a struct are named struct/field.

MATLAB stores the first axis fastest, so HDF5 shows the axes of version 7.3 in reverse; texts are numbers there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.extras import needs
from smadmm.io.hdf5 import read_hdf5
from smadmm.io.scan import Content

INTERNAL = "#"  # begins the names of what cells refer to


class ColumnMajor:
    """A dataset of version 7.3 with its axes as MATLAB shows them."""

    def __init__(self, dataset: Any):
        self.dataset, self.dtype, self.shape = dataset, dataset.dtype, dataset.shape[::-1]
        self.chunks = dataset.chunks and dataset.chunks[::-1]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        parts += (np.s_[:],) * (len(self.shape) - len(parts))
        return self.dataset[parts[::-1]].T

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.dataset[()].T.astype(dtype or self.dtype)


def read_matlab(path: Path) -> Content:
    """The arrays, numbers and texts of a file."""
    with path.open("rb") as file:
        start = file.read(10)
    content = Content()
    if start in (b"MATLAB 7.3", b"\x89HDF\r\n\x1a\n\0\0"):
        whole = read_hdf5(path)
        for name, value in whole.arrays.items():
            if not name.startswith(INTERNAL):
                text = whole.attribute(name, "MATLAB_class") == "char"
                if text:
                    content.values[name] = "".join(map(chr, np.asarray(value).ravel()))
                else:
                    content.arrays[name] = _turned(value)
        content.values |= {n: v for n, v in whole.values.items() if not n.startswith(INTERNAL) and "MATLAB_" not in n}
        return content
    io = needs("scipy.io", "imaging", "MATLAB files")
    _sort(content, "", io.loadmat(path, simplify_cells=True))
    return content


def _turned(value: Any) -> Any:
    """Vectors in memory, others on disk."""
    return np.asarray(value).ravel() if value.size == max(value.shape) else ColumnMajor(value)


def _sort(content: Content, prefix: str, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            _sort(content, f"{prefix}{name}/", value)
        elif not name.startswith("__"):
            content.put(prefix + name, value)
