"""Schedules: parameters as functions of the iteration k = 1, 2, ..., and the presets of the two theorems.

Theorem 3.1 (constant, horizon K): rho = c_rho K^(1/3), a = c_a^2 / rho^2, eta = ratio * rho, m = ceil(rho).
Theorem 3.2 (dynamic):             rho_k = c_rho k^(1/3), eta_k = c_eta k^(1/3), a_(k+1) = c_a k^(-2/3), m = 1.
The exponents are the theorems'; their literal constants are far too careful to be of use, so constants are arguments
and `smadmm.tuning.auto` gets them from the problem. The momentum a is kept in (0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

Schedule = Callable[[int], Any]  # k -> a number, or a tensor of positive row weights
ScheduleLike = float | Tensor | Schedule


@dataclass(frozen=True)
class Power:
    """k -> c k^p, kept in [lo, hi].

    >>> [round(Power(2.0, -0.5, lo=0.9)(k), 3) for k in (1, 4, 100)]
    [2.0, 1.0, 0.9]
    """

    c: float
    p: float = 0.0
    lo: float = 0.0
    hi: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.c) and math.isfinite(self.p)):
            raise ValueError(f"Power needs finite numbers, got c = {self.c}, p = {self.p}")
        if self.c < 0:
            raise ValueError(f"parameters are positive, got c = {self.c}")
        if self.lo > self.hi:
            raise ValueError(f"Power needs lo <= hi, got lo = {self.lo}, hi = {self.hi}")

    def __call__(self, k: int) -> float:
        return min(max(self.c * math.pow(k, self.p), self.lo), self.hi)


@dataclass(frozen=True)
class Constant:
    """k -> the same value, a tensor of row weights."""

    value: Tensor

    def __call__(self, k: int) -> Tensor:
        return self.value


def as_schedule(value: ScheduleLike) -> Schedule:
    """A number or a tensor becomes a constant schedule; a function of k stays as it is."""
    if isinstance(value, Tensor):
        return Constant(value)
    if callable(value):
        return value
    return Power(float(value))


class Schedules(NamedTuple):
    """What a theorem prescribes: penalty, inverse step, momentum and the size m of the first batch."""

    rho: Power
    eta: Power
    a: Power
    first: int


def theorem_constant(K: int, c_rho: float = 1.0, ratio: float = 1.0, c_a: float = 2.0) -> Schedules:
    """Theorem 3.1 for K iterations, eta = ratio * rho.

    >>> theorem_constant(1000).rho(5)
    10.0
    """
    if K < 1 or not min(c_rho, ratio, c_a) > 0:
        raise ValueError(f"K must be at least 1 and constants positive, got {K=}, {c_rho=}, {ratio=}, {c_a=}")
    rho = c_rho * round(K ** (1 / 3), 12)
    return Schedules(Power(rho), Power(ratio * rho), Power(min(1.0, c_a**2 / rho**2)), math.ceil(rho))


def theorem_dynamic(c_rho: float = 1.0, c_eta: float = 1.0, c_a: float = 2.0) -> Schedules:
    """Theorem 3.2: no horizon, no large first batch.

    >>> theorem_dynamic(c_rho=2.0).rho(8)
    4.0
    """
    return Schedules(Power(c_rho, 1 / 3), Power(c_eta, 1 / 3), Power(c_a, -2 / 3, hi=1.0), 1)
