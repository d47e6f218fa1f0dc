"""Stop anywhere and resume bit-equal; refuse every damaged, foreign or mismatched checkpoint; never unpickle."""

import builtins
import dataclasses
import errno
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import smadmm
from smadmm import ADMM, ASVRG, SAGA, SGD, SVRG, Power, Problem, Spider, Stop, Storm, run
from smadmm import checkpoint as checkpoints
from smadmm.checkpoint import CheckpointError, describe, load, save
from smadmm.losses import Sigmoid
from smadmm.proxes import L1
from smadmm.sampling import Rng
from smadmm.solver import Average, Mean
from smadmm.stepsize import StepSize

ESTIMATORS = [SGD(5), SVRG(5, 7), SAGA(5), Spider(5, 7), ASVRG(5, 7, theta=0.8), Storm(5, Power(0.5, -2 / 3), first=12)]
START = torch.zeros(6, dtype=torch.float64)


def make(estimator=ESTIMATORS[-1], weight=0.01, rho=0.1, seed=0, **options):
    g = torch.Generator().manual_seed(1)
    X = torch.randn(80, 6, generator=g, dtype=torch.float64)
    f = Sigmoid(X, torch.sign(X[:, 0]), sampling=smadmm.sampling.reshuffled)
    return ADMM(Problem(f, L1(weight)), estimator, rho=rho, eta=1.0, seed=seed, **options)


def leaves(value):
    """All numbers of a state, tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return [value.numpy().tobytes(), value.dtype, tuple(value.shape)]
    if dataclasses.is_dataclass(value):
        return [leaf for f in dataclasses.fields(value) for leaf in leaves(getattr(value, f.name))]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_resume_is_bit_equal(estimator, tmp_path):
    average = {"average": Average(Power(1.0, 1.0), pull=0.5)}
    whole = run(make(estimator, **average), START, Stop(iterations=60), every=10)
    file = tmp_path / "c"
    for iterations in (13, 37, 60):
        part = run(
            make(estimator, **average), START, Stop(iterations=iterations), every=10, checkpoint=file, resume=True
        )
    assert leaves(part.state) == leaves(whole.state)
    assert part.history["k"][-1] == 60


SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from test_checkpoint import START, make
from smadmm import Stop, run
run(make(), START, Stop(iterations=12000), every=500, checkpoint={file!r}, checkpoint_iterations=20, resume=True)
"""


@pytest.mark.command
def test_kill_dash_nine_twenty_times(tmp_path):
    """Killed at random moments and resumed, the end is that of the run never stopped."""
    file = tmp_path / "c"
    script = SCRIPT.format(tests=str(Path(__file__).parent), file=str(file))
    quick = "forkserver" in multiprocessing.get_all_start_methods()  # processes that have imported all they need
    context = multiprocessing.get_context("forkserver" if quick else "spawn")
    context.set_forkserver_preload(["pytest", "smadmm"])
    moments, kills = random.Random(0), 0
    while kills < 20:
        process = context.Process(target=exec, args=(script,))
        process.start()
        before = file.stat().st_mtime_ns if file.exists() else 0
        while process.is_alive() and (file.stat().st_mtime_ns if file.exists() else 0) == before:
            time.sleep(0.001)  # it has written at least once more
        time.sleep(moments.random() * 0.05)
        assert process.is_alive(), "the run ended before it was killed 20 times; make it longer"
        process.kill()
        process.join()
        kills += 1
        load(file)  # never half written
    assert load(file)[0].k < 12000
    subprocess.run([sys.executable, "-c", script], check=True)
    whole = run(make(), START, Stop(iterations=12000), every=500)
    assert leaves(load(file)[0]) == leaves(whole.state)
    leftover = [name for name in os.listdir(tmp_path) if name != "c"]
    assert all(name.startswith(".c.") for name in leftover)  # at most temporary files of killed writers


@pytest.fixture
def written(tmp_path):
    solver = make()
    state = solver.step(solver.init(START))
    save(tmp_path / "c", state, describe(solver), {"note": 1.5})
    return tmp_path / "c", state, describe(solver)


def test_round_trip(written):
    file, state, settings = written
    again, extra = load(file, settings)
    assert leaves(again) == leaves(state) and extra == {"note": 1.5}


def test_every_digit_of_a_number_survives(written):
    file, state, settings = written
    numbers = (0.1 + 0.2, 1 / 3, 5e-324, float("inf"))
    state = dataclasses.replace(state, mean=Mean(state.x, state.lam, 2 / 3), stepsize=StepSize(*numbers, state.x))
    save(file, state, settings)
    assert leaves(load(file)[0]) == leaves(state)


def test_every_truncation_is_refused(written):
    file, _, settings = written
    data = file.read_bytes()
    for length in [*range(0, 400), *range(400, len(data), 97), len(data) - 1]:
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="damaged|cut short"):
            load(file, settings)
    file.write_bytes(data + b"x")
    with pytest.raises(CheckpointError, match="padded"):
        load(file, settings)


def test_every_flipped_bit_is_refused(written):
    file, _, settings = written
    data = file.read_bytes()
    positions = [*range(checkpoints.HEADER.size * 8), *range(checkpoints.HEADER.size * 8, len(data) * 8, 211)]
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load(file, settings)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not ours", os.urandom(5000)])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a checkpoint of smadmm"):
        load(tmp_path / "c")


OTHERS = {
    "seed": (lambda: make(seed=1), r"solver.seed was 0, now it is 1"),
    "rho": (lambda: make(rho=0.2), r"solver.rho.c was 0.1, now it is 0.2"),
    "penalty": (lambda: make(weight=0.02), r"weight was 0.01, now it is 0.02"),
    "estimator": (lambda: make(SGD(5)), "solver.estimator"),
    "momentum": (lambda: make(Storm(5, Power(0.4, -2 / 3), first=12)), r"a.c was 0.5, now it is 0.4"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_are_refused_by_name(written, name):
    file, _, _ = written
    other, message = OTHERS[name]
    with pytest.raises(CheckpointError, match=f"from other settings: .*{message}"):
        run(other(), START, Stop(iterations=5), checkpoint=file, resume=True)


def test_other_data_are_refused(written):
    file, _, _ = written
    solver = make()
    solver.problem.f.b[3] *= -1
    with pytest.raises(CheckpointError, match=r"problem.f.b was tensor \(80,\)"):
        load(file, describe(solver))


def test_functions_count_as_settings():
    one, two = (describe(make(Storm(5, a))) for a in (lambda k: 1 / k, lambda k: 0.5 / k))
    assert one != two
    assert describe(make(Storm(5, lambda k: 1 / k))) == one

    def over(scale):
        return lambda k: scale / k

    assert describe(make(Storm(5, over(1)))) != describe(make(Storm(5, over(2))))


def test_full_disk_leaves_the_old_checkpoint_and_nothing_else(written, monkeypatch):
    file, _, settings = written
    before = file.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(file, make().init(START), settings)
    assert file.read_bytes() == before and os.listdir(file.parent) == ["c"]


def test_resume_without_a_file_starts_anew_and_without_a_path_is_refused(tmp_path):
    assert run(make(), START, Stop(iterations=3), checkpoint=tmp_path / "c", resume=True).state.k == 3
    with pytest.raises(ValueError, match="needs a checkpoint file"):
        run(make(), START, Stop(iterations=3), resume=True)


def test_nothing_in_the_package_unpickles():
    """No pickle, no torch.load, no np.load that would allow objects; joblib and shelve neither."""
    words = ("pickle", "torch.load", "joblib", "shelve", "dill", "marshal", "eval(", "exec(")
    for file in Path(smadmm.__file__).parent.rglob("*.py"):
        text = file.read_text().replace("allow_pickle=False", "")
        for harmless in ("unpickle", ".eval()", "with joblib.dump"):
            text = text.replace(harmless, "")  # advice
        assert not [word for word in words if re.search(rf"(?<![A-Za-z]){re.escape(word)}", text)], file
        assert text.count("np.load(") == file.read_text().count("np.load(")
        for line in file.read_text().splitlines():
            assert "np.load(" not in line or "allow_pickle=False" in line, (file, line)


def test_reading_never_imports_pickle(written, monkeypatch):
    file, _, settings = written
    original = builtins.__import__

    def guarded(name, *rest):
        assert name not in ("pickle", "_pickle"), "the reader asked for pickle"
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert load(file, settings)[0].k == 1


@dataclasses.dataclass(frozen=True)
class Counted(smadmm.Estimate):
    """A user's own estimate, with a number and a tensor of its own."""

    calls: int
    memory: torch.Tensor


class Own(smadmm.Estimator):
    def init(self, f, x, rng):
        e = SGD(3).init(f, x, rng)
        return Counted(e.v, x, e.sfo, 0, x)

    def update(self, f, e, x, k, rng):
        new = SGD(3).update(f, e, x, k, rng)
        return Counted(new.v, x, new.sfo, e.calls + 1, e.memory + new.v)


def test_a_users_own_estimator_resumes_too(tmp_path):
    whole = run(make(Own()), START, Stop(iterations=20))
    for iterations in (7, 20):
        part = run(make(Own()), START, Stop(iterations=iterations), checkpoint=tmp_path / "c", resume=True)
    assert leaves(part.state) == leaves(whole.state) and part.state.est.calls == 20


def test_rng_position_survives():
    solver = make()
    state = solver.step(solver.step(solver.init(START)))
    assert state.drawn == 12 + 2 * 5
    rng = Rng(0, 3, state.drawn)
    rng.take(5)
    assert solver.step(state).drawn == rng.drawn
