"""What is known of an object, as indicators: where it is, and how much it lets through. Real or complex."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from smadmm.problem import Penalty, Step


@dataclass(frozen=True, eq=False)
class Support(Penalty):
    """The indicator of y = outside where `inside` is False: the object is known there, as in air or on black.

    >>> proxes.Support(torch.tensor([True, False])).prox(torch.tensor([3.0, 4.0]), 1.0)
    tensor([3., 0.])
    """

    inside: Tensor
    outside: complex = 0.0
    indicator = True
    separable = True

    def __post_init__(self) -> None:
        if self.inside.dtype != torch.bool or not bool(self.inside.any()):
            raise ValueError(f"a support is True where the object is, got {self.inside.dtype} with {self.inside.sum()}")
        object.__setattr__(self, "shape", tuple(self.inside.shape))

    def prox(self, v: Tensor, t: Step) -> Tensor:
        outside = torch.as_tensor(self.outside, dtype=v.dtype, device=v.device)
        return torch.where(self.inside.to(v.device), v, outside)

    def value(self, y: Tensor) -> float:
        return 0.0 if bool((self.prox(y, 1.0) == y).all()) else math.inf

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        return float(torch.linalg.vector_norm(g[self.inside.to(g.device)])) if self.value(y) == 0 else math.inf


@dataclass(frozen=True)
class Modulus(Penalty):
    """The indicator of lo <= |y| <= hi: (0, 1) lets through no more than there was, (1, 1) are phases alone.

    It is convex where lo = 0.

    >>> proxes.Modulus(0.0, 1.0).prox(torch.tensor([3 + 4j, 0.5j]), 1.0)
    tensor([0.6000+0.8000j, 0.0000+0.5000j])
    """

    lo: float = 0.0
    hi: float = 1.0
    indicator = True
    separable = True

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi or self.hi == 0:
            raise ValueError(f"moduli need 0 <= lo <= hi and hi > 0, got lo = {self.lo}, hi = {self.hi}")
        object.__setattr__(self, "convex", self.lo == 0)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        size = v.abs()
        direction = torch.where(size > 0, v / size.clamp(min=torch.finfo(size.dtype).tiny), 1.0)
        return torch.where((size < self.lo) | (size > self.hi), direction * size.clamp(self.lo, self.hi), v)

    def value(self, y: Tensor) -> float:
        slack = 4 * torch.finfo(y.dtype).eps * self.hi
        return 0.0 if bool(((y.abs() >= self.lo - slack) & (y.abs() <= self.hi + slack)).all()) else math.inf

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        """Normals point outwards at |y| = hi and inwards at |y| = lo."""
        if self.value(y) > 0:
            return math.inf
        size, slack = y.abs(), 4 * torch.finfo(y.dtype).eps * self.hi
        radial = (y.conj() * g).real / size.clamp(min=torch.finfo(size.dtype).tiny)
        outwards = (size >= self.hi - slack) & (radial > 0)
        inwards = (size <= self.lo + slack) & (radial < 0) & (size > 0)
        normal = torch.where(outwards | inwards, radial, 0.0)
        return math.sqrt(max(float((g.abs().square() - normal.square()).sum()), 0.0))
