"""Compiled kernels give the same bits whatever the cache held: nothing, everything, or every other one."""

import hashlib
import importlib
import importlib.util
import io
import json
import linecache
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType, FunctionType

import numpy as np
import pytest
import torch

numba = pytest.importorskip("numba")
from smadmm import compilation  # noqa: E402
from smadmm.compilation import _source_key  # noqa: E402

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
    from smadmm.learn.published_loops import Published
    from smadmm.learn.scaling import column_sums
    from smadmm.learn.tasks import Task

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
    names = [f"{name}.{entry.py_func.__name__}" for name in CASES for entry in entries(name)]
    answers = {"cold": in_a_child(), "warm": in_a_child()}
    shutil.copytree(cache, kept)
    for removed in (names[::2], names[1::2]):  # each beside neighbours that are loaded
        shutil.rmtree(cache)
        shutil.copytree(kept, cache)
        for name in removed:
            package, module, function = name.split(".")[-3:]
            for file in cache.glob(f"{package}_*/{module}.{function}-*"):
                file.unlink()
        answers[" ".join(removed)] = in_a_child()
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


def loaded(folder):
    """A kernel and its body, in two modules of a folder, as if this process had just begun."""
    _source_key.cache_clear()
    for name in ("smadmm.body_for_tests", "smadmm.kernel_for_tests"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name.split('.')[1]}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        linecache.checkcache()
        spec.loader.exec_module(sys.modules[name])
    return sys.modules["smadmm.kernel_for_tests"].kernel


BODY = """from smadmm.compilation import inlined

@inlined()
def body(x):
    return x + 1.0
"""
KERNEL = """from smadmm.body_for_tests import body
from smadmm.compilation import compiled

@compiled()
def kernel(x):
    return body(x) + body(x)
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    (tmp_path / "body_for_tests.py").write_text(BODY, encoding="utf-8")
    (tmp_path / "kernel_for_tests.py").write_text(KERNEL, encoding="utf-8")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("smadmm.body_for_tests", "smadmm.kernel_for_tests"):
        monkeypatch.setitem(sys.modules, name, None)
    return tmp_path


def compiles(folder, answer=4.0):
    """Whether a kernel is compiled, rather than read."""
    kernel = loaded(folder)
    assert kernel(1.0) == answer
    return not kernel.stats.cache_hits


def test_a_kernel_is_compiled_once_and_again_when_its_body_or_the_processor_changes(kernels, monkeypatch):
    assert compiles(kernels) and not compiles(kernels)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(numba.core.codegen.CPUCodegen, "magic_tuple", lambda self: ("another", "processor", ""))
        assert compiles(kernels)
    assert not compiles(kernels)
    (kernels / "body_for_tests.py").write_text(BODY.replace("1.0", "2.0"), encoding="utf-8")
    assert compiles(kernels, answer=6.0) and not compiles(kernels, answer=6.0)


def no_space(*given):
    raise OSError(28, "No space left on device")


def test_a_cache_that_cannot_be_used_costs_time_and_no_result(kernels, monkeypatch, caplog):
    assert compiles(kernels)
    for ending in ("nbi", "nbc"):
        for file in (kernels / "cache").rglob(f"*.{ending}"):
            file.write_bytes(file.read_bytes()[:40] if ending == "nbc" else b"")
        assert compiles(kernels) and not compiles(kernels)
    with monkeypatch.context() as full:
        full.setattr(numba.core.caching.IndexDataCacheFile, "_open_for_write", no_space)
        (kernels / "body_for_tests.py").write_text(BODY.replace("1.0", "2.0"), encoding="utf-8")
        assert compiles(kernels, answer=6.0) and compiles(kernels, answer=6.0)
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(compilation._LISTENER, "done", 0)
    with caplog.at_level("DEBUG", "smadmm"):
        assert compiles(kernels, answer=6.0)
    begun, ended = "kernel kernel: 0 compiled", "kernel kernel: 1 compiled"
    assert caplog.messages == [compilation.NOT_KEPT, begun, ended]


def test_there_is_one_place_that_compiles():
    for file in Path(importlib.import_module("smadmm").__file__).parent.rglob("*.py"):
        if file.name != "compilation.py":
            assert "njit" not in file.read_text(encoding="utf-8"), f"{file}: use smadmm.compilation"


if __name__ == "__main__":
    main(Path(sys.argv[1]))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_command_shows_a_bar_while_kernels_are_compiled(kernels, monkeypatch):
    app = pytest.importorskip("smadmm.cli.app", reason="needs typer")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "argv", ["smadmm"])
    monkeypatch.setattr(compilation._LISTENER, "done", 0)
    handler = app._on_stderr()
    try:
        assert compiles(kernels)
    finally:
        app.LOG.removeHandler(handler)
        app.LOG.setLevel("NOTSET")
    sentence, bar = terminal.getvalue().split("\n")
    assert sentence == compilation.COMPILING
    assert "compiling kernel 1 [00:00]" in bar and bar.endswith("\r")  # and it is gone again
