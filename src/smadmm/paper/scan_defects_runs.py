"""One scan with a defect as a job: what each method makes of it with nothing told, in dB and seconds of the processor.

    FBP, hann FBP   filtered back-projection, axis in the middle      raw      `reconstruct(..., raw=True)`
    TV              `reconstruct(..., prior="tv")`                    default  `reconstruct(sinogram, angles, size=N)`
    told            where photons are counted the default with `photons=`, of values below zero with `bounds=`

180 views over half a turn, Gaussian noise of 50 dB unless photons are counted. Detectors and rays are spoilt after the
noise, so that a scan with its gains or offsets told is the clean one. An alarm is a clean sinogram of an object that
lies inside the view: every repair of `inspect` is a false one. Errors are relative to the slice as it was, also where
its values are lowered, so that cases compare.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm import reconstruct
from smadmm.extras import needs
from smadmm.imaging import inspect
from smadmm.imaging.metrics import snr
from smadmm.imaging.simulation import attenuation_per_pixel, with_noise
from smadmm.operators import Radon, hann
from smadmm.paper.ct_runs import read_slices
from smadmm.paper.scan_objects import painted
from smadmm.sampling import Rng

Sinogram = NDArray[np.float32]
Degrees = NDArray[np.float64]
VIEWS, DECIBEL, FIELD = 180, 50.0, 360.0  # views, noise, mm that an image shows
SMALL = 128  # pixels of an alarm
NAMES = {"fbp": "FBP", "hann": "hann FBP", "tv": "TV", "raw": "raw", "default": "default", "told": "told"}
PHOTOGRAPHS = ("camera", "astronaut", "brick", "chelsea", "coffee", "coins", "grass", "gravel", "moon", "page", "text")
OBJECTS = ("slice", "photograph", "foam")


def _unspoilt(b: Sinogram, rng: Rng) -> Sinogram:
    return b


def _dead(b: Sinogram, rng: Rng) -> Sinogram:
    count = b.shape[1]
    b[:, [round(0.27 * count), round(0.54 * count), round(0.73 * count)]] = 0
    return b


def _noisy(b: Sinogram, rng: Rng) -> Sinogram:
    places = [round(0.27 * b.shape[1]), round(0.54 * b.shape[1])]
    b[:, places] = b.max() * rng.random((len(b), 2))
    return b


def _zingers(share: float) -> Callable[[Sinogram, Rng], Sinogram]:
    def spoil(b: Sinogram, rng: Rng) -> Sinogram:
        hit = rng.random(b.shape) < share
        b[hit] += b.max() * rng.uniform(0.2, 1, int(hit.sum()))
        return b

    return spoil


def _lost(b: Sinogram, rng: Rng) -> Sinogram:
    b[len(b) // 3] = 0
    return b


def _scaled(size: float) -> Callable[[Sinogram, Rng], Sinogram]:
    return lambda b, rng: b * (1 + size * rng.standard_normal(b.shape[1]))


def _offsets(size: float) -> Callable[[Sinogram, Rng], Sinogram]:
    return lambda b, rng: b + size * b.max() * rng.standard_normal(b.shape[1])


def _air(size: float) -> Callable[[Sinogram, Rng], Sinogram]:
    return lambda b, rng: b + size * b.max()


def _drift(size: float) -> Callable[[Sinogram, Rng], Sinogram]:
    return lambda b, rng: b + size * b.max() * rng.standard_normal((len(b), 1))


def _block(b: Sinogram, rng: Rng) -> Sinogram:
    first = round(0.4 * b.shape[1])
    b[:, first : first + 10] = 0
    return b


def _missing(b: Sinogram, rng: Rng) -> Sinogram:
    b[rng.random(b.shape) < 0.01] = np.nan
    return b


def _half_way(b: Sinogram, rng: Rng) -> Sinogram:
    later = np.arange(len(b)) >= len(b) / 2
    offsets: Sinogram = 0.01 * b.max() * rng.standard_normal(b.shape[1])
    return b + offsets * later[:, None]


def _half_turn(views: int, rng: Rng) -> Degrees:
    return np.linspace(0, 180, views, endpoint=False)


def _whole_turn(views: int, rng: Rng) -> Degrees:
    return np.linspace(0, 360, views, endpoint=False)


def _any_order(views: int, rng: Rng) -> Degrees:
    return rng.permutation(_half_turn(views, rng))


def _uneven(views: int, rng: Rng) -> Degrees:
    return np.sort(rng.uniform(0, 180, views))


def _all(b: Sinogram, rng: Rng) -> Sinogram:
    for spoil in (_scaled(0.01), _offsets(0.003), _air(0.02), _zingers(0.0005), _dead, _lost):
        b = spoil(b, rng)
    return b


@dataclass(frozen=True)
class Case:
    """How a slice is measured, and what spoils its sinogram."""

    title: str
    spoil: Callable[[Sinogram, Rng], Sinogram] = _unspoilt
    center: float = 0.0
    photons: float | None = None
    gains: float = 0.0  # spread of what detectors multiply intensities by
    lowered: float = 0.0  # taken off what is not air
    angles: Callable[[int, Rng], Degrees] = _half_turn
    views: int | None = None
    share: float = 1.0  # of the detectors, those in the middle


CASES = {
    "clean": Case("clean"),
    "axis 1": Case("axis off by 1 detector", center=1),
    "axis 3": Case("axis off by 3 detectors", center=3),
    "axis 10": Case("axis off by 10 detectors", center=10),
    "dead": Case("three detectors read zero", _dead),
    "noisy": Case("two detectors read noise", _noisy),
    "zingers": Case("0.1 % of the rays hit", _zingers(0.001)),
    "lost view": Case("one view lost", _lost),
    "gains 1": Case("gains of intensities off by 1 %", gains=0.01),
    "gains 5": Case("gains of intensities off by 5 %", gains=0.05),
    "scaled 1": Case("line integrals of detectors scaled by 1 %", _scaled(0.01)),
    "scaled 5": Case("line integrals of detectors scaled by 5 %", _scaled(0.05)),
    "offsets 0.3": Case("offsets of 0.3 % of the largest value", _offsets(0.003)),
    "offsets 1.5": Case("offsets of 1.5 % of the largest value", _offsets(0.015)),
    "air": Case("air at 5 % of the largest value", _air(0.05)),
    "photons 1e5": Case("100,000 photons per ray", photons=1e5),
    "photons 1e4": Case("10,000 photons per ray", photons=1e4),
    "negative": Case("values below zero", lowered=0.3),
    "together": Case("all together, of moderate size", _all, center=3, photons=1e5, gains=0.01),
}

# of objects that are no slices
OBJECT_CASES = {name: CASES[name] for name in ("clean", "axis 3", "dead", "zingers", "gains 5", "scaled 1")} | {
    "offsets 1": Case("offsets of 1 % of the largest value", _offsets(0.01)),
    "photons 1e4": CASES["photons 1e4"],
    "together": CASES["together"],
    "drift": Case("air differs between views by 2 % of the largest value", _drift(0.02)),
    "block": Case("ten detectors side by side read zero", _block),
    "missing": Case("1 % of the rays are not numbers", _missing),
    "half way": Case("offsets of 1 % of the largest value, from the middle view on", _half_way),
    "turn": Case("views over 360 degrees, axis off by 3 detectors", center=3, angles=_whole_turn),
    "order": Case("views in any order", angles=_any_order),
    "uneven": Case("uneven angles", angles=_uneven),
    "few": Case("30 views", views=30),
    "truncated": Case("an object wider than the detector", share=0.5),
}


@dataclass(frozen=True)
class DefectRun:
    """A training slice with a defect; an object of another kind with one; an alarm is a small object without."""

    kind: str  # defect, object or alarm
    case: str  # of CASES, of OBJECT_CASES with the object before it, or of OBJECTS
    image: int
    size: int
    seed: int
    fingerprint: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.case.replace(' ', '_')}-{self.image}-{self.size}-s{self.seed}"


def run_defect(job: DefectRun, data: str | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    if job.kind == "alarm":
        return _alarm(job, data)
    if job.kind == "object":
        return _object(job)
    case, image = CASES[job.case], read_slices(data, "train", job.size)[job.image]
    truth = image - case.lowered * (image > 0.05)
    b, degrees = measured(truth, case, job.seed)
    _compile()
    row: dict[str, Any] = {}
    for name, method in _methods(b, degrees, truth, case).items():
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x, notes = method()
        row |= {f"{name}_cpu": time.process_time() - begin, name: snr(image, image + (x - truth))}
        row |= {"notes": list(notes)} if name == "default" else {}
    return row


def _object(job: DefectRun) -> dict[str, Any]:
    """Of an object: hann FBP and the default, where its detector sees it."""
    name, case = job.case.split(": ")
    truth, spoilt = painted(name, job.size, job.seed), OBJECT_CASES[case]
    b, degrees = measured(truth, spoilt, job.seed)
    _compile()
    methods = _methods(b, degrees, truth, spoilt)
    row: dict[str, Any] = {}
    inside = slice(0, None)
    if spoilt.share < 1:
        margin = (job.size - b.shape[1]) // 2
        inside = slice(margin, job.size - margin)
    for method in ("hann", "default"):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            x, notes = methods[method]()
        row[method] = snr(truth[inside, inside], x[inside, inside])
    return row | {"notes": list(notes), "warned": [str(each.message) for each in warned]}


def projector(size: int, views: int, detectors: int, center: float = 0.0) -> Radon:
    return Radon(size, np.arange(views) * (math.pi / views), detectors, 1.0, center)


def measured(truth: Tensor, case: Case, seed: int) -> tuple[Sinogram, Degrees]:
    """The sinogram of a slice, in units of its pixels, with noise and what spoils it; and its angles."""
    size, rng = len(truth), Rng(seed, 2**57)
    unit = attenuation_per_pixel(FIELD / size)
    degrees = case.angles(case.views or VIEWS, Rng(seed, 2**55 + 1))
    detectors = round(case.share * 1.02 * math.sqrt(2) * size)
    clean = Radon(size, np.deg2rad(degrees), detectors, 1.0, case.center)(truth)
    if case.photons is None:
        b = with_noise(clean, DECIBEL, torch.from_numpy(rng.standard_normal(clean.shape, dtype=np.float32))).numpy()
    else:
        counts = rng.poisson(case.photons * np.exp(-unit * clean.double().numpy()))
        b = -np.log(np.maximum(counts, 0.5) / case.photons) / unit
    if case.gains:
        b = b - np.log1p(case.gains * rng.standard_normal(b.shape[1])) / unit
    return case.spoil(b.astype(np.float32), rng).astype(np.float32), degrees


Images = Callable[[], tuple[Tensor, tuple[str, ...]]]


def _methods(b: Sinogram, degrees: Degrees, truth: Tensor, case: Case) -> dict[str, Images]:
    """By name: the image, and what was noted; a filtered back-projection takes what is no number for zero."""
    size, radon = len(truth), Radon(len(truth), np.deg2rad(degrees), b.shape[1], 1.0, 0.0)
    unit, known = attenuation_per_pixel(FIELD / size), torch.from_numpy(np.nan_to_num(b))

    def verb(unit: float = 1.0, **options: Any) -> Images:
        def reconstructed() -> tuple[Tensor, tuple[str, ...]]:
            result = reconstruct(unit * b, degrees, size=size, **options)
            return torch.from_numpy(result.image) / unit, result.notes

        return reconstructed

    methods: dict[str, Images] = {
        "fbp": lambda: (radon.fbp(known), ()),
        "hann": lambda: (radon.fbp(known, hann), ()),
        "tv": verb(prior="tv"),
        "raw": verb(raw=True),
        "default": verb(),
    }
    if case.photons is not None:
        methods["told"] = verb(unit, photons=case.photons)
    if case.lowered:
        methods["told"] = verb(bounds=(-math.inf, math.inf))
    return methods


@lru_cache(maxsize=1)
def _compile() -> None:
    """Run the kernels once, those of weighted rays too."""
    truth = foam(64, Rng(0, 2**55))
    for method in _methods(*measured(truth, CASES["dead"], 0), truth, CASES["dead"]).values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method()


def foam(size: int, rng: Rng) -> Tensor:
    """A disc, in the middle or not, with up to forty bubbles."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    off = rng.uniform(-0.1, 0.1, 2) * (rng.random() < 0.7)
    image = 0.6 * ((y - off[0]) ** 2 + (x - off[1]) ** 2 < rng.uniform(0.3, 0.8) ** 2)
    for _ in range(int(rng.integers(0, 41))):
        down, right, radius = *rng.uniform(-0.5, 0.5, 2), rng.uniform(0.02, 0.15)
        image *= 1 - rng.random() * ((y - down) ** 2 + (x - right) ** 2 < radius**2)
    return torch.from_numpy(image.astype(np.float32))


def photograph(number: int, size: int, rng: Rng) -> Tensor:
    """A part of a photograph that comes with scikit-image, up to all of it."""
    name = PHOTOGRAPHS[number % len(PHOTOGRAPHS)]
    pixels = getattr(needs("skimage.data", "imaging", "photographs"), name)().astype(np.float32) / 255
    gray = torch.from_numpy(pixels if pixels.ndim == 2 else pixels.mean(-1))
    side = int(rng.integers(min(size, *gray.shape), min(gray.shape) + 1))
    top, left = (int(rng.integers(length - side + 1)) for length in gray.shape)
    part = gray[None, None, top : top + side, left : left + side]
    return torch.nn.functional.interpolate(part, (size, size), mode="area")[0, 0]


def _alarm(job: DefectRun, data: str | None) -> dict[str, Any]:
    """The repairs of a clean sinogram; views, noise and margin of the detector are drawn."""
    rng = Rng(job.seed, 2**56 + job.image)
    if job.case == "slice":
        slices = read_slices(data, "train", job.size)
        image = slices[int(rng.integers(len(slices)))]
    else:
        image = foam(job.size, rng) if job.case == "foam" else photograph(job.image // len(OBJECTS), job.size, rng)
    middle = torch.linspace(-1, 1, job.size).square()
    image = image * (middle[:, None] + middle < 0.9)  # inside the view
    views, decibel = int(rng.integers(20, 181)), float(rng.uniform(25, 60))
    clean = projector(job.size, views, round(job.size * rng.uniform(1.15, 1.45)))(image)
    noise = torch.from_numpy(rng.standard_normal(clean.shape, dtype=np.float32))
    look = inspect(with_noise(clean, decibel, noise).numpy(), np.arange(views) * (180 / views))
    repairs = [finding.text for finding in look.findings if finding.repaired]
    return {"views": views, "decibel": decibel, "repairs": repairs}
