"""Parts of a report as JSON: chapters are kept in results.json, and pages are made of them without a run."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from smadmm.report.parts import (
    Column,
    Compare,
    Curves,
    Facts,
    Heading,
    Measured,
    Part,
    Picture,
    Run,
    Series,
    Table,
    Verdict,
    thinned,
)

FORM = re.compile(r"\+?,?(\.\d\d?)?[a-zA-Z%]?")
KINDS = {kind.__name__.lower(): kind for kind in (Heading, Facts, Table, Curves, Picture, Compare, Verdict, Run)}


def as_json(part: Part) -> Any:
    """A part as JSON values; a paragraph is a string, any other has a kind. Images must be names of files."""
    if isinstance(part, str):
        return part
    content = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Curves):
        content["series"] = [thinned(series, part.log_x) for series in part.series]
    elif isinstance(part, Table):
        content["columns"] = [_plain(column) for column in part.columns]
        content["rows"] = [[_plain(cell) for cell in row] for row in part.rows]
    elif isinstance(part, Picture | Compare):
        for image in part.images.values() if isinstance(part, Compare) else [part.image]:
            if not isinstance(image, str):
                raise TypeError(f"an image in JSON is the name of a file, got {type(image).__name__}")
    return {"kind": type(part).__name__.lower(), **content}


def _plain(value: Any) -> Any:
    """JSON for a column or a cell; numbers that are not finite become null."""
    if isinstance(value, Column | Measured):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any, folder: Path) -> Part:
    """The part that `as_json` stored; its images are files of `folder`."""
    if isinstance(value, str):
        return value
    content = dict(value)
    kind = content.pop("kind")
    if kind not in KINDS:
        raise ValueError(f"there is no part of a page of the kind {kind!r}; known are {', '.join(KINDS)}")
    if kind == "curves":
        content["series"] = [Series(**series) for series in content["series"]]
    elif kind == "table":
        content["columns"] = [Column(**c) if isinstance(c, dict) else c for c in content["columns"]]
        for form in (c.form for c in content["columns"] if isinstance(c, Column)):
            if not FORM.fullmatch(form):  # a width of its own could ask for all memory
                raise ValueError(f"{form!r} is no format of numbers")
        content["rows"] = [[Measured(**c) if isinstance(c, dict) else c for c in row] for row in content["rows"]]
    elif kind == "picture":
        content["image"] = _inside(folder, content["image"])
    elif kind == "compare":
        content["images"] = {label: _inside(folder, name) for label, name in content["images"].items()}
    part: Part = KINDS[kind](**content)
    return part


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the image {name} is not in {folder}")
    return path
