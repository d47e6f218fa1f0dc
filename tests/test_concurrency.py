"""The same bits in threads, forks, new processes and joblib, beside other runs; and no memory that grows."""

import gc
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import smadmm
from smadmm import ADMM, Problem, Stop, Storm, run
from smadmm.bars import tqdm
from smadmm.losses import Logistic
from smadmm.proxes import L1


def solved(seed):
    """A small run, and a small reconstruction where numba is installed, as a text of their bits."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(200, 8, generator=g)
    problem = Problem(Logistic(X, torch.sign(X[:, 0] + 0.1)), L1(0.01))
    result = run(ADMM(problem, Storm(4, 0.3, 16), rho=0.1, eta=1.0, seed=seed), torch.zeros(8), Stop(iterations=150),
                 progress=False)  # fmt: skip
    sinogram = torch.rand(12, 23, generator=g).numpy()
    image = smadmm.reconstruct(sinogram, np.arange(12) * 15.0, iterations=4, prior="ridge-ct", batch=3, raw=True,
                               seed=seed, progress=False).image  # fmt: skip
    parts = [result.x.numpy(), result.state.est.v.numpy(), np.asarray(image)]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


SEEDS = (0, 1, 2, 3)


@pytest.mark.slow
def test_two_threads_give_the_bits_of_one():
    pytest.importorskip("safetensors")
    alone = [solved(seed) for seed in SEEDS]
    assert len(set(alone)) == len(SEEDS)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(solved, SEEDS * 2)) == alone * 2


@pytest.mark.slow
@pytest.mark.command
@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # xdist has threads
def test_other_processes_give_the_same_bits(way):
    pytest.importorskip("safetensors")
    if way not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {way}")
    with multiprocessing.get_context(way).Pool(1) as pool:
        assert pool.map(solved, SEEDS[:2]) == [solved(seed) for seed in SEEDS[:2]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_bar_does_not_hang_in_a_process_forked_while_its_lock_was_held():
    def held(lock, taken, over):
        with lock:
            taken.set()
            over.wait()

    taken, over = threading.Event(), threading.Event()
    holder = threading.Thread(target=held, args=(tqdm.get_lock(), taken, over))
    holder.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that hangs
        with tqdm(disable=True):
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    over.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
@pytest.mark.command
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_joblib_gives_the_same_bits():
    joblib = pytest.importorskip("joblib")
    pytest.importorskip("safetensors")
    with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
        found = joblib.Parallel()(joblib.delayed(solved)(seed) for seed in SEEDS[:2])
    assert found == [solved(seed) for seed in SEEDS[:2]]


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def long_run(iterations):
    """Memory after a tenth of the iterations, and at the end."""
    X = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    problem = Problem(Logistic(X, torch.sign(X[:, 0])), L1(0.01))
    seen = []

    def look(s):
        if s.k in (1, iterations // 10, iterations):  # the first time for the list of objects, which is large itself
            gc.collect()
            seen.append((resident(), len(gc.get_objects())))

    run(ADMM(problem, Storm(2, 0.3, 8), rho=0.1, eta=1.0), torch.zeros(5), Stop(iterations=iterations),
        every=iterations // 10, callback=look, progress=False)  # fmt: skip
    return seen[1:]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_iterations_leave_nothing_in_memory():
    long_run(200)
    (before, objects), (after, later) = long_run(4000)
    assert later - objects < 100 and after - before < 2**22  # of which the list of objects makes some


if __name__ == "__main__":  # make torture
    count = int(sys.argv[1])
    (before, objects), (after, later) = long_run(count)
    print(f"| {count} iterations, from a tenth on: bytes more | {after - before} |")
    print(f"| objects more | {later - objects} |")
    sys.exit(after - before > 2**24)
