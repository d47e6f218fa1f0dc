"""The problem  min_{x,y} F(x) + sum_j h_j(y_j)  s.t.  A x + sum_j B_j y_j = c,  F(x) = E f(x, xi).

F is reached through samples: a loss draws a batch (a value that can be used again) and gives weighted sums of gradients
at several points on that one batch. h is reached through its prox. The Lagrangian keeps the paper's sign,
L = F(x) + h(y) - <lam, A x + B y - c>.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smadmm.operators.linear import Identity, Operator, Scaled, Shape
from smadmm.sampling import Rng, Sampling, iid

Step = float | Tensor
Batch = Any  # what a loss draws and understands: indices, tensors, a tuple of tensors


class Loss(ABC):
    """f: draws batches and gives values and gradients on them, averaged over the batch.

    >>> f = losses.Squared(torch.eye(2), torch.ones(2))
    >>> f.gradient((torch.zeros(2),), (1.0,), f.full())
    tensor([-0.5000, -0.5000])
    """

    n: int | None = None  # the number of samples; None for a stream
    shape: Shape | None = None  # the shape of x, where the loss knows it
    dtype: torch.dtype | None = None
    bounded_gradients: bool | None = None  # None: not known
    quadratic: bool = False  # the gradient is affine, so that differences of gradients are products with the Hessian

    @abstractmethod
    def draw(self, rng: Rng, size: int) -> Batch:
        """`size` samples as a value that `value` and `gradient` understand."""

    @abstractmethod
    def value(self, x: Tensor, batch: Batch) -> Tensor:
        """mean of f(x, xi) over the batch, a scalar tensor."""

    @abstractmethod
    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        """sum_j weights_j grad f(points_j, batch): several points, one batch, one call."""

    def samples(self, seed: int, groups: int, size: int) -> list[Batch]:
        """Independent batches for measuring (certificate, smoothness), beside those that the solver draws."""
        return [self.draw(Rng(seed, 2**62 + group), size) for group in range(groups)]

    def full(self) -> Batch:
        """All samples, where there is such a thing."""
        raise ValueError(
            f"{type(self).__name__} is a stream and has no full gradient; "
            "use Storm or SGD, or Spider(restart=...) which restarts from a large batch"
        )

    def lipschitz(self) -> float | None:
        """A constant L with |grad F(x) - grad F(y)| <= L |x - y|, where a closed form is known."""
        return None

    def majorant(self) -> Loss | None:
        """A quadratic loss whose Hessian is nowhere below that of this one: itself, or one that is known."""
        return self if self.quadratic else None

    def mean_square_lipschitz(self) -> float | None:
        """A constant L with E|grad f(x, xi) - grad f(y, xi)|^2 <= L^2 |x - y|^2, where a closed form is known."""
        return None


class FiniteSum(Loss):
    """F(x) = 1/n sum_i f_i(x): batches are tensors of sample numbers.

    >>> f = losses.Squared(torch.eye(3), torch.ones(3))
    >>> isinstance(f, FiniteSum), f.n
    (True, 3)
    """

    n: int

    def __init__(self, n: int, sampling: Sampling = iid, device: torch.device | str = "cpu"):
        n = operator.index(n)
        if n < 1:
            raise ValueError(f"a finite sum needs at least one sample, got n = {n}")
        self.n, self.sampling = n, sampling
        self.everything = torch.arange(n, device=device)

    def draw(self, rng: Rng, size: int) -> Batch:
        if size < 1:
            raise ValueError(f"a batch has at least one sample, got size {size}")
        return torch.from_numpy(self.sampling(rng, self.n, size)).to(self.everything.device)

    def samples(self, seed: int, groups: int, size: int) -> list[Batch]:
        drawn = [iid(Rng(seed, 2**62 + group), self.n, size) for group in range(groups)]
        return [torch.from_numpy(batch).to(self.everything.device) for batch in drawn]

    def full(self) -> Batch:
        return self.everything

    def components(self, x: Tensor, batch: Batch) -> Tensor:
        """One row per sample from which `assemble` makes gradients; by default the sample's gradient itself."""
        return torch.stack([self.gradient((x,), (1.0,), i[None]) for i in batch])

    def component_shape(self, x: Tensor) -> Shape:
        """The shape of one row of `components`."""
        return tuple(x.shape)

    def assemble(self, components: Tensor, batch: Batch) -> Tensor:
        """The mean gradient of the batch from its components."""
        return components.mean(0)


class Distance(NamedTuple):
    """What is known of dist(g, dh(y)): bounds, and the value to go by. It is exact where low = high."""

    low: float
    value: float
    high: float


class Prox(ABC):
    """What the y-step needs of h: prox(v, t) = argmin_y h(y) + 1/(2t) |y - v|^2. A denoiser is one; it has no value.

    >>> proxes.L1(1.0).prox(torch.tensor([3.0, 0.5]), 1.0)
    tensor([2., 0.])
    """

    shape: Shape | None = None
    dtype: torch.dtype | None = None
    separable: bool = False  # entry by entry: then the step t may be a tensor
    ignores_step: bool = False  # prox(v, t) is the same for every t, as a denoiser's: its h has the weight r

    @abstractmethod
    def prox(self, v: Tensor, t: Step) -> Tensor:
        """argmin_y h(y) + 1/(2t) |y - v|^2; t may be a tensor for separable h."""

    def at(self, k: int) -> Prox:
        """The h of iteration k, itself unless it follows a schedule."""
        return self

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        """dist(g, dh(y)) at any y, from the prox alone: the residual |r (y - prox_{h/r}(y + g/r))|.

        It vanishes where the distance does, and is at most the distance where h is convex.
        """
        residual = float(torch.linalg.vector_norm(r * (y - self.prox(y + g / r, 1 / r))))
        return Distance(0.0, residual, math.inf)

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        """dist(g, dh(y)) at y = prox_{h/r}(z): at most |g - r (z - y)|, since r (z - y) is in dh(y)."""
        bound = float(torch.linalg.vector_norm(g - r * (z - y)))
        return Distance(0.0, bound, bound)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        """h(y) at y = prox_{h/r}(z), where it is known."""
        return None


class Penalty(Prox):
    """A prox with a value and a subdifferential.

    >>> isinstance(proxes.L1(0.5), Penalty), proxes.L1(0.5).value(torch.ones(3))
    (True, 1.5)
    """

    convex: bool = True
    indicator: bool = False  # of a set: the value is 0 or infinite

    @abstractmethod
    def value(self, y: Tensor) -> float:
        """h(y)."""

    @abstractmethod
    def subdifferential_distance(self, y: Tensor, g: Tensor) -> float:
        """dist(g, dh(y)), the Euclidean distance of g to the subdifferential at y."""

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        exact = self.subdifferential_distance(y, g)
        return Distance(exact, exact, exact)

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        return self.distance(y, g, r)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        return self.value(y)


def _refuse_kind(name: str, value: object, kind: type, cure: str) -> None:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}; {cure}")


def _refuse_mismatch(first: str, a: object, second: str, b: object) -> None:
    if a is not None and b is not None and a != b:
        raise ValueError(f"{first} has {a}, but {second} has {b}; they must be equal")


@dataclass(frozen=True)
class Problem:
    """F(x) + h(y) s.t. A x + B y = c. Several blocks: h and B are sequences, updated one after the other.

    >>> f = losses.Squared(torch.eye(3), torch.ones(3))
    >>> problem = Problem(f, proxes.L1(0.1), operators.EdgeDifferences([(0, 1), (1, 2)], 3))
    >>> x = torch.tensor([0.0, 1.0, 1.0])
    >>> round(problem.objective(x, (problem.A(x),)), 3)
    0.267
    """

    f: Loss
    h: Prox | Sequence[Prox]
    A: Operator = field(default_factory=Identity)
    B: Operator | Sequence[Operator] | None = None  # None: -I
    c: Tensor | None = None  # None: 0

    def __post_init__(self) -> None:
        _refuse_kind("f", self.f, Loss, "give a Loss; Autograd(value, n) makes one from a function")
        _refuse_kind("A", self.A, Operator, "wrap a matrix in Matrix(...)")
        if self.c is not None:
            _refuse_kind("c", self.c, Tensor, "give a tensor")
        hs = tuple(self.h or ()) if isinstance(self.h, Sequence) or self.h is None else (self.h,)
        if not hs:
            raise ValueError("a problem needs a function h; use Zero() for none")
        for h in hs:
            _refuse_kind("h", h, Prox, "wrap a denoiser in Denoised(...)")
        if self.B is None:
            Bs: tuple[Operator, ...] = tuple(-Identity(self.A.out_shape) for _ in hs)
        else:
            Bs = (self.B,) if isinstance(self.B, Operator) else tuple(self.B)
            for B in Bs:
                _refuse_kind("B", B, Operator, "wrap a matrix in Matrix(...)")
        if len(hs) != len(Bs):
            raise ValueError(f"{len(hs)} functions h but {len(Bs)} operators B; each block y_j needs one of each")
        object.__setattr__(self, "hs", hs)
        object.__setattr__(self, "Bs", Bs)
        self._check()

    hs: tuple[Prox, ...] = field(init=False, repr=False)
    Bs: tuple[Operator, ...] = field(init=False, repr=False)

    def _check(self) -> None:
        _refuse_mismatch("the input of A", self.A.in_shape, "the x of f", self.f.shape)
        x_shape = self.A.in_shape if self.A.in_shape is not None else self.f.shape
        out = self.A.output_shape(x_shape)
        if self.c is not None:
            _refuse_mismatch("the output of A", out, "c", tuple(self.c.shape))
        for j, (h, B) in enumerate(zip(self.hs, self.Bs, strict=True), start=1):
            name = f"B_{j}" if len(self.Bs) > 1 else "B"
            _refuse_mismatch("the output of A", out, f"the output of {name}", B.output_shape(B.in_shape))
            y_shape = B.in_shape if B.in_shape is not None else out
            _refuse_mismatch(f"the input of {name}", y_shape, f"the h of block {j}", h.shape)

        self._check_dtypes()

    def _check_dtypes(self) -> None:
        parts = [("the dtype of f", self.f.dtype), ("the dtype of A", self.A.dtype)]
        parts += [("the dtype of B", B.dtype) for B in self.Bs] + [("the dtype of h", h.dtype) for h in self.hs]
        parts += [] if self.c is None else [("the dtype of c", self.c.dtype)]
        known = [(name, dtype) for name, dtype in parts if dtype is not None]
        for name, dtype in known[1:]:
            _refuse_mismatch(known[0][0], known[0][1], name, dtype)

    @property
    def explicit(self) -> bool:
        """y = A x - c: one block with B = -I, so the objective is a function of x alone."""
        B = self.Bs[0]
        negative = isinstance(B, Scaled) and isinstance(B.operator, Identity) and B.scale == -1
        return len(self.Bs) == 1 and negative

    def residual(self, Ax: Tensor, Bys: Sequence[Tensor]) -> Tensor:
        """A x + sum_j B_j y_j - c, from the products."""
        total = Ax + Bys[0]
        for By in Bys[1:]:
            total += By
        return total if self.c is None else total.sub_(self.c)

    def objective(
        self, x: Tensor, ys: Sequence[Tensor], zs: Sequence[Tensor] = (), rs: Sequence[Any] = ()
    ) -> float | None:
        """F(x) + sum_j h_j(y_j), with y = A x - c where B = -I and h is finite; None if some h has no value.

        A denoiser's h is known after a y-step only: give the arguments zs and the weights rs of the proxes.
        """
        penalties = [h for h in self.hs if isinstance(h, Penalty)]
        if len(penalties) == len(self.hs):
            if self.explicit and not penalties[0].indicator:
                ys = (self.A(x) if self.c is None else self.A(x) - self.c,)
            values: list[float | None] = [h.value(y) for h, y in zip(penalties, ys, strict=True)]
        else:
            values = [h.value_after(z, y, r) for h, z, y, r in zip(self.hs, zs, ys, rs, strict=bool(zs))]
        known = [value for value in values if value is not None]
        if len(known) < len(self.hs):
            return None
        return float(self.f.value(x, self.f.full())) + sum(known)
