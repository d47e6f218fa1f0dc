"""Filters of filtered back-projection: the band-limited ramp times a window.

With samples d apart the ramp |nu|, cut at nu = 1/(2d), has the impulse response 1/(4 d^2) at 0, -1/(pi k d)^2 at odd k
and 0 at even k; sampling it there instead of |nu| keeps the mean of the image right. A window is a function of
nu/nu_max in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Window = Callable[[Tensor], Tensor]


def ramp(f: Tensor) -> Tensor:
    """1: the sharpest, and the noisiest.

    >>> operators.ramp(torch.tensor([0.0, 1.0]))
    tensor([1., 1.])
    """
    return torch.ones_like(f)


def hann(f: Tensor) -> Tensor:
    """(1 + cos(pi f))/2: smooth.

    >>> operators.hann(torch.tensor([0.0, 1.0]))
    tensor([1., 0.])
    """
    return 0.5 * (1 + torch.cos(math.pi * f))


def shepp_logan(f: Tensor) -> Tensor:
    """sin(pi f/2)/(pi f/2): in between.

    >>> operators.shepp_logan(torch.tensor([0.0, 1.0])).round(decimals=2)
    tensor([1.0000, 0.6400])
    """
    return torch.sinc(0.5 * f)


def filtered(sinogram: Tensor, spacing: float, window: Window, arc: bool = False) -> Tensor:
    """Each row filtered; on an arc the spacing is an angle, and the response at the angle g is times (g/sin(g))^2."""
    detectors = sinogram.shape[-1]
    length = 1 << (2 * detectors - 1).bit_length()
    k = torch.fft.fftfreq(length, 1 / length, dtype=torch.float64)
    response = torch.where(k % 2 == 1, -1 / (math.pi * k * spacing) ** 2, 0.0)
    response[0] = 1 / (4 * spacing**2)
    if arc:  # angles beyond the quarter turn are not in a fan
        response /= torch.sinc(k.clamp(-detectors, detectors) * spacing / math.pi).square()
    half = torch.fft.rfft(response).real * window(torch.linspace(0, 1, length // 2 + 1, dtype=torch.float64)) * spacing
    spectrum = torch.fft.rfft(sinogram, length) * half.to(sinogram)
    rows: Tensor = torch.fft.irfft(spectrum, length)
    return rows[..., :detectors]


def angular_weights(angles: NDArray[np.float64], period: float) -> NDArray[np.float64]:
    """The share of [0, period) that each view stands for: half the gaps to its neighbours, none above twice the mean.

    >>> angular_weights(np.arange(4) * np.pi / 4, np.pi) / np.pi
    array([0.25, 0.25, 0.25, 0.25])
    """
    order = np.argsort(angles % period)
    sorted_angles = angles[order] % period
    gaps = np.minimum(np.diff(sorted_angles, append=sorted_angles[0] + period), 2 * period / len(angles))
    weights = np.empty(len(angles))
    weights[order] = 0.5 * (gaps + np.roll(gaps, 1))
    return weights
