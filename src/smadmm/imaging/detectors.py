"""Offsets and gains of detectors as unknowns beside the image: they are eliminated, and what is left is least squares.

A detector j that is off by an offset and a gain measures b_ij = (A x)_ij + d_j + g_j b_ij + noise: b serves as its own
regressor. With weights D (1/variance in units of that of a good ray, whose noise is s), and d_j and g_j normal with
deviations s_d and s_g,
    min over d, g of |A x - b + E (d, g)|^2_D + s^2 (|d|^2 / s_d^2 + |g|^2 / s_g^2) = |A x - b|^2_W,
    W = D - D E K E' D,   K = (E'D E + diag(s^2/s_d^2, s^2/s_g^2))^{-1}: a 2 x 2 matrix per detector.
An offset that is the same in all views is also a ring in the image. Only the prior tells them apart, and it knows
nothing of wide ones, so (d, g) has no part in the longest cosines C along the detector:
    K - K C (C'K C)^{-1} C'K   in the place of K.
Which of both it is shows in the size of what detectors add in the mean over the views: gains add nothing to air.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.losses.inverse import combine
from smadmm.losses.tomography import RobustTomography, Tomography
from smadmm.operators.radon.projector import Projector
from smadmm.problem import Batch
from smadmm.sampling import stride

WIDE = 31  # detectors in half a wave of the shortest cosine that is left to the image
GOOD = 2.5  # times the noise: the largest residual of a good ray
LEAST = 1e-6  # of a deviation: that of errors which are not there


class Deviations(NamedTuple):
    """The standard deviations of offsets, in the sinogram's unit, and of gains."""

    offset: float = 0.0
    gain: float = 0.0

    def scaled(self, scale: float) -> Deviations:
        """For a sinogram that is divided by the scale."""
        return Deviations(self.offset / scale, self.gain)

    def largest(self, other: Deviations) -> Deviations:
        return Deviations(max(self.offset, other.offset), max(self.gain, other.gain))

    def shared(self, projected: NDArray[np.float32]) -> NDArray[np.float32]:
        """What rays add where their detector adds 1 in the mean: E[d + g p | d + g mean(p) = 1]."""
        offset, gain, mean = self.offset**2, self.gain**2, projected.mean(0)
        share: NDArray[np.float32] = (offset + gain * mean * projected) / (offset + gain * mean**2)
        return share


NO_DEVIATIONS = Deviations()


def likeliest(jumps: NDArray[np.float32], means: NDArray[np.float32], least: float) -> Deviations:
    """The deviations for which what detectors add in the mean, d_j + g_j mean_j, is likeliest."""
    size = max(1.4826 * float(np.median(np.abs(jumps))), least)
    clipped = np.clip(jumps.astype(np.float64), -4 * size, 4 * size) ** 2
    top = float(np.quantile(np.abs(means), 0.9))
    offsets, gains = size * np.concatenate([[0.05], np.geomspace(0.1, 3, 24)]), size / top * np.geomspace(0.05, 5, 24)
    variance = offsets[:, None, None] ** 2 + (gains[:, None] * means.astype(np.float64)) ** 2
    cost = (np.log(variance) + clipped / variance).sum(-1)
    row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
    return Deviations(float(offsets[row]), float(gains[column]))


class Calibrated(Tomography):
    """1/(2 c n) |A x - b|^2_W, the loss of tomography without what offsets and gains of detectors can explain.

    All views are used at once: a batch says too little of a detector.
    """

    def __init__(
        self, radon: Projector, sinogram: Tensor, weights: Tensor | None, noise: float, deviations: Deviations
    ):
        super().__init__(radon, sinogram, weights, sampling=stride)
        self.weighted, self.b = True, self._sinogram
        self.D = torch.ones_like(self.b) if weights is None else weights.to(self.b)
        weighted = self.D * self.b
        size = float(self.b.square().mean().sqrt())
        o, m, g = (each.double().sum(0) for each in (self.D, weighted, weighted * self.b))
        o = o + (noise / max(deviations.offset, LEAST * size)) ** 2
        g = g + (noise / max(deviations.gain, LEAST)) ** 2
        self.K = torch.stack([g, -m, o]) / (o * g - m * m)
        detectors = self.b.shape[1]
        places = (torch.arange(detectors, dtype=torch.float64) + 0.5) / detectors
        wide = torch.cos(math.pi * torch.arange(max(1, detectors // WIDE)) * places[:, None])
        self.C = torch.block_diag(wide, wide)
        self.KC = self._each(self.C)
        self.inner = torch.linalg.pinv(self.C.T @ self.KC)

    def _each(self, v: Tensor) -> Tensor:
        """K v, detector by detector: offsets and then gains."""
        offsets, gains = v.chunk(2)
        a, b, c = self.K if v.ndim == 1 else self.K[..., None]
        return torch.cat([a * offsets + b * gains, b * offsets + c * gains])

    def errors(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The offsets and gains that explain most of a residual b - A x."""
        weighted = self.D * residual
        v = torch.cat([weighted.sum(0), (weighted * self.b).sum(0)]).double()
        found = self._each(v) - self.KC @ (self.inner @ (self.KC.T @ v))
        offsets, gains = found.to(residual.dtype).chunk(2)
        return offsets, gains

    def explained(self, residual: Tensor) -> Tensor:
        """What detectors add to their rays, so far as a residual shows it."""
        offsets, gains = self.errors(residual)
        return offsets + gains * self.b

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        left = self.radon(combine(points, weights)) - float(sum(weights)) * self.b
        image: Tensor = self.radon.adjoint(self.D * (left - self.explained(left))) / (self.c * self.n)
        return image

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        left = self.radon(x) - self.b
        return 0.5 * (self.D * left * (left - self.explained(left))).sum() / (self.c * self.n)


def loss_of(
    radon: Projector,
    rows: Any,
    weights: Any,
    noise: float,
    deviations: Deviations,
    device: torch.device | str = "cpu",
    robust: str | None = None,
) -> Tomography:
    """The loss of a sinogram whose detectors deviate so much, or not at all; a robust one takes them as they are."""
    if robust is not None:
        return RobustTomography(radon, rows, GOOD * noise, robust, weights, stride, device=device)
    if not any(deviations):
        return Tomography(radon, rows, weights, sampling=stride, device=device)
    return Calibrated(radon, rows, weights, noise, deviations)
