"""Isotropic total variation of images, h(y) = w sum_p |(D y)_p|, D the forward differences of the last two axes.

The prox is solved in the dual, min_{|p| <= 1} 1/2 |v - t w D'p|^2, by the fast gradient projection of Beck and Teboulle
(2009), restarted where its momentum points uphill. Every ten iterations the duality gap is computed at y = v - t w D'p:
the sum of the primal and the dual error, each at least 1/2 |y - y*|^2, so |y - y*|^2 <= gap. It stops the iteration:
`accuracy` bounds |y - y*|_2 / |v|_2 unless max_iterations ends it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from smadmm.problem import Distance, Penalty, Step

STEPS = 10  # between two looks at the gap and the momentum; an even number


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


class _TorchDual:
    """The dual of a prox, in torch: any device."""

    def __init__(self, v: Tensor, weight: float):
        self.v, self.weight = v, weight
        self.p = self.before = torch.stack([torch.zeros_like(v)] * 2)

    def advance(self, pulls: list[float]) -> float:
        """Steps with these shares of momentum; positive if the last one was pulled uphill."""
        for pull in pulls:
            q = self.p + pull * (self.p - self.before)
            moved = q + torch.stack(_differences(self.v - self.weight * _adjoint(*q))) / (8 * self.weight)
            self.before, self.p = self.p, moved / _magnitude(*moved).clamp_(min=1)
        return float(((q - self.p) * (self.p - self.before)).sum())

    def image_and_gap(self) -> tuple[Tensor, float]:
        """y = v - w D'p and the gap w TV(y) - w <D y, p>."""
        y = self.v - self.weight * _adjoint(*self.p)
        slope = torch.stack(_differences(y))
        return y, self.weight * float((_magnitude(*slope) - (slope * self.p).sum(0)).sum())


class _CompiledDual:
    """The same for float32 and float64 on the CPU, ten steps in one pass over the memory."""

    def __init__(self, v: Tensor, weight: float):
        from smadmm.proxes import total_variation_kernels as kernels

        self.kernels, self.shape, self.weight = kernels, v.shape, weight
        self.images = v.reshape(-1, *v.shape[-2:]).contiguous().numpy()
        count, height, width = self.images.shape
        self.field, self.last = np.zeros((2, count, height, 2, width), self.images.dtype)
        self.rows = np.empty((STEPS, 2, 3, width), self.images.dtype)

    def advance(self, pulls: list[float]) -> float:
        return float(self.kernels.advance(self.images, self.field, self.last, np.array(pulls), self.weight, self.rows))

    def image_and_gap(self) -> tuple[Tensor, float]:
        y = np.empty_like(self.images)
        gap = self.kernels.image_and_gap(self.images, self.field, self.weight, y)
        return torch.from_numpy(y).reshape(self.shape), float(gap)


def _dual(v: Tensor, weight: float) -> _TorchDual | _CompiledDual:
    suits = v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64) and not v.requires_grad
    return _CompiledDual(v, weight) if suits and find_spec("numba") is not None else _TorchDual(v, weight)


def _pulls(momentum: float) -> tuple[list[float], float]:
    """The shares of momentum in the next steps, and the momentum after them."""
    pulls = []
    for _ in range(STEPS):
        following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
        pulls.append((momentum - 1) / following)
        momentum = following
    return pulls, momentum


@dataclass(frozen=True)
class TV(Penalty):
    """h(y) = weight * TV(y) of the last two axes of y (real).

    >>> round(proxes.TV(1.0).value(torch.eye(2)), 3)
    3.414
    """

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
        """y close to argmin 1/2 |y - v|^2 + weight TV(y), and the duality gap: |y - y*|^2 <= gap."""
        if v.ndim < 2:
            raise ValueError(f"TV needs an image with at least two axes, got shape {tuple(v.shape)}")
        if weight == 0:
            return v, 0.0
        allowed = (self.accuracy * float(torch.linalg.vector_norm(v))) ** 2
        dual, momentum = _dual(v, weight), 1.0
        y, gap = dual.image_and_gap()
        for _ in range(0, self.max_iterations, STEPS):
            if gap <= allowed:
                break
            pulls, momentum = _pulls(momentum)
            if dual.advance(pulls) > 0:
                momentum = 1.0
            y, gap = dual.image_and_gap()
        return y, gap

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
