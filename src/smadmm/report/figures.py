"""Figures drawn by matplotlib, an extra: without it a job goes on without them and says so."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smadmm.files import atomic_write


def write_figure(path: Path, draw: Callable[[], Any], dpi: int = 130) -> bytes | None:
    """Save the matplotlib figure that `draw` makes and return the file's content; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    buffer = io.BytesIO()
    draw().savefig(buffer, format="png", dpi=dpi)
    atomic_write(path, buffer.getvalue())
    return buffer.getvalue()


def not_drawn(needs: str) -> list[str]:
    """If matplotlib is missing, the sentence that begins with `needs`, such as "graph.png needs"; else nothing."""
    return [] if find_spec("matplotlib") else [f"{needs} matplotlib: pip install 'smadmm[plot]'"]
