"""The page: its parts as HTML, with our style and script inside."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from smadmm.io.files import atomic_write
from smadmm.report.parts import (
    Cell,
    Column,
    Compare,
    Curves,
    Facts,
    Heading,
    Measured,
    Part,
    Picture,
    Row,
    Run,
    Table,
    Verdict,
    thinned,
)
from smadmm.report.pictures import data_uri

MARKS = {"holds": "✓", "holds in part": "◐", "does not hold here": "✗"}
NOTHING = "-"
SCRIPTS = ("axes.js", "curves.js", "compare.js", "levels.js")


@dataclass
class Page:
    """A page under construction: a title, an introduction, parts in their order.

    >>> page = Page("A title", "What this page shows.", [Heading("Quality")])
    >>> len(page.parts)
    1
    """

    title: str
    intro: str = ""
    parts: list[Part] = field(default_factory=list)

    def add(self, *parts: Part) -> Page:
        self.parts += parts
        return self

    def html(self) -> str:
        """The whole page as one string."""
        headings = [part for part in self.parts if isinstance(part, Heading)]
        ids = anchors([heading.text for heading in headings])
        remaining = iter(ids)
        shown = [_heading(p, next(remaining)) if isinstance(p, Heading) else part_html(p) for p in self.parts]
        style, script = asset("page.css"), "".join(map(asset, SCRIPTS))
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src '{_hash(style)}'; script-src '{_hash(script)}'">
<title>{escape(self.title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{escape(self.title)}</h1>
{paragraphs(self.intro)}
</header>
{_contents(ids, headings)}
<main>
{"".join(shown)}
</main>
<script>{script}</script>
</body>
</html>
"""

    def write(self, path: str | Path) -> None:
        """The file, whole or not at all."""
        atomic_write(Path(path), self.html().encode())


@cache
def asset(name: str) -> str:
    """A file of this package: style or script."""
    return (files("smadmm.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def anchors(titles: list[str]) -> list[str]:
    """An id for every heading, no two alike."""
    found: list[str] = []
    for title in titles:
        base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
        names = (base if number == 1 else f"{base}-{number}" for number in count(1))
        found.append(next(name for name in names if name not in found))
    return found


def _contents(ids: list[str], headings: list[Heading]) -> str:
    """Links to the main headings, where there are more than two."""
    main = [(name, heading.text) for name, heading in zip(ids, headings, strict=True) if heading.level == 2]
    if len(main) < 3:
        return ""
    links = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in main)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def paragraphs(text: str) -> str:
    """Plain text: an empty line begins a new paragraph."""
    return "".join(f"<p>{escape(part.strip())}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def json_block(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json">{text}</script>'


def part_html(part: Part) -> str:
    """HTML of any part but a heading, whose id depends on the others."""
    show: Callable[[Any], str] = SHOW[type(part)]
    return show(part)


def _heading(part: Heading, name: str) -> str:
    return f'<h{part.level} id="{name}">{escape(part.text)}</h{part.level}>'


def _facts(part: Facts) -> str:
    title = f"<h3>{escape(part.title)}</h3>" if part.title else ""
    return title + _list({name: escape(plain(value)) for name, value in part.facts.items()})


def _list(entries: Mapping[str, str]) -> str:
    """Names and HTML."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in entries.items())
    return f'<dl class="facts">{items}</dl>'


def plain(value: Cell, form: str = "") -> str:
    """Text of a cell without the paper's number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, Measured):
        spread = "" if value.spread is None else f" ± {plain(value.spread, form)}"
        return plain(value.ours, form) + spread
    return format(value, form or "g" if isinstance(value, float) else form)


def _table(part: Table) -> str:
    columns = [c if isinstance(c, Column) else Column(c) for c in part.columns]
    head = "".join(f'<th scope="col">{escape(c.name)}</th>' for c in columns)
    rows = []
    for row in part.rows:
        cells = [_cell(cell, column, first=i == 0) for i, (cell, column) in enumerate(zip(row, columns, strict=True))]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    title = escape(part.title)
    return (
        f'<figure class="table"><div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"{_note(part.note)}</figure>"
    )


def _cell(cell: Cell, column: Column, first: bool) -> str:
    text = escape(plain(cell, column.form))
    if isinstance(cell, Measured) and cell.paper is not None:
        text += f"<small>paper {escape(plain(cell.paper, column.form))}{_difference(cell, column)}</small>"
    if first and isinstance(cell, str):
        return f'<th scope="row">{text}</th>'
    return f'<td class="number">{text}</td>' if not isinstance(cell, str) else f"<td>{text}</td>"


def _difference(cell: Measured, column: Column) -> str:
    """Ours less the paper's, as it reads after rounding; the colour says better or worse."""
    if cell.ours is None or cell.paper is None or not math.isfinite(cell.ours - cell.paper):
        return ""
    text = format(cell.ours - cell.paper, "+" + (column.form or "g")).replace("-", "\u2212")
    if not re.search(r"[1-9]", text.split("e")[0]):
        return ' <span class="same">equal</span>'
    higher = cell.ours > cell.paper
    look = "differs" if not column.better else "better" if higher == (column.better == "higher") else "worse"
    said = "" if look == "differs" else f'<span class="said"> ({look})</span>'
    return f' <span class="{look}">{text}{said}</span>'


def _note(text: str) -> str:
    return f"<figcaption>{paragraphs(text)}</figcaption>" if text else ""


def _curves(part: Curves) -> str:
    content = {
        "title": part.title,
        "xLabel": part.x_label,
        "yLabel": part.y_label,
        "logX": part.log_x,
        "logY": part.log_y,
        "series": [thinned(series, part.log_x) for series in part.series],
    }
    return (
        f'<figure class="curves"><h3>{escape(part.title)}</h3>{json_block(content)}'
        f"<noscript><p>The curves need JavaScript.</p></noscript>{_note(part.note)}</figure>"
    )


def _picture(part: Picture) -> str:
    image = f'<img src="{data_uri(part.image)}" alt="{escape(part.alt)}">'
    title = f"<h3>{escape(part.title)}</h3>" if part.title else ""
    return f'<figure class="picture">{title}{image}{_note(part.caption)}</figure>'


def _compare(part: Compare) -> str:
    labels = list(part.images)
    images = "".join(
        f'<img src="{data_uri(image)}" alt="{escape(label)}" data-label="{escape(label)}">'
        for label, image in part.images.items()
    )
    levels = (
        ""
        if part.levels is None
        else "".join(f' data-{name}="{escape(str(value))}"' for name, value in asdict(part.levels).items())
    )
    return (
        f'<figure class="compare"{levels}><h3>{escape(part.title)}</h3><div class="images">{images}</div>'
        f'<input type="range" min="0" max="100" value="50" step="any" '
        f'aria-label="{escape(part.title)}: {escape(labels[0])} left of the divider, {escape(labels[1])} right">'
        f"{_note(part.note)}</figure>"
    )


def _row(part: Row) -> str:
    return f'<div class="row">{"".join(map(part_html, part.parts))}</div>'


def _verdict(part: Verdict) -> str:
    kind = part.outcome.replace(" ", "-")
    return (
        f'<div class="verdict {kind}"><p class="claim">{escape(part.claim)}</p>'
        f'<p><strong><span aria-hidden="true">{MARKS[part.outcome]}</span> {part.outcome}</strong> '
        f"{escape(part.because)}</p></div>"
    )


def _run(part: Run) -> str:
    entries = {"command": f"<code>{escape(part.command)}</code>"}
    if part.seed is not None:
        entries["seed"] = escape(str(part.seed))
    if part.seconds is not None:
        entries["seconds"] = f"{part.seconds:.1f}"
    if part.version is not None:
        entries["smadmm"] = escape(str(part.version))
    known = {name: value for name, value in (part.environment or {}).items() if value is not None}
    entries["environment"] = ", ".join(f"{escape(n)} {escape(plain(v))}" for n, v in known.items()) or "not recorded"
    return f'<section class="run" aria-label="How this was made">{_list(entries)}</section>'


SHOW: dict[type, Callable[[Any], str]] = {
    str: paragraphs,
    Facts: _facts,
    Table: _table,
    Curves: _curves,
    Picture: _picture,
    Compare: _compare,
    Row: _row,
    Verdict: _verdict,
    Run: _run,
}
