"""What `smadmm` offers; it is loaded with the first of these names that is used."""

from smadmm import distributed, interop, losses, operators, proxes, theory
from smadmm.certificate import certify
from smadmm.comparing import compare, solve, tune
from smadmm.estimators import ASVRG, SAGA, SGD, SVRG, Estimate, Estimator, Spider, Storm
from smadmm.imaging.ct import reconstruct
from smadmm.imaging.phase import retrieve
from smadmm.operators.fan import FanGeometry
from smadmm.problem import FiniteSum, Loss, Penalty, Problem, Prox
from smadmm.records import Certificate, History
from smadmm.results import Diverged, Reason, Result
from smadmm.running import Stop, run
from smadmm.schedules import Power, theorem_constant, theorem_dynamic
from smadmm.solver import ADMM, State
from smadmm.tuning import auto

fan = FanGeometry  # reconstruct(..., geometry=fan(...))

__all__ = [
    "ADMM",
    "ASVRG",
    "SAGA",
    "SGD",
    "SVRG",
    "Certificate",
    "Diverged",
    "Estimate",
    "Estimator",
    "FiniteSum",
    "History",
    "Loss",
    "Penalty",
    "Power",
    "Problem",
    "Prox",
    "Reason",
    "Result",
    "Spider",
    "State",
    "Stop",
    "Storm",
    "auto",
    "certify",
    "compare",
    "distributed",
    "fan",
    "interop",
    "losses",
    "operators",
    "proxes",
    "reconstruct",
    "retrieve",
    "run",
    "solve",
    "theorem_constant",
    "theorem_dynamic",
    "theory",
    "tune",
]
