"""The gallery: every script has the form that its page needs. The quickest are run here, all by the site."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parent.parent / "gallery"
SCRIPTS = sorted(GALLERY.glob("plot_*.py"))
QUICK = ("own_prox", "sinogram", "phase_retrieval")


def test_order_names_every_script():
    order = (GALLERY / "order.txt").read_text(encoding="utf-8").split()
    assert sorted(f"plot_{name}.py" for name in order) == [path.name for path in SCRIPTS]
    assert len(SCRIPTS) >= 14


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_form(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    _, title, line, empty, *opening = (ast.get_docstring(ast.parse(text), clean=False) or "").split("\n")
    assert title and line == "=" * len(title) and not empty
    sentence = " ".join(opening).strip()
    assert sentence.endswith(".") and len(sentence) > 40
    assert "suptitle(" in text  # what the picture shows, also for those who cannot see it
    assert "# %%" not in text  # one block of code: its picture stands at the top of the page
    assert text.endswith("plt.show()\n")


@pytest.mark.slow
@pytest.mark.command
@pytest.mark.parametrize("name", QUICK)
def test_runs_without_warnings(name, tmp_path):
    program = (
        "import runpy, sys, matplotlib.pyplot as plt; plt.show = lambda: plt.savefig(sys.argv[2]); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    picture = tmp_path / "picture.png"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, GALLERY / f"plot_{name}.py", picture],
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr
    assert picture.stat().st_size > 5000
