"""Faults of ranks, many times: `make faults` (tests/test_distributed.py has one of each that needs no root).

    python tests/faults.py kill 20      rank 0 or 1 is killed (-9) at a random moment; torchrun starts all again
    python tests/faults.py cable 5      the cable between two network namespaces is cut for a while; needs root

A trial is passed if the run ends by itself with the bits of an undisturbed run of two ranks.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import smadmm.checkpoint

SCRIPT = Path(__file__).parent / "ranks.py"
TIMEOUT, CUT = 4, 9  # seconds: of ranks, and for how long a cable is cut
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=3", "--monitor-interval=0.1"]
HERE = ["--standalone", "--nproc-per-node=2"]
ENV = os.environ | {"SMADMM_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1"}


def started(options, out, prefix=(), env=ENV):
    command = [*prefix, *TORCHRUN, *options, str(SCRIPT), "long", str(out)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def until(out, k, running, seconds=120):
    """Wait for the checkpoint of iteration k."""
    checkpoint, deadline = out.with_suffix(".long"), time.monotonic() + seconds
    while not (checkpoint.exists() and smadmm.checkpoint.load(checkpoint)[0].k >= k):
        if time.monotonic() > deadline or any(process.poll() is not None for process in running):
            for process in running:
                process.terminate()
            raise RuntimeError("\n".join(process.communicate()[1] for process in running))
        time.sleep(0.05)


def ended(running, out, expected):
    """Whether all ended well, with the right bits."""
    told = [process.communicate(timeout=300)[1] for process in running]
    good = all(process.returncode == 0 for process in running) and np.array_equal(np.load(out)["long"], expected)
    if not good:
        print([process.returncode for process in running], *told, sep="\n")
    return good


def killed(folder, expected, rng):
    out = folder / "out.npz"
    running = [started(HERE, out)]
    until(out, rng.choice([20, 40, 60, 80]), running)
    time.sleep(rng.random() * 0.3)
    os.kill(int(out.with_suffix(f".pid{rng.randrange(2)}").read_text()), signal.SIGKILL)
    return ended(running, out, expected)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def cable(folder, expected, rng):
    """Ranks on two hosts, A and B, which are namespaces joined by a pair of virtual devices."""
    a, b, out = "smadmm-a", "smadmm-b", folder / "out.npz"
    for name in (a, b):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        ip("netns", "add", name)
    try:
        ip("link", "add", "smadmm0", "netns", a, "type", "veth", "peer", "name", "smadmm0", "netns", b)
        for name, address in ((a, "10.77.0.1/24"), (b, "10.77.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", "smadmm0")
            for device in ("smadmm0", "lo"):
                ip("-n", name, "link", "set", device, "up")
        join = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29577"]
        env = ENV | {"GLOO_SOCKET_IFNAME": "smadmm0", "TP_SOCKET_IFNAME": "smadmm0"}
        own = {a: ["--local-addr=10.77.0.1", "--rdzv-conf=is_host=true"],
               b: ["--local-addr=10.77.0.2", "--rdzv-conf=is_host=false"]}  # fmt: skip
        running = [started([*join, *own[name]], out, ["ip", "netns", "exec", name], env) for name in (a, b)]
        until(out, rng.choice([20, 40, 60]), running)
        ip("-n", a, "link", "set", "smadmm0", "down")
        time.sleep(CUT)
        ip("-n", a, "link", "set", "smadmm0", "up")
        return ended(running, out, expected)
    finally:
        for name in (a, b):
            subprocess.run(["ip", "netns", "del", name])


def main(fault, trials, results=None):
    if fault == "cable" and (os.name != "posix" or os.geteuid() != 0):
        print("skipped: only root can make network namespaces")
        return 0
    with tempfile.TemporaryDirectory() as name:
        calm = Path(name) / "calm.npz"
        process = started(HERE, calm)
        _, told = process.communicate(timeout=300)
        assert process.returncode == 0, told
        expected, good, seconds = np.load(calm)["long"], 0, []
        for trial in range(trials):
            folder, begin = Path(name) / str(trial), time.monotonic()
            folder.mkdir()
            good += (killed if fault == "kill" else cable)(folder, expected, random.Random(trial))
            seconds.append(time.monotonic() - begin)
            print(
                f"{fault}: {good} of {trial + 1} ended with the right bits, the last in {seconds[-1]:.0f} s", flush=True
            )
    if results:
        told = {"passed": good, "trials": trials, "longest": max(seconds), "load": os.getloadavg()[0]}
        (Path(results) / f"faults-{fault}.json").write_text(json.dumps(told, indent=1) + "\n")
        (Path(results) / "faults.md").write_text(table(Path(results)))
    return int(good < trials)


def table(results):
    """What was stored there, with that of benchmarks/slice_faults.py."""
    lines = [
        "| fault | trials | ended by itself with the right bits | longest trial (s) | load |",
        "|---|--:|--:|--:|--:|",
    ]
    for fault, words in {
        "worker": "a worker is killed",
        "kill": "a rank is killed, the first or the second",
        "cable": "a cable is cut",
    }.items():
        if (file := results / f"faults-{fault}.json").exists():
            found = json.loads(file.read_text())
            lines.append(
                f"| {words} | {found['trials']} | {found['passed']} | {found['longest']:.0f} | {found['load']:.0f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4]))
