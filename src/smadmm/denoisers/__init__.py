"""Denoisers D = I - grad g with Lip(grad g) < 1: potentials, trained weights, measurement, training.

>>> from smadmm.denoisers import load
>>> denoiser = load("ridge-natural")          # no network needed
>>> round(denoiser.lipschitz, 2)              # proved for ridge potentials, measured for networks
0.99
"""

from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.gradient_step import GradientStep, Potential
from smadmm.denoisers.jacobian import LipschitzReport, lipschitz
from smadmm.denoisers.ridge import Ridge
from smadmm.denoisers.weights import card, load, save, shipped

__all__ = [
    "DnCNN",
    "GradientStep",
    "LipschitzReport",
    "Potential",
    "Ridge",
    "card",
    "lipschitz",
    "load",
    "save",
    "shipped",
]
