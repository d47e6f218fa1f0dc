"""Zarr stores, version 2 and 3: an array, or all arrays of a group by name; read chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smadmm.extras import needs
from smadmm.io.scan import NUMBERS, Content

MARKS = (".zarray", ".zgroup", "zarr.json")


def is_zarr(folder: Path) -> bool:
    """Whether a folder is a store."""
    return any((folder / mark).is_file() for mark in MARKS)


def read_zarr(folder: Path) -> Content:
    """The arrays of a store, not read yet."""
    zarr = needs("zarr", "formats", "Zarr stores")
    content, root = Content(), zarr.open(store=str(folder), mode="r")
    if isinstance(root, zarr.Array):
        content.arrays["data"], content.attributes["data"] = root, dict(root.attrs)
    else:
        _walk(root, "", content)
    return content


def _walk(group: Any, prefix: str, content: Content) -> None:
    for name, value in dict(group.attrs).items():
        content.put(f"{prefix}{name}", value)
    for name, array in sorted(group.arrays(), key=lambda item: item[0]):
        if array.size == 1:
            content.put(prefix + name, array[...])
        elif array.dtype.kind in NUMBERS:
            content.arrays[prefix + name] = array
        content.attributes[prefix + name] = dict(array.attrs)
    for name, child in sorted(group.groups(), key=lambda item: item[0]):
        _walk(child, f"{prefix}{name}/", content)
