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
TREES = {"paper": "results/*/table", "methods/README": "*"}  # pages below a page that is read on GitHub, too
LINK = re.compile(r"(!?\[[^]]*\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def turned(text, source, page):
    """Links of `source` as links of `page`."""

    def turn(match):
        target = (source.parent / match[2]).resolve()
        target = PAGES.get(target, target)
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository and not target.is_relative_to(DOCS):
            return f"{match[1]}https://github.com/{repository}/blob/main/{target.relative_to(ROOT)})"
        return f"{match[1]}{os.path.relpath(target, page.parent)}{match[3] or ''})"

    return LINK.sub(turn, text)


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
        text = f"# {page.parent.name}\n\n{text}"
    if docname in TREES:
        text += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{TREES[docname]}\n```\n"
    source[0] = figures.filled(turned(text, origin, page))


def setup(app):
    app.connect("source-read", read)
