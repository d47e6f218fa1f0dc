"""What test_distributed.py runs in one process and under torchrun: python ranks.py CASES OUT ARGUMENTS."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from smadmm import ADMM, SAGA, SGD, SVRG, Power, Problem, Spider, Stop, Storm, auto, certify, reconstruct, retrieve, run
from smadmm.denoisers import load
from smadmm.distributed import join, place, sharded
from smadmm.estimators import ASVRG, Measured
from smadmm.imaging.preconditioner import FourierStep
from smadmm.losses import AmplitudeLoss, LeastSquares, Logistic, Sigmoid, Tomography
from smadmm.operators import CodedDiffraction, EdgeDifferences, Ptychography, Radon, circle_masks
from smadmm.proxes import L1, Denoised
from smadmm.sampling import reshuffled, stride

N, D = 101, 7
CHAIN = EdgeDifferences([(i, i + 1) for i in range(D - 1)], D)
ESTIMATORS = {
    "sgd": SGD(10),
    "storm": Storm(10, Power(1.0, -2 / 3), 20),
    "spider": Spider(10, 5),
    "svrg": SVRG(10, 5),
    "saga": SAGA(10),
    "asvrg": ASVRG(10, 5),
    "measured": Measured(10),
    "one sample": SGD(1),
}


def data(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = torch.sign(X[:, 0] + 0.5 * torch.randn(N, generator=g, dtype=torch.float64))
    return X.to(dtype), y.to(dtype)


def shard(X, y):
    """The rows of this rank, of unequal number."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    ends = [0, *(N * r // (world + 1) for r in range(1, world)), N]
    return X[ends[rank] : ends[rank + 1]], y[ends[rank] : ends[rank + 1]]


def glm(f, estimator, **options):
    solver = ADMM(Problem(f, L1(0.01), CHAIN), estimator, rho=1.0, eta=8.0, seed=3)
    start = torch.zeros(D, dtype=f.dtype)
    return run(solver, start, Stop(iterations=12), every=6, certify=True, progress=False, **options)


def history(result):
    return np.array([result.history[name] for name in ("objective", "certificate")])


def glms():
    X, y = data()
    for name, estimator in ESTIMATORS.items():
        for kind, f in (
            ("all", sharded(Sigmoid(X, y, sampling=reshuffled))),
            ("own", sharded(Sigmoid(*shard(X, y), sampling=reshuffled), own=True)),
        ):
            result = glm(f, estimator)
            yield f"{kind} {name}", result.x
            yield f"history {kind} {name}", history(result)
    sparse = Logistic(csr_array(X.numpy()), y, sample_weight=1 + X[:, 1].abs())
    yield "sparse", glm(sharded(sparse), SGD(10)).x
    problem = Problem(sharded(Logistic(X, y)), L1(0.01), CHAIN)
    result = run(auto(problem, 2000).solver(), torch.zeros(D).double(), Stop(sfo=2000), progress=False)
    yield "auto", result.x
    yield "certificate", torch.tensor(certify(problem, result.state).total)
    own = sharded(LeastSquares(*shard(X, y)), own=True)
    assert own.lipschitz() >= LeastSquares(X, y).lipschitz() * (1 - 1e-9)
    yield "own least squares", glm(own, Storm(10, 0.3)).x
    yield "single 32", glm(sharded(Logistic(*data(torch.float32))), Storm(10, 0.3)).x


def phantom(size):
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    return 0.5 * ((rows**2 + columns**2) < 0.6).float() + 0.3 * ((rows - 0.2) ** 2 + columns**2 < 0.1).float()


def images():
    x = phantom(45)
    D = load("ridge-ct")
    yield "strips, same bits", sharded(D)(x[None, None])
    yield "strips at another level, same bits", sharded(D)(x[None, None], 0.05)
    thin = sharded(D)(x[None, None, 20:22])  # fewer rows than ranks
    yield "thin strips, same bits", thin
    net = torch.nn.Conv2d(1, 1, 5, padding=2, bias=False)
    torch.nn.init.constant_(net.weight, 0.04)
    yield "own network in strips", sharded(net, reach=2)(x[None, None]).detach()
    radon = Radon(45, np.arange(24) * np.pi / 24)
    loss = sharded(Tomography(radon, radon(x) + 0.1, sampling=stride))
    solver = ADMM(Problem(loss, Denoised(sharded(D), image=True)), Storm(8, Power(1.0, -2 / 3)), rho=0.05, eta=1.0,
                  x_step=FourierStep(loss, 8))  # fmt: skip
    result = run(solver, torch.zeros(45, 45), Stop(iterations=15), every=5, certify=True, progress=False)
    yield "single ct", result.x
    yield "single reconstruct", reconstruct((radon(x) + 0.1)[None], raw=True, size=45, iterations=4).image
    masks = torch.exp(2j * np.pi * torch.rand(5, 16, 16, generator=torch.Generator().manual_seed(0)).double())
    picture = phantom(16).double()
    A = CodedDiffraction(masks, dtype=masks.dtype)
    f = sharded(AmplitudeLoss(A, A(picture.to(masks.dtype)).abs()))
    solver = ADMM(Problem(f, L1(1e-4)), Storm(2, 0.5), rho=0.1, eta=4.0)
    yield "phase", run(solver, 0.9 * picture.to(masks.dtype), Stop(iterations=15), progress=False).x
    summed = sharded(AmplitudeLoss(A, A(picture.to(masks.dtype)).abs(), reduction="sum"))
    solver = ADMM(Problem(summed, L1(1e-4)), SGD(2), rho=0.1, eta=12.0)
    yield "phase, summed", run(solver, 0.9 * picture.to(masks.dtype), Stop(iterations=15), progress=False).x
    yield from scans(picture)


def scans(picture):
    """`retrieve` with the positions of a scan, or masks, shared out once this process has joined others."""
    join()
    places = [(r, c) for r in (0, 2, 4) for c in (0, 2, 4)]
    square = (torch.arange(8) - 3.2)[:, None] ** 2 + (torch.arange(8) - 3.7) ** 2
    P = Ptychography(5 * torch.exp((0.1j - 0.05) * square), places)
    counts = np.random.default_rng(0).poisson(P((1 + picture[:12, :12]).to(torch.complex64)).abs().square())
    given = {"positions": places, "shape": (12, 12), "quantity": "intensities"}
    yield "single scan in batches", retrieve(counts, probe=P.probe, batch=4, iterations=4, **given).image
    found = retrieve(counts, probe=1.1 * P.probe, refine_probe=True, iterations=15, **given)
    yield "single scan, unknown probe", found.image
    masks = circle_masks(5, (16, 16), seed=0)
    patterns = CodedDiffraction(masks)(picture.float()).abs() + 0.02 * masks.angle().abs()
    yield "single retrieve", retrieve(patterns, masks, iterations=5).image


def solver_of(own=False):
    X, y = data()
    f = sharded(Sigmoid(*shard(X, y)), own=True) if own else sharded(Sigmoid(X, y))
    return ADMM(Problem(f, L1(0.01), CHAIN), Storm(10, Power(1.0, -2 / 3)), rho=1.0, eta=8.0)


def leg(out, last=10):
    """One more leg, to iteration `last`, from the checkpoints there."""
    for own in (False, True):
        options = {"checkpoint": Path(out).parent / f"leg-{own}", "resume": True, "progress": False}
        yield f"leg {own}", run(solver_of(own), torch.zeros(D).double(), Stop(iterations=last), **options).x


def stops(out):
    """What stops one rank stops all after the same iteration; rank 0's refusals are everybody's."""
    solver, start = solver_of(), torch.zeros(D).double()
    rank, world = place()
    last = rank == world - 1
    result = run(solver, start, Stop(iterations=500), callback=lambda s: last and s.k == 17, progress=False)
    told = {"callback": [result.state.k, result.reason.name]}
    result = run(solver, start, Stop(iterations=10**6, seconds=0.05 if last else 1e3), progress=False)
    told["seconds"] = [result.state.k, result.reason.name]
    try:
        send = lambda s: last and s.k == 9 and signal.raise_signal(signal.SIGINT)  # noqa: E731
        run(solver, start, Stop(iterations=500), callback=send, progress=False, checkpoint=Path(out).parent / "cut")
    except KeyboardInterrupt as interrupt:
        told["signal"] = [interrupt.result.state.k, interrupt.result.reason.name]
    try:
        run(solver, start, Stop(iterations=5), progress=False, checkpoint=Path(out).parent / "cut")
    except (ValueError, RuntimeError) as error:
        told["refused"] = str(error)
    try:
        run(solver, start + 1e-9 * last, Stop(iterations=5), progress=False)
    except RuntimeError as error:
        told["drift"] = str(error)
    Path(out).with_suffix(f".{rank}.json").write_text(json.dumps(told))
    return iter(())


def long(out):
    """Iterations that take a while, for faults; the ranks of the first attempt tell their process numbers."""
    solver, start = solver_of(), torch.zeros(D).double()
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        Path(out).with_suffix(f".pid{place()[0]}").write_text(str(os.getpid()))
    options = {"checkpoint": Path(out).with_suffix(".long"), "resume": True, "checkpoint_iterations": 20}
    pause = lambda s: time.sleep(0.01)  # noqa: E731
    yield "long", run(solver, start, Stop(iterations=100), callback=pause, progress=False, **options).x


CASES = {
    "glms": lambda out: glms(),
    "images": lambda out: images(),
    "leg": leg,
    "leg30": lambda out: leg(out, 30),
    "stops": stops,
    "long": long,
}


def main():
    names, out = sys.argv[1:3]
    torch.set_num_threads(1)
    found = {name: np.asarray(x) for case in names.split(",") for name, x in CASES[case](out)}
    if place()[0] == 0:
        np.savez(out, **found)


if __name__ == "__main__":
    main()
