"""Drawings of the house, made from the source so that they cannot lie: python docs/house.py writes them as HTML.

rooms               every room of the package in its order, and an arc to each room that it imports
reconstruct, ...    the way of the data: which module called which first, traced while the verb runs on a small example
"""

import ast
import html
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.resolve()
SOURCE = ROOT / "src" / "smadmm"
LINE, LEFT = 26, 180  # height of a line, and the width that arcs may take, in pixels


def order():
    """ORDER of tests/test_package.py, which holds the direction of imports."""
    tree = ast.parse((ROOT / "tests" / "test_package.py").read_text(encoding="utf-8"))
    (value,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "ORDER")
    return ast.literal_eval(value)


def room(module, rooms):
    return max((name for name in rooms if module == name or module.startswith(f"{name}.")), key=len, default=None)


def module_of(file):
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "smadmm":
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix("smadmm.")


def surveyed():
    """Of every room that has files: the rooms that it imports, its lines, and what its docstring begins with."""
    rooms = order()
    found = {name: {"imports": set(), "lines": 0, "says": ""} for name in rooms}
    for file in sorted(SOURCE.rglob("*.py")):
        module, text = module_of(file), file.read_text(encoding="utf-8")
        here = room(module, rooms)
        if here is None:
            continue
        tree = ast.parse(text)
        found[here]["lines"] += len(text.splitlines())
        found[here]["imports"] |= {there for name in imported(tree) if (there := room(name, rooms)) not in (None, here)}
        if module == here:
            found[here]["says"] = sentence(ast.get_docstring(tree) or "")
    return {name: facts for name, facts in found.items() if facts["lines"]}


def sentence(text, most=66):
    """The beginning of a docstring, cut at a word."""
    first = " ".join(text.split("\n\n")[0].split()).rstrip(".:")
    if len(first) <= most:
        return first
    return first[:most].rsplit(" ", 1)[0].rstrip(",:;") + " …"


def svg(width, lines, label, content):
    box, said = f"0 0 {width} {lines * LINE + 12}", html.escape(label)
    drawn = "".join(content)
    return f'<div class="drawing"><svg viewBox="{box}" role="img" aria-label="{said}">{drawn}</svg></div>'


def text(x, y, words, kind):
    return f'<text x="{x}" y="{y + 5}" class="{kind}">{html.escape(words)}</text>'


def rooms():
    """A list from the ground up; arcs on the left go to the rooms that a room imports, all of them above it."""
    found = surveyed()
    names, content = list(found), []
    height = {name: LINE * (i + 0.75) for i, name in enumerate(names)}
    for name, facts in found.items():
        y = height[name]
        arcs = [
            f'<path d="M{LEFT} {y} C{LEFT - reach} {y} {LEFT - reach} {height[other]} {LEFT} {height[other]}"/>'
            for other in sorted(facts["imports"], key=names.index)
            for reach in [min(LEFT * 1.3, 20 + 9 * abs(names.index(name) - names.index(other)))]
        ]
        words = text(LEFT + 10, y, name, "name") + text(LEFT + 172, y, str(facts["lines"]), "count")
        content.append(f'<g class="room">{"".join(arcs)}{words}{text(LEFT + 186, y, facts["says"], "says")}</g>')
    label = f"{len(names)} rooms of the package in order; arcs show which rooms each one imports, all above it"
    return svg(900, len(names), label, content)


def small_reconstruction(folder):
    import smadmm
    from smadmm.imaging.simulation import simulated_sinogram
    from smadmm.io.phantoms import abdomen_image

    sinogram = simulated_sinogram(abdomen_image(32), views=24, snr=40).numpy()
    return lambda: smadmm.reconstruct(sinogram, size=32, iterations=3).save(folder)


def small_retrieval(folder):
    import smadmm
    from smadmm.io.phantoms import abdomen_image
    from smadmm.operators import CodedDiffraction, circle_masks

    masks = circle_masks(4, (32, 32))
    patterns = CodedDiffraction(masks)(abdomen_image(32)).abs()
    return lambda: smadmm.retrieve(patterns, masks, iterations=3).save(folder)


def small_solution(folder):
    import torch

    import smadmm

    X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    problem = smadmm.Problem(smadmm.losses.Logistic(X, torch.sign(X[:, 0])), smadmm.proxes.L1(0.01))
    return lambda: smadmm.solve(problem, budget=2000).save(folder)


VERBS = {"reconstruct": small_reconstruction, "retrieve": small_retrieval, "solve": small_solution}


def traced(job):
    """The modules of the package that a job enters, each with the module that entered it first."""
    came_from, prefix = {}, str(SOURCE)

    def module(frame):
        while frame is not None:
            if frame.f_code.co_filename.startswith(prefix):
                return module_of(Path(frame.f_code.co_filename))
            frame = frame.f_back
        return ""

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            here = module(frame)
            if here not in came_from:
                came_from[here] = module(frame.f_back)

    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
    return came_from


def way(verb):
    """The modules that data pass, as a tree: below each the modules that it called before any other did."""
    with tempfile.TemporaryDirectory() as folder:
        job = VERBS[verb](Path(folder) / "out")
        VERBS[verb](Path(folder) / "warm")()  # what is loaded once is loaded
        came_from = traced(job)
    found, content, line = {}, [], [0]
    for file in SOURCE.rglob("*.py"):
        found[module_of(file)] = sentence(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "", 66)

    def draw(module, depth):
        x, y = 12 + 30 * depth, LINE * (line[0] + 0.75)
        line[0] += 1
        content.append(f'<g class="room">{text(x, y, module, "name")}{text(400, y, found[module], "says")}</g>')
        for other in (name for name, origin in came_from.items() if origin == module and name != module):
            below = LINE * (line[0] + 0.75)
            content.append(f'<path class="branch" d="M{x + 8} {y + 8} V{below} H{x + 25}"/>')
            draw(other, depth + 1)

    for first in [name for name, origin in came_from.items() if origin in ("", name)]:
        draw(first, 0)
    label = f"The way of the data through {verb}: {len(came_from)} modules, each below the one that called it first"
    return svg(900, line[0], label, content)


def drawing(name):
    return rooms() if name == "rooms" else way(name)


if __name__ == "__main__":
    for name in ("rooms", *VERBS):
        print(drawing(name))
