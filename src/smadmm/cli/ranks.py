"""A command under torchrun: rank 0 has the folder and speaks, the others compute with it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from smadmm.cli.app import writing
from smadmm.distributed import from_first, place


@contextmanager
def writing_together(out: str, result: str, overwrite: bool, shared: bool, unfinished: str) -> Iterator[Path]:
    """The output folder; ranks other than the first get a copy of the unfinished run in it, and are silent."""
    with ExitStack() as held:
        content = from_first(lambda: _opened(held, out, result, overwrite, shared, unfinished))
        if place()[0] == 0:
            yield Path(out)
            return
        folder = Path(held.enter_context(TemporaryDirectory()))
        if content:
            with ZipFile(io.BytesIO(content)) as files:
                files.extractall(folder / unfinished)
        held.enter_context(redirect_stdout(io.StringIO()))
        yield folder


def _opened(held: ExitStack, out: str, result: str, overwrite: bool, shared: bool, unfinished: str) -> bytes:
    """Enter the folder; what ranks have to know of an unfinished run there."""
    folder = held.enter_context(writing(out, result, overwrite, shared)) / unfinished
    if place()[1] == 1 or not folder.is_dir():
        return b""
    content = io.BytesIO()
    with ZipFile(content, "w") as files:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                files.write(path, path.name)
    return content.getvalue()
