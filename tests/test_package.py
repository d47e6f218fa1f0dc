"""Rules of the house: light imports in one direction, nothing global, and documents that run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smadmm

ROOT = Path(__file__).parent.parent
SOURCE = Path(smadmm.__file__).parent

# a module may import those to its left; the same level is for packages with several files
ORDER = ["extras", "files", "metrics", "schedules", "sampling", "operators", "problem", "losses", "total_variation",
         "proxes", "xsteps", "preconditioner", "estimators", "pace", "solver", "red", "pnp", "certificate", "history",
         "checkpoint", "tuning", "run", "report", "data", "denoisers", "imaging", "learn",
         "experiments", "cli", "__main__"]  # fmt: skip


def module_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "smadmm":
            parts = node.module.split(".")[1:]
            yield from [parts[0]] if parts else [alias.name for alias in node.names]


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_one_way(file):
    name = module_of(file)
    if name == "__init__":
        return
    assert name in ORDER, f"put {name} into ORDER of this test, where it belongs"
    for target in imported(file):
        if target in ORDER:
            assert ORDER.index(target) <= ORDER.index(name), f"{name} must not import {target}"


HEAVY = ["matplotlib", "sklearn", "pydicom", "numba", "scipy", "skimage", "pandas", "typer", "cvxpy"]


@pytest.mark.command
def test_import_is_light():
    code = f"import sys, smadmm; print([name for name in {HEAVY} if name in sys.modules])"
    bare = f"import sys, torch, tqdm; print([name for name in {HEAVY} if name in sys.modules])"
    ours, torchs = (
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout
        for c in (code, bare)
    )
    assert ours == torchs


@pytest.mark.command
def test_import_adds_less_than_three_tenths_of_a_second():
    code = "import time, torch; t = time.process_time(); import smadmm; print(time.process_time() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.3


def test_library_does_not_print_or_touch_global_state():
    for file in SOURCE.rglob("*.py"):
        if module_of(file) in ("cli", "experiments"):
            continue
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls, file
        assert not re.search(
            r"manual_seed\((?!seed)|set_default_dtype|set_num_threads|np\.random\.seed", file.read_text()
        ), file


def test_global_generators_are_left_alone(g):
    before = torch.get_rng_state()
    X = torch.randn(20, 3, generator=g, dtype=torch.float64)
    problem = smadmm.Problem(smadmm.losses.Sigmoid(X, torch.sign(X[:, 0])), smadmm.proxes.L1(0.1))
    smadmm.run(smadmm.auto(problem, 500).solver(), torch.zeros(3, dtype=torch.float64), smadmm.Stop(sfo=500))
    assert torch.equal(before, torch.get_rng_state())


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.command
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_snippets_run_as_printed(name, tmp_path):
    if name == "README.md":
        pytest.importorskip("sklearn")
        pytest.importorskip("safetensors")
    assert blocks(name)
    for code in blocks(name):
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, capture_output=True)


def test_the_readme_shows_the_committed_results():
    table = (ROOT / "docs/results/complexity/table.md").read_text().strip()
    assert table in (ROOT / "README.md").read_text()


def test_the_guide_shows_the_source_as_it_is():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"rom \[[^]]*\]\(([^)]*)\):\n\n```python source\n(.*?)\n```", guide, re.DOTALL)
    assert {path for path, _ in shown} == {
        f"src/smadmm/{name}.py" for name in ("estimators", "proxes", "operators/linear", "losses/glm")
    }
    for path, code in shown:
        assert code in (ROOT / path).read_text(), f"{path} has changed; copy the class into CONTRIBUTING.md again"


def test_documents_speak_of_the_product_alone():
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.py")]:
        assert not re.search(r"(^|[\s\"'(])/(work|root|home)/", file.read_text()), file
