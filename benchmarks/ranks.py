"""One problem on two ranks against one process: CT at 512 x 512 with 720 views, and a dense GLM with a million rows.

    python benchmarks/ranks.py [OUT]        all cases, one process and two ranks in turn; OUT: for ranks.json, ranks.md

Four figures for each case. `wall` is the ratio of the times per iteration, which means something on a machine with two
idle cores only. `work` is the ratio of CPU times, of one process to the busier of two ranks without its waiting for
the other: what sharing out can gain at most. `ceiling` is what the machine can give: two processes that know nothing of
each other do the whole work each, and twice the time of one alone is divided by theirs; it is below 2 where cores share
memory and clock. `sum` is what one sum of 100 numbers over both ranks takes between five milliseconds of other work:
an iteration has one. `alone` compares one process that calls `sharded` with one that does not.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from smadmm import ADMM, Power, Problem, Storm
from smadmm import distributed as ranks
from smadmm.denoisers import load
from smadmm.distributed import place, sharded
from smadmm.imaging.preconditioner import FourierStep
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import Logistic, Tomography
from smadmm.operators import Radon
from smadmm.proxes import L1, Denoised
from smadmm.sampling import stride

CASES = {"ct-all": 8, "ct-180": 16, "glm": 48}  # timed iterations
ROUNDS = 5


def tomography(batch, share):
    radon = Radon(512, np.arange(720) * np.pi / 720)
    image = torch.as_tensor(abdomen_image(512), dtype=torch.float32)
    loss = share(Tomography(radon, radon(image), sampling=stride))
    prior = Denoised(share(load("ridge-ct")), image=True)
    x_step = FourierStep(loss, batch, s=1.5)
    return ADMM(Problem(loss, prior), Storm(batch, Power(1.0, -2 / 3)), rho=0.01, eta=1.0, x_step=x_step), image


def glm(share):
    X = torch.randn(1_000_000, 100, generator=torch.Generator().manual_seed(0))
    y = torch.sign(X[:, 0] + 0.1)
    problem = Problem(share(Logistic(X, y)), L1(1e-4))
    return ADMM(problem, Storm(65_536, Power(1.0, -2 / 3)), rho=1.0, eta=4.0), torch.zeros(100)


def solver(case, share=sharded):
    return glm(share) if case == "glm" else tomography(720 if case == "ct-all" else 180, share)


def measure(case):
    """Wall and CPU time per iteration of this rank, without waiting for others in the latter, and that of a sum."""
    waited, together = [0.0], ranks._together

    def stopwatch(*arguments):
        begin = time.process_time()
        together(*arguments)
        waited[0] += time.process_time() - begin

    ranks._together = stopwatch
    admm, x = solver(case)
    state = admm.step(admm.init(x))
    waited[0], wall, cpu = 0.0, time.perf_counter(), time.process_time()
    for _ in range(CASES[case]):
        state = admm.step(state)
    seconds = np.array([time.perf_counter() - wall, time.process_time() - cpu - waited[0]]) / CASES[case]
    return [*seconds.tolist(), sum_over_ranks()]


def sum_over_ranks(times=100, pause=0.005):
    """The mean wall time of a small sum between ranks that are busy."""
    numbers, seconds = torch.zeros(100), 0.0
    for _ in range(times):
        end = time.perf_counter() + pause
        while time.perf_counter() < end:
            pass
        begin = time.perf_counter()
        ranks.total(numbers)
        seconds += time.perf_counter() - begin
    return seconds / times


def started(case, world, apart=False):
    """The times of every rank, or of as many processes that know nothing of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(1 if apart else world),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--rank", case]
    going = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    return [json.loads(process.communicate()[0]) for process in going]


def alone(case="glm", rounds=7):
    """One process with `sharded` against one without, by turns; the median ratio of CPU times."""
    plain, shared = solver(case, lambda part: part), solver(case)
    states = [admm.step(admm.init(x)) for admm, x in (plain, shared)]
    ratios = []
    for _ in range(rounds):
        times = []
        for number, (admm, _) in enumerate((plain, shared)):
            begin = time.process_time()
            states[number] = admm.step(states[number])
            times.append(time.process_time() - begin)
        ratios.append(times[1] / times[0])
    return statistics.median(ratios)


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    found = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "cases": {}}
    for case in CASES:
        rounds = [(started(case, 1)[0], started(case, 2), started(case, 2, apart=True)) for _ in range(ROUNDS)]
        ratios = {
            "wall": [one[0] / max(two[0][0], two[1][0]) for one, two, _ in rounds],
            "work": [one[1] / max(two[0][1], two[1][1]) for one, two, _ in rounds],
            "ceiling": [2 * one[0] / max(both[0][0], both[1][0]) for one, _, both in rounds],
            "sum": [two[0][2] for _, two, _ in rounds],
            "seconds": [one[1] for one, _, _ in rounds],
        }
        median = found["cases"][case] = {name: statistics.median(values) for name, values in ratios.items()}
        print(
            f"{case:7s} two ranks: {median['wall']:.2f} x by the clock, {median['work']:.2f} x in work; "
            f"the machine gives {median['ceiling']:.2f} x; a sum takes {1000 * median['sum']:.1f} ms",
            flush=True,
        )
    found["alone"] = alone()
    found["load_after"] = os.getloadavg()[0]
    print(
        f"one process with sharded: {found['alone']:.3f} of the time without; load {found['load_before']:.1f} of others"
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "ranks.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / "ranks.md").write_text(table(found))


def table(found):
    lines = [
        "| case | two ranks, by the clock | by work | two processes apart | one process, ms | a sum, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, case in found["cases"].items():
        ratios = " | ".join(f"{case[key]:.2f}" for key in ("wall", "work", "ceiling"))
        lines.append(f"| {name} | {ratios} | {1000 * case['seconds']:.0f} | {1000 * case['sum']:.1f} |")
    alone = f"One process with `sharded` takes {found['alone']:.3f} of the time without."
    return "\n".join([*lines, "", f"{alone} Load before: {found['load_before']:.1f}."]) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--rank"]:
        told = measure(sys.argv[2])
        print(json.dumps(told), flush=True)
        assert place()[1] == int(os.environ["WORLD_SIZE"])
    else:
        main()
