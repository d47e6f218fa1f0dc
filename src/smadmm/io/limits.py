"""Files are refused before memory is taken for what they only claim to hold.

The header of an NPY array declares shape and type, and that of an archive the size of every array in it: what is
declared must be in the file, and must fit into the memory of the machine.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

TEXT = 2**26  # bytes of a file of numbers or edges
DEFLATED = 1100  # bytes that a compressed one can become, at most


def memory() -> int:
    """The bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 2**40


def load_npy(path: Path, mapped: bool = False) -> Any:
    """The array of an NPY file; mapped: left on disk."""
    with path.open("rb") as file:
        _check(file, path.stat().st_size)
    if mapped:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:  # np.load leaves bad files open
        return np.load(file, allow_pickle=False)


def load_npz(path: Path) -> dict[str, Any]:
    """The arrays of an NPZ archive by name."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > min(memory(), DEFLATED * path.stat().st_size):
            raise ValueError(f"declares {size} bytes of arrays, more than it can hold or this machine has memory")
        for member in members:
            with archive.open(member) as part:
                _check(part, member.file_size)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def text_of(path: Path) -> str:
    """The text of a file of numbers or edges."""
    if path.stat().st_size > TEXT:
        raise ValueError(f"has {path.stat().st_size} bytes, too many for a text of numbers")
    return path.read_text(encoding="utf-8-sig")  # Windows' editors mark their files


def _check(file: Any, size: int) -> None:
    """Refuse an array that is longer than its file, or holds anything but numbers and texts."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"is an NPY file of version {version}, which is not known")
    shape, _, dtype = read[version](file)
    if dtype.hasobject:
        raise ValueError("holds objects; store numbers")
    if math.prod(shape) * dtype.itemsize > size or min(shape, default=0) < 0:
        raise ValueError(f"declares an array {shape} of {dtype}, but has only {size} bytes")
