"""The theory of the paper as code that can fail: constants, bounds, assumptions and presets of Theorems 3.1 and 3.2."""

from smadmm.theory.checking import Assumption, Report, check
from smadmm.theory.measuring import Interval, gradient_noise, mean_square_smoothness, measure, sampled_smoothness
from smadmm.theory.presets import bound, numbers_of, start, theorem_constant, theorem_dynamic
from smadmm.theory.theorems import Bound, ConstantTheorem, DynamicTheorem, Numbers

__all__ = [
    "Assumption",
    "Bound",
    "ConstantTheorem",
    "DynamicTheorem",
    "Interval",
    "Numbers",
    "Report",
    "bound",
    "check",
    "gradient_noise",
    "mean_square_smoothness",
    "measure",
    "numbers_of",
    "sampled_smoothness",
    "start",
    "theorem_constant",
    "theorem_dynamic",
]
