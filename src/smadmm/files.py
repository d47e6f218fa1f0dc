"""Files written whole or not at all, and folders for results."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def atomic_write(path: Path, data: bytes) -> None:
    """Write data to path: afterwards path holds all of it, or what it held before."""
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


def output_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if need be; refused if it cannot be written to."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output folder {folder} cannot be made: {error.strerror}; choose another --out") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the output folder {folder} is not writable; choose another --out")
    return folder
