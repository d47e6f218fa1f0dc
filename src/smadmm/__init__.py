"""Stochastic ADMM with momentum, and its rivals, on one loop."""

from smadmm import losses, metrics, operators, proxes, schedules, tuning
from smadmm.certificate import Certificate, certificate
from smadmm.estimators import ASVRG, SAGA, SGD, SVRG, Estimate, Estimator, Measured, Spider, Storm
from smadmm.history import History
from smadmm.pace import DistanceOverGradients
from smadmm.pnp import pnp, tomography
from smadmm.preconditioner import FourierStep
from smadmm.problem import FiniteSum, Loss, Penalty, Problem, Prox
from smadmm.red import RED
from smadmm.run import Diverged, Result, Stop, run
from smadmm.sampling import Ordered, Rng, golden, iid, reshuffled, stride
from smadmm.schedules import Power, theorem_constant, theorem_dynamic
from smadmm.solver import ADMM, Average, State
from smadmm.tuning import auto, check_assumptions
from smadmm.xsteps import Conjugate, Exact, Metric, Preconditioned, linearised

__version__ = "0.1.0"

__all__ = [
    "ADMM",
    "ASVRG",
    "RED",
    "SAGA",
    "SGD",
    "SVRG",
    "Average",
    "Certificate",
    "Conjugate",
    "DistanceOverGradients",
    "Diverged",
    "Estimate",
    "Estimator",
    "Exact",
    "FiniteSum",
    "FourierStep",
    "History",
    "Loss",
    "Measured",
    "Metric",
    "Ordered",
    "Penalty",
    "Power",
    "Preconditioned",
    "Problem",
    "Prox",
    "Result",
    "Rng",
    "Spider",
    "State",
    "Stop",
    "Storm",
    "auto",
    "certificate",
    "check_assumptions",
    "golden",
    "iid",
    "linearised",
    "losses",
    "metrics",
    "operators",
    "pnp",
    "proxes",
    "reshuffled",
    "run",
    "schedules",
    "stride",
    "theorem_constant",
    "theorem_dynamic",
    "tomography",
    "tuning",
]
