"""Sinograms to reconstruct from, slice by slice: simulated from images, or measured.

Simulated: b = A x + e with Gaussian e, |A x| / |e| = 10^(snr/20), x in [0, 1]. Measured: the image has a unit of its
own (attenuation a pixel), so b is divided by a robust largest value of the image, the 99.9 % quantile of a smooth
filtered back-projection, and the result multiplied by it: a denoiser expects images in [0, 1].

Photons: a ray of attenuation p = mu b lets N ~ Poisson(I0 exp(-p)) of I0 photons through, and b = -log(N/I0)/mu has
nearly the variance 1/(mu^2 I0 exp(-p)). The discretisation errs, too, so no ray is trusted to less than 1/1000 of the
sinogram's size: that is added to the variance, and 1/variance is the weight. A ray without photons counts as half a
photon. Simulated, x = 0.4 is water, which takes 2 % a mm; a slice without pixel size is 360 mm wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.imaging.pnp import sinogram_noise
from smadmm.io import dicom
from smadmm.io.images import RANGE, Slices
from smadmm.io.sinogram import Sinogram
from smadmm.losses.tomography import Transmission
from smadmm.operators import Radon
from smadmm.operators.radon.filters import Window, angular_weights, filtered, hann, ramp
from smadmm.sampling import Rng

IN_MEMORY = 2**28  # bytes of a sinogram that is read at once; larger ones stay on disk
PIECE = 256  # views together
TOP = 0.999  # the quantile that becomes 1
WATER = 0.02  # attenuation of water a mm, at about 70 keV
WIDTH = 360.0  # mm, of a slice that does not say
OPAQUE = 20.0  # no detector sees photons behind such an attenuation
MOST_PHOTONS = 1e15
MOST_NOISE = 2.5  # of the first image, in units of what the denoiser is made for
LARGE_RESIDUAL = 0.1  # a relative residual that wants an explanation
QUIETEST = 1e-3  # noise is never taken for less than this share of the sinogram (60 dB)


class Views:
    """Chosen views of a sinogram on disk, divided by the scale, read as they are asked for."""

    def __init__(self, stored: Any, views: NDArray[np.int64], scale: float):
        self.stored, self.views, self.scale = stored, views, scale
        self.shape = (len(views), int(stored.shape[1]))

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """[..., views, :] with sorted numbers of views, as the loss reads."""
        rows: NDArray[np.float32] = np.asarray(self.stored[self.views[key[-2]]], dtype=np.float32)
        scaled: NDArray[np.float32] = rows / np.float32(self.scale)
        return scaled


@dataclass(frozen=True)
class Measurement:
    """One slice: views x detectors (a tensor, or `Views` of a file), and the truth where it is known."""

    sinogram: Any
    truth: Tensor | None


@dataclass(frozen=True)
class Scan:
    """Slices measured with one geometry; the image's unit is `scale`."""

    name: str
    count: int
    radon: Radon
    read: Callable[[int], Measurement]
    scale: float = 1.0
    snr: float | None = None  # of simulated data with Gaussian noise, in dB
    photons: float | None = None  # a ray without object; None: noise of one level everywhere
    attenuation: float = 1.0  # of a ray, for a sinogram value of 1
    simulated: bool = False
    hounsfield: bool = False
    series: dicom.Series | None = None
    notes: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float, float]:
        """The range of the image in the unit `scale`: [0, 1] as simulated, no attenuation below 0 as measured."""
        return (0.0, 1.0) if self.simulated else (0.0, math.inf)

    def statistics(self, sinogram: Any) -> Statistics:
        """Estimated, or by the number of photons."""
        if self.photons is None:
            noise = noise_level(sinogram)
            return Statistics(noise, None, noise)
        some = _some_views(sinogram)
        counted, least = 1 / (self.attenuation**2 * self.photons), _least_noise(some) ** 2
        noise, weights = math.sqrt(counted + least), Transmission(self.attenuation, least / counted)
        return Statistics(noise, weights, noise * math.sqrt(float((1 / weights(some)).mean())))


class Statistics(NamedTuple):
    """The noise of a ray of weight 1, the weights, and the root mean square noise of all rays."""

    noise: float
    weights: Transmission | None
    mean_noise: float


def simulated(
    name: str, slices: Slices, views: int, snr: float | None, seed: int, threads: int = 1, photons: float | None = None
) -> Scan:
    """Views equispaced over half a turn of every slice, with Gaussian noise of `snr` dB or counts of photons; slices
    that are constant are refused."""
    if views < 1:
        raise ValueError(f"--simulate needs at least one view, got {views}")
    if (snr is None) == (photons is None):
        raise ValueError(f"give the noise as snr or as photons, one of them; got {snr} and {photons}")
    if snr is not None and not snr >= 0:
        raise ValueError(f"--snr must not be negative, got {snr:g}; it is 20 log10(|signal| / |noise|) in dB")
    _refuse_photons(photons)
    for number in range(slices.count):
        image = slices.read(number)
        if image.shape != slices.shape:
            raise ValueError(f"slice {number} of {name} has shape {image.shape}, the first has {slices.shape}")
        if not image.min() < image.max():
            where = f"slice {number} of {name}" if slices.count > 1 else name
            raise ValueError(f"{where} is constant ({image.min():g} after windowing): there is nothing to reconstruct")
    radon = Radon(slices.shape, np.arange(views) * math.pi / views, threads=threads)
    attenuation = WATER * RANGE / 1000 * _pixel(slices)

    def read(number: int) -> Measurement:
        truth = torch.from_numpy(slices.read(number))
        clean, rng = radon(truth), Rng(seed, 2**61 + number)
        if photons is not None:
            return Measurement(_counted(clean, photons, attenuation, rng), truth)
        assert snr is not None
        noise = torch.from_numpy(rng.standard_normal(clean.shape, dtype=np.float32))
        return Measurement(clean + noise * (clean.norm() / noise.norm() * 10 ** (-snr / 20)), truth)

    scan = Scan(name, slices.count, radon, read, 1.0, snr, photons, attenuation, True)
    return replace(scan, hounsfield=slices.hounsfield, series=slices.series, notes=slices.notes)


def _pixel(slices: Slices) -> float:
    """Width of a pixel in mm."""
    known = slices.series is not None and slices.series.spacing is not None
    return float(np.mean(slices.series.spacing)) if known else WIDTH / slices.shape[1]  # type: ignore[union-attr, arg-type]


def _counted(clean: Tensor, photons: float, attenuation: float, rng: Rng) -> Tensor:
    """-log(N/I0)/mu of simulated counts N."""
    counts = rng.poisson(photons * np.exp(-attenuation * clean.double().numpy()))
    return torch.from_numpy((-np.log(np.maximum(counts, 0.5) / photons) / attenuation).astype(np.float32))


def measured(
    name: str,
    sinogram: Sinogram,
    views: int | None = None,
    size: int | None = None,
    spacing: float = 1.0,
    centre: float = 0.0,
    threads: int = 1,
    photons: float | None = None,
) -> Scan:
    """A sinogram from a file, or `views` of its views, evenly chosen; size: by default what the detector spans."""
    sinogram.refuse_bad_values()
    _refuse_photons(photons)
    total, detectors = sinogram.shape
    if views is not None and not 1 <= views <= total:
        raise ValueError(f"--views must be between 1 and the {total} views there are, got {views}")
    chosen = np.arange(total) if views is None else np.arange(views) * total // views
    side = size or (sinogram.truth.shape[-1] if sinogram.truth is not None else max(1, round(detectors * spacing)))
    radon = Radon(side, sinogram.angles[chosen], detectors, spacing, centre, threads=threads)
    middle = Views(sinogram.slice(len(sinogram) // 2), chosen, 1.0)
    scale = float(np.quantile(fbp(radon, middle, hann).numpy(), TOP))
    if not scale > 0:
        raise ValueError(f"{name} gives an image without positive values; check its sign, angles and orientation")
    if photons is not None:
        _refuse_opaque(name, middle)
    truths = _truths(sinogram, radon, len(sinogram))

    def read(number: int) -> Measurement:
        rows: Any = Views(sinogram.slice(number), chosen, scale)
        if 4 * math.prod(rows.shape) <= IN_MEMORY:
            rows = torch.from_numpy(rows[..., np.arange(len(chosen)), :])
        return Measurement(rows, None if truths is None else torch.from_numpy(truths[number] / np.float32(scale)))

    return Scan(name, len(sinogram), radon, read, scale, None, photons, scale, notes=sinogram.notes)


def _refuse_photons(photons: float | None) -> None:
    if photons is not None and not 1 <= photons <= MOST_PHOTONS:
        raise ValueError(f"--photons is a number of 1 to {MOST_PHOTONS:g} for a ray without object, got {photons:g}")


def _refuse_opaque(name: str, sinogram: Views) -> None:
    """Weights exp(-b) need b = -log(I/I0)."""
    largest = max(float(_rows(sinogram, numbers).max()) for numbers in _pieces(sinogram))
    if largest > OPAQUE:
        raise ValueError(
            f"{name} reaches {largest:g}, but --photons needs a sinogram of -log(I/I0), which stays below {OPAQUE:g}; "
            "rescale it or leave --photons out"
        )


def _truths(sinogram: Sinogram, radon: Radon, count: int) -> NDArray[np.float32] | None:
    if sinogram.truth is None:
        return None
    truths = sinogram.truth[None] if sinogram.truth.ndim == 2 else sinogram.truth
    if truths.shape != (count, radon.height, radon.width):
        needed = (count, radon.height, radon.width)
        raise ValueError(f"the truth in the file has shape {truths.shape}, but the image has {needed}; set --size")
    return truths


def _pieces(sinogram: Any) -> list[NDArray[np.int64]]:
    views = int(sinogram.shape[0])
    return [np.arange(first, min(first + PIECE, views)) for first in range(0, views, PIECE)]


def _rows(sinogram: Any, numbers: NDArray[np.int64]) -> Tensor:
    if isinstance(sinogram, Tensor):
        return sinogram[torch.from_numpy(numbers)]
    return torch.from_numpy(sinogram[..., numbers, :])


def fbp(radon: Radon, sinogram: Any, window: Window = ramp) -> Tensor:
    """Filtered back-projection, reading some views at a time."""
    weights = torch.from_numpy(angular_weights(radon.angles)).float()
    total = torch.zeros(radon.height, radon.width)
    for numbers in _pieces(sinogram):
        rows = filtered(_rows(sinogram, numbers), radon.spacing, window) * weights[numbers, None]
        total += radon.adjoint_views(rows, numbers)
    return total * radon.spacing


def first_image(radon: Radon, sinogram: Any, noise: float, sigma: float) -> Tensor:
    """The sharpest filtered back-projection with noise of at most 2.5 sigma: a denoiser for sigma takes more for image.

    The windows are the ramp, then Hann's up to 1, 1/sqrt 2, 1/2, ... of the largest frequency.
    """
    for window in (ramp, *(_hann_up_to(2 ** (-n / 2)) for n in range(9))):
        if noise * _noise_gain(radon, window) <= MOST_NOISE * sigma:
            break
    return fbp(radon, sinogram, window)


def _hann_up_to(share: float) -> Window:
    return lambda f: hann((f / share).clamp(max=1))


def _noise_gain(radon: Radon, window: Window) -> float:
    """The noise of a filtered back-projection for white noise of level 1, measured with some of the views."""
    weights = torch.from_numpy(angular_weights(radon.angles)).float()
    numbers = np.unique(np.linspace(0, radon.views - 1, min(radon.views, 32)).astype(np.int64))
    noise = torch.from_numpy(Rng(0, 0).standard_normal((len(numbers), radon.detectors), dtype=np.float32))
    some = weights[numbers]
    image = radon.adjoint_views(filtered(noise, radon.spacing, window) * some[:, None], numbers) * radon.spacing
    return float(image.std(correction=0) * (weights.square().sum() / some.square().sum()).sqrt())


def residual(radon: Radon, sinogram: Any, x: Tensor) -> float:
    """|A x - b| / |b|."""
    error = size = 0.0
    for numbers in _pieces(sinogram):
        b = _rows(sinogram, numbers).to(x.device)
        error += float((radon.forward_views(x, numbers) - b).double().square().sum())
        size += float(b.double().square().sum())
    return math.sqrt(error / size)


def fits_badly(sinogram: Any, residual: float, noise: float) -> bool:
    """Whether a relative residual is more than discretisation and noise of this level can explain."""
    size = float(_some_views(sinogram).square().mean().sqrt())
    return residual > max(LARGE_RESIDUAL, 3 * noise / size)


def noise_level(sinogram: Any) -> float:
    """The noise of a sinogram, from at most PIECE of its views."""
    some = _some_views(sinogram)
    return max(sinogram_noise(some), _least_noise(some))


def _some_views(sinogram: Any) -> Tensor:
    views = int(sinogram.shape[0])
    return _rows(sinogram, np.unique(np.linspace(0, views - 1, min(views, PIECE)).astype(np.int64)))


def _least_noise(sinogram: Tensor) -> float:
    return QUIETEST * float(sinogram.square().mean().sqrt())
