"""What is uploaded: the wheel holds the product and nothing else, the sdist all that its own tests need."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import smadmm

ROOT = Path(__file__).parent.parent
pytest.importorskip("hatchling")


def build(target, folder):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.mark.command
def test_the_wheel_is_the_package_and_nothing_else(tmp_path):
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
    about = f"smadmm-{smadmm.__version__}.dist-info/"
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "smadmm").rglob("*") if path.is_file())
    package = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    assert "smadmm/py.typed" in package and "smadmm/report/page.css" in package
    assert {name for name in names if not name.startswith(about)} == package
    assert {name.removeprefix(about) for name in names if name.startswith(about)} == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip


@pytest.mark.command
def test_the_sdist_has_what_its_tests_need(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = [*ROOT.glob("*.md"), *ROOT.glob("constraints*.txt"), *ROOT.glob("tests/*.py"), *ROOT.glob("examples/*.py")]
    needed += [
        *ROOT.glob("docs/results/*/*.json"),
        *ROOT.glob(".github/**/*.*"),
        ROOT / "Makefile",
        ROOT / "CITATION.cff",
    ]
    needed += ROOT.glob("gallery/*.*")
    assert {path.relative_to(ROOT).as_posix() for path in needed if path.is_file()} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops <= {"src", "tests", "examples", "gallery", "benchmarks", "docs", "PKG-INFO", "pyproject.toml"} | {
        path.name for path in ROOT.iterdir() if path.is_file() or path.name in (".ci", ".github")
    }


def test_the_oldest_versions_are_the_lower_bounds():
    """Of the dependencies and the extras; tools for development are not a promise."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.partition("[project.optional-dependencies]")[2].partition("\ndev = ")[0]
    bounds = dict(
        re.findall(r'"([\w-]+)>=([\d.]+)"', text.partition("\ndependencies = ")[2].partition("\n")[0] + extras)
    )
    pinned = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8"), re.M)
    )
    assert set(bounds) == set(pinned) - {"click", "pyparsing", "pytest"}
    for name, bound in bounds.items():
        assert f"{pinned[name]}.".startswith(f"{bound}."), f"{name}: {pinned[name]} is tested, {bound} is promised"
