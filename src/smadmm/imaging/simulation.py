"""Simulated measurements: noise of a given level."""

from __future__ import annotations

from torch import Tensor


def with_noise(clean: Tensor, decibel: float, noise: Tensor) -> Tensor:
    """clean + e, where e is the noise scaled so that 20 log10(|clean| / |e|) = decibel."""
    noisy: Tensor = clean + noise * (clean.norm() / noise.norm() * 10 ** (-decibel / 20))
    return noisy
