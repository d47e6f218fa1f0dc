"""Losses: samples, values and gradients."""

from smadmm.losses.autograd import Autograd
from smadmm.losses.glm import GLM, Logistic, Sigmoid, Squared, SquaredHinge
from smadmm.losses.inverse import BlockLeastSquares, LeastSquares
from smadmm.losses.stream import Stream, StreamEnded
from smadmm.losses.tomography import Tomography, Transmission

__all__ = [
    "GLM",
    "Autograd",
    "BlockLeastSquares",
    "LeastSquares",
    "Logistic",
    "Sigmoid",
    "Squared",
    "SquaredHinge",
    "Stream",
    "StreamEnded",
    "Tomography",
    "Transmission",
]
