"""Pages are read on GitHub, too: links go by files there, and are turned here to pages, to source or to downloads.

A page of the repository's top, as CONTRIBUTING.md, has a stub in docs/ that takes its text. Measured figures are
inserted on the way (figures.py).
"""

import os
import re
from pathlib import Path

import figures

DOCS = Path(__file__).parent.parent.resolve()
ROOT = DOCS.parent
TOP = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md", "security": "SECURITY.md"}
PAGES = {ROOT / file: DOCS / f"{page}.md" for page, file in TOP.items()}
PAGES |= {ROOT / "gallery": DOCS / "gallery" / "index.rst", DOCS / "methods": DOCS / "methods" / "README.md"}
# pages below a page that is read on GitHub, too
TREES = {"paper": ["benchmark", "results/*/table", "results/scale/*", "results/torture/*"], "methods/README": ["*"]}
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?\[([^]]*)\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def turned(text, source, page):
    """Links of `source` as links of `page`; code stays as it is."""

    def turn(match):
        opening, words, path, anchor = match.groups()
        target = (source.parent / path).resolve()
        target = PAGES.get(target, target)
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository and not target.is_relative_to(DOCS):
            return f"{opening}https://github.com/{repository}/blob/main/{target.relative_to(ROOT)})"
        if target.is_dir():  # there is no page of it
            return words
        return f"{opening}{os.path.relpath(target, page.parent)}{anchor or ''})"

    parts = FENCED.split(text)
    return "".join(part if i % 2 else LINK.sub(turn, part) for i, part in enumerate(parts))


def tree(docname, folder):
    """A hidden table of contents of the pages there are."""
    there = [name for name in TREES[docname] if any(folder.glob(f"{name}.md"))]
    return "\n".join(["", "", "```{toctree}", ":hidden:", ":glob:", "", *there, "```", ""])


def read(app, docname, source):
    page = Path(app.env.doc2path(docname)).resolve()
    if page.suffix != ".md":
        return
    origin = ROOT / TOP[docname] if docname in TOP else page
    text = origin.read_text(encoding="utf-8") if docname in TOP else source[0]
    if origin != page:
        app.env.note_dependency(origin)
    text = re.sub(r"^```python source$", "```python", text, flags=re.MULTILINE)
    if docname.startswith("results/") and not text.startswith("# "):
        name = page.parent.name if page.stem == "table" else f"{page.parent.name}, {page.stem.replace('_', ' ')}"
        text = f"# {name}\n\n{text}"
    if docname in TREES:
        text += tree(docname, page.parent)
    source[0] = figures.filled(turned(text, origin, page))


def setup(app):
    app.connect("source-read", read)
