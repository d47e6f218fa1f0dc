"""MATLAB files: version 5 and 7 by scipy, version 7.3 as the HDF5 it is. Fields of a struct are named struct/field.

MATLAB stores the first axis fastest, so HDF5 shows the axes of version 7.3 in reverse; texts are numbers there.

A file of version 5 is a sequence of elements: a code, a number of bytes, and these, for an array again elements. scipy
looks codes up in a table without checking them, and a damaged file can end the process; so they are checked before.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.extras import needs
from smadmm.io.hdf5 import read_hdf5
from smadmm.io.scan import Content

INTERNAL = "#"  # begins the names of what cells refer to
HEADER = 128  # bytes of version 5 before the first element
MATRIX, COMPRESSED = 14, 15  # codes of elements
CODES = (*range(1, 8), 9, 12, 13, MATRIX, COMPRESSED, 16, 17, 18)
CELL, STRUCT, SPARSE = 1, 2, 5  # classes of arrays
CLASSES = (CELL, STRUCT, *range(4, 16))  # without objects and functions
UNPACKED = 2**31  # bytes of a compressed array
DEEPEST = 32  # arrays in arrays


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
    if 0 not in start[:4]:  # scipy, too, takes a file for one of version 4, which has another form, by a zero there
        _check(path.read_bytes())
    _sort(content, "", io.loadmat(path, simplify_cells=True))
    return content


def _check(data: bytes) -> None:
    """Refuse a file of version 5 whose elements are not what scipy expects."""
    order: Any = "little" if data[126:128] == b"IM" else "big"
    for code, content in _elements(data[HEADER:], order):
        if code == COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content, UNPACKED)
            code, content = next(_elements(unpacked, order), (0, b""))
        if code != MATRIX:
            raise ValueError(f"has an element of the kind {code} in the place of an array")
        _check_array(content, order, 0)


def _elements(data: bytes, order: Any) -> Iterator[tuple[int, bytes]]:
    """Codes and contents of the elements in some bytes."""
    place = 0
    while place + 8 <= len(data):
        code, size = (int.from_bytes(data[place + n : place + n + 4], order) for n in (0, 4))
        begin, space = place + 8, size if code == COMPRESSED else -(-size // 8) * 8
        if code >> 16:  # up to 4 bytes, which follow at once
            code, size, begin, space = code & 0xFFFF, code >> 16, place + 4, 4
        if code not in CODES or begin + size > len(data) or size > space:
            raise ValueError(f"has an element of the kind {code} with {size} bytes, which cannot be")
        yield code, data[begin : begin + size]
        place = begin + space


def _check_array(data: bytes, order: Any, depth: int) -> None:
    parts = list(_elements(data, order))
    if not parts and depth:
        return  # an empty cell
    codes, sizes = [code for code, _ in parts], [len(content) for _, content in parts]
    if codes[:3] != [6, 5, 1] or sizes[0] != 8 or not 8 <= sizes[1] <= 4 * DEEPEST or depth > DEEPEST:
        raise ValueError("has an array without class, size and name")
    flags = int.from_bytes(parts[0][1][:4], order)
    kind, is_complex = flags & 0xFF, flags >> 11 & 1
    if kind not in CLASSES:
        raise ValueError(f"has an array of the class {kind}; store numbers, texts, cells and structs")
    size = math.prod(_numbers(parts[1][1], order))
    if kind in (CELL, STRUCT):
        length = _numbers(parts[3][1], order) if kind == STRUCT and len(parts) > 4 else [1]
        first, fields = (3, 1) if kind == CELL else (5, len(parts[4][1]) // max(length[0], 1) if len(parts) > 4 else 0)
        good = len(parts) == first + size * fields and all(code == MATRIX for code in codes[first:])
    else:
        first, usual = len(parts), (6 if kind == SPARSE else 4) + is_complex
        good = len(parts) == usual and not {MATRIX, COMPRESSED} & set(codes)
    if not good:
        raise ValueError(f"has an array of the class {kind} with {len(parts)} parts, which cannot be")
    for _, content in parts[first:]:
        _check_array(content, order, depth + 1)


def _numbers(data: bytes, order: Any) -> list[int]:
    return [int.from_bytes(data[n : n + 4], order, signed=True) for n in range(0, len(data), 4)]


def _turned(value: Any) -> Any:
    """Vectors in memory, others on disk."""
    return np.asarray(value).ravel() if value.size == max(value.shape) else ColumnMajor(value)


def _sort(content: Content, prefix: str, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            _sort(content, f"{prefix}{name}/", value)
        elif not name.startswith("__"):
            content.put(prefix + name, value)
