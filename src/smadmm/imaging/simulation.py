"""Data by simulation: Gaussian noise of a given SNR, or counts of photons.

Photons: a ray of attenuation p lets N ~ Poisson(I0 exp(-p)) of I0 photons through, and the sinogram is -log(N/I0); a
ray without photons counts as half a photon. Images in [0, 1] have water at 0.4, which takes 2 % per mm.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.operators import CodedDiffraction, Radon
from smadmm.sampling import Rng

WATER = 0.02  # attenuation of water per mm, at about 70 keV
WATER_VALUE = 0.4  # of water in an image in [0, 1]
MOST_PHOTONS = 1e15


def with_noise(clean: Tensor, decibel: float, noise: Tensor) -> Tensor:
    """clean + noise, the noise scaled to |clean| / |noise| = 10^(decibel/20)."""
    noisy: Tensor = clean + noise * (clean.norm() / noise.norm() * 10 ** (-decibel / 20))
    return noisy


def refuse_noise(snr: float | None, photons: float | None) -> None:
    """An SNR must not be negative; photons are counted per unattenuated ray."""
    if snr is not None and not snr >= 0:
        raise ArgumentError("{snr} must not be negative, got {0:g}; it is 20 log10(|signal| / |noise|) in dB", snr)
    if photons is not None and not 1 <= photons <= MOST_PHOTONS:
        raise ArgumentError(
            "{photons} is a number of 1 to {0:g} per unattenuated ray, got {1:g}", MOST_PHOTONS, photons
        )


def attenuation_per_pixel(pixel_mm: float) -> float:
    """What a pixel of value 1 takes from a ray, where water has the value 0.4."""
    return WATER / WATER_VALUE * pixel_mm


def simulated_sinogram(
    image: Tensor, views: int, snr: float, seed: int = 0, number: int = 0, threads: int = 1
) -> Tensor:
    """Line integrals at `views` angles over half a turn, with Gaussian noise of `snr` dB, another for every number."""
    clean = half_turn(image, views, threads)(image)
    noise = Rng(seed, 2**61 + number).standard_normal(clean.shape, dtype=np.float32)
    return with_noise(clean, snr, torch.from_numpy(noise))


def simulated_counts(
    image: Tensor, views: int, photons: float, seed: int = 0, number: int = 0, threads: int = 1
) -> Tensor:
    """-log(N/I0) of counts N at `views` angles over half a turn; the image is in attenuation per pixel."""
    clean = half_turn(image, views, threads)(image)
    counts = Rng(seed, 2**61 + number).poisson(photons * np.exp(-clean.double().numpy()))
    return torch.from_numpy(-np.log(np.maximum(counts, 0.5) / photons).astype(np.float32))


def half_turn(image: Tensor, views: int, threads: int = 1) -> Radon:
    """The projector of `views` equispaced views over 180 degrees, with detectors for the whole image."""
    height, width = image.shape[-2:]
    return Radon((height, width), np.arange(views) * math.pi / views, threads=threads)


def simulated_amplitudes(image: Tensor, operator: CodedDiffraction, snr: float, seed: int = 0) -> Tensor:
    """|A x| with Gaussian noise of `snr` dB; what falls below zero is zero."""
    clean = operator(image).abs()
    noise = torch.from_numpy(Rng(seed, 2**60).standard_normal(clean.shape, dtype=np.float32)).to(clean)
    return with_noise(clean, snr, noise).clamp(min=0)
