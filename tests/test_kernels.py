"""Compiled kernels: the same bits from cold, warm and partly removed caches; entry points never call each other.

A kernel that comes later joins by one line of EVERYTHING.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import smadmm

pytest.importorskip("numba")
SOURCE = Path(smadmm.__file__).parent
KERNELS = [file for file in SOURCE.rglob("*.py") if "@compiled(" in file.read_text(encoding="utf-8")]

# what runs every entry point once, and the name under which the bits of its result are printed
EVERYTHING = {
    "a CT gradient": """
loss = Tomography(radon, radon(image), weights=torch.rand(radon.out_shape, generator=g) + 0.1)
out = loss.gradient((image, 0.5 * image), (1.0, -0.3), torch.arange(9))""",
    "a back-projection": "out = radon.adjoint(radon(image))",
    "a denoised image and its derivatives": """
from smadmm.denoisers import load
denoiser, x = load('ridge-ct').requires_grad_(True), image[None, None].clone().requires_grad_(True)
denoiser(x).square().sum().backward()
out = torch.cat([x.grad.flatten(), *(p.grad.flatten() for p in denoiser.parameters())])""",
    "a phase gradient": """
from smadmm.losses import AmplitudeLoss
from smadmm.operators import CodedDiffraction, circle_masks
operator = CodedDiffraction(circle_masks(2, (24, 20)))
phase = AmplitudeLoss(operator, operator(image).abs() + 0.1)
pair = phase.gradient((image, 0.5 * image), (1.0, -0.7), torch.arange(2))
out = torch.stack([pair, phase.gradient((image,), (1.0,), torch.arange(2))])""",
    "a fit and a published method": """
import numpy as np
from smadmm.learn import GraphGuidedClassifier
X = np.random.default_rng(0).standard_normal((300, 6))
y = X[:, 0] + 0.3 * X[:, 1] > 0
models = [GraphGuidedClassifier(1e-3, graph='chain', solver=s, max_epochs=3, random_state=0).fit(X, y)
          for s in ('auto', 'smadmm')]
out = torch.from_numpy(np.concatenate([m.coef_[0] for m in models]))""",
}
PROGRAM = """
import hashlib, torch
from smadmm.losses import Tomography
from smadmm.operators import Radon
g = torch.Generator().manual_seed(0)
image, radon = torch.rand(24, 20, generator=g), Radon((24, 20), torch.arange(9) * 0.35)
for name, code in {everything!r}.items():
    exec(code)
    print(name, hashlib.sha256(out.detach().contiguous().numpy().tobytes()).hexdigest())
"""


def bits(cache):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    program = PROGRAM.format(everything=EVERYTHING)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.command
def test_bits_do_not_depend_on_the_caches(tmp_path):
    cold = bits(tmp_path)
    assert len(cold) == len(EVERYTHING) and bits(tmp_path) == cold  # compiled, then loaded
    files = sorted(tmp_path.rglob("*.nbi"))
    assert len(files) >= 15
    for part in range(3):  # every third function is compiled anew, the others are loaded
        for file in files[part::3]:
            for stale in file.parent.glob(f"{file.name.rsplit('-', 1)[0]}*"):
                stale.unlink()
        assert bits(tmp_path) == cold


def decorated(file, name):
    """The functions of a module with this decorator."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name: f for f in functions if any(name in ast.unparse(d) for d in f.decorator_list)}


@pytest.mark.parametrize("file", KERNELS, ids=lambda f: f.name)
def test_entry_points_call_no_entry_points(file):
    entries = {name for other in KERNELS for name in decorated(other, "compiled")}
    assert decorated(file, "compiled")
    for name, function in {**decorated(file, "compiled"), **decorated(file, "inlined")}.items():
        called = {node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and
                  isinstance(node.func, ast.Name)}  # fmt: skip
        assert not called & entries, f"{name} calls an entry point"


def test_there_is_one_place_that_compiles():
    for file in SOURCE.rglob("*.py"):
        if file.name != "compilation.py":
            assert "njit" not in file.read_text(encoding="utf-8"), f"{file}: use smadmm.compilation"
