"""Docstrings are plain text with formulas such as |x|: what reStructuredText would misread is escaped."""

import re
from itertools import groupby


def readable(lines):
    """Examples stay, indented text stands as it is, parameters are a list, `names` are code, the rest is prose."""
    text = "\n".join(lines).strip("\n")
    for paragraph in re.split(r"\n\s*\n", text):
        first, *rest = paragraph.splitlines() or [""]
        if first.lstrip().startswith(">>>"):
            yield from paragraph.splitlines()
        elif rest and set(rest[0]) == {"-"}:
            yield from [f"**{first}**", "", *parameters(rest[1:])]
        else:
            for indented, run in groupby(paragraph.splitlines(), lambda line: line.startswith(" ")):
                lines = list(run)
                yield from ["", "::", "", *(f"    {line}" for line in lines), ""] if indented else map(prose, lines)
        yield ""


def parameters(lines):
    """name : what it is, over several lines, as items of a list."""
    for line in lines:
        name, found, says = line.partition(" : ")
        yield f"- ``{name}``: {prose(says)}" if found and not line.startswith(" ") else f"  {prose(line.strip())}"


def prose(text):
    code = re.split(r"(`+[^`]+`+)", text)
    return "".join(
        f"``{part.strip('`')}``" if i % 2 else re.sub(r"([*|\\_])", r"\\\1", part) for i, part in enumerate(code)
    )


def process(app, what, name, obj, options, lines):
    lines[:] = list(readable(lines))


def skip(app, what, name, obj, skipped, options):
    """scikit-learn adds its own pages of metadata routing to every estimator; they hid what is ours."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app):
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
