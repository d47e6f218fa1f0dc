"""Three directives whose output is made while the site is built, so that a page shows what the code does today.

    ```{run}            the code, and below it what it printed; cells of a page share their names
    ```{check} NAME     a test of tests/test_theory.py: run here, then shown as it is
    ```{drawing} NAME   a drawing of house.py
An error of any of them is an error of the build.
"""

import contextlib
import importlib.util
import inspect
import io
import sys
from functools import cache
from pathlib import Path

import torch
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent.parent


def code(text, language="python"):
    node = nodes.literal_block(text, text)
    node["language"] = language
    return node


class Run(SphinxDirective):
    has_content = True

    def run(self):
        names = self.env.temp_data.setdefault("names of the cells", {"__name__": "__page__"})
        source, printed = "\n".join(self.content), io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"<{self.env.docname}>", "exec"), names)
        except Exception as error:
            raise self.error(f"this cell ends with {type(error).__name__}: {error}") from error
        shown = [code(source)]
        if printed.getvalue():
            output = code(printed.getvalue().rstrip(), "none")
            output["classes"].append("printed")
            shown.append(output)
        return shown


@cache
def tests():
    path = ROOT / "tests" / "test_theory.py"
    spec = importlib.util.spec_from_file_location("test_theory", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_theory"] = module
    spec.loader.exec_module(module)
    return module


class Check(SphinxDirective):
    required_arguments = 1
    optional_arguments = 1  # the parameter of a test that has one

    def run(self):
        self.env.note_dependency(str(ROOT / "tests" / "test_theory.py"))
        name, *parameter = self.arguments
        test = getattr(tests(), name)
        generator = [torch.Generator().manual_seed(0)] if "g" in inspect.signature(test).parameters else []
        try:
            test(*generator, *parameter)
        except Exception as error:
            raise self.error(f"{name} fails: {error}") from error
        says = inspect.getdoc(test) or ""
        box = nodes.container(classes=["check"], is_div=True)
        title = nodes.paragraph("", "", nodes.strong("", "Checked while this page was built. "), nodes.Text(says))
        fold = [nodes.raw("", f"<details><summary>The test, <code>{name}</code></summary>", format="html"),
                code(inspect.getsource(test)), nodes.raw("", "</details>", format="html")]  # fmt: skip
        box += [title, *fold]
        return [box]


class Drawing(Directive):
    required_arguments = 1

    def run(self):
        import house

        return [nodes.raw("", house.drawing(self.arguments[0]), format="html")]


def setup(app):
    app.add_directive("run", Run)
    app.add_directive("check", Check)
    app.add_directive("drawing", Drawing)
