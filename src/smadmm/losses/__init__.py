"""Losses: samples, values and gradients."""

from smadmm.losses.autograd import Autograd
from smadmm.losses.glm import GLM, Huber, Logistic, Sigmoid, Squared, SquaredHinge, Student
from smadmm.losses.inverse import BlockLeastSquares, LeastSquares
from smadmm.losses.operators import OperatorHuber, OperatorLeastSquares, OperatorPoisson, OperatorSum
from smadmm.losses.phase import AmplitudeLoss, IntensityLoss, PhaseLoss, PoissonLoss
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.losses.sources import ArrayRows, TableRows
from smadmm.losses.stream import Stream, StreamEnded, StreamFailed
from smadmm.losses.tomography import RobustTomography, Tomography, Transmission

__all__ = [
    "GLM",
    "AmplitudeLoss",
    "ArrayRows",
    "Autograd",
    "BlockLeastSquares",
    "Huber",
    "IntensityLoss",
    "LeastSquares",
    "Logistic",
    "OperatorHuber",
    "OperatorLeastSquares",
    "OperatorPoisson",
    "OperatorSum",
    "PhaseLoss",
    "PoissonLoss",
    "PtychographyLoss",
    "RobustTomography",
    "Sigmoid",
    "Squared",
    "SquaredHinge",
    "Stream",
    "StreamEnded",
    "StreamFailed",
    "Student",
    "TableRows",
    "Tomography",
    "Transmission",
]
