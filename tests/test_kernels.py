"""Compiled kernels give the same bits whatever the cache held: nothing, everything, or all but one of a module."""

import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType

import numpy as np
import pytest
import torch

# --- new kernels join here: their modules, and a line that runs them ------------------------------------------------


def radon():
    from smadmm.operators import Radon

    A = Radon((33, 41), np.linspace(0, np.pi, 11))
    x, other, y = random(A.in_shape, 0), random(A.in_shape, 1), random(A.out_shape, 2)
    options = {"other": other, "share": -0.3, "data_share": 0.7, "weights": y.abs(), "scale": 0.1}
    gradient = A.fused_gradient(x, y, np.arange(11), **options)
    return [A(x), A.T(y), gradient]


def fan():
    from smadmm.operators import FanBeam

    A = FanBeam((33, 41), np.linspace(0, 6, 11), 60, 100, 150, pitch=1.5)
    x, other, y = random(A.in_shape, 0), random(A.in_shape, 1), random(A.out_shape, 2)
    options = {"other": other, "share": -0.3, "data_share": 0.7, "weights": y.abs(), "scale": 0.1}
    return [A(x), A.T(y), A.fbp(y), A.fused_gradient(x, y, np.arange(11), **options)]


def ridge():
    from smadmm.denoisers.ridge import valid_gradient, value_pieces
    from smadmm.denoisers.ridge_cpu import valid_values

    x, filters, slopes = (random(shape, n).requires_grad_() for n, shape in enumerate([(2, 21, 18), (3, 5, 5), (3, 4)]))
    z = valid_gradient(x, filters, slopes, 0.3, singles=0)
    values = valid_values(x.detach(), filters.detach(), value_pieces(slopes.detach().double(), 0.3), 0.3, 0)
    return [z, values, *torch.autograd.grad(z.square().sum(), (x, filters, slopes))]


def total_variation():
    from smadmm.proxes import TV

    return [TV(0.2).prox(random((2, 21, 18), 0), 1.0), TV(0.2).prox(random((21, 18), 1).double(), 1.0)]


def phase():
    from smadmm.losses import AmplitudeLoss
    from smadmm.operators import CodedDiffraction, circle_masks

    made = []
    for dtype in (torch.float32, torch.complex64):
        f = AmplitudeLoss(CodedDiffraction(circle_masks(3, (18, 21)), dtype), random((3, 18, 21), 0).abs())
        points = random((18, 21), 1).to(dtype), random((18, 21), 2).to(dtype)
        made += [f.gradient(points[:1], (1.0,), f.full()), f.gradient(points, (1.0, -0.6), f.full())]
    return made


def classifier():
    import scipy.sparse as sp

    from smadmm.learn.fitting import fit_auto, fit_published
    from smadmm.learn.loops import Task
    from smadmm.learn.published_loops import Published
    from smadmm.learn.scaling import column_sums

    X, noise = random((300, 7), 0).double().numpy(), random((300,), 1).double().numpy()
    A = sp.csr_array(np.vstack([np.eye(7, 8) - np.eye(7, 8, 1), np.eye(7, 8)])[1:])
    target = np.where(X[:, 0] + noise > 0, 1.0, -1.0)
    task = Task(X, target, np.ones(300), A, 1e-3, "logistic", True)
    ours = fit_auto(task, column_sums(task.X, task.weight), passes=2)
    theirs = fit_published(task, Published("smadmm", 16, 0.25, 0.05), passes=2)
    return [ours.x, *ours.history["objective"], theirs.x]


def complexity():
    from smadmm.paper.complexity_runs import level, setting

    points = {
        "smadmm": {"eta": 1.0, "a": 0.5},
        "spider": {"eta": 1.0, "n": 9},
        "asvrg-convex": {"eta": 1.0, "n": 9, "theta": 0.5},
    }
    return [level("smooth", setting("smooth", name, 200, point), 200, 0) for name, point in points.items()]


CASES = {
    "smadmm.operators.radon.kernels": radon,
    "smadmm.operators.radon.bins": radon,
    "smadmm.operators.radon.transpose": radon,
    "smadmm.operators.fan.kernels": fan,
    "smadmm.denoisers.ridge_kernels": ridge,
    "smadmm.losses.phase_kernels": phase,
    "smadmm.paper.complexity_kernel": complexity,
    "smadmm.proxes.total_variation_kernels": total_variation,
    "smadmm.learn._kernels.samples": classifier,
    "smadmm.learn._kernels.rows": classifier,
    "smadmm.learn._kernels.constraint": classifier,
    "smadmm.learn._kernels.auto": classifier,
    "smadmm.learn._kernels.published": classifier,
}

# --------------------------------------------------------------------------------------------------------------------


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def is_entry(value):
    return hasattr(value, "py_func") and hasattr(value._cache, "cache_path") and value._cache.cache_path is not None


def entries(name):
    """The cached functions of a module."""
    found = vars(importlib.import_module(name)).values()
    return [value for value in found if is_entry(value) and value.py_func.__module__ == name]


def globals_of(code):
    """Names that this code and the functions in it may look up."""
    inner = (globals_of(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def test_every_module_with_kernels_has_a_case():
    source = Path(importlib.import_module("smadmm").__file__).parent
    files = [file for file in source.rglob("*.py") if "smadmm.compilation import" in file.read_text(encoding="utf-8")]
    assert {".".join(["smadmm", *file.relative_to(source).with_suffix("").parts]) for file in files} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_refers_to_an_entry_point(name):
    module = importlib.import_module(name)
    functions = [getattr(value, "py_func", value) for value in vars(module).values()]
    for function in functions:
        if isinstance(function, FunctionType) and function.__module__ == name:
            called = [n for n in globals_of(function.__code__) if is_entry(vars(module).get(n))]
            assert not called, f"{name}.{function.__name__} calls {called}; make the shared part a body (@inlined)"


def run_cases():
    """The hash of every array, the entry points that were compiled, and those that still call another function."""
    hashes, compiled, calling = {}, [], []
    for case in dict.fromkeys(CASES.values()):
        arrays = [np.ascontiguousarray(torch.as_tensor(array).detach().numpy()) for array in case()]
        hashes[case.__name__] = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
    for name in CASES:
        for entry in entries(name):
            label = f"{name}.{entry.py_func.__name__}"
            assert entry.signatures, f"no case of {Path(__file__).name} runs {label}"
            if entry.stats.cache_misses:
                compiled.append(label)
                results = entry.overloads.values()
                defined = [function.name for result in results for function in result.library.get_defined_functions()]
                calling += [label] * any(entry.py_func.__name__ not in function for function in defined)
    return {"hashes": hashes, "compiled": compiled, "calling": calling}


def in_a_child():
    """`run_cases` in a fork of this process, in which nothing was compiled or loaded."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(run_cases)


def main(folder):
    """What cold, warm and partly removed caches give, as JSON."""
    cache, kept = folder / "cache", folder / "kept"
    names = ([f"{name}.{entry.py_func.__name__}" for entry in entries(name)] for name in CASES)
    answers = {"cold": in_a_child(), "warm": in_a_child()}
    shutil.copytree(cache, kept)
    for removed in zip_longest(*names):  # one of each module together: modules do not share compiled code
        shutil.rmtree(cache)
        shutil.copytree(kept, cache)
        for name in filter(None, removed):
            package, module, function = name.split(".")[-3:]
            for file in cache.glob(f"{package}_*/{module}.{function}-*"):
                file.unlink()
        answers[" ".join(filter(None, removed))] = in_a_child()
    print(json.dumps(answers))


@pytest.mark.slow
@pytest.mark.command
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
def test_bits_do_not_depend_on_the_cache(tmp_path):
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.run([sys.executable, __file__, tmp_path], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    answers = json.loads(process.stdout)
    cold, warm = answers["cold"], answers["warm"]
    assert not cold["calling"], f"{cold['calling']} contain calls of functions that the linker may replace"
    assert (
        sorted(cold["compiled"]) == sorted(" ".join(set(answers) - {"cold", "warm"}).split()) and not warm["compiled"]
    )
    for removed, answer in answers.items():
        assert answer["compiled"] == removed.split() or removed in ("cold", "warm")
        assert answer["hashes"] == cold["hashes"], f"other bits than from cold: {removed} was removed from the cache"


def test_there_is_one_place_that_compiles():
    for file in Path(importlib.import_module("smadmm").__file__).parent.rglob("*.py"):
        if file.name != "compilation.py":
            assert "njit" not in file.read_text(encoding="utf-8"), f"{file}: use smadmm.compilation"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
