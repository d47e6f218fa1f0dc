"""The projector against ASTRA's CPU projector and scikit-image's radon/iradon: one thread, interleaved, CPU time.

512 x 512 image, 724 detectors. Times are medians over rounds; a ratio is the median of the ratios in a round.
ASTRA (pip install astra-toolbox) and scikit-image are left out where they are not installed.
"""

import math
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from smadmm.losses import Tomography
from smadmm.operators import Radon

SIZE, DETECTORS, VIEWS, BATCH = 512, 724, 180, 5
ANGLES = np.arange(VIEWS) * math.pi / VIEWS
A_MOMENTUM = 0.3
ROUNDS = 15


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Astra:
    """ASTRA's linear projector (Joseph's method) on the CPU."""

    def __init__(self, library, angles):
        self.library = library
        volume = library.create_vol_geom(SIZE, SIZE)
        geometry = library.create_proj_geom("parallel", 1.0, DETECTORS, angles)
        self.projector = library.create_projector("linear", geometry, volume)
        self.image = library.data2d.create("-vol", volume, 0)
        self.sinogram = library.data2d.create("-sino", geometry, 0)
        self.runs = {}
        for name, result in (("FP", "VolumeDataId"), ("BP", "ReconstructionDataId")):
            config = library.astra_dict(name)
            config["ProjectorId"], config["ProjectionDataId"], config[result] = (
                self.projector,
                self.sinogram,
                self.image,
            )
            self.runs[name] = library.algorithm.create(config)

    def forward(self, x):
        self.library.data2d.store(self.image, x)
        self.library.algorithm.run(self.runs["FP"])
        return self.library.data2d.get(self.sinogram)

    def adjoint(self, y):
        self.library.data2d.store(self.sinogram, y)
        self.library.algorithm.run(self.runs["BP"])
        return self.library.data2d.get(self.image)

    def close(self):
        self.library.algorithm.delete(list(self.runs.values()))
        self.library.data2d.delete([self.image, self.sinogram])
        self.library.projector.delete(self.projector)


class ScikitImage:
    """radon, and iradon without filter as its adjoint."""

    def __init__(self, transform, angles):
        self.transform, self.degrees = transform, np.rad2deg(angles)

    def forward(self, x):
        return self.transform.radon(x, self.degrees, circle=False)

    def adjoint(self, y):
        return self.transform.iradon(y, self.degrees, filter_name=None, output_size=SIZE, circle=False)

    def close(self):
        pass


def peers():
    found = {}
    try:
        import astra

        found["ASTRA"] = lambda angles: Astra(astra, angles)
    except ImportError as error:
        print(f"ASTRA is left out: {error}")
    try:
        from skimage import transform

        found["scikit-image"] = lambda angles: ScikitImage(transform, angles)
    except ImportError as error:
        print(f"scikit-image is left out: {error}")
    return found


def batches():
    """New random views for every gradient, as in a run."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.permutation(VIEWS)[:BATCH]


def two_point_gradient(make, x, old, rows, views):
    """g(x) - (1 - a) g(old) on these views, as a library without fused gradients does it."""
    projector = make(ANGLES[views])
    gradients = [projector.adjoint(projector.forward(point) - rows(views)) for point in (x, old)]
    projector.close()
    return gradients[0] - (1 - A_MOMENTUM) * gradients[1]


def cpu(function, repeat):
    begin = time.process_time()
    for _ in range(repeat):
        function()
    return (time.process_time() - begin) / repeat


def interleaved(functions, rounds=ROUNDS):
    """{name: (function, repeat)} -> {name: seconds of every round}."""
    times = {name: [] for name in functions}
    for function, _ in functions.values():
        function()
    for _ in range(rounds):
        for name, (function, repeat) in functions.items():
            times[name].append(cpu(function, repeat))
    return times


def report(title, times, aims):
    ours = times.pop("smadmm")
    line = f"{title:<44}{1e3 * statistics.median(ours):9.2f} ms"
    for name, theirs in times.items():
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        aim = f", aim {aims[name]}" if name in aims else ""
        line += f"   {name} {1e3 * statistics.median(theirs):.1f} ms = {ratio:.1f} x{aim}"
    print(line, flush=True)


def speed(others):
    radon = Radon(SIZE, ANGLES, DETECTORS)
    x, old = random((SIZE, SIZE), 0), random((SIZE, SIZE), 1)
    sinogram = radon(random((SIZE, SIZE), 2))
    loss = Tomography(radon, sinogram)
    weights = (1.0, A_MOMENTUM - 1)
    every = {name: make(ANGLES) for name, make in others.items()}
    x_, old_ = x.numpy(), old.numpy()
    rows = {name: p.forward(x_) for name, p in every.items()}
    chosen = {"ASTRA": lambda views: rows["ASTRA"][views], "scikit-image": lambda views: rows["scikit-image"][:, views]}
    draw = batches()
    functions = {"smadmm": (lambda: loss.gradient((x, old), weights, torch.from_numpy(next(draw))), 20)}
    functions |= {
        name: (lambda make=make, rows=chosen[name]: two_point_gradient(make, x_, old_, rows, next(draw)), 2)
        for name, make in others.items()
    }
    report(f"stochastic gradient, {BATCH} views, two points", interleaved(functions), {"ASTRA": 20, "scikit-image": 60})
    functions = {"smadmm": (lambda: radon(x), 3)}
    functions |= {name: (lambda p=p: p.forward(x_), 1) for name, p in every.items()}
    report(f"{VIEWS} views forward", interleaved(functions, 5), {"ASTRA": 15})
    functions = {"smadmm": (lambda: radon.T(sinogram), 3)}
    functions |= {name: (lambda p=p, b=rows[name]: p.adjoint(b), 1) for name, p in every.items()}
    report(f"{VIEWS} views adjoint", interleaved(functions, 5), {"ASTRA": 15})


def adjoint_residual(radon):
    worst = 0.0
    for seed in range(5):
        x, y = random(radon.in_shape, seed), random(radon.out_shape, seed + 100)
        image, back = radon(x).double(), radon.T(y).double()
        worst = max(worst, abs(float((image * y).sum() - (x * back).sum())) / float(image.norm() * y.norm()))
    return worst


def gaussian_error(forward):
    """Relative RMSE against exact line integrals of Gaussians with standard deviations of 15, 26 and 31 pixels."""
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    t = np.arange(DETECTORS) - (DETECTORS - 1) / 2
    image, exact = np.zeros((SIZE, SIZE)), np.zeros((VIEWS, DETECTORS))
    for x, y, width, height in ((0.1, -0.15, 0.06, 1.0), (-0.2, 0.1, 0.03, 0.7), (0.05, 0.2, 0.05, 0.4)):
        x, y, width = x * SIZE, y * SIZE, width * SIZE
        image += height * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * width**2))
        along = t - (x * np.cos(ANGLES) + y * np.sin(ANGLES))[:, None]
        exact += height * width * math.sqrt(2 * math.pi) * np.exp(-(along**2) / (2 * width**2))
    measured = forward(image.astype(np.float32))
    return float(np.linalg.norm(measured - exact) / np.linalg.norm(exact))


def memory():
    """Peak memory above that before, in MB: forward and adjoint of 720 views in a process of its own (Linux)."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import projector, torch, numpy as np\n"
        "from smadmm.operators import Radon\n"
        "warm = Radon(64, [0.0, 1.5]); warm.T(warm(torch.ones(64, 64)))\n"
        "x = torch.ones(512, 512); y = torch.ones(720, 724); before = projector.reset_peak()\n"
        "radon = Radon(512, np.arange(720) * np.pi / 720, 724); a = radon(x); b = radon.T(y)\n"
        "print(projector.peak() - before)"
    )
    run = [sys.executable, "-c", code, os.path.dirname(os.path.abspath(__file__))]
    return float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def _status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def reset_peak():
    """Forget the peak so far; returns the memory in use now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def peak():
    return _status("VmHWM")


def growth():
    """Microseconds for a view, and nanoseconds for each detector x row: constant where the cost is linear in each."""
    print("\ncost of forward + adjoint: views x detectors x size; the last column is constant where it is linear")
    for size, views, total in ((512, 5, 180), (512, 5, 1800), (512, 20, 180), (512, 80, 180), (512, 180, 180),
                               (256, 80, 180), (1024, 80, 180), (2048, 20, 180)):  # fmt: skip
        radon = Radon(size, np.arange(total) * math.pi / total)
        numbers = np.linspace(0, total - 1, views).astype(int)
        x, y = random((size, size), 0), random((views, radon.detectors), 1)

        def both(radon=radon, x=x, y=y, numbers=numbers):
            radon.forward_views(x, numbers)
            radon.adjoint_views(y, numbers)

        seconds = statistics.median(interleaved({"": (both, max(1, 400 // views * 256 // size))}, 5)[""])
        unit = 1e9 * seconds / (views * radon.detectors * size)
        each = f"{1e6 * seconds / views:8.1f} us a view {unit:7.3f} ns a detector and row"
        print(f"  {size:5d} px  {views:4d} of {total:4d} views {1e3 * seconds:9.2f} ms {each}", flush=True)


def main():
    torch.set_num_threads(1)
    others = peers()
    print(f"{SIZE} x {SIZE}, {DETECTORS} detectors, one thread, CPU time")
    speed(others)
    radon = Radon(SIZE, ANGLES, DETECTORS)
    print(f"adjoint residual (float32) {adjoint_residual(radon):.1e} (aim: below 1e-6)")
    error = gaussian_error(lambda image: radon(torch.from_numpy(image)).numpy())
    print(f"relative RMSE on Gaussians {error:.1e} (aim: below 5e-4)", end="")
    if "ASTRA" in others:
        print(f"; ASTRA {gaussian_error(others['ASTRA'](-ANGLES).forward):.1e}", end="")
    print(f"\nextra memory at 720 views, results included: {memory():.1f} MB (aim: below 100 MB)")
    growth()


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # it is read when libraries are loaded: start again with it
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    main()
