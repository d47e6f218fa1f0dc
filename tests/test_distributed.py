"""One problem on several ranks: the run of one process up to rounding, checkpoints that know no ranks, and faults."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import smadmm
from smadmm.distributed import place, sharded
from smadmm.losses import Logistic, Stream

ranks = pytest.importorskip("ranks")  # it needs SciPy and weights
SCRIPT = Path(__file__).parent / "ranks.py"
pytestmark = pytest.mark.slow


def spawn(world, cases, out, timeout="30"):
    """The cases on so many ranks, without torchrun, which would take a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    env |= {"SMADMM_TIMEOUT": timeout, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(SCRIPT), cases, str(out)]
    started = [
        subprocess.Popen(
            command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    ends = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0] * world, "\n".join(err for _, err in ends)
    assert not any(out + err for out, err in ends)
    return dict(np.load(out))


@pytest.fixture(scope="module")
def alone():
    """All cases in this process."""
    return {name: np.asarray(x) for case in (ranks.glms, ranks.images) for name, x in case()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The cases on 2 ranks, and the folder of what else they left."""
    folder = tmp_path_factory.mktemp("two")
    return spawn(2, "glms,images,leg,long", folder / "out.npz"), folder


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    return spawn(3, "glms,images,stops", folder / "out.npz"), folder


@pytest.mark.command
@pytest.mark.parametrize("world", ["two", "three"])
def test_several_ranks_are_one_up_to_rounding(alone, world, request):
    found, _ = request.getfixturevalue(world)
    for name, expected in alone.items():
        if "same bits" in name:
            assert np.array_equal(found[name], expected), name
            continue
        limit = 1e-5 if name.startswith("single") else 1e-12
        assert np.abs(found[name] - expected).max() <= limit * np.abs(expected).max(), name


@pytest.mark.command
def test_what_stops_one_rank_stops_all(three):
    first, middle, last = (json.loads((three[1] / f"out.{rank}.json").read_text()) for rank in range(3))
    assert last["callback"] == [17, "CALLBACK"] and first["callback"] == middle["callback"] == [17, "OTHER_RANK"]
    k = last["seconds"][0]
    assert last["seconds"] == [k, "SECONDS"] and first["seconds"] == middle["seconds"] == [k, "OTHER_RANK"]
    assert first["signal"] == middle["signal"] == last["signal"] == [9, "INTERRUPTED"]
    assert "exists; go on with it by resume=True" in first["refused"]
    assert middle["refused"] == last["refused"] == f"rank 0 stopped: {first['refused']}"
    for told in (first, middle, last):
        assert "the ranks have drifted apart by iteration 0: start all with the same settings" in told["drift"]


@pytest.mark.command
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_run_goes_on_with_other_ranks_also_when_one_is_killed(two):
    """Checkpoints of 2 -> 1 -> 2 ranks, of shards, too; then a rank is killed with -9, and torchrun starts all again.

    They find each other and end with the bits of an undisturbed run.
    """
    undisturbed, folder = two
    assert [smadmm.checkpoint.load(folder / f"leg-{own}")[0].k for own in (False, True)] == [10, 10]
    assert len(dict(ranks.leg(folder / "out.npz", 20))) == 2  # in this process
    out = folder / "again.npz"
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1"]
    env = os.environ | {"SMADMM_TIMEOUT": "30", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPT), "leg30,long", str(out)]
    running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pid, checkpoint = out.with_suffix(".pid1"), out.with_suffix(".long")
    deadline = time.monotonic() + 300
    while not (pid.exists() and checkpoint.exists() and smadmm.checkpoint.load(checkpoint)[0].k >= 20):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    _, told = running.communicate(timeout=300)
    assert running.returncode == 0, told
    found = np.load(out)
    assert np.array_equal(found["long"], undisturbed["long"])
    start, stop = torch.zeros(7).double(), smadmm.Stop(iterations=30)
    expected = smadmm.run(ranks.solver_of(), start, stop, progress=False).x.numpy()
    for own in (False, True):
        assert np.abs(found[f"leg {own}"] - expected).max() < 1e-12


@pytest.mark.command
def test_a_cut_cable_ends_both_ranks(tmp_path):
    """Two hosts, which are network namespaces; the state is kept, and one rank alone goes on to the right answer."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root can make network namespaces, by ip")
    out, hosts = tmp_path / "out.npz", {f"smadmm-{os.getpid()}-{rank}": f"10.78.0.{rank + 1}" for rank in range(2)}
    if subprocess.run(["ip", "netns", "add", next(iter(hosts))], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    a, b = hosts
    ip = lambda *words: subprocess.run(["ip", *words], check=True)  # noqa: E731
    running = []
    try:
        ip("netns", "add", b)
        ip("link", "add", "smadmm0", "netns", a, "type", "veth", "peer", "name", "smadmm0", "netns", b)
        for name, address in hosts.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "smadmm0")
            ip("-n", name, "link", "set", "smadmm0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        env = os.environ | {"MASTER_ADDR": hosts[a], "MASTER_PORT": "29578", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        env |= {"SMADMM_TIMEOUT": "8", "GLOO_SOCKET_IFNAME": "smadmm0"}
        for rank, name in enumerate(hosts):
            command = ["ip", "netns", "exec", name, sys.executable, str(SCRIPT), "long", str(out)]
            running.append(subprocess.Popen(command, env=env | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True))
        checkpoint, deadline = out.with_suffix(".long"), time.monotonic() + 300
        while not (checkpoint.exists() and smadmm.checkpoint.load(checkpoint)[0].k >= 20):
            assert time.monotonic() < deadline and all(process.poll() is None for process in running)
            time.sleep(0.02)
        ip("-n", a, "link", "set", "smadmm0", "down")
        for process in running:
            assert (
                "another rank ended, or did not answer within 8 s (SMADMM_TIMEOUT)"
                in process.communicate(timeout=300)[1]
            )
            assert process.returncode != 0
    finally:
        for process in running:
            process.kill()
            process.communicate()
        for name in hosts:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    start, stop = torch.zeros(7).double(), smadmm.Stop(iterations=100)
    resumed = smadmm.run(ranks.solver_of(), start, stop, checkpoint=checkpoint, resume=True, progress=False)
    whole = smadmm.run(ranks.solver_of(), start, stop, progress=False)
    assert float((resumed.x - whole.x).abs().max()) < 1e-12


# --- one process


def test_one_process_gets_back_what_it_gave():
    f = Logistic(torch.eye(3), [1, -1, 1])
    denoiser = torch.nn.Identity()
    assert sharded(f) is f and sharded(denoiser) is denoiser and place() == (0, 1)
    own = sharded(f, own=True)
    x, batch = torch.ones(3), torch.tensor([2, 0])
    assert torch.equal(own.gradient((x,), (1.0,), batch), f.gradient((x,), (1.0,), batch))
    assert own.n == 3 and own.lipschitz() == f.lipschitz() and torch.equal(own.matrix, torch.eye(3))


@pytest.mark.parametrize(
    ("part", "options", "told"),
    [
        (Stream(lambda x, batch: x.sum(), []), {}, "Stream is a stream, which is not shared out"),
        (3, {}, "a loss or a denoiser can be shared out, got int"),
        (torch.nn.Identity(), {"own": True}, "own=True is for losses"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(part, options, told):
    with pytest.raises((TypeError, ValueError), match=told):
        sharded(part, **options)


def test_the_timeout_is_a_number_of_seconds(monkeypatch):
    monkeypatch.setenv("SMADMM_TIMEOUT", "soon")
    with pytest.raises(
        ValueError, match="SMADMM_TIMEOUT is the seconds to wait for another rank, such as 60, got 'soon'"
    ):
        smadmm.distributed._timeout()


def test_a_denoiser_that_does_not_say_how_far_it_looks_is_refused():
    with pytest.raises(ValueError, match="Identity does not say how far it looks around a pixel; give reach=PIXELS"):
        smadmm.distributed._reach(torch.nn.Identity(), None)
