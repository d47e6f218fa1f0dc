"""The fidelity sheets and the page on the theory name only what exists."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(p for p in (DOCS / "methods").glob("*.md") if p.name != "README.md")
METHODS = "asvrg-admm on-red pnp-smadmm red-sd sadmm saga-admm smadmm spider-admm svrg-admm"
HEADER = "| equation | source | code | what differs, and why |"


def find(name):
    """The object of a dotted name: the longest part that is a module, then its attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def rows(page):
    """The cells of the table of a page."""
    table = page.read_text().split(HEADER)[1].strip().split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def test_every_method_has_a_page():
    assert [p.stem for p in PAGES] == METHODS.split()
    overview = (DOCS / "methods/README.md").read_text()
    assert all(f"({p.name})" in overview for p in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_names_code_that_exists(page):
    assert "Source" in page.read_text() or "source" in page.read_text()
    for equation, source, code, difference in rows(page):
        assert equation and source and difference, equation
        names = re.findall(r"`(smadmm\.[\w.]+)`", code)
        assert names or code == "none", code
    for name in re.findall(r"`(smadmm\.[\w.]+)`", page.read_text()):
        find(name)


def test_a_name_that_does_not_exist_is_noticed():
    assert find("smadmm.estimators.Storm.update")
    with pytest.raises(AttributeError):
        find("smadmm.estimators.Storm.updates")


def test_the_page_on_the_theory_names_tests_that_exist():
    tests = (DOCS.parent / "tests/test_theory.py").read_text()
    named = re.findall(r"`(test_\w+)`", (DOCS / "theory.md").read_text())
    assert len(named) >= 17 and all(f"\ndef {name}(" in tests for name in named)
