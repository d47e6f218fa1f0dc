"""One object behind masks as a job: what each method makes of its patterns, in dB and seconds of the processor.

    fit             `smadmm.imaging.phase_fit`, without a prior       RAAR   150 iterations from a constant
    one denoising   the fit, denoised once at the level of its error  TV     `retrieve` with total variation
    RED             `retrieve` with RED and full gradients            default  `retrieve` as it is
    deepinv         its spectral start, then proximal gradient steps with its amplitude loss and its total variation,
                    whose weight goes with the error of the fit; where it is installed

All methods see the same patterns, one after the other in one process; what is compiled is compiled before. A variation
is a small object, changed in a way that must not matter: only the fit and the default are run. A wrong input
contradicts its description, and what is kept is whether that was said.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm import retrieve
from smadmm.extras import needs
from smadmm.imaging.metrics import align, snr
from smadmm.imaging.phase import NATURAL, Patterns, some_of
from smadmm.imaging.phase_fit import fit_amplitudes
from smadmm.imaging.priors import find_prior
from smadmm.imaging.simulation import with_noise
from smadmm.io.images import read_images
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import alternating_start, constant_start
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.sampling import Rng

NAMES = {
    "fit": "fit",
    "one denoising": "fit + one denoising",
    "raar": "RAAR",
    "red": "RED, full gradients",
    "tv": "TV",
    "deepinv": "deepinv",
    "default": "default",
}
WEIGHT, STEPS, INNER = 0.25, 60, 10  # deepinv's: weight over error (found on BSD400), steps, those of its prox
Objects = Callable[[Tensor, Tensor], Tensor]  # an image and another one -> what is measured
SMALL = 64  # pixels of a variation


@dataclass(frozen=True)
class Case:
    """How an object is made of an image and measured: Gaussian noise in dB, or intensities with noise alpha |z|."""

    title: str
    masks: int = 6
    decibel: float | None = 25.0
    alpha: float = 0.0
    binary: bool = False
    make: str = "image"


def _alone(image: Tensor) -> Tensor:
    """A part of the image on black."""
    small, (rows, columns) = torch.zeros_like(image), image.shape
    part = (slice(rows // 3, rows // 2), slice(columns // 3, columns // 2))
    small[part] = image[part]
    return small


def _bright(image: Tensor) -> Tensor:
    image = image.clone()
    image[image.shape[0] // 3, image.shape[1] // 4] = 100 * image.max()
    return image


MAKE: dict[str, Objects] = {
    "image": lambda image, other: image,
    "mixed": lambda image, other: image - 0.5,
    "bright": lambda image, other: _bright(image),
    "alone": lambda image, other: _alone(image),
    "complex": lambda image, other: torch.polar(0.3 + 0.7 * image, 1.5 * (other - 0.5)),
    "turning": lambda image, other: torch.polar(0.2 + 0.8 * image, 2 * math.pi * other),
}
CASES = {
    "25 dB": Case("6 masks, 25 dB"),
    "35 dB": Case("6 masks, 35 dB", decibel=35),
    "15 dB": Case("6 masks, 15 dB", decibel=15),
    "10 dB": Case("6 masks, 10 dB", decibel=10),
    "alpha 27": Case("4 masks, alpha 27", 4, None, 27),
    "alpha 81": Case("4 masks, alpha 81", 4, None, 81),
    "1 mask": Case("1 mask, 25 dB", 1),
    "2 masks": Case("2 masks, 25 dB", 2),
    "0/1 masks": Case("6 masks of 0 and 1, 25 dB", binary=True),
    "mixed signs": Case("image minus 0.5", make="mixed"),
    "bright pixel": Case("one pixel 100 times brighter", make="bright"),
    "on black": Case("small object on black", make="alone"),
    "complex, 3": Case("complex, 3 masks", 3, make="complex"),
    "phases, 4": Case("complex, phases of 2 pi, 4 masks", 4, make="turning"),
}


@dataclass(frozen=True)
class RobustnessRun:
    """A case on an image of a set; a variation or a wrong input where there is no case."""

    kind: str  # case, variation or wrong
    case: str
    images: str
    image: int
    size: int
    seed: int
    fingerprint: str = ""

    @property
    def name(self) -> str:
        case = self.case.replace(" ", "_").replace("/", "")
        return f"{self.kind}-{case}-{self.images}{self.image}-{self.size}-s{self.seed}"


@lru_cache(maxsize=4)
def read_crops(data: str | None, images: str, size: int, middle: bool = False) -> list[Tensor]:
    """The upper left corners, or the middles, of the gray images of DIR/images/SET that are large enough."""
    if data is None:
        raise ValueError("give --data DIR with DIR/images/Set12, DIR/images/OnRED6 and DIR/images/BSD400")
    folder = Path(data) / "images" / images
    files = sorted(folder.glob("*.png"))
    pixels = [image.pixels for image in read_images(files)] if files else []
    large = [p for p in pixels if min(p.shape) >= size]
    if not large:
        raise ValueError(f"no PNG files of at least {size} x {size} pixels in {folder}; give --data DIR that has them")
    begins = [[(n - size) // 2 if middle else 0 for n in p.shape] for p in large]
    return [p[r : r + size, c : c + size].contiguous() for p, (r, c) in zip(large, begins, strict=True)]


def masks_of(case: Case, shape: tuple[int, ...], seed: int) -> Tensor:
    if not case.binary:
        return circle_masks(case.masks, shape, seed)
    return torch.from_numpy((Rng(seed, 2**59).random((case.masks, *shape)) < 0.5).astype(np.complex64))


def patterns_of(truth: Tensor, masks: Tensor, case: Case, seed: int) -> Tensor:
    """Noisy amplitudes; what falls below zero is zero."""
    clean = CodedDiffraction(masks, truth.dtype)(truth).abs()
    noise = torch.from_numpy(Rng(seed, 2**60).standard_normal(clean.shape)).to(clean)
    if case.decibel is None:
        return (clean.square() + case.alpha / 255 * clean * noise).clamp(min=0).sqrt()
    return with_noise(clean, case.decibel, noise).clamp(min=0)


def run_robustness(job: RobustnessRun, data: str | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = read_crops(data, job.images, job.size)
    image, other = found[job.image], found[(job.image + 1) % len(found)]
    if job.kind == "variation":
        return _variation(image, other, job.seed)
    if job.kind == "wrong":
        return _wrong(image, other, job)
    case = CASES[job.case]
    truth = MAKE[case.make](image, other)
    masks = masks_of(case, tuple(image.shape), job.seed)
    y = patterns_of(truth, masks, case, job.seed).numpy()
    methods = _methods(y, masks.numpy(), truth)
    _compile(truth.is_complex())
    row: dict[str, Any] = {}
    for name, method in methods.items():
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = method()
        row |= {f"{name}_cpu": time.process_time() - begin, name: snr(truth, align(truth, x))}
    return row


@lru_cache(maxsize=2)
def _compile(is_complex: bool) -> None:
    """Run the kernels once."""
    truth = torch.ones(16, 16, dtype=torch.complex64 if is_complex else torch.float32)
    masks = circle_masks(4, (16, 16))
    methods = _methods(patterns_of(truth, masks, Case("", 4), 0).numpy(), masks.numpy(), truth)
    methods["default"](), methods["tv"]()


def _methods(y: Any, masks: Any, truth: Tensor) -> dict[str, Callable[[], Tensor]]:
    is_complex = truth.is_complex()

    def loss() -> tuple[float, AmplitudeLoss]:
        data = Patterns(y, masks, "amplitudes", is_complex)
        return data.scale, data.loss_of(some_of(len(y)))

    def fit() -> Tensor:
        scale, few = loss()
        return scale * fit_amplitudes(few).image

    def raar() -> Tensor:
        scale, few = loss()
        return scale * alternating_start(few, constant_start(few), 150)

    def once() -> Tensor:
        scale, few = loss()
        made = fit_amplitudes(few)
        level = made.level if made.determined else NATURAL[0][0]
        prox = find_prior(NATURAL[0][1], limits=None, level=min(level, 1.0)).prox(1.0)
        parts = [made.image.real, made.image.imag] if is_complex else [made.image]
        clean = [prox.prox(part.contiguous(), 1.0) for part in parts]
        return scale * (torch.complex(*clean) if is_complex else clean[0])

    def verb(**options: Any) -> Callable[[], Tensor]:
        return lambda: torch.from_numpy(retrieve(y, masks, complex=is_complex, **options).image)

    def peer() -> Tensor:
        scale, few = loss()
        return scale * _deepinv(few)

    methods = {"fit": fit, "one denoising": once, "raar": raar, "red": verb(method="red-sd"), "tv": verb(prior="tv")}
    methods |= {"deepinv": peer} if find_spec("deepinv") else {}
    return methods | {"default": verb()}


def _deepinv(loss: AmplitudeLoss) -> Tensor:
    """deepinv's image; its arrays have axes for images and channels in front."""
    optim, physics = (needs(f"deepinv.{name}", None, "peers of phase retrieval") for name in ("optim", "physics"))
    spectral = needs("deepinv.optim.phase_retrieval", None, "peers of phase retrieval").spectral_methods
    A, is_complex, fit = loss.operator, loss.dtype == torch.complex64, fit_amplitudes(loss)
    linear = physics.LinearPhysics(
        A=lambda x, **_: A.forward_masks(x[0, 0], loss.everything)[None],
        A_adjoint=lambda y, **_: A.adjoint_masks(y[0], loss.everything).to(torch.complex64)[None, None],
    )
    measured, data = physics.PhaseRetrieval(linear), loss.data(loss.everything)[None].square()
    begin = torch.from_numpy(Rng(0, 0).standard_normal(A.size)).to(torch.complex64)[None, None]
    x = spectral(data, measured, begin if is_complex else begin.real.to(begin), n_iter=STEPS)
    prior, misfit = optim.prior.TVPrior(n_it_max=INNER), optim.data_fidelity.AmplitudeLoss()
    level = fit.level if fit.determined else NATURAL[0][0]
    for _ in range(STEPS):
        x = x - misfit.grad(x, data, measured) / (2 * loss.n * float(fit.light.mean()))
        parts = torch.cat([x.real, x.imag], 1)  # channels
        x = torch.complex(*prior.prox(parts, gamma=WEIGHT * level).split(1, 1))
    found: Tensor = x[0, 0] if is_complex else x[0, 0].real
    return found


def varied(image: Tensor, other: Tensor, rng: Rng) -> Tensor:
    """An object changed in ways that must not matter: size, offset, sign, bright pixels, border, phases, unit."""
    height, width = rng.integers(SMALL // 2, SMALL + 1, 2)
    x, second = image[:height, :width].clone(), other[:height, :width]
    if rng.random() < 0.3:
        x -= float(rng.random())
    for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.3 else 0):
        x[int(rng.integers(height)), int(rng.integers(width))] = float(rng.uniform(2, 100))
    if rng.random() < 0.3:
        border = int(rng.integers(1, 12))
        x[:border] = x[-border:] = 0
        x[:, :border] = x[:, -border:] = 0
    if rng.random() < 0.3:
        x = torch.polar(0.2 + x.abs(), float(rng.uniform(0.5, 6)) * second)
    return x * float(10 ** rng.uniform(-8, 8)) * (-1 if rng.random() < 0.5 else 1)


def _variation(image: Tensor, other: Tensor, seed: int) -> dict[str, Any]:
    rng = Rng(seed, 2**58)
    truth = varied(image, other, rng)
    least = 4 if truth.is_complex() else 2
    case = Case("", int(rng.integers(least, 9)), float(rng.uniform(12, 40)), binary=bool(rng.random() < 0.2))
    masks = masks_of(case, tuple(truth.shape), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = retrieve(patterns_of(truth, masks, case, seed).numpy(), masks.numpy(), complex=truth.is_complex(),
                          truth=truth.numpy())  # fmt: skip
    (row,) = result.slices
    return {"fit": row["snr_fit"], "default": row["snr"], "warnings": list(result.warnings), "title":
            f"{tuple(truth.shape)}, {case.masks} masks, {case.decibel:.0f} dB"}  # fmt: skip


def _background(y: Any) -> Any:
    return np.sqrt(y**2 + 0.3 * (y**2).mean())


def _blocked(y: Any) -> Any:
    y = y.copy()
    y[:, :6, :6] = 0
    return y


def _spoilt(y: Any) -> Any:
    y = y.copy()
    y[2] = y[2, ::-1]
    return y


WRONG: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], str, str]] = {
    "complex as real": (lambda y, m: (y, m), "amplitudes", "image is complex"),
    "other masks": (lambda y, m: (y, np.roll(m, 7, 1) * m), "amplitudes", "each mask belongs"),
    "masks reversed": (lambda y, m: (y, m[::-1].copy()), "amplitudes", "opposite order"),
    "masks reordered": (lambda y, m: (y, np.roll(m, 1, 0)), "amplitudes", "each mask belongs"),
    "fftshift": (lambda y, m: (np.fft.fftshift(y, axes=(1, 2)), m), "amplitudes", "ifftshift"),
    "intensities": (lambda y, m: (y**2, m), "amplitudes", "patterns are intensities"),
    "amplitudes": (lambda y, m: (y, m), "intensities", "patterns are amplitudes"),
    "masks conjugated": (lambda y, m: (y, m.conj()), "amplitudes", "conjugated"),
    "transposed": (lambda y, m: (y.transpose(0, 2, 1).copy(), m), "amplitudes", "rows and columns"),
    "saturated": (lambda y, m: (np.minimum(y, np.quantile(y, 0.98)), m), "amplitudes", "saturated"),
    "beam stop": (lambda y, m: (_blocked(y), m), "amplitudes", "beam stop"),
    "angles as masks": (lambda y, m: (y, np.angle(m) % (2 * np.pi)), "amplitudes", "exp(1j"),
    "moduli as masks": (lambda y, m: (y, np.abs(m)), "amplitudes", "masks are equal"),
    "one bad pattern": (lambda y, m: (_spoilt(y), m), "amplitudes", "Pattern 2"),
    "background": (lambda y, m: (_background(y), m), "amplitudes", "background"),
}


def _wrong(image: Tensor, other: Tensor, job: RobustnessRun) -> dict[str, Any]:
    change, quantity, cause = WRONG[job.case]
    masks = circle_masks(6, tuple(image.shape), job.seed)
    slope = torch.linspace(0, 1, len(image))[:, None]
    truth = MAKE["turning"](image, other + slope) if job.case == "complex as real" else image
    y, given = change(patterns_of(truth, masks, Case(""), job.seed).numpy(), masks.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = retrieve(y, given, quantity=quantity, iterations=2)
    return {"told": any(cause in text for text in result.warnings), "warnings": list(result.warnings)}
