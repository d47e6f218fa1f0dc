"""Slices over workers: the same bits from any executor, after any death, in any order; and who reads what."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_reconstruct import call, run_json

from smadmm import ADMM, SGD, Problem, Stop, reconstruct, tune
from smadmm.imaging import preconditioner
from smadmm.imaging.cost import expectation
from smadmm.imaging.priors import find_prior
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.imaging.slices import Scan
from smadmm.imaging.volumes import portable
from smadmm.io.files import read_arrays
from smadmm.io.images import Lazily
from smadmm.io.phantoms import abdomen_image
from smadmm.io.sinogram import read_sinogram
from smadmm.losses import Squared, Tomography
from smadmm.operators import Radon
from smadmm.proxes import L1
from smadmm.sampling import stride
from smadmm.workers import Processes, spread

h5py = pytest.importorskip("h5py")
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
SLICES = 4


@pytest.fixture(scope="module")
def volume():
    return np.stack([simulated_sinogram(abdomen_image(32, seed), 16, 40.0, seed).numpy() for seed in range(SLICES)])


@pytest.fixture(scope="module")
def whole(volume):
    return reconstruct(volume, size=32, iterations=6)


@pytest.fixture(scope="module")
def processes():
    with Processes(3) as three:
        yield three


def same(result, whole):
    np.testing.assert_array_equal(result.image, whole.image)
    np.testing.assert_array_equal(result.residual, whole.residual)
    np.testing.assert_array_equal(result.shown["FBP"], whole.shown["FBP"])
    times = ("seconds",)
    assert [{k: v for k, v in row.items() if k not in times} for row in result.slices] == [
        {k: v for k, v in row.items() if k not in times} for row in whole.slices
    ]


def source(volume, folder):
    """The volume as a file, in the words of a command."""
    np.save(folder / "v.npy", volume)
    return folder / "v.npy", "--angles", "0:180", "--axes", "slices,views,detectors"


# --- bits


@pytest.mark.slow
@pytest.mark.command
def test_processes_give_the_bits_of_one_process(volume, whole, processes, tmp_path):
    np.save(tmp_path / "v.npy", np.concatenate([volume, volume]))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["volume"] = volume
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")[SLICES:]
    with h5py.File(tmp_path / "v.h5", "r") as file:
        for source in (volume, torch.from_numpy(volume), mapped, file["volume"]):
            same(reconstruct(source, size=32, iterations=6, executor=processes), whole)


class Deadly:
    """A denoiser that kills the process it first meets, another one than that of the test."""

    sigma = 0.05

    def __init__(self, mark):
        self.mark, self.home = Path(mark), os.getpid()

    def __call__(self, x):
        if os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.9 * x


@pytest.mark.slow
@pytest.mark.command
@posix
def test_a_worker_that_is_killed_costs_its_slice_only(volume, processes, tmp_path):
    before = {child.pid for child in multiprocessing.active_children()}
    denoiser, options = Deadly(tmp_path / "killed"), {"size": 32, "iterations": 4, "raw": True, "center": 0.0}
    expected = reconstruct(volume, prior=denoiser, **options)
    found = reconstruct(volume, prior=denoiser, **options, executor=processes)
    np.testing.assert_array_equal(found.image, expected.image)
    assert denoiser.mark.exists()
    after = {child.pid for child in multiprocessing.active_children()}
    assert len(before & after) == len(before) - 1 and len(after) == len(before)  # the other one was left alone


def test_any_executor_will_do(volume, whole, tmp_path):
    with ThreadPoolExecutor(3) as threads:
        same(reconstruct(volume, size=32, iterations=6, executor=threads), whole)
        cut = reconstruct(volume, size=32, iterations=6, executor=threads, slices=(0, 2), checkpoint=tmp_path / "kept")
        np.testing.assert_array_equal(cut.image, whole.image[:2])
        same(reconstruct(volume, size=32, iterations=6, checkpoint=tmp_path / "kept", resume=True), whole)


class Failing:
    """A denoiser that fails in a worker, and leaves once what a worker leaves that is ended while it writes."""

    def __init__(self, folder):
        self.folder, self.mark = folder, folder.with_name("failed")

    def __call__(self, x):
        if threading.current_thread() is threading.main_thread():
            return x
        if not self.mark.exists():
            self.mark.touch()
            (self.folder / ".slice_0001.npz.0123456789abcdef").write_bytes(b"half")
        raise OSError("no space")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_what_ended_workers_left_is_removed(volume, tmp_path):
    folder, options = tmp_path / "kept", {"size": 32, "iterations": 4, "raw": True, "center": 0.0}
    with ThreadPoolExecutor(1) as threads, pytest.raises(OSError, match="no space"):
        reconstruct(volume, prior=Failing(folder), **options, executor=threads, checkpoint=folder)
    assert (tmp_path / "failed").exists() and folder.exists() and not list(folder.glob(".*"))


@pytest.mark.slow
@pytest.mark.command
def test_dask_gives_the_same_bits(volume, whole):
    """By workers that are processes of their own."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(reconstruct(volume, size=32, iterations=6, executor=client.get_executor()), whole)


# --- parts, and what is kept


def test_parts_of_a_volume_fit_together(volume, whole, tmp_path):
    command = [*source(volume, tmp_path), "--size", 32, "--iterations", 6, "--quiet", "--out", tmp_path / "out"]
    for part in ("2:4", "0:1"):
        code, said, error = call(*command, "--slices", part)
        assert code == 0 and "with --resume instead of --slices makes the result" in said, (said, error)
    kept = tmp_path / "out" / "unfinished"
    assert {p.name for p in kept.glob("slice*")} == {"slice_0000.npz", "slice_0002.npz", "slice_0003.npz"}
    assert not (tmp_path / "out" / "run.json").exists()
    code, said, error = call(*command, "--resume")
    assert code == 0, (said, error)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "image.npy"), whole.image)
    assert len(run_json(tmp_path / "out")["slices"]) == SLICES and not kept.exists()


def test_the_folder_keeps_what_the_result_needs(volume, tmp_path):
    options = {"size": 32, "iterations": 2, "checkpoint": tmp_path}
    reconstruct(volume, slices=(0, 1), **options)
    reconstruct(volume, **options, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "settings.json", "trial.npz", "image.npy", *(f"slice_{n:04d}.npz" for n in range(SLICES))}  # fmt: skip
    held = {n: set(read_arrays(tmp_path / f"slice_{n:04d}.npz")[0]) for n in range(SLICES)}
    assert held == {0: {"fbp", "residual"}, 1: set(), SLICES // 2: {"fbp", "residual"}, 3: set()}  # those shown
    again = reconstruct(volume, slices=(1, 3), **options)  # from the volume of another run
    np.testing.assert_array_equal(again.image, np.load(tmp_path / "image.npy")[1:3])
    alone = reconstruct(volume, slices=(3, 4), **options)  # of this one the run of the whole volume showed nothing
    assert list(alone.shown) == ["SMADMM"] and alone.residual is None
    assert len(alone.plot().axes) == 2


def test_a_run_for_all_slices_and_one_for_some_refuse_each_other(volume, tmp_path):
    from smadmm.io.files import locked

    refused = pytest.raises(ValueError, match="being written by another run")
    with locked(tmp_path, shared=True), locked(tmp_path, shared=True), refused:
        reconstruct(volume, checkpoint=tmp_path)
    with locked(tmp_path), pytest.raises(ValueError, match="being written by another run"):
        reconstruct(volume, checkpoint=tmp_path, slices=(0, 1))
    assert not list(tmp_path.iterdir())


def test_a_slice_is_read_once_to_be_checked_and_once_to_be_solved(volume):
    reads = []

    def read(number):
        reads.append(number)
        return volume[number]

    reconstruct(Lazily(volume.shape, read), size=32, iterations=1, raw=True, center=0.0)
    assert sorted(reads) == sorted([*range(SLICES), *set(range(SLICES)) - {SLICES // 2}])
    broken = volume.copy()
    broken[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="slice 3 has 1 values that are NaN"):
        reconstruct(broken, raw=True)
    assert reconstruct(broken, raw=True, center=0.0, iterations=1, slices=(0, 2)).image.shape[0] == 2


def test_what_depends_on_the_geometry_is_found_once(volume, monkeypatch):
    calls, true = [], preconditioner._power_iteration
    monkeypatch.setattr(preconditioner, "_power_iteration", lambda *a: calls.append(1) or true(*a))
    reconstruct(volume, size=32, iterations=1, raw=True, center=0.0)
    assert len(calls) == 1


def test_the_scale_for_all_weights_is_a_majorant(volume):
    radon = Radon(32, np.arange(16) * np.pi / 16, volume.shape[2])
    weights = torch.rand(radon.out_shape, generator=torch.Generator().manual_seed(0)) + 0.01
    s = preconditioner.scale_of_all_views(radon)
    for w, least in ((None, 0.95), (weights, 0.0)):
        loss = Tomography(radon, torch.from_numpy(volume[0]), w, sampling=stride)
        own = preconditioner.FourierStep(loss, 16).s
        assert least * s < own < 1.02 * s


def test_scans_and_maps_are_opened_again_elsewhere(volume, tmp_path):
    import pickle

    np.save(tmp_path / "v.npy", volume)
    scan = read_sinogram(tmp_path / "v.npy", "0:180", axes="slices,views,detectors").evenly(8)
    assert scan.reopens
    sent = pickle.dumps(scan)
    assert len(sent) < 2000
    np.testing.assert_array_equal(pickle.loads(sent)[1], scan[1])
    view = np.load(tmp_path / "v.npy", mmap_mode="r")[::-1, 3:, ::2]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(portable(view)))[1], view[1])
    np.savez(tmp_path / "v.npz", sinogram=volume, angles=np.arange(16.0))
    assert not read_sinogram(tmp_path / "v.npz", axes="slices,views,detectors").reopens  # is read whole
    assert portable(volume) is None


def test_a_large_volume_is_told_what_to_expect():
    radon = Radon(2048, np.arange(1500) * np.pi / 1500, 2048)
    scan = Scan(radon, 1.0, find_prior("none"), "smadmm", Stop(iterations=30))
    assert expectation(replace(scan, radon=Radon(64, np.arange(90.0), 64)), 10, 1) is None
    told = [expectation(scan, 2000, workers) for workers in (1, 8, None)]
    hours = [float(text.partition(" h")[0].split()[-1]) for text in told]
    assert hours[0] == pytest.approx(8 * hours[1], rel=0.05) and hours[0] == hours[2] and "together" in told[2]
    assert all(text.endswith("33.6 GB of images") for text in told)
    assert "about 5 min," in expectation(replace(scan, stop=Stop(seconds=30.0)), 10, 1)


# --- errors


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"executor": 0}, "executor must be at least 1 process, got 0"),
        ({"executor": "4"}, "executor is an Executor or a number of processes, got '4'"),
        ({"slices": (2, 9)}, "slices must be a part of 0:4, got 2:9"),
        ({"prior": lambda x: x, "executor": 2, "raw": True}, "prior cannot be sent to workers"),
    ],
)
def test_mistakes_are_one_sentence(volume, options, reason):
    with pytest.raises(ValueError, match=reason):
        reconstruct(volume, iterations=1, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--slices", "3"), "--slices is FIRST:END, such as 0:64, got '3'"),
        (("--workers", "2", "--dask", "tcp://x"), "--workers are processes of this machine, --dask has its own"),
    ],
)
def test_mistakes_in_a_command_are_one_sentence(volume, options, reason, tmp_path):
    code, _, error = call(*source(volume, tmp_path), "--out", tmp_path / "out", *options)
    assert code == 1 and reason in str(error)


# --- workers


class Recorded(Executor):
    """Does nothing until it is told: counts what is under way."""

    def __init__(self, error=None):
        self.futures, self.most, self.error = [], 0, error

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self.error is None:
            future.set_result(fn(*args, **kwargs))
        elif self.futures:
            future.set_exception(self.error)
        self.futures.append(future)
        return future


def test_at_most_so_many_tasks_are_under_way():
    made = []
    tasks = [lambda n=n: made.append(n) or (n,) for n in range(6)]
    results = spread(Recorded(), abs, tasks, ahead=2)
    assert next(results)[1] in (0, 1) and len(made) == 2
    assert len(list(results)) == 5 and made == list(range(6))


def test_what_fails_cancels_what_waits():
    executor = Recorded(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        list(spread(executor, abs, [lambda n=n: (n,) for n in range(3)]))
    assert executor.futures[0].cancelled()
    with pytest.raises(BrokenExecutor, match="Recorded with it .*; a number as executor replaces workers that die"):
        list(spread(Recorded(BrokenExecutor("it died")), abs, [lambda: (1,), lambda: (2,)]))


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.command
@posix
def test_processes_survive_what_kills_them_and_pass_errors_on(processes):
    with pytest.raises(BrokenExecutor, match="2 processes died of one task"):
        processes.submit(kill_me).result(timeout=600)
    with pytest.raises(ZeroDivisionError):
        processes.submit(divmod, 1, 0).result(timeout=600)
    assert processes.submit(pow, 2, 5).result(timeout=600) == 32


@pytest.mark.slow
@pytest.mark.command
def test_tuning_over_processes_finds_the_same_scores(processes):
    problem = Problem(Squared(torch.eye(3), torch.ones(3)), L1(0.1))

    def make(problem, seed, eta):
        return ADMM(problem, SGD(1), rho=1.0, eta=eta, seed=seed)

    grid = {"eta": [0.1, 3.0, 9.0]}
    assert tune(make, grid, problem, 60, executor=processes) == tune(make, grid, problem, 60)


@posix
@pytest.mark.slow
@pytest.mark.command
def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, signal\n"
        "from smadmm.workers import Processes\n"
        "if __name__ == '__main__':\n"
        "    two = Processes(1)\n"
        "    print(two.submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    worker, deadline = int(done.stdout), time.monotonic() + 120
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the worker goes on"
        time.sleep(0.1)
