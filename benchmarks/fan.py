"""The fan beam against ASTRA's CPU projectors: one thread, interleaved, CPU time; and the default on ASTRA's data.

Speed: 512 x 512 image, 560 detectors, a detector per pixel at the axis, distances of a laboratory scanner; with the
lanes of this CPU, with 8 and with 1. Quality: 256 x 256, 180 views, data by ASTRA's strip model, which knows the width
of pixels and detectors: no projector of ours made them. ASTRA: pip install astra-toolbox; `quality` as an argument
leaves the speed out.
"""

import math
import os
import sys

import numpy as np
import torch
from projector import interleaved, random, report

from smadmm import fan as geometry
from smadmm import interop, reconstruct
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import FanBeam
from smadmm.operators.fan import kernels

SIZE, DETECTORS, VIEWS, BATCH = 512, 560, 180, 5
AXIS, DETECTOR, PITCH = 410.66, 553.74, 0.2  # mm
PIXEL = PITCH * AXIS / DETECTOR
AIMS = {16: (10, 5), 8: (10, 3), 1: (1, 1)}


class Astra:
    """ASTRA's fan beam on the CPU, y upwards: images are turned upside down."""

    def __init__(self, library, size, angles, detectors):
        self.library, self.size = library, size
        volume = library.create_vol_geom(size, size)
        lengths = (PITCH / PIXEL, detectors, angles, AXIS / PIXEL, (DETECTOR - AXIS) / PIXEL)
        geometry = library.create_proj_geom("fanflat", *lengths)
        self.projector = library.create_projector("line_fanflat", geometry, volume)
        self.image = library.data2d.create("-vol", volume, 0)
        self.sinogram = library.data2d.create("-sino", geometry, 0)
        self.runs = {}
        for name, result in (("FP", "VolumeDataId"), ("BP", "ReconstructionDataId")):
            config = library.astra_dict(name)
            config |= {"ProjectorId": self.projector, "ProjectionDataId": self.sinogram, result: self.image}
            self.runs[name] = library.algorithm.create(config)

    def forward(self, x):
        self.library.data2d.store(self.image, x)
        self.library.algorithm.run(self.runs["FP"])
        return self.library.data2d.get(self.sinogram)

    def adjoint(self, y):
        self.library.data2d.store(self.sinogram, y)
        self.library.algorithm.run(self.runs["BP"])
        return self.library.data2d.get(self.image)


def fan(size, angles, detectors, **options):
    return FanBeam(size, angles, detectors, AXIS, DETECTOR, pitch=PITCH, **options)


def turn(views):
    return np.arange(views) * (2 * math.pi / views)


def speed(library):
    own = len(kernels.LANES)
    for lanes in [count for count in (16, 8, 1) if count <= own]:
        kernels.LANES = (0,) * lanes
        for views in (BATCH, VIEWS):
            race(library, views, lanes)
    kernels.LANES = (0,) * own


def race(library, views, lanes):
    x, y = random((SIZE, SIZE), 0), random((views, DETECTORS), 1)
    ours, repeat = fan(SIZE, turn(views), DETECTORS), 200 // views
    forward, adjoint = {"smadmm": (lambda: ours(x), repeat)}, {"smadmm": (lambda: ours.T(y), repeat)}
    if library is not None:
        peer = Astra(library, SIZE, turn(views), DETECTORS)
        forward["ASTRA"] = (lambda: peer.forward(x.numpy()), 1)
        adjoint["ASTRA"] = (lambda: peer.adjoint(y.numpy()), 1)
    for name, functions, aim in (("forward", forward, AIMS[lanes][0]), ("adjoint", adjoint, AIMS[lanes][1])):
        report(f"{views} views {name}, {lanes} lanes", interleaved(functions, 5), {"ASTRA": aim})


def gaussian_error(forward):
    """Relative RMSE against exact line integrals of Gaussians with standard deviations of 15, 26 and 31 pixels."""
    angles, distance = turn(VIEWS), AXIS / PIXEL
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    gamma = np.arctan((np.arange(DETECTORS) - (DETECTORS - 1) / 2) * PITCH / DETECTOR)
    normal, along = angles[:, None] - gamma, distance * np.sin(gamma)
    image, exact = np.zeros((SIZE, SIZE)), np.zeros((VIEWS, DETECTORS))
    for x, y, width, height in ((0.1, -0.15, 0.06, 1.0), (-0.2, 0.1, 0.03, 0.7), (0.05, 0.2, 0.05, 0.4)):
        x, y, width = x * SIZE, y * SIZE, width * SIZE
        image += height * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * width**2))
        off = along - (x * np.cos(normal) + y * np.sin(normal))
        exact += height * width * math.sqrt(2 * math.pi) * np.exp(-(off**2) / (2 * width**2))
    return float(np.linalg.norm(forward(image.astype(np.float32)) - exact) / np.linalg.norm(exact))


def strip_data(library, detectors, width, size=256):
    """The truth and its data by ASTRA's strip model, in mm, with ASTRA's geometries; width: of detectors, in pixels."""
    truth = abdomen_image(size).numpy()
    volume = library.create_vol_geom(size, size)
    lengths = (width * PITCH / PIXEL, detectors, turn(VIEWS), AXIS / PIXEL, (DETECTOR - AXIS) / PIXEL)
    projections = library.create_proj_geom("fanflat", *lengths)
    strips = library.OpTomo(library.create_projector("strip_fanflat", projections, volume))
    return truth, PIXEL * strips.FP(np.ascontiguousarray(truth[::-1])), projections, volume


def noisy(clean, level):
    noise = np.random.default_rng(0).standard_normal(clean.shape, dtype=np.float32)
    return clean + level * noise * np.sqrt((clean**2).mean())


def quality(library):
    """The defaults, 30 iterations at most, on data of the strip model, without noise and with noise of 50 dB."""
    for width, detectors in ((1.0, 400), (1.5, 266), (2.0, 200)):
        truth, clean, projections, volume = strip_data(library, detectors, width)
        for noise, level in (("no", 0.0), ("50 dB of", 10**-2.5)):
            data = noisy(clean, level)
            for rays in (1, 2):
                scanner = geometry(AXIS, DETECTOR, pitch=width * PITCH, rays=rays)
                found = reconstruct(data, geometry=scanner, size=256, spacing=width, truth=truth)
                tell(f"detectors of {width} pixels, {noise} noise, FanBeam, rays={rays}", found)
            if width == 1:
                views = interop.from_astra(projections, volume, "line_fanflat")
                found = reconstruct(data / PIXEL, operator=views, truth=np.ascontiguousarray(truth[::-1]))
                tell(f"detectors of {width} pixels, {noise} noise, from_astra", found)


def tell(title, found):
    row = found.slices[0]
    print(f"{title:<64}{row['snr']:.1f} dB after {row['iterations']} iterations (aim 26)", flush=True)


def main():
    torch.set_num_threads(1)
    try:
        import astra as library
    except ImportError as error:
        library = None
        print(f"ASTRA is left out: {error}")
    if sys.argv[1:] != ["quality"]:
        compare(library)
    if library is not None:
        quality(library)


def compare(library):
    print(f"{SIZE} x {SIZE}, {DETECTORS} detectors, one thread, CPU time")
    speed(library)
    ours = fan(SIZE, turn(VIEWS), DETECTORS)
    error = gaussian_error(lambda image: ours(torch.from_numpy(image)).numpy() / PIXEL)
    print(f"relative RMSE on Gaussians {error:.1e} (aim: below 5e-4)")
    if library is not None:
        peer = Astra(library, SIZE, turn(VIEWS), DETECTORS)
        print(f"that of ASTRA {gaussian_error(lambda image: peer.forward(np.ascontiguousarray(image[::-1]))):.1e}")


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # it is read when libraries are loaded: start again with it
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    main()
