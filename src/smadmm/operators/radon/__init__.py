"""Parallel-beam tomography."""

from smadmm.operators.radon.filters import hann, ramp, shepp_logan
from smadmm.operators.radon.parallel import Radon

__all__ = ["Radon", "hann", "ramp", "shepp_logan"]
