"""Without the library of an extra: what can be done is done, and what cannot says in one sentence what to install."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import smadmm
from smadmm.io.phantoms import abdomen

LEARN = ("sklearn", "scipy", "numba", "llvmlite", "pooch", "threadpoolctl")
IMAGING = ("skimage", "scipy", "numba", "llvmlite", "safetensors", "pydicom", "h5py", "tifffile", "PIL")
PLOT = ("matplotlib",)
CLI = ("typer", "rich")
EVERYTHING = (*LEARN, *IMAGING, *PLOT, *CLI, "pandas", "bm3d")
FIGURES = "figure.png and curves.png need matplotlib: pip install 'smadmm[plot]'"


def python(code, *arguments, without):
    """Run code in a Python that cannot import these libraries."""
    code = f"import sys\nfor name in {without!r}:\n    sys.modules[name] = None\n{code}"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


def command(*arguments, without):
    code = "from smadmm.__main__ import main\nsys.argv[0] = 'smadmm'\nmain()"
    return python(code, *arguments, without=without)


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def scan(tmp_path):
    """A slice in Hounsfield units."""
    np.save(tmp_path / "slice.npy", abdomen(32))
    return tmp_path / "slice.npy"


@pytest.mark.command
def test_reconstruct_without_matplotlib_writes_everything_but_figures(scan, tmp_path):
    pytest.importorskip("tifffile")
    options = ("--simulate", 12, "--iterations", 2, "--out", tmp_path / "out", "--quiet")
    done = command("reconstruct", scan, *options, without=PLOT)
    assert done.returncode == 0, done.stderr
    written = {"image.npy", "image.tif", "image.png", "curves.csv", "run.json", "report.html"}
    assert names(tmp_path / "out") == written
    *_, listed, said = done.stdout.splitlines()
    assert said == FIGURES
    assert all(name in listed for name in written) and "figure.png" not in listed and "curves.png" not in listed
    assert "figure.png" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.command
def test_retrieve_without_matplotlib_writes_everything_but_figures(scan, tmp_path):
    pytest.importorskip("tifffile")
    options = ("--masks", 4, "--iterations", 2, "--out", tmp_path / "out", "--quiet")
    done = command("retrieve", scan, *options, without=PLOT)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == {"image.npy", "image.tif", "image.png", "curves.csv", "run.json", "report.html"}
    assert done.stdout.splitlines()[-1] == FIGURES


@pytest.mark.command
def test_classify_without_matplotlib_saves_the_model(tmp_path):
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    rows = [f"{'+1' if v[0] > 0 else '-1'} 1:{v[0]:.3f} 2:{v[1]:.3f}" for v in rng.normal(size=(40, 2))]
    (tmp_path / "train").write_text("\n".join(rows), encoding="utf-8")
    options = ("--graph", "chain", "--out", tmp_path / "out", "--quiet")
    done = command("classify", tmp_path / "train", *options, without=PLOT)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == {"model.npz"}
    *_, listed, said = done.stdout.splitlines()
    assert listed.startswith("model.npz is in") and said == "graph.png needs matplotlib: pip install 'smadmm[plot]'"


# what somebody may write with the core alone, the library that is missing, and what to install
CORE_ALONE = {
    "import smadmm.learn": ("scikit-learn", "learn"),
    "from smadmm.io.libsvm import load_libsvm; load_libsvm('rows')": ("scipy", "learn"),
    "from smadmm.io.libsvm import load_libsvm; load_libsvm('a9a')": ("pooch", "learn"),
    "from smadmm.denoisers import load; load('ridge-ct')": ("safetensors", "imaging"),
    "from smadmm.paper.bm3d import BM3D; BM3D()": ("bm3d", None),
    "from smadmm.io.images import read_slices; read_slices(Path('a.png'))": ("Pillow", "imaging"),
    "from smadmm.io.images import read_slices; read_slices(Path('a.tif'))": ("tifffile", "imaging"),
    "from smadmm.io.images import read_slices; read_slices(Path('a.dcm'))": ("pydicom", "imaging"),
    "from smadmm.io.images import read_images; read_images([Path('a.png')])": ("Pillow", "imaging"),
    "from smadmm.io.sinogram import read_sinogram; read_sinogram(Path('a.h5'))": ("h5py", "imaging"),
    "from smadmm.io.patterns import read_patterns; read_patterns(Path('a.h5'))": ("h5py", "imaging"),
    "from smadmm.imaging.metrics import ssim; ssim(torch.eye(9), torch.eye(9))": ("scikit-image", "imaging"),
    "smadmm.History({'sfo': [1], 'objective': [1]}).plot()": ("matplotlib", "plot"),
    "smadmm.History({'sfo': [1]}).to_dataframe()": ("pandas", None),
    "from smadmm.report.figures import curves; curves(smadmm.History(), 'a', 'b')": ("matplotlib", "plot"),
}


@pytest.mark.command
def test_the_core_alone_says_what_to_install(tmp_path):
    for name in ("rows", "a.png", "a.tif", "a.dcm", "a.h5"):
        (tmp_path / name).write_bytes(b"+1 1:1\n")
    code = f"""
import json, os
from pathlib import Path
import torch, smadmm
os.chdir({str(tmp_path)!r})
said = {{}}
for line in {list(CORE_ALONE)!r}:
    try:
        exec(line)
    except ImportError as error:
        said[line] = str(error)
print(json.dumps(said))
"""
    done = python(code, without=EVERYTHING)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for line, (package, extra) in CORE_ALONE.items():
        install = package if extra is None else f"'smadmm[{extra}]'"
        assert re.fullmatch(rf".* need {package}; install it with: pip install {re.escape(install)}", said[line]), line


@pytest.mark.command
def test_the_core_alone_solves_problems():
    code = """
import torch, smadmm
from smadmm.operators import Radon
X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
problem = smadmm.Problem(smadmm.losses.Logistic(X, torch.sign(X[:, 0])), smadmm.proxes.L1(0.01))
result = smadmm.run(smadmm.auto(problem, 500).solver(), torch.zeros(3, dtype=torch.float64), smadmm.Stop(sfo=500))
assert result.history["objective"][-1] < result.history["objective"][0]
assert Radon(8, torch.arange(3.0))(torch.ones(8, 8)).isfinite().all()
"""
    done = python(code, without=EVERYTHING)
    assert done.returncode == 0, done.stderr


@pytest.mark.command
@pytest.mark.parametrize("extra", ["imaging", "learn"])
def test_a_command_without_its_extra_is_one_sentence_before_the_work(extra, scan, tmp_path):
    pytest.importorskip("typer")
    words = {"imaging": ("reconstruct", scan, "--simulate", 12, "--prior", "none"), "learn": ("classify", scan)}[extra]
    done = command(*words, "--out", tmp_path / "out", without=(*LEARN, *IMAGING, *PLOT))
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert re.fullmatch(rf"Error: .* need .*; install it with: pip install 'smadmm\[{extra}\]'\n", done.stderr)


@pytest.mark.command
def test_the_command_without_typer_is_one_sentence():
    done = command("--version", without=CLI)
    assert done.returncode == 2
    assert done.stderr == "Error: the command line needs typer; install it with: pip install 'smadmm[cli]'\n"


def test_a_library_that_is_there_but_broken_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("raise ImportError('libsomething.so is too old')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="too old"):
        smadmm.extras.needs("broken_library", "imaging", "tests")
