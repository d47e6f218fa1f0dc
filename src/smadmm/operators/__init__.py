"""Linear operators with exact adjoints."""

from smadmm.operators.differences import EdgeDifferences, FiniteDifferences
from smadmm.operators.diffraction import CodedDiffraction, circle_masks, quadrant_masks
from smadmm.operators.fan.beam import FanBeam
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
from smadmm.operators.ptychography import Ptychography
from smadmm.operators.radon.filters import hann, ramp, shepp_logan
from smadmm.operators.radon.parallel import Radon

__all__ = [
    "Adjoint",
    "CodedDiffraction",
    "Composition",
    "EdgeDifferences",
    "FanBeam",
    "FiniteDifferences",
    "Identity",
    "Matrix",
    "Norm",
    "Operator",
    "Ptychography",
    "Radon",
    "Scaled",
    "Slot",
    "Stack",
    "Sum",
    "circle_masks",
    "hann",
    "quadrant_masks",
    "ramp",
    "shepp_logan",
]
