"""Stochastic ADMM with momentum, and its rivals, on one loop."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"
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

if TYPE_CHECKING:
    from smadmm.names import *
else:

    def __getattr__(name):
        """Names come with their first use: a command that is refused does not wait for torch."""
        if name in __all__:
            return getattr(import_module("smadmm.names"), name)
        module = f"smadmm.{name}"
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise AttributeError(f"module 'smadmm' has no attribute {name!r}") from None

    def __dir__():
        return sorted({*globals(), *__all__})
