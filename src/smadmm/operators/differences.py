"""Difference operators: along the edges of a graph, and between neighbouring pixels of an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smadmm.operators.linear import Norm, Operator, Shape


class EdgeDifferences(Operator):
    """(G x)_e = w_e (x_i - s_e x_j) for edge e = (i, j); s_e = +-1 ties x_i to x_j or to -x_j.

    >>> operators.EdgeDifferences([(0, 1), (1, 2)], size=3)(torch.tensor([5.0, 3.0, 2.0]))
    tensor([2., 1.])
    """

    def __init__(self, edges: Any, size: int, weights: Tensor | None = None, signs: Tensor | None = None):
        pairs = torch.as_tensor(edges)
        if pairs.numel() and (pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point()):
            raise ValueError(
                f"edges are pairs of whole numbers, shape (edges, 2), got {tuple(pairs.shape)} {pairs.dtype}"
            )
        self.edges = pairs.long().reshape(-1, 2)
        if len(self.edges) and (int(self.edges.min()) < 0 or int(self.edges.max()) >= size):
            wrong = self.edges[(self.edges < 0) | (self.edges >= size)][0]
            raise ValueError(f"edge end {int(wrong)} is outside 0..{size - 1}; number the nodes from 0")
        self.weights, self.signs = weights, signs
        for label, values in (("weights", weights), ("signs", signs)):
            if values is not None and values.shape != (len(self.edges),):
                raise ValueError(f"{label} have shape {tuple(values.shape)}, but there are {len(self.edges)} edges")
        self.in_shape, self.out_shape = (size,), (len(self.edges),)
        self.device = self.edges.device

    def _ends(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """The factors of x_i and x_j in every row, in the dtype of `like`."""
        head: Tensor | float = 1.0 if self.weights is None else self.weights.to(like.dtype)
        tail = -head if self.signs is None else -head * self.signs.to(like.dtype)
        return head, tail

    def forward(self, x: Tensor) -> Tensor:
        head, tail = self._ends(x)
        return head * x[self.edges[:, 0]] + tail * x[self.edges[:, 1]]

    def adjoint(self, y: Tensor) -> Tensor:
        head, tail = self._ends(y)
        x = y.new_zeros(self.in_shape or ())
        return x.index_add_(0, self.edges[:, 0], head * y).index_add_(0, self.edges[:, 1], tail * y)


class FiniteDifferences(Operator):
    """(D x)_a = x shifted by one along axis a minus x, zero at the far border; the results stacked in front.

    >>> operators.FiniteDifferences((3,))(torch.tensor([1.0, 4.0, 9.0]))
    tensor([[3., 5., 0.]])
    """

    def __init__(self, shape: Shape, axes: Sequence[int] | None = None):
        self.axes = tuple(range(len(shape))) if axes is None else tuple(a % len(shape) for a in axes)
        self.in_shape, self.out_shape = shape, (len(self.axes), *shape)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(self.out_shape or ())
        for row, axis in zip(out, self.axes, strict=True):
            length = x.shape[axis] - 1
            row.narrow(axis, 0, length).copy_(x.narrow(axis, 1, length) - x.narrow(axis, 0, length))
        return out

    def adjoint(self, y: Tensor) -> Tensor:
        x = y.new_zeros(self.in_shape or ())
        for row, axis in zip(y, self.axes, strict=True):
            length = x.shape[axis] - 1
            inner = row.narrow(axis, 0, length)
            x.narrow(axis, 1, length).add_(inner)
            x.narrow(axis, 0, length).sub_(inner)
        return x

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        """Closed form: D'D is diagonal in the cosine basis, with largest eigenvalue sum_a 4 cos^2(pi / 2 n_a)."""
        lengths = [(self.in_shape or ())[axis] for axis in self.axes]
        return Norm(math.sqrt(sum(4 * math.cos(math.pi / (2 * n)) ** 2 for n in lengths)))
