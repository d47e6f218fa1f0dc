"""A step that sets itself: distance over gradients.

    s_k = max(c reach_k, floor) / sqrt(k mean |v|^2_{1/Q})
    reach_k = max over j <= k of ( |x_j - x_0|_Q^2 - sum_{i<=j} |x_i - x_{i-1}|_Q^2 ) / |x_j - x_0|_Q

The further the iterates got from their start, less what a random walk of the same steps would, the longer the next
step; the mean of |v|^2 weighs recent gradients more (about k^recent). With it eta = 1/s and rho = R/s in the loop: the
solver divides its schedules by s, and averages with weights s^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from smadmm.xsteps import Metric


@dataclass(frozen=True)
class StepSize:
    """The step of the next iteration and what it was made from."""

    step: float
    speed: float  # the mean of |v|^2
    reach: float
    walk: float  # the sum of squared moves
    start: Tensor


class StepSizeRule(Protocol):
    """How a step begins and goes on."""

    def init(self, x: Tensor, v: Tensor) -> StepSize: ...
    def update(self, stepsize: StepSize, x: Tensor, old: Tensor, v: Tensor, k: int) -> StepSize: ...


@dataclass(frozen=True)
class Decaying:
    """From iteration `since` on the step falls like (k - since)^-power, from where it was: Theorem 3.2's exponent."""

    since: int
    power: float = 1 / 3

    def init(self, x: Tensor, v: Tensor) -> StepSize:
        raise ValueError("a decaying step continues another one; start with DistanceOverGradients")

    def update(self, stepsize: StepSize, x: Tensor, old: Tensor, v: Tensor, k: int) -> StepSize:
        passed = k - self.since
        return replace(stepsize, step=stepsize.step * (passed / (passed + 1)) ** self.power)


@dataclass(frozen=True, eq=False)
class DistanceOverGradients:
    """The rule, in a metric Q; floor / |v_0| is the first step."""

    metric: Metric
    floor: float
    c: float = 3.0
    recent: float = 6.0

    def __post_init__(self) -> None:
        if not self.floor > 0:
            raise ValueError(f"floor must be positive, got {self.floor}")

    def _step(self, reach: float, speed: float, k: int) -> float:
        return max(self.c * reach, self.floor) / math.sqrt(k * speed + 1e-300)

    def _square(self, v: Tensor) -> float:
        return float((v.conj() * self.metric.inverse(v)).real.sum())

    def init(self, x: Tensor, v: Tensor) -> StepSize:
        speed = self._square(v)
        return StepSize(self._step(0.0, speed, 1), speed, 0.0, 0.0, x)

    def update(self, stepsize: StepSize, x: Tensor, old: Tensor, v: Tensor, k: int) -> StepSize:
        """After iteration k moved old to x and v was estimated anew."""
        walk = stepsize.walk + self.metric.square(x - old)
        far = self.metric.square(x - stepsize.start)
        reach = max(stepsize.reach, (far - walk) / math.sqrt(far)) if far > 0 else stepsize.reach
        speed = stepsize.speed + (self.recent + 1) / (k + 1 + self.recent) * (self._square(v) - stepsize.speed)
        return StepSize(self._step(reach, speed, k + 1), speed, reach, walk, stepsize.start)
