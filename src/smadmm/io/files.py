"""Files written whole or not at all: bytes, arrays, JSON and CSV; and folders for results."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Target = str | os.PathLike[str]


def atomic_write(path: Target, data: bytes) -> None:
    """Write data to path: afterwards path holds all of it, or what it held before."""
    path = path if isinstance(path, Path) else Path(path)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    file = open(temporary, "xb")  # noqa: SIM115 (a file that cannot be made leaves nothing to remove)
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if os.name == "nt":  # Windows cannot open a folder
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def cleaned(value: Any) -> Any:
    """The value with null for every number that is not finite: JSON has none."""
    if isinstance(value, Mapping):
        return {name: cleaned(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Target, content: Any) -> None:
    """JSON, indented; numbers that are not finite become null."""
    atomic_write(path, (json.dumps(cleaned(content), indent=1, allow_nan=False) + "\n").encode())


def write_csv(path: Target, rows: Iterable[Mapping[str, Any]]) -> None:
    """A line per row; columns in the order of their first appearance."""
    rows = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    atomic_write(path, text.getvalue().encode())


def write_array(path: Target, array: Any) -> None:
    """An NPY file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    atomic_write(path, buffer.getvalue())


def write_arrays(path: Target, arrays: Mapping[str, Any], about: Any) -> None:
    """An NPZ file of arrays, with anything JSON can hold beside them."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(cleaned(about)).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, text=text, **arrays)
    atomic_write(path, buffer.getvalue())


def read_arrays(path: Target) -> tuple[dict[str, Any], Any]:
    """What `write_arrays` wrote: the arrays, and the rest."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(arrays.pop("text").tobytes())


def output_folder(path: Target) -> Path:
    """The folder, made if need be; refused if it cannot be written to."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output folder {folder} cannot be made: {error.strerror}; choose another") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the output folder {folder} is not writable; choose another")
    return folder
