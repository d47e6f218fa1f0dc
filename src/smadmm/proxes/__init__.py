"""Proxes: penalties, total variation and denoisers."""

from smadmm.proxes.constraints import Modulus, Support
from smadmm.proxes.penalties import (
    L1,
    Box,
    Denoised,
    DoubleWell,
    ElasticNet,
    GroupL2,
    Nonnegative,
    Scheduled,
    Separate,
    Simplex,
    Zero,
)
from smadmm.proxes.total_variation import TV

__all__ = [
    "L1",
    "TV",
    "Box",
    "Denoised",
    "DoubleWell",
    "ElasticNet",
    "GroupL2",
    "Modulus",
    "Nonnegative",
    "Scheduled",
    "Separate",
    "Simplex",
    "Support",
    "Zero",
]
