"""What every experiment leaves behind: results.json, a Markdown table, figures.

results.json = {"experiment", "command", "version", "seconds", "rows": [flat dicts]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import smadmm
from smadmm.files import atomic_write

Row = Mapping[str, Any]


def _clean(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(folder: Path, experiment: str, command: str, seconds: float, rows: Sequence[Row]) -> None:
    """results.json, whole or not at all; numbers that are not finite become null."""
    content = {
        "experiment": experiment,
        "command": command,
        "version": smadmm.__version__,
        "seconds": round(seconds, 1),
        "rows": [{name: _clean(value) for name, value in row.items()} for row in rows],
    }
    atomic_write(folder / "results.json", json.dumps(content, indent=1).encode())


def markdown_table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """A table of the rows; `columns` maps names to formats such as '.3f'."""

    def cell(value: Any, form: str) -> str:
        return "-" if _clean(value) is None else format(value, form)

    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(name), form) for name, form in columns.items()) + " |" for row in rows]
    return "\n".join(lines)
