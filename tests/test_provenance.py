"""The key of the code: it follows what can change a result, and nothing else."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import smadmm
from smadmm.paper import ct_runs, provenance
from smadmm.paper.catalogue import EXPERIMENTS
from smadmm.paper.provenance import code_key, fingerprint, key_of_files

FILES = {
    "pack/__init__.py": "VERSION = 1\n",
    "pack/work.py": "from pack.near import near\n\n\ndef work():\n    from pack import late\n"
    "    return near() + late.two()\n",
    "pack/near.py": '"""Words."""\n\nimport pack.deep.far\n\n\ndef near():\n    """More words."""\n    return 1\n',
    "pack/late.py": "def two():\n    return 2\n",
    "pack/deep/__init__.py": "",
    "pack/deep/far.py": "class Far:\n    '''Far away.'''\n\n    def far(self):\n        return 3\n",
    "pack/other.py": "from pack.work import work\n\nx = 4\n",
}


@pytest.fixture
def package(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "pack"


def key(package):
    return key_of_files([package / "work.py"], package)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("near.py", '"""More words."""', '"""Other words."""'),
        ("near.py", '"""Words."""\n', ""),
        ("deep/far.py", "'''Far away.'''", "'''Farther.'''"),
        ("work.py", "def work():", "def work():  # a comment"),
        ("work.py", "return near() + late.two()", "return (near()\n            + late.two())"),
        ("other.py", "x = 4", "x = 5"),
        ("__init__.py", "1", "2"),
    ],
)
def test_words_layout_and_code_that_is_not_involved_keep_the_key(package, file, old, new):
    before, text = key(package), (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    assert key(package) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("work.py", "near() +", "near() -"),
        ("near.py", "return 1", "return 2"),
        ("late.py", "return 2", "return 1"),  # imported inside a function
        ("deep/far.py", "return 3", "return 4"),  # imported by what is imported
    ],
)
def test_code_that_is_involved_changes_the_key(package, file, old, new):
    before, text = key(package), (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    assert key(package) != before


def test_where_a_module_stands_counts_and_where_the_package_stands_does_not(package):
    before = key(package)
    moved = package.parent / "elsewhere" / "pack"
    moved.parent.mkdir()
    package.rename(moved)
    assert key(moved) == before
    (moved / "late.py").rename(moved / "later.py")
    (moved / "work.py").write_text(FILES["pack/work.py"].replace("late", "later"))
    assert key(moved) != before


def test_a_module_that_is_a_package_is_its_init_file(package):
    (package / "work.py").write_text("from pack.deep import Far\n")
    before = key(package)
    (package / "deep" / "__init__.py").write_text("from pack.deep.far import Far\n")
    again = key(package)
    (package / "deep" / "far.py").write_text("class Far: ...\n")
    assert len({before, again, key(package)}) == 3


@pytest.mark.slow
def test_work_involves_the_engine_but_no_chapter():
    package = Path(smadmm.__file__).parent
    assert code_key(ct_runs.run_ct) == key_of_files([package / "paper" / "ct_runs.py"])
    assert "solver" in involved(package, ct_runs.run_ct)
    for experiment in EXPERIMENTS:
        names = involved(package, experiment.work)
        assert not [name for name in names if name.startswith("cli") or name.endswith("chapter")]


def involved(package, function):
    """An independent walk: the modules that the functions of a module can import, by name."""
    found, waiting = set(), {function.__module__}
    while waiting:
        name = waiting.pop()
        parts = name.split(".")[1:]
        file = package.joinpath(*parts).with_suffix(".py") if parts else None
        if file is None or not file.is_file():
            file = package.joinpath(*parts, "__init__.py")
        outside = parts and parts[0] in provenance.OUTSIDE
        if name in found or not name.startswith("smadmm") or outside or not file.is_file():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} has a relative import; the key of the code does not follow them"
                waiting |= {f"{node.module}.{alias.name}" for alias in node.names}
                waiting |= {str(node.module)} if node.module != "smadmm" else set()
            elif isinstance(node, ast.Import):
                waiting |= {alias.name for alias in node.names}
    return {name.removeprefix("smadmm.") for name in found}


def test_fingerprints_follow_the_values():
    a, b = np.arange(6.0).reshape(2, 3), torch.ones(2)
    assert fingerprint([a, b]) == fingerprint([torch.from_numpy(a), b.numpy()])
    assert fingerprint([a, b]) != fingerprint([a, 2 * b]) and fingerprint([a.T]) != fingerprint([a])
