"""Proxes: h through prox_{t h}(v) = argmin_y h(y) + 1/(2t) |y - v|^2.

Penalties also give h(y) and dist(g, dh(y)). Magnitudes are complex ones where y is complex.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from smadmm.problem import Distance, Penalty, Prox, Step


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _shrink(v: Tensor, threshold: Step | Tensor) -> Tensor:
    """v with its magnitude lowered by the threshold, to zero at the least."""
    if v.is_complex():
        magnitude = v.abs()
        return v * ((magnitude - threshold).clamp(min=0) / magnitude.clamp(min=torch.finfo(magnitude.dtype).tiny))
    if isinstance(threshold, Tensor):
        return v.sign() * (v.abs() - threshold).clamp_(min=0)
    return torch.nn.functional.softshrink(v, threshold)


def _refuse_negative(name: str, value: float | Tensor) -> None:
    lowest = float(value.min()) if isinstance(value, Tensor) else value
    if not lowest >= 0:
        raise ValueError(f"{name} must not be negative, got {lowest}")


@dataclass(frozen=True)
class Zero(Penalty):
    """h = 0.

    >>> proxes.Zero().prox(torch.tensor([3.0]), 1.0)
    tensor([3.])
    """

    separable = True

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return v

    def value(self, y: Tensor) -> float:
        return 0.0

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        return _length(g)


@dataclass(frozen=True, eq=False)
class L1(Penalty):
    """h(y) = sum_i w_i |y_i|, one weight for all or a tensor of weights.

    >>> proxes.L1(1.0).prox(torch.tensor([3.0, -0.5]), 2.0)
    tensor([1., -0.])
    """

    weight: float | Tensor
    separable = True

    def __post_init__(self) -> None:
        _refuse_negative("the weight of L1", self.weight)
        if isinstance(self.weight, Tensor) and self.weight.ndim:
            object.__setattr__(self, "shape", tuple(self.weight.shape))

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return _shrink(v, t * self.weight)

    def value(self, y: Tensor) -> float:
        return float((self.weight * y.abs()).sum())

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        at_zero = (g.abs() - self.weight).clamp(min=0)
        return _length(torch.where(y == 0, at_zero, (g - self.weight * y.sgn()).abs()))


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """h(y) = l1 |y|_1 + l2/2 |y|^2.

    >>> proxes.ElasticNet(1.0, 1.0).prox(torch.tensor([3.0, -0.5]), 1.0)
    tensor([1., -0.])
    """

    l1: float
    l2: float
    separable = True

    def __post_init__(self) -> None:
        _refuse_negative("l1", self.l1)
        _refuse_negative("l2", self.l2)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return _shrink(v, t * self.l1) / (1 + t * self.l2)

    def value(self, y: Tensor) -> float:
        return L1(self.l1).value(y) + 0.5 * self.l2 * _length(y) ** 2

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        return L1(self.l1).subdifferential_distance(y, g - self.l2 * y)


@dataclass(frozen=True, eq=False)
class GroupL2(Penalty):
    """h(y) = w sum_G |y_G|: the groups are the lines of y along `axis`, or the classes of integer `labels`.

    >>> proxes.GroupL2(1.0).prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    weight: float
    axis: int = -1
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        _refuse_negative("the weight of GroupL2", self.weight)
        if self.labels is not None:
            object.__setattr__(self, "shape", tuple(self.labels.shape))

    def _lengths(self, y: Tensor) -> Tensor:
        """|y_G| at every entry of y (labels) or along the axis (kept as an axis of length one)."""
        if self.labels is None:
            along: Tensor = torch.linalg.vector_norm(y, dim=self.axis, keepdim=True)
            return along
        sums = y.abs().new_zeros(int(self.labels.max()) + 1)
        sums.index_add_(0, self.labels.flatten(), y.abs().flatten() ** 2)
        lengths: Tensor = sums.sqrt()[self.labels]
        return lengths

    def prox(self, v: Tensor, t: Step) -> Tensor:
        lengths = self._lengths(v)
        return v * (1 - t * self.weight / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(min=0)

    def value(self, y: Tensor) -> float:
        if self.labels is None:
            return self.weight * float(self._lengths(y).sum())
        return self.weight * float((self._lengths(y) / torch.bincount(self.labels.flatten())[self.labels]).sum())

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        lengths = self._lengths(y)
        inside = lengths == 0
        smooth = g - self.weight * y / torch.where(inside, torch.ones_like(lengths), lengths)
        return _length(torch.where(inside, g - _project_groups(self, g), smooth))


def _project_groups(penalty: GroupL2, g: Tensor) -> Tensor:
    """g with every group cut to length at most w."""
    lengths = penalty._lengths(g)
    return g * (penalty.weight / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)


@dataclass(frozen=True, eq=False)
class Box(Penalty):
    """The indicator of lo <= y <= hi.

    >>> proxes.Box(0.0, 1.0).prox(torch.tensor([-1.0, 0.5, 3.0]), 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    """

    lo: float | Tensor = 0.0
    hi: float | Tensor = 1.0
    indicator = True
    separable = True

    def __post_init__(self) -> None:
        if not bool(torch.as_tensor(self.lo <= self.hi).all()):
            raise ValueError(f"a box needs lo <= hi, got lo = {self.lo}, hi = {self.hi}")
        tensors = [end for end in (self.lo, self.hi) if isinstance(end, Tensor) and end.ndim]
        if tensors:
            object.__setattr__(self, "shape", tuple(tensors[0].shape))
            object.__setattr__(self, "dtype", tensors[0].dtype)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        lo, hi = (torch.as_tensor(end, dtype=v.dtype, device=v.device) for end in (self.lo, self.hi))
        return torch.minimum(torch.maximum(v, lo), hi)

    def value(self, y: Tensor) -> float:
        return 0.0 if bool(((y >= self.lo) & (y <= self.hi)).all()) else float("inf")

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        if self.value(y) > 0:
            return float("inf")
        above = torch.where(y < self.hi, g.clamp(min=0), torch.zeros_like(g))
        below = torch.where(y > self.lo, (-g).clamp(min=0), torch.zeros_like(g))
        return _length(torch.stack([above, below]))


def Nonnegative() -> Box:  # noqa: N802
    """The indicator of y >= 0.

    >>> proxes.Nonnegative().prox(torch.tensor([-1.0, 2.0]), 1.0)
    tensor([0., 2.])
    """
    return Box(0.0, float("inf"))


@dataclass(frozen=True)
class Simplex(Penalty):
    """The indicator of y >= 0, sum y = total, over all entries of y.

    >>> proxes.Simplex().prox(torch.tensor([0.5, 1.5]), 1.0)
    tensor([0., 1.])
    """

    total: float = 1.0
    indicator = True

    def __post_init__(self) -> None:
        if not 0 < self.total < float("inf"):
            raise ValueError(f"the total of a simplex must be positive, got {self.total}")

    def prox(self, v: Tensor, t: Step) -> Tensor:
        v = v - v.max()  # the answer is the same, and large numbers lose no digits
        ordered = v.flatten().sort(descending=True).values
        levels = (ordered.cumsum(0) - self.total) / torch.arange(1, v.numel() + 1, dtype=v.dtype, device=v.device)
        return (v - levels[(ordered > levels).sum().clamp(min=1) - 1]).clamp(min=0)

    def value(self, y: Tensor) -> float:
        slack = 10 * torch.finfo(y.dtype).eps * y.numel() * self.total
        return 0.0 if bool((y >= 0).all()) and abs(float(y.sum()) - self.total) <= slack else float("inf")

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        """The normal cone is {g: g_i = m where y_i > 0, g_i <= m where y_i = 0}: one convex problem in m."""
        if self.value(y) > 0:
            return float("inf")
        used, unused = g[y > 0].double(), g[y == 0].double()
        lo, hi = float(g.min()), float(g.max())
        for _ in range(100):
            m = 0.5 * (lo + hi)
            slope = float((m - used).sum() - (unused - m).clamp(min=0).sum())
            lo, hi = (lo, m) if slope > 0 else (m, hi)
        return float(
            torch.hypot(torch.linalg.vector_norm(used - hi), torch.linalg.vector_norm((unused - hi).clamp(min=0)))
        )


@dataclass(frozen=True, eq=False)
class DoubleWell(Penalty):
    """h(y) = w sum (y - lo)(hi - y) for lo <= y <= hi, infinite elsewhere: it pushes y to the nearer of the two ends.

    Not convex; from 2 t w = 1 on its prox is the nearer end itself.

    >>> proxes.DoubleWell(0.25).prox(torch.tensor([0.4, 0.5, 0.9]), 1.0)
    tensor([0.3000, 0.5000, 1.0000])
    """

    weight: float
    lo: float | Tensor = 0.0
    hi: float | Tensor = 1.0
    indicator = True  # of the interval, with a value inside
    convex = False

    def __post_init__(self) -> None:
        _refuse_negative("the weight of DoubleWell", self.weight)
        object.__setattr__(self, "shape", self.box.shape)
        object.__setattr__(self, "dtype", self.box.dtype)

    @property
    def box(self) -> Box:
        return Box(self.lo, self.hi)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        pull, ends = float(t * self.weight), self.lo + self.hi
        if 2 * pull >= 1:
            nearer = torch.where(2 * v > ends, math.inf, -math.inf).to(v.dtype)
            return self.box.prox(nearer, t)
        return self.box.prox((v - pull * ends) / (1 - 2 * pull), t)

    def value(self, y: Tensor) -> float:
        return self.box.value(y) + self.weight * float(((y - self.lo) * (self.hi - y)).sum())

    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        return self.box.subdifferential_distance(y, g - self.weight * (self.lo + self.hi - 2 * y))


@dataclass(frozen=True, eq=False)
class Scheduled(Prox):
    """h_k = penalty(k) in iteration k, for any function of k; checkpoints hold it as they hold other schedules.

    The problem changes on the way, so it has no objective; certificates are those of the last h_k.

    >>> growing = proxes.Scheduled(lambda k: proxes.L1(0.1 * k))
    >>> growing.at(5).prox(torch.tensor([2.0]), 1.0)
    tensor([1.5000])
    """

    penalty: Callable[[int], Prox]

    def at(self, k: int) -> Prox:
        return self.penalty(k)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        """That of the first iteration."""
        return self.penalty(1).prox(v, t)


@dataclass(frozen=True, eq=False)
class Separate(Prox):
    """h(y) = h_1(y_1) + h_2(y_2) + ... for y with its parts flattened one below the other, as `Stack` makes them.

    >>> h = proxes.Separate([proxes.L1(1.0), proxes.Box(0.0, 1.0)], [(2,), (1,)])
    >>> h.prox(torch.tensor([3.0, -0.5, 7.0]), 1.0)
    tensor([2., -0., 1.])
    """

    parts: Sequence[Prox]
    shapes: Sequence[tuple[int, ...]]

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.shapes):
            raise ValueError(f"{len(self.parts)} functions, but {len(self.shapes)} shapes; each part needs one of each")
        object.__setattr__(self, "shape", (sum(math.prod(shape) for shape in self.shapes),))
        object.__setattr__(self, "ignores_step", any(h.ignores_step for h in self.parts))

    def _split(self, y: Tensor) -> list[Tensor]:
        pieces = y.split([math.prod(shape) for shape in self.shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def at(self, k: int) -> Prox:
        return Separate([h.at(k) for h in self.parts], self.shapes)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return torch.cat([h.prox(u, t).reshape(-1) for h, u in zip(self.parts, self._split(v), strict=True)])

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        both = zip(self.parts, self._split(z), self._split(y), strict=True)
        values = [h.value_after(u, w, r) for h, u, w in both]
        return None if None in values else sum(value for value in values if value is not None)


@runtime_checkable
class HasPotential(Protocol):
    """A denoiser D = I - grad g that knows g, and a bound of Lip(grad g)."""

    lipschitz: float | None

    def potential(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Denoised(Prox):
    """A denoiser D in the place of prox: y = D(v), whatever t is; what it makes is cut to `limits`, if they are given.

    So h is r phi with D = prox_phi: the weight of the prior is the r of the solver, which is rho unless you choose r.
    A gradient step D = I - grad g with Lip(grad g) < 1 is such a prox; where nothing is cut,
        grad phi(y) = z - y,  phi(y) = g(z) - 1/2 |z - y|^2  at y = D(z).
    Where values are cut this is the least that phi(y) can be: g(z) = min phi + 1/2 |. - z|^2.

    Images H x W and C x H x W are handed over as 1 x C x H x W if `image` is set, as most networks want them. D is
    called with the image alone, or as D(x, sigma) where sigma is given, as the denoisers of deepinv want it. The theory
    needs Lip(I - D) < 1: a denoiser whose `lipschitz` is known not to be gives a warning, once.

    >>> from smadmm.denoisers import load
    >>> prior = proxes.Denoised(load("ridge-ct"), image=True)
    >>> prior.prox(torch.rand(16, 16), 1.0).shape
    torch.Size([16, 16])
    """

    denoiser: Callable[..., Tensor]
    image: bool = False
    limits: tuple[float, float] | None = None
    sigma: float | None = None
    ignores_step = True

    def __post_init__(self) -> None:
        if not callable(self.denoiser):
            raise TypeError(
                f"a denoiser is called with a tensor, got {self.denoiser!r}; load a shipped one by "
                "smadmm.denoisers.load(name)"
            )
        if self.sigma is not None and not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma is the noise level of images in [0, 1], positive and finite, got {self.sigma}")
        self._warn_once()

    @property
    def lipschitz(self) -> float | None:
        """Lip(I - D), where the denoiser knows it."""
        bound = getattr(self.denoiser, "lipschitz", None)
        return None if bound is None or callable(bound) else float(bound)

    def _warn_once(self) -> None:
        bound = self.lipschitz
        if bound is None or bound < 1 or "_warned" in self.__dict__:
            return
        object.__setattr__(self, "_warned", True)
        warnings.warn(
            f"Lip(I - D) = {bound:.3f} of this denoiser is not below 1: it need not be a prox and the method "
            "may not converge; use denoiser.relax(gamma) with a smaller gamma, or other weights",
            stacklevel=4,
        )

    def _images(self, v: Tensor) -> Tensor:
        return v.reshape(1, -1, *v.shape[-2:]) if self.image and v.ndim <= 3 else v

    def _known_step(self) -> HasPotential | None:
        """The denoiser, if it is known to be a gradient step and a prox."""
        D = self.denoiser
        if self.sigma is not None:
            return None
        return D if isinstance(D, HasPotential) and isinstance(D.lipschitz, (int, float)) and D.lipschitz < 1 else None

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        """The prox residual; with L = Lip(I - D) the distance is between 1/(1 + L) and 1/(1 - L) times that."""
        residual, D = super().distance(y, g, r).value, self._known_step()
        if D is None or D.lipschitz is None or self.limits is not None:
            return Distance(0.0, residual, math.inf)
        return Distance(residual / (1 + D.lipschitz), residual, residual / (1 - D.lipschitz))

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        """|g - r (z - y)|: exact for a gradient step where nothing is cut; nothing is known of other denoisers."""
        value = _length(g - r * (z - y))
        inside = self.limits is None or (float(y.min()) > self.limits[0] and float(y.max()) < self.limits[1])
        return Distance(value, value, value) if inside and self._known_step() else Distance(0.0, value, math.inf)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        """r phi(y), of a gradient step."""
        D = self._known_step()
        if D is None:
            return None
        with torch.no_grad():
            return float(r) * (float(D.potential(self._images(z)).sum()) - 0.5 * _length(z - y) ** 2)

    def _called(self, x: Tensor) -> Tensor:
        try:
            return self.denoiser(x) if self.sigma is None else self.denoiser(x, self.sigma)
        except (AttributeError, TypeError) as error:
            if isinstance(self.denoiser, torch.nn.Module):
                raise
            raise TypeError(
                f"the denoiser fails on a tensor ({error}); make a function D of NumPy arrays one of tensors by "
                "lambda x: torch.from_numpy(D(x.numpy()))"
            ) from error

    def prox(self, v: Tensor, t: Step) -> Tensor:
        self._warn_once()  # it may have been measured since
        with torch.no_grad():
            x = self._images(v)
            y = self._called(x)
        if not isinstance(y, Tensor):
            raise TypeError(f"the denoiser made {type(y).__name__} of a tensor; let it return torch.from_numpy(...)")
        if y.shape != x.shape:
            raise ValueError(
                f"the denoiser made shape {tuple(y.shape)} of {tuple(x.shape)}; it must keep the size of images, "
                "and for networks set image=True"
            )
        y = y if self.limits is None else y.clamp(*self.limits)
        return y.reshape(v.shape)
