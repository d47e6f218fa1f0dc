"""Isotropic total variation of images, h(y) = w sum_p |(D y)_p|, D the forward differences of the last two axes.

The prox is solved in the dual, min_{|p| <= 1} 1/2 |v - t w D'p|^2, by the fast gradient projection of Beck and Teboulle
(2009), restarted where its momentum points uphill; the duality gap stops it, so `accuracy` bounds |y - y*|_2 / |v|_2
unless max_iterations ends it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from smadmm.problem import Distance, Penalty, Step


def _differences(y: Tensor) -> tuple[Tensor, Tensor]:
    down, right = torch.zeros_like(y), torch.zeros_like(y)
    down[..., :-1, :] = y[..., 1:, :] - y[..., :-1, :]
    right[..., :, :-1] = y[..., :, 1:] - y[..., :, :-1]
    return down, right


def _adjoint(down: Tensor, right: Tensor) -> Tensor:
    y = torch.zeros_like(down)
    y[..., 1:, :] += down[..., :-1, :]
    y[..., :-1, :] -= down[..., :-1, :]
    y[..., :, 1:] += right[..., :, :-1]
    y[..., :, :-1] -= right[..., :, :-1]
    return y


def _magnitude(down: Tensor, right: Tensor) -> Tensor:
    return torch.hypot(down, right)


@dataclass(frozen=True)
class TV(Penalty):
    """h(y) = weight * TV(y) of the last two axes of y (real)."""

    weight: float
    accuracy: float = 1e-4
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"the weight of TV must not be negative, got {self.weight}")

    def value(self, y: Tensor) -> float:
        return self.weight * float(_magnitude(*_differences(y)).sum())

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return self.solve(v, float(t) * self.weight)[0]

    def solve(self, v: Tensor, weight: float) -> tuple[Tensor, float]:
        """y close to argmin 1/2 |y - v|^2 + weight TV(y), and the duality gap: 1/2 |y - y*|^2 <= gap."""
        if v.ndim < 2:
            raise ValueError(f"TV needs an image with at least two axes, got shape {tuple(v.shape)}")
        if weight == 0:
            return v, 0.0
        allowed = 0.5 * (self.accuracy * float(torch.linalg.vector_norm(v))) ** 2
        p = q = (torch.zeros_like(v), torch.zeros_like(v))
        momentum, y = 1.0, v
        for iteration in range(1, self.max_iterations + 1):
            y = v - weight * _adjoint(*q)
            slope = _differences(y)
            moved = (q[0] + slope[0] / (8 * weight), q[1] + slope[1] / (8 * weight))
            size = _magnitude(*moved).clamp_(min=1)
            new = (moved[0] / size, moved[1] / size)
            following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
            pull = (momentum - 1) / following
            ahead = (new[0] - p[0], new[1] - p[1])
            uphill = float(((q[0] - new[0]) * ahead[0]).sum() + ((q[1] - new[1]) * ahead[1]).sum()) > 0
            if uphill:
                following, pull = 1.0, 0.0
            q = (new[0] + pull * ahead[0], new[1] + pull * ahead[1])
            p, momentum = new, following
            if iteration % 10 == 0:
                y = v - weight * _adjoint(*p)
                slope = _differences(y)
                gap = _gap(weight, slope, p)
                if gap <= allowed:
                    return y, gap
        y = v - weight * _adjoint(*p)
        return y, _gap(weight, _differences(y), p)

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        """min |g - w D'p| over p = D y / |D y| where D y is not zero, |p| <= 1 elsewhere.

        By gradient projection, which comes from above.
        """
        if self.weight == 0:
            return float(torch.linalg.vector_norm(g))
        slope = _differences(y)
        size = _magnitude(*slope)
        flat = size == 0
        safe = torch.where(flat, torch.ones_like(size), size)
        fixed = (slope[0] / safe, slope[1] / safe)
        p = q = (torch.where(flat, 0.0, fixed[0]), torch.where(flat, 0.0, fixed[1]))
        momentum = 1.0
        for _ in range(self.max_iterations):
            descent = _differences(g - self.weight * _adjoint(*q))
            moved = (q[0] + descent[0] / (8 * self.weight), q[1] + descent[1] / (8 * self.weight))
            cut = _magnitude(*moved).clamp(min=1)
            new = (torch.where(flat, moved[0] / cut, fixed[0]), torch.where(flat, moved[1] / cut, fixed[1]))
            following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
            pull = (momentum - 1) / following
            q = (new[0] + pull * (new[0] - p[0]), new[1] + pull * (new[1] - p[1]))
            p, momentum = new, following
        return float(torch.linalg.vector_norm(g - self.weight * _adjoint(*p)))

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        """Exact where every slope is zero or clearly not; elsewhere the value is the prox residual, a lower bound.

        The prox knows y within `accuracy` only: a slope below that may stand for one that is zero at the point meant,
        near which the distance may be far smaller than at y. There the value is |r (y - prox(y + g/r))|, widened by
        what the inner solver may be off, sqrt(2 r gap) with the gap of h(y) + r/2 |y - v|^2; `high` is exact.
        """
        exact = self.subdifferential_distance(y, g)
        size = _magnitude(*_differences(y))
        unclear = (size > 0) & (size <= self.accuracy * float(y.abs().max()))
        if not bool(unclear.any()):
            return Distance(exact, exact, exact)
        near, gap = self.solve(y + g / r, self.weight / float(r))
        residual, width = float(r) * float(torch.linalg.vector_norm(y - near)), float(r) * math.sqrt(2 * gap)
        return Distance(min(max(residual - width, 0.0), exact), min(residual + width, exact), exact)


def _gap(weight: float, slope: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]) -> float:
    """weight (TV(y) - <D y, p>), the duality gap of the prox."""
    return weight * max(float((_magnitude(*slope) - slope[0] * p[0] - slope[1] * p[1]).sum()), 0.0)
