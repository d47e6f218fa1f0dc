"""Files written whole or not at all: bytes, arrays, JSON and CSV; and folders for results, each with one writer.

A file is written beside its place and moved there. While it is written it is locked (flock), and the lock dies with the
process: what a killed process left behind has no lock, and the next writer of the same file removes it. Windows has no
such lock; there, leftovers stay and two runs into one folder are not noticed.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.arguments import ArgumentError, FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
Target = str | os.PathLike[str]


def atomic_write(path: Target, data: bytes) -> None:
    """Write data to path: afterwards path holds all of it, or what it held before."""
    with written_whole(path) as temporary, open(temporary, "r+b") as file:
        file.write(data)


@contextmanager
def written_whole(path: Target) -> Iterator[Path]:
    """A new file to write to, which takes the place of path when all is done: path holds all of it, or what it did."""
    path = path if isinstance(path, Path) else Path(path)
    _remove_stale(path)
    temporary, held = _temporary(path)
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        if os.name == "nt":  # Windows cannot move a file that is open
            held.close()
        os.replace(temporary, path)
    except BaseException:
        held.close()
        with suppress(FileNotFoundError):  # the folder was removed meanwhile
            os.unlink(temporary)
        raise
    held.close()
    if os.name == "nt":  # Windows cannot open a folder
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _temporary(path: Path) -> tuple[Path, Any]:
    """A new file beside path, and its open handle with the lock."""
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
        held = open(temporary, "xb")  # noqa: SIM115
        if _lock(held) and os.fstat(held.fileno()).st_nlink:
            return temporary, held
        held.close()  # another writer took it for stale before it was locked


def remove_stale(folder: Target) -> None:
    """Remove what killed writers left in a folder."""
    _remove_unlocked(folder, rf"\..+(\.[0-9a-f]{{16}}|{re.escape(LOCK)})")


def _remove_stale(path: Path) -> None:
    """Remove what killed writers of this path left beside it."""
    _remove_unlocked(path.parent, rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")


def _remove_unlocked(folder: Target, names: str) -> None:
    if fcntl is None:
        return
    left = re.compile(names)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if left.fullmatch(entry.name):
                with suppress(OSError), open(entry.path, "rb") as file:
                    if _lock(file):
                        os.unlink(entry.path)


def _lock(file: Any, shared: bool = False) -> bool:
    """Lock an open file until it is closed or the process ends; whether it was free."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def locked(path: Target, shared: bool = False) -> Iterator[None]:
    """Within, path (a file, or a folder that exists) has no other writer; a second one is refused at once.

    Those that lock it `shared` refuse all others, but not each other.
    """
    mark = _mark(path)
    while True:
        held = open(mark, "ab")  # noqa: SIM115
        if not _lock(held, shared):
            held.close()
            raise _busy(path)
        if os.path.exists(mark) and os.path.samestat(os.fstat(held.fileno()), os.stat(mark)):
            break
        held.close()  # its owner ended and removed it before it was locked
    try:
        yield
    finally:
        if os.name == "nt":  # Windows cannot remove a file that is open
            held.close()
        with suppress(OSError, ValueError):  # the handle was closed
            if not shared or _lock(held):  # the last of those that share it
                os.unlink(mark)
        held.close()


def refuse_busy(path: Target) -> None:
    """Refuse a file or folder that another run has locked for itself."""
    with suppress(OSError), open(_mark(path), "rb") as held:
        if not _lock(held, shared=True):
            raise _busy(path)


def _mark(path: Target) -> Path:
    """The file whose lock is that of path."""
    path = Path(path)
    return path / LOCK if path.is_dir() else path.parent / f".{path.name}{LOCK}"


def _busy(path: Target) -> ArgumentError:
    return ArgumentError("{0} is being written by another run; wait until it ends, or choose another", path)


def discard(folder: Target, mark: str) -> None:
    """Remove the folder of a run that has ended, first the file without which nobody goes on with what is left."""
    (Path(folder) / mark).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def refuse_finished(folder: Target, name: str, overwrite: bool) -> None:
    """Refuse a folder that holds a finished result, unless it is to be replaced."""
    if not overwrite and (Path(folder) / name).exists():
        raise ArgumentError(
            "{0} holds a finished result ({1}); choose another folder, or set {overwrite} to replace it", folder, name
        )


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


def write_slices(path: Target, shape: tuple[int, ...], slices: Iterable[Any]) -> None:
    """An NPY file of float32, written slice by slice."""
    header = {"descr": "<f4", "fortran_order": False, "shape": tuple(int(n) for n in shape)}
    with written_whole(path) as temporary, open(temporary, "r+b") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for values in slices:
            file.write(np.ascontiguousarray(values, dtype="<f4").data)


def write_arrays(path: Target, arrays: Mapping[str, Any], about: Any) -> None:
    """An NPZ file of arrays, with anything JSON can hold beside them."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(cleaned(about)).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, text=text, **arrays)
    atomic_write(path, buffer.getvalue())


def read_arrays(path: Target) -> tuple[dict[str, Any], Any]:
    """What `write_arrays` wrote: the arrays, and the rest."""
    with _whole(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
        return arrays, json.loads(arrays.pop("text").tobytes())


def read_json(path: Target) -> dict[str, Any]:
    """An object of JSON that `write_json` wrote."""
    with _whole(path):
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))


@contextmanager
def _whole(path: Target) -> Iterator[None]:
    """One sentence for a file of ours that somebody else has changed."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # archives raise what they like
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileError(str(path), f"is damaged: {reason}", "remove it, which costs what it holds") from None


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
