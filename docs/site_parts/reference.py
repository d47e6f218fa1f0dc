"""The pages of the API: one per room, all names of its `__all__`, with a table of them at the top.

A room is a line of `ROOMS`; its page is made here, from the docstrings.
"""

import importlib
import inspect
import types
from pathlib import Path

ROOMS = (
    "smadmm",
    "losses",
    "proxes",
    "operators",
    "denoisers",
    "imaging",
    "learn",
    "interop",
    "distributed",
    "theory",
    "report",
)
API = Path(__file__).parent.parent / "api"


def module_of(room):
    return importlib.import_module("smadmm" if room == "smadmm" else f"smadmm.{room}")


def names(module):
    """Public names that are documented here: rooms have pages of their own, aliases of types have no docstring."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or (callable(thing) and not isinstance(thing, types.ModuleType)):
            yield name, thing


def page(room):
    module = module_of(room)
    rows, entries = [], []
    for name, thing in names(module):
        path = f"{module.__name__}.{name}"
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        rows += [f"   * - :py:obj:`~{path}`", f"     - {first_sentence(thing)}"]
        entries += [f".. {kind}:: {path}", *(["   :members:"] if kind == "autoclass" else []), ""]
    table = [".. list-table::", "   :widths: 30 70", "   :class: names", "", *rows, ""]
    intro = (module.__doc__ or "").split("\n\n")[0].strip()
    return "\n".join([module.__name__, "=" * len(module.__name__), "", escaped(intro), "", *table, *entries])


def first_sentence(thing):
    line = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
    return escaped(line)


def escaped(line):
    from site_parts.docstrings import prose

    return prose(line)


def write():
    """Pages that changed are written, so that only these are built again."""
    for room in ROOMS:
        file, text = API / f"{room}.rst", page(room)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
