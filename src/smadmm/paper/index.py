"""index.html: every experiment's chapter and all verdicts, from the results.json files of a folder alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from smadmm.paper.catalogue import EXPERIMENTS
from smadmm.paper.stored_parts import from_json
from smadmm.report import Compare, Heading, Page, Part, Picture, Run, Table, Verdict
from smadmm.report.page import MARKS, part_html
from smadmm.report.parts import OUTCOMES

TITLES = {experiment.name: experiment.title for experiment in EXPERIMENTS}  # in the order of the paper


def index(folder: Path, failures: Mapping[str, str] | None = None) -> Page:
    """The page of all results below `folder`; `failures` says what went wrong where."""
    failures = failures or {}
    known = {path.parent.name for path in folder.glob("*/results.json")} | set(failures)
    names = [name for name in TITLES if name in known] + sorted(known - set(TITLES))
    chapters = {name: _failed(failures[name]) if name in failures else chapter(folder / name) for name in names}
    page = Page("The paper's experiments, reproduced", _summary(chapters, failures))
    if any(isinstance(part, Verdict) for parts in chapters.values() for part in parts):
        page.add(Heading("Verdicts"), _verdicts(chapters))
    for name, parts in chapters.items():
        page.add(Heading(title_of(name)), *parts)
    return page


def title_of(name: str) -> str:
    return TITLES.get(name, name)


def chapter(folder: Path) -> list[Part]:
    """What one results.json says; a file that cannot be used is reported, as the others can still be read."""
    try:
        content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        parts = [_present(from_json(value, folder)) for value in content.get("report", ())]
        made = [content.get(name) for name in ("seconds", "seed", "version", "environment")]
        run = Run(content["command"], *made)
        for part in (*parts, run):  # what cannot be shown must not spoil the page of the others
            escape(part.text) if isinstance(part, Heading) else part_html(part)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        return [f"results.json of {folder.name} cannot be read ({type(error).__name__}: {error}); run it again."]
    if not parts:
        parts = [f"results.json has {len(content.get('rows', ()))} rows, but no report; run the experiment again."]
    if content.get("quick"):
        parts.insert(0, "A smaller version, for a first look (--quick): its numbers are rough.")
    return [*parts, run]


def _present(part: Part) -> Part:
    """The part, or a sentence where its image is not in the folder."""
    images: list[Any] = []
    if isinstance(part, Picture):
        images = [part.image]
    elif isinstance(part, Compare):
        images = list(part.images.values())
    missing = dict.fromkeys(image.name for image in images if not image.is_file())
    return f"The figure {', '.join(missing)} is missing; run the experiment again." if missing else part


def _failed(reason: str) -> list[Part]:
    return [f"This experiment ended with an error, the others went on. {reason}"]


def _summary(chapters: Mapping[str, list[Part]], failures: Mapping[str, str]) -> str:
    counts = Counter(part.outcome for parts in chapters.values() for part in parts if isinstance(part, Verdict))
    said = ", ".join(f"{outcome} {counts[outcome]}" for outcome in OUTCOMES)
    text = (
        "Each experiment of the paper with its numbers beside ours, the command that made them, and a verdict for "
        f"every claim ({said}). Differences are ours less the paper's; green is better than the paper, red is worse."
    )
    return text + (f"\n\nEnded with an error: {', '.join(map(title_of, failures))}." if failures else "")


def _verdicts(chapters: Mapping[str, list[Part]]) -> Table:
    rows = [
        [name, part.claim, f"{MARKS[part.outcome]} {part.outcome}"]
        for name, parts in chapters.items()
        for part in parts
        if isinstance(part, Verdict)
    ]
    return Table("All claims", ["experiment", "claim", "verdict"], rows)
