"""Linear operators with exact adjoints."""

from smadmm.operators.differences import EdgeDifferences, FiniteDifferences
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

__all__ = [
    "Adjoint",
    "Composition",
    "EdgeDifferences",
    "FiniteDifferences",
    "Identity",
    "Matrix",
    "Norm",
    "Operator",
    "Scaled",
    "Slot",
    "Stack",
    "Sum",
]
