"""Losses over any operators, F(x) = 1/n sum_i sum_j w_ij l((A_i x)_j, b_ij): each A_i is one sample, of any length.

    least squares   1/2 (z - b)^2                              affine gradients: several points cost one product
    Huber           the same up to |z - b| = delta, linear beyond: a wrong number pulls with the force delta at most
    Poisson         z + e - b log(z + e),  z >= 0              b counts with mean z + e, e > 0 the background

Below z = 0 the Poisson loss goes on as its parabola at 0, so that it is smooth everywhere: l'' <= b/e^2. Both have a
quadratic majorant, least squares with the weights w (Huber) and w b/e^2 (Poisson), which serves Newton's x-step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from smadmm.losses.inverse import BlockLeastSquares
from smadmm.operators.linear import Operator, Stack
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid


@runtime_checkable
class HasViews(Protocol):
    """An operator that can be cut along the first axis of A x."""

    def subset(self, views: Any) -> Operator: ...


class _Views(Sequence[Operator]):
    """Groups of `count` views of an operator, made when they are drawn."""

    def __init__(self, operator: Operator, count: int):
        shape = operator.out_shape or ()
        if not isinstance(operator, HasViews) or len(shape) < 2:
            raise TypeError(f"views= needs an operator with views and `subset`, {operator!r} has none")
        if not 1 <= count <= shape[0]:
            raise ValueError(f"a sample has 1 to {shape[0]} views of {operator!r}, got views = {count}")
        self.operator, self.groups = operator, list(torch.arange(shape[0]).split(count))

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, i: Any) -> Any:
        return cast(HasViews, self.operator).subset(self.groups[i])


class OperatorSum(FiniteSum):
    """1/n sum_i f_i(A_i x) with data for each A_i; a subclass says what f_i is.

    >>> f = losses.OperatorHuber([operators.Identity((2,))], [torch.ones(2)], delta=0.1)
    >>> isinstance(f, losses.OperatorSum), f.n
    (True, 1)
    """

    def __init__(
        self,
        operators: Sequence[Operator] | Operator,
        data: Sequence[Any] | Tensor,
        weights: Sequence[Any] | Tensor | None = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
        views: int | None = None,
    ):
        if views is not None:
            if not isinstance(operators, Operator):
                raise TypeError("views= cuts one operator into samples; a list of operators is cut already")
            data, weights = (None if a is None else torch.as_tensor(a).split(views) for a in (data, weights))  # type: ignore[assignment]
            operators = _Views(operators, views)
        elif isinstance(operators, Stack):
            operators = operators.operators
        elif isinstance(operators, Operator):
            operators, data, weights = (operators,), (data,), None if weights is None else (weights,)
        for name, parts in (("data", data), ("weights", weights)):
            if parts is not None and len(parts) != len(operators):
                raise ValueError(
                    f"{len(operators)} operators, but {len(parts)} {name}; give one array for each operator"
                )
        if not len(operators):
            raise ValueError("a loss needs at least one operator, got none")
        first = operators[0]
        super().__init__(len(operators), sampling, first.device)
        self.operators, self.shape, self.dtype = operators, first.in_shape, dtype
        self.b = [_part(b, dtype, first.device) for b in data]
        self.roots = None if weights is None else [_part(w, dtype, first.device).sqrt() for w in weights]
        for i, root in enumerate(self.roots or ()):
            if root.shape != self.b[i].shape or not bool(root.isfinite().all()):
                raise ValueError(f"weights {i} must be like its data, {tuple(self.b[i].shape)}, and not negative")

    def images(self, x: Tensor, numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """i and A_i x."""
        for i in numbers:
            Ax = self.operators[i].forward(x)
            if Ax.shape != self.b[i].shape:
                raise ValueError(f"A_{i} x has shape {tuple(Ax.shape)}, but its data have {tuple(self.b[i].shape)}")
            yield i, Ax

    def lipschitz(self) -> float | None:
        """The largest eigenvalue of the Hessian, or that of the majorant, by power iteration."""
        quadratic = self.majorant()
        assert isinstance(quadratic, OperatorLeastSquares)
        return None if self.shape is None else _Root(quadratic).norm(iterations=50).upper ** 2 / self.n


class OperatorLeastSquares(OperatorSum, BlockLeastSquares):
    """1/n sum_i 1/2 |A_i x - b_i|^2_{W_i} for any operators A_i: each is one sample, of any length.

    `operators` is a list of them, or anything with a length and numbered items, which are then asked for when they are
    drawn; a Stack gives its members, and one operator alone is one sample, or with views=k many: its views in groups of
    k. `data` and `weights` have an array for each; with views they are arrays like A x.

    >>> A = [operators.Identity((2,)), operators.Matrix([[1.0, 1.0]])]
    >>> f = losses.OperatorLeastSquares(A, [torch.ones(2), torch.tensor([4.0])])
    >>> f.gradient((torch.ones(2),), (1.0,), f.full())
    tensor([-1., -1.])
    """

    def residual(self, x: Tensor, scale: float, batch: Batch) -> tuple[Any, Tensor]:
        numbers = [int(i) for i in batch]
        parts = []
        for i, Ax in self.images(x, numbers):
            left = Ax - scale * self.b[i]
            parts.append((left if self.roots is None else self.roots[i] * left).flatten())
        return numbers, torch.cat(parts)

    def back(self, context: Any, residual: Tensor) -> Tensor:
        total: Tensor | None = None
        for i, part in zip(context, residual.split([self.b[i].numel() for i in context]), strict=True):
            r = part.reshape(self.b[i].shape)
            found = self.operators[i].adjoint(r if self.roots is None else self.roots[i] * r)
            total = found if total is None else total + found
        assert total is not None
        return total


class _OperatorSlopes(OperatorSum):
    """Losses entry by entry that are not quadratic."""

    quadratic = False

    @abstractmethod
    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        """l(z, b), entry by entry."""

    @abstractmethod
    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        """l'(z, b)."""

    @abstractmethod
    def curvatures(self, b: Tensor) -> Tensor:
        """A bound of l''(z, b) for all z."""

    def _weigh(self, i: int, values: Tensor) -> Tensor:
        return values if self.roots is None else self.roots[i].square() * values

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        found = self.images(x, [int(i) for i in batch])
        return sum(self._weigh(i, self.losses(z, self.b[i])).sum() for i, z in found) / torch.tensor(len(batch))

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        total: Tensor | None = None
        numbers = [int(i) for i in batch]
        for x, weight in zip(points, weights, strict=True):
            for i, z in self.images(x, numbers):
                part = self.operators[i].adjoint(self._weigh(i, self.slopes(z, self.b[i])) * (weight / len(numbers)))
                total = part if total is None else total + part
        assert total is not None
        return total

    def majorant(self) -> OperatorLeastSquares:
        weights = [self._weigh(i, self.curvatures(b)) for i, b in enumerate(self.b)]
        return OperatorLeastSquares(self.operators, self.b, weights, self.sampling, self.dtype or torch.float32)


class OperatorHuber(_OperatorSlopes):
    """1/n sum_i sum_j w_ij huber((A_i x - b_i)_j), which is r^2/2 up to |r| = delta, then delta |r| - delta^2/2.

    Operators, data, weights and views are those of OperatorLeastSquares; delta is in the unit of the data, two or three
    times their noise.

    >>> f = losses.OperatorHuber(operators.Identity((2,)), torch.tensor([0.5, 100.0]), delta=1.0)
    >>> f.gradient((torch.zeros(2),), (1.0,), f.full())
    tensor([-0.5000, -1.0000])
    """

    bounded_gradients = True

    def __init__(
        self,
        operators: Sequence[Operator] | Operator,
        data: Sequence[Any] | Tensor,
        delta: float,
        weights: Sequence[Any] | Tensor | None = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
        views: int | None = None,
    ):
        if not delta > 0:
            raise ValueError(f"delta is the largest residual of a good number and must be positive, got {delta}")
        self.delta = float(delta)
        super().__init__(operators, data, weights, sampling, dtype, views)

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        size = (z - b).abs()
        small = size.clamp(max=self.delta)
        return small * (size - 0.5 * small)

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        r = z - b
        return r * (self.delta / r.abs().clamp(min=self.delta))

    def curvatures(self, b: Tensor) -> Tensor:
        return torch.ones_like(b, dtype=self.dtype)


class OperatorPoisson(_OperatorSlopes):
    """1/n sum_i sum_j (z + e) - b log(z + e), z = (A_i x)_j: minus the log-likelihood of counts b with mean z + e.

    Operators, data, weights and views are those of OperatorLeastSquares; the background e must be positive.

    >>> f = losses.OperatorPoisson(operators.Identity((2,)), torch.tensor([3.0, 0.0]), background=1.0)
    >>> f.gradient((torch.tensor([2.0, 2.0]),), (1.0,), f.full())
    tensor([0., 1.])
    """

    bounded_gradients = False

    def __init__(
        self,
        operators: Sequence[Operator] | Operator,
        counts: Sequence[Any] | Tensor,
        background: float,
        weights: Sequence[Any] | Tensor | None = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
        views: int | None = None,
    ):
        if not background > 0:
            raise ValueError(f"background must be positive, got {background}; a small share of the mean count will do")
        self.background = float(background)
        super().__init__(operators, counts, weights, sampling, dtype, views)
        low = min((float(b.min()) for b in self.b if not b.is_complex()), default=-1.0)
        if not low >= 0:
            raise ValueError(f"counts are real numbers that are not negative, the smallest is {low:g}")

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        e = self.background
        above, below = z.clamp(min=0), z.clamp(max=0)
        return above + e - torch.xlogy(b, above + e) + below * (1 - b / e) + b * below.square() / (2 * e**2)

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        e = self.background
        return 1 - b / (z.clamp(min=0) + e) + b * z.clamp(max=0) / e**2

    def curvatures(self, b: Tensor) -> Tensor:
        return b / self.background**2


def _part(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    part = torch.as_tensor(values, device=device)
    return part.to(dtype.to_complex() if part.is_complex() else dtype.to_real())


class _Root(Operator):
    """x -> W^{1/2} A x, all blocks: its Gram matrix is n times the Hessian."""

    def __init__(self, loss: OperatorLeastSquares):
        self.loss, self.in_shape, self.dtype, self.device = loss, loss.shape, loss.dtype, loss.everything.device

    def forward(self, x: Tensor) -> Tensor:
        return self.loss.residual(x, 0.0, self.loss.everything)[1]

    def adjoint(self, y: Tensor) -> Tensor:
        return self.loss.back(range(self.loss.n), y)
