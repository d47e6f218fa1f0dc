"""README and the pages of docs: measured figures come from docs/results, and every public name has an example."""

import ast
import builtins
import doctest
import sys
from pathlib import Path

import pytest

import smadmm

DOCS = Path(__file__).parent.parent / "docs"
sys.path.append(str(DOCS))
import figures  # noqa: E402
from site_parts import reference  # noqa: E402


@pytest.mark.parametrize("page", figures.pages(), ids=lambda p: p.relative_to(DOCS.parent).as_posix())
def test_figures_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert figures.written(text) == text, "python docs/figures.py --write"
    assert figures.loose(text) == []


@pytest.mark.parametrize(
    "text",
    ["gains 1.9 dB", "2.4 times as long", "in half the time", "12 % better", "after 3 s", "0.2 ± 0.1", "3 [2, 4]"],
)
def test_a_figure_without_a_home_is_noticed(text):
    assert figures.loose(text)
    assert not figures.loose(f"it <!--=paper-->{text}<!--/-->, `{text}`, a 95 % interval of 512 x 512 pixels")


def test_a_key_without_a_figure_is_refused():
    with pytest.raises(ValueError, match=r"no figure has the key 'speed'"):
        figures.filled("<!--=speed-->2<!--/-->")
    assert figures.filled("a <!--=demo.fbp-->0<!--/--> dB") == "a 12.5 dB"


@pytest.mark.parametrize("room", reference.ROOMS)
def test_every_public_name_has_an_example(room):
    """`make test` runs them; here: they are there, and use no name but those that the page on the API says are."""
    if room == "learn":
        pytest.importorskip("sklearn")
    module = reference.module_of(room)
    given = {"smadmm", "torch", "np", *smadmm.__all__, *module.__all__, *vars(builtins)}
    for name, thing in reference.names(module):
        examples = doctest.DocTestParser().get_examples(thing.__doc__ or "")
        assert examples, f"{room}.{name} has no example in its docstring"
        nodes = [node for e in examples for node in ast.walk(ast.parse(e.source))]
        used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        made = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        made |= {word for n in nodes for word in (getattr(n, "name", None), getattr(n, "arg", None)) if word}
        assert used <= given | made, f"{room}.{name}"
