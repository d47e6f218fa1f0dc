"""What every experiment leaves behind in its folder: results.json, a Markdown table, figures.

results.json = {
  "experiment", "command", "version",
  "quick", "seed",         the settings: an experiment whose file has the same is not run again
  "seconds", "environment",
  "rows":   [flat dicts],  every number measured
  "report": [parts]        what a reader is shown of them, as `smadmm.report.as_json` stores parts
}

`report` alone makes the experiment's chapter of index.html, so it tells the whole story: a sentence on what was done,
a `Verdict` for every claim of the paper, each `Table` of the paper with `Measured(ours, paper)`, `Curves`, and images
by the names of files in the same folder. A pure function makes it from the rows, so it can be made again without a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import smadmm
from smadmm.io.files import atomic_write
from smadmm.report import Column, Measured, Part, Table, Verdict, as_json, environment

Row = Mapping[str, Any]
Gap = tuple[float, float, int]  # a mean, half of its 95 % interval, and of how many
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 95 %; 1, 2, ... degrees of freedom


def with_interval(values: Sequence[float]) -> Gap:
    """The mean of independent values, with Student's interval (from eleven values on a little too wide)."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan, len(values)
    return fmean(values), STUDENT[min(len(values), 10) - 2] * stdev(values) / math.sqrt(len(values)), len(values)


def _clean(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(
    folder: Path,
    experiment: str,
    command: str,
    seconds: float,
    rows: Sequence[Row],
    *,
    quick: bool = False,
    seed: int | None = None,
    report: Sequence[Part] = (),
) -> None:
    """results.json, whole or not at all; numbers that are not finite become null."""
    content = {
        "experiment": experiment,
        "command": command,
        "version": smadmm.__version__,
        "quick": quick,
        "seed": seed,
        "seconds": round(seconds, 1),
        "environment": environment(),
        "rows": [{name: _clean(value) for name, value in row.items()} for row in rows],
        "report": [as_json(part) for part in report],
    }
    atomic_write(folder / "results.json", json.dumps(content, indent=1, allow_nan=False).encode())


def renew_report(folder: Path, report: Sequence[Part]) -> None:
    """Replace what a stored results.json shows; its numbers stay."""
    path = folder / "results.json"
    content = json.loads(path.read_text(encoding="utf-8")) | {"report": [as_json(part) for part in report]}
    atomic_write(path, json.dumps(content, indent=1, allow_nan=False).encode())


def markdown_table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """A table of the rows; `columns` maps names to formats such as '.3f'."""

    def cell(value: Any, form: str) -> str:
        return "-" if _clean(value) is None else format(value, form)

    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(name), form) for name, form in columns.items()) + " |" for row in rows]
    return "\n".join(lines)


def markdown(parts: Sequence[Part]) -> str:
    """Paragraphs, tables and verdicts of a chapter in Markdown."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Verdict):
            texts.append(f"**{part.claim}**: {part.outcome}. {part.because}.")
        elif isinstance(part, Table):
            texts.append(_markdown_table(part))
    return "\n\n".join(texts) + "\n"


def _markdown_table(table: Table) -> str:
    columns = [c if isinstance(c, Column) else Column(c) for c in table.columns]

    def text(cell: Any, form: str) -> str:
        if isinstance(cell, Measured):
            return text(cell.ours, form) + ("" if cell.paper is None else f" ({cell.paper:{form}})")
        return "-" if cell is None else f"{cell:{form}}" if isinstance(cell, float) and form else str(cell)

    lines = [f"{table.title} (the paper's in brackets)" if _has_paper(table) else table.title, ""]
    lines += ["| " + " | ".join(c.name for c in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(text(x, c.form) for x, c in zip(r, columns, strict=True)) + " |" for r in table.rows]
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def _has_paper(table: Table) -> bool:
    return any(isinstance(cell, Measured) and cell.paper is not None for r in table.rows for cell in r)
