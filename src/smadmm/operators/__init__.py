"""Linear operators with exact adjoints."""

from smadmm.operators.differences import EdgeDifferences, FiniteDifferences
from smadmm.operators.filters import hann, ramp, shepp_logan
from smadmm.operators.linear import (
    Adjoint,
    Composition,
    Identity,
    Matrix,
    Norm,
    Operator,
    Scaled,
    Slot,
    Stack,
    Sum,
)
from smadmm.operators.radon import Radon

__all__ = [
    "Adjoint",
    "Composition",
    "EdgeDifferences",
    "FiniteDifferences",
    "Identity",
    "Matrix",
    "Norm",
    "Operator",
    "Radon",
    "Scaled",
    "Slot",
    "Stack",
    "Sum",
    "hann",
    "ramp",
    "shepp_logan",
]
