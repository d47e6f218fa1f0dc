"""Sinograms as the solver reads them: in memory or on disk, their noise, and filtered back-projections of them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.imaging.pnp import sinogram_noise
from smadmm.operators.fan import FanGeometry
from smadmm.operators.radon import hann, ramp
from smadmm.operators.radon.filters import Window
from smadmm.operators.radon.projector import Projector
from smadmm.sampling import Rng

IN_MEMORY = 2**28  # bytes of a sinogram that is read at once; larger ones stay on disk
PIECE = 256  # views together
TOP = 0.999  # the quantile that becomes 1
MOST_NOISE = 2.5  # of the first image, in units of what the denoiser is made for
SMALL = 512  # views, and detectors, of a sinogram to look at
AIR_BLOCK = 8  # views, and detectors, that are averaged to tell an object from noise
QUIETEST = 1e-3  # noise is never taken for less than this share of the sinogram (60 dB)

Rows = Any  # one sinogram: a tensor views x detectors, or `Views` of an array that is too large for memory


class Measured(ABC):
    """A scan that says how it was measured, such as smadmm.io reads."""

    center: float | None  # the axis of rotation in detectors off the middle; None: not known
    truth: Any  # the image; None: not known

    @property
    @abstractmethod
    def beam(self) -> FanGeometry | None:
        """The fan; None: parallel rays."""

    @property
    @abstractmethod
    def angles(self) -> Any:
        """Of the views in degrees, or the two ends of their range."""

    @property
    @abstractmethod
    def array(self) -> Any:
        """A sinogram, or a stack of them."""


@dataclass(frozen=True)
class Mended:
    """Slices that are mended one by one, when they are asked for."""

    slices: Any
    mend: Callable[[NDArray[Any]], NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, number: int) -> NDArray[np.float32]:
        return self.mend(np.asarray(self.slices[number][:]))


class Views:
    """A sinogram that is too large for memory, divided by the scale, read as views are asked for."""

    def __init__(self, stored: Any, scale: float):
        self.stored, self.scale, self.shape = stored, scale, tuple(stored.shape)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """[..., views, :] with sorted numbers of views, as the loss reads."""
        rows: NDArray[np.float32] = np.asarray(self.stored[key[-2]], dtype=np.float32)
        scaled: NDArray[np.float32] = rows / np.float32(self.scale)
        return scaled


def read(stored: Any, scale: float) -> Rows:
    """A slice in memory, or its views as they are asked for."""
    if 4 * math.prod(stored.shape) > IN_MEMORY:
        return Views(stored, scale)
    if isinstance(stored, Tensor):
        return stored.detach().cpu().to(torch.float32) / scale
    return torch.from_numpy(np.array(stored[:], dtype=np.float32)) / scale


def pieces(rows: Rows) -> list[NDArray[np.int64]]:
    views = int(rows.shape[0])
    return [np.arange(first, min(first + PIECE, views)) for first in range(0, views, PIECE)]


def some(rows: Rows, numbers: NDArray[np.int64]) -> Tensor:
    return rows[torch.from_numpy(numbers)] if isinstance(rows, Tensor) else torch.from_numpy(rows[..., numbers, :])


def sampled(views: int) -> NDArray[np.int64]:
    """The numbers of at most PIECE of the views."""
    return np.unique(np.linspace(0, views - 1, min(views, PIECE)).astype(np.int64))


def sample(rows: Rows) -> Tensor:
    """At most PIECE of the views."""
    return some(rows, sampled(int(rows.shape[0])))


def residual(radon: Projector, rows: Rows, x: Tensor) -> float:
    """|A x - b| / |b|; nothing is explained by nothing."""
    error = size = 0.0
    for numbers in pieces(rows):
        b = some(rows, numbers).to(x.device)
        error += float((radon.forward_views(x, numbers) - b).double().square().sum())
        size += float(b.double().square().sum())
    return math.sqrt(error / size) if size else 0.0


def is_air(rows: Tensor) -> bool:
    """Whether means over blocks of rays do not differ by more than the noise of one ray."""
    finite = torch.where(rows.isfinite(), rows, 0.0)
    blocks = torch.nn.functional.avg_pool2d(finite[None], [min(AIR_BLOCK, n) for n in rows.shape])
    return bool(blocks.std(correction=0) <= sinogram_noise(finite))


def small_mean(rows: Tensor) -> Tensor:
    """Means over blocks of rays of one size, so that at most SMALL remain each way."""
    block = [-(-n // SMALL) for n in rows.shape]
    return torch.nn.functional.avg_pool2d(rows[None], block, ceil_mode=True)[0]


def root_mean_square(rows: Rows) -> float:
    """The size of a sinogram, from at most PIECE of its views."""
    return float(sample(rows).square().mean().sqrt())


def noise_level(rows: Rows) -> float:
    """The noise of a sinogram, from at most PIECE of its views."""
    return max(sinogram_noise(sample(rows)), QUIETEST * root_mean_square(rows))


class BackProjections:
    """Filtered back-projections of one sinogram, each filter computed once.

    Filters are named by their cut: None is the ramp; a number is Hann's window up to that share of the largest
    frequency.
    """

    CUTS = (None, *(2 ** (-n / 2) for n in range(9)))  # from sharp to smooth

    def __init__(self, radon: Projector, rows: Rows):
        self.radon, self.rows = radon, rows
        self._done: dict[float | None, Tensor] = {}

    def __getitem__(self, cut: float | None) -> Tensor:
        if cut not in self._done:
            self._done[cut] = self.radon.fbp(self.rows, window_of(cut))
        return self._done[cut]

    def divide(self, scale: float) -> None:
        """Divide sinogram and images by the scale."""
        if isinstance(self.rows, Views):
            self.rows = Views(self.rows.stored, self.rows.scale * scale)
        else:
            self.rows = self.rows / scale
        self._done = {cut: image / scale for cut, image in self._done.items()}

    def largest(self) -> float:
        """A robust largest value of the image."""
        largest = float(np.quantile(self[1.0].numpy(), TOP))
        if not largest > 0:
            raise ValueError(
                "the image has no positive values; check the sign of the sinogram, its angles and its axes"
            )
        return largest

    def first(self, noise: float, sigma: float) -> Tensor:
        """The sharpest image with noise of at most 2.5 sigma: a denoiser for sigma takes more for structure."""
        quiet = (cut for cut in self.CUTS if noise * noise_gain(self.radon, window_of(cut)) <= MOST_NOISE * sigma)
        return self[next(quiet, self.CUTS[-1])]

    def fingerprint(self) -> str:
        """Of some of the views."""
        return hashlib.sha256(sample(self.rows).contiguous().numpy().tobytes()).hexdigest()[:16]


def window_of(cut: float | None) -> Window:
    """The ramp alone (None), or Hann's window up to a share of the largest frequency."""
    return ramp if cut is None else lambda f: hann((f / cut).clamp(max=1))


def noise_gain(radon: Projector, window: Window) -> float:
    """The noise of a filtered back-projection for white noise of level 1, measured with some of the views."""
    squares = radon.fbp_weights().square().mean(1)
    numbers = np.unique(np.linspace(0, radon.views - 1, min(radon.views, 32)).astype(np.int64))
    noise = torch.from_numpy(Rng(0, 0).standard_normal((len(numbers), radon.detectors), dtype=np.float32))
    image = radon.filter_back(noise, numbers, window)
    return float(image.std(correction=0) * (squares.sum() / squares[numbers].sum()).sqrt())
