"""The site that `make docs` builds, opened from the disk in Chromium: what a reader does, and no network."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from test_browser import CHROMIUM, PHONE, REQUIRED, browser  # noqa: F401

SITE = Path(__file__).parent.parent / "docs" / "_build" / "html"
HERE = sorted(page for page in SITE.rglob("*.html") if page.relative_to(SITE).parts[0] != "_static")
READ = [page for page in HERE if page.relative_to(SITE).parts[0] != "_modules"]
BAD = ("error", "warning")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not HERE and not REQUIRED, reason="the site is not built; `make docs` builds it"),
    pytest.mark.skipif(
        CHROMIUM is None and not REQUIRED, reason="Chromium is not installed; `make test-browser` installs it"
    ),
]


class Page(HTMLParser):
    """The anchors of a page, where its links lead to, and the texts of its pictures."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.pictures = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        if tag == "img":
            self.pictures.append((found.get("src"), found.get("alt")))


@pytest.fixture(scope="module")
def pages():
    assert READ, "the site is not built; run make docs first"
    return {path.resolve(): Page(path) for path in HERE}


def test_internal_links_lead_somewhere(pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else {""}
            known = target.exists() and (target.suffix != ".html" or unquote(parts.fragment) in anchors)
            if not known:
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert dead == []


def test_every_picture_has_a_text(pages):
    assert [(path.name, src) for path, page in pages.items() for src, alt in page.pictures if not alt] == []


def test_every_public_name_has_a_place(pages):
    from test_docs import reference

    for room in reference.ROOMS:
        module = reference.module_of(room)
        names = {f"{module.__name__}.{name}" for name, _ in reference.names(module)}
        assert names <= pages[(SITE / "api" / f"{room}.html").resolve()].anchors


@pytest.fixture
def open_page(browser):  # noqa: F811
    """Pages in one tab; at the end nothing was complained of, and nothing was asked of a network."""
    contexts, complaints = [], []

    def tab_for(**settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda m: complaints.append(f"{tab.url}: {m.text}") if m.type in BAD else None)
        tab.on("pageerror", lambda error: complaints.append(f"{tab.url}: {error}"))
        tab.on("requestfailed", lambda request: complaints.append(f"{tab.url}: {request.url} failed"))
        tab.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else complaints.append(r.url))
        return tab

    yield tab_for
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("settings", [{"viewport": {"width": 1400, "height": 900}}, PHONE], ids=["wide", "phone"])
def test_every_page_opens_and_fits_the_screen(open_page, settings):
    assert READ, "the site is not built; run make docs first"
    tab, wide = open_page(**settings), []
    for path in READ:
        tab.goto(path.as_uri())
        if tab.evaluate("document.documentElement.scrollWidth") > settings["viewport"]["width"]:
            wide.append(path.relative_to(SITE).as_posix())
        broken = tab.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
        assert broken == [], path
    assert wide == []


def test_search_works_offline(open_page):
    tab = open_page()
    tab.goto((SITE / "search.html").as_uri() + "?q=certificate")
    results = tab.locator("#search-results ul.search li a")
    results.nth(4).wait_for()  # they come one by one, and there must be at least five
    results.first.click()
    assert "certificate" in tab.locator("main").inner_text().lower()
