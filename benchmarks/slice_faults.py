"""Slices over workers where things die: the bits of every engine, and of runs whose workers were killed.

    python benchmarks/slice_faults.py [TRIALS [OUT]]                      processes; Dask, if distributed is installed
    mpiexec -n 3 python -m mpi4py.futures benchmarks/slice_faults.py mpi

A trial reconstructs a small volume by two processes and kills one of them (SIGKILL) at a random moment. Every image is
compared with that of one process; what differs, or does not end, is counted. OUT: a folder for faults-worker.json.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image
from smadmm.workers import Processes

SLICES, SIZE, VIEWS = 6, 96, 60
OPTIONS = {"size": SIZE, "angles": (0, 180)}


def volume_file(folder):
    volume = [simulated_sinogram(abdomen_image(SIZE, n), VIEWS, 45.0, n).numpy() for n in range(SLICES)]
    np.save(folder / "volume.npy", np.stack(volume))
    return np.load(folder / "volume.npy", mmap_mode="r")


def killed(volume, expected, seed, usual):
    """Whether a run whose worker is killed once has the right bits; `usual` is how long a run takes."""
    with Processes(2) as processes:
        for future in [processes.submit(time.sleep, 0.2) for _ in range(2)]:  # until both are there
            future.result()
        moment = random.Random(seed).uniform(0, 0.8 * usual)

        def kill():
            victim = random.Random(seed).choice(sorted(child.pid for child in multiprocessing.active_children()))
            os.kill(victim, signal.SIGKILL)

        timer = threading.Timer(moment, kill)
        timer.start()
        found = smadmm.reconstruct(volume, executor=processes, **OPTIONS).image
        timer.join()
    return np.array_equal(found, expected)


def over_dask(volume, expected):
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        return np.array_equal(smadmm.reconstruct(volume, executor=client.get_executor(), **OPTIONS).image, expected)


def over_mpi(volume, expected):
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as executor:
        return np.array_equal(smadmm.reconstruct(volume, executor=executor, **OPTIONS).image, expected)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        volume = volume_file(Path(folder))
        expected = smadmm.reconstruct(volume, **OPTIONS).image
        if sys.argv[1:] == ["mpi"]:
            print(f"MPI: {'equal' if over_mpi(volume, expected) else 'NOT EQUAL'}", flush=True)
            return
        begin, equal = time.perf_counter(), {}
        for workers in (1, 2, 3):
            found = smadmm.reconstruct(volume, executor=workers, **OPTIONS).image
            equal[f"processes: {workers}"] = np.array_equal(found, expected)
        usual = (time.perf_counter() - begin) / 4
        try:
            equal["Dask, 2 processes"] = over_dask(volume, expected)
        except ImportError:
            print("Dask: skipped, distributed is not installed", flush=True)
        print(*(f"{name}: {'equal' if same else 'NOT EQUAL'}" for name, same in equal.items()), sep="\n", flush=True)
        trials, right, longest = int(sys.argv[1]) if len(sys.argv) > 1 else 20, 0, 0.0
        for seed in range(trials):
            begin = time.monotonic()
            right += killed(volume, expected, seed, usual)
            longest = max(longest, time.monotonic() - begin)
        print(f"a worker killed at a random moment: {right} of {trials} ended with the right bits", flush=True)
    if len(sys.argv) > 2:
        told = {"passed": right, "trials": trials, "longest": longest, "load": os.getloadavg()[0], "equal": equal}
        Path(sys.argv[2], "faults-worker.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
