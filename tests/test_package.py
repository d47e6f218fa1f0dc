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

# a room may import those above it; the longest name that fits a module is its room
ORDER = ["arguments", "extras", "compilation", "bars", "workers", "io.files", "schedules", "sampling", "operators",
         "problem", "distributed", "xsteps", "ysteps", "estimators", "stepsize", "losses", "proxes", "solver",
         "records", "certificate", "tuning", "theory", "checkpoint", "results", "signals", "guard", "running",
         "protocol", "comparing", "denoisers", "imaging", "learn", "interop", "io", "report", "denoisers.training",
         "cli", "paper"]  # fmt: skip


def room(module):
    fitting = [name for name in ORDER if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


def module_of(file):
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(file):
    """Modules of the package that a file imports, and whether at the top of the file."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "smadmm":
            base = node.module.removeprefix("smadmm").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                is_module = (SOURCE / full.replace(".", "/")).with_suffix(".py").exists()
                yield full if is_module else base, node in tree.body


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_one_way(file):
    name = module_of(file)
    if name in ("__init__", "names", "__main__"):
        return
    here = room(name)
    assert here, f"put {name} into ORDER of this test, where it belongs"
    for target, at_the_top in imported(file):
        there = room(target)
        if there is None or there == here:
            continue
        late = not at_the_top and there in ("io", "report")  # in save and plot: the one exception
        assert late or ORDER.index(there) < ORDER.index(here), f"{name} must not import {target}"


HEAVY = ["matplotlib", "sklearn", "pydicom", "numba", "scipy", "skimage", "pandas", "typer", "cvxpy"]


@pytest.mark.command
def test_import_is_light():
    code = f"import sys, smadmm; smadmm.run; print([name for name in {HEAVY} if name in sys.modules])"
    bare = f"import sys, torch, tqdm; print([name for name in {HEAVY} if name in sys.modules])"
    ours, torchs = (
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout
        for c in (code, bare)
    )
    assert ours == torchs


@pytest.mark.command
def test_import_adds_less_than_a_third_of_torch():
    """In CPU time of one process, so that other work on the machine weighs on both."""
    code = """
import time
begin = time.process_time(); import torch
middle = time.process_time(); import smadmm; smadmm.run
print((time.process_time() - middle) / (middle - begin))
"""
    ratios = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(ratios) < 1 / 3


@pytest.mark.command
def test_a_default_fit_goes_without_torch():
    """Which takes longer to load than the fit takes: only stochastic passes, streams and published methods need it."""
    pytest.importorskip("sklearn")
    code = """
import sys, numpy as np
from smadmm.learn import GraphGuidedClassifier, GraphGuidedClassifierCV, GraphGuidedRegressor, GraphGuidedRegressorCV
rng = np.random.default_rng(0)
X = rng.standard_normal((60, 4))
X[:, 1] += X[:, 0]
for y in ((X[:, 0] > 0).astype(int), (X[:, 0] > 0).astype(int) + (X[:, 2] > 0)):
    for kind in (GraphGuidedClassifier, GraphGuidedClassifierCV):
        kind().fit(X, y).predict_proba(X)
for kind in (GraphGuidedRegressor, GraphGuidedRegressorCV):
    kind().fit(X, X[:, 0]).predict(X)
GraphGuidedClassifier(loss="sigmoid").fit(X, y)
assert not {"torch", "numba"} & set(sys.modules)
model = GraphGuidedClassifier().partial_fit(X, y, classes=[0, 1, 2])
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_come_with_their_first_use():
    from smadmm import names

    assert smadmm.__all__ == names.__all__ and set(dir(smadmm)) >= set(names.__all__)
    assert smadmm.run is names.run and smadmm.imaging.ct.reconstruct is smadmm.reconstruct
    with pytest.raises(AttributeError, match="module 'smadmm' has no attribute 'nothing'"):
        smadmm.nothing  # noqa: B018


@pytest.mark.command
def test_second_run_is_refused_before_anything_heavy_is_loaded(tmp_path):
    """Within a second: CPU time of its process, for the clock counts others' work, too."""
    resource = pytest.importorskip("resource")
    pytest.importorskip("fcntl")
    from smadmm.io.files import locked

    for words, target in (
        (["reconstruct", "scan.npz", "--out", str(tmp_path)], tmp_path),
        (["train-denoiser", ".", f"--out={tmp_path / 'weights'}"], tmp_path / "weights.safetensors"),
    ):
        with locked(target):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([sys.executable, "-m", "smadmm", *words], capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 2 and f"{target} is being written by another run" in done.stderr
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_library_does_not_print_or_touch_global_state():
    for file in SOURCE.rglob("*.py"):
        if room(module_of(file)) in ("cli", "paper"):
            continue
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls, file
        if module_of(file) == "workers":  # sets the threads of worker processes, not of this one
            continue
        assert not re.search(
            r"manual_seed\((?!seed)|set_default_dtype|set_num_threads|np\.random\.seed", file.read_text()
        ), file


def test_only_the_command_line_knows_options():
    """Library code names arguments (smadmm.arguments); the card of weights repeats a command, so it may."""
    for file in SOURCE.rglob("*.py"):
        if room(module_of(file)) not in ("cli", "paper", "denoisers.training"):
            assert not re.search(r"[\"' (]--[a-z]", file.read_text()), file


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
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/denoisers.md", "docs/theory.md"])
def test_snippets_run_as_printed(name, tmp_path):
    if name == "README.md":
        pytest.importorskip("sklearn")
        pytest.importorskip("safetensors")
    assert blocks(name)
    for code in blocks(name):
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, capture_output=True)


def test_the_page_on_the_paper_shows_the_committed_results():
    _, table, *_ = (ROOT / "docs/results/complexity/table.md").read_text().split("\n\n")
    assert table.startswith("| method") and table in (ROOT / "docs/paper.md").read_text()


def test_the_guide_shows_the_source_as_it_is():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"rom \[[^]]*\]\(([^)]*)\):\n\n```python source\n(.*?)\n```", guide, re.DOTALL)
    assert {path for path, _ in shown} == {
        f"src/smadmm/{name}.py" for name in ("estimators", "proxes/penalties", "operators/linear", "losses/glm")
    }
    for path, code in shown:
        assert code in (ROOT / path).read_text(), f"{path} has changed; copy the class into CONTRIBUTING.md again"


def test_documents_speak_of_the_product_alone():
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.py")]:
        assert not re.search(r"(^|[\s\"'(])/(work|root|home)/", file.read_text()), file
