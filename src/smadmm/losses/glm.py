"""Generalised linear models, F(x) = 1/n sum_i w_i l(a_i'x, b_i) with data rows a_i and targets b_i.

    Sigmoid       l(z, b) = 1 / (1 + exp(b z))          nonconvex, the loss of the paper's classification
    Logistic      l(z, b) = log(1 + exp(-b z))
    SquaredHinge  l(z, b) = max(0, 1 - b z)^2
    Squared       l(z, b) = 1/2 r^2                     r = z - b
    Huber         l(z, b) = 1/2 r^2 for |r| <= 1, else |r| - 1/2
    Student       l(z, b) = 2 log(1 + r^2 / 3)          nonconvex, t distribution with 3 degrees of freedom

Labels b are -1 or +1, or any number where there is an r (scale b to choose what a large r is). The gradient is M' c
with one coefficient c_i = l'(a_i'x, b_i) a sample, so a weighted sum over several points costs one product with M', and
SAGA's table holds one number per sample.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from smadmm.losses.rows import (
    DenseBatch,
    DenseRows,
    InterceptBatch,
    SparseBatch,
    SparseRows,
    WeightedRows,
    data_matrix,
    is_sparse,
)
from smadmm.operators.linear import Matrix, Shape
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid

PIECE = 4096  # rows at a time: what is gathered of them stays in the cache of the processor


class GLM(FiniteSum):
    """1/n sum_i w_i l(a_i'x, b_i); X dense (tensor, array) or sparse (torch, SciPy).

    With an intercept x has one more entry and a_i becomes (a_i, 1).

    >>> f = losses.Logistic([[1.0, 2.0], [0.0, -1.0]], [1, -1], sample_weight=[1.0, 3.0])
    >>> isinstance(f, losses.GLM), f.n
    (True, 2)
    """

    curvature: float  # the largest |l''|
    signs = True  # the targets are -1 or +1

    def __init__(self, X: Any, b: Any, sample_weight: Any = None, sampling: Sampling = iid, intercept: bool = False):
        X = data_matrix(X)
        super().__init__(X.shape[0], sampling, X.device if isinstance(X, Tensor) else "cpu")
        self.rows = SparseRows(X) if is_sparse(X) else DenseRows(X, self.everything)
        self.matrix = X
        self.dtype = self.rows.values.dtype if isinstance(self.rows, SparseRows) else X.dtype
        device = self.everything.device
        self.b = torch.as_tensor(b, dtype=self.dtype, device=device)
        self.intercept, self.shape = intercept, (X.shape[1] + intercept,)
        if self.b.shape != (self.n,):
            raise ValueError(f"X has {self.n} rows, but b has shape {tuple(self.b.shape)}; give one target a row")
        if self.signs and not bool((self.b.abs() == 1).all()):
            odd = float(self.b[self.b.abs() != 1][0])
            raise ValueError(f"{type(self).__name__} needs labels -1 and +1, got {odd}")
        self.sample_weight = None
        if sample_weight is not None:
            self.sample_weight = torch.as_tensor(sample_weight, dtype=self.dtype, device=device)
            if self.sample_weight.shape != (self.n,) or bool((self.sample_weight < 0).any()):
                raise ValueError(f"sample_weight needs {self.n} numbers that are not negative, one per row")

    @abstractmethod
    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        """l(z, b)."""

    @abstractmethod
    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        """dl/dz."""

    def _rows(self, batch: Batch) -> DenseBatch | SparseBatch | InterceptBatch:
        rows = self.rows.gather(batch)
        return InterceptBatch(rows) if self.intercept else rows

    def _weighted(self, values: Tensor, batch: Batch) -> Tensor:
        return values if self.sample_weight is None else values * self.sample_weight.index_select(0, batch)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        z = self._rows(batch).forward(x)
        return self._weighted(self.losses(z, self.b.index_select(0, batch)), batch).mean()

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        if len(batch) > PIECE and batch is not self.everything:
            total = torch.zeros_like(points[0])
            for piece in batch.split(PIECE):
                total.add_(self.gradient(points, weights, piece), alpha=len(piece) / len(batch))
            return total
        rows, b = self._rows(batch), self.b.index_select(0, batch)
        total = torch.zeros_like(b)
        for x, weight in zip(points, weights, strict=True):
            total = total.add_(self.slopes(rows.forward(x), b), alpha=weight)
        return rows.adjoint(self._weighted(total, batch) / len(b))

    def components(self, x: Tensor, batch: Batch) -> Tensor:
        z = self._rows(batch).forward(x)
        return self._weighted(self.slopes(z, self.b.index_select(0, batch)), batch)

    def component_shape(self, x: Tensor) -> Shape:
        return ()

    def assemble(self, components: Tensor, batch: Batch) -> Tensor:
        return self._rows(batch).adjoint(components / len(components))

    def lipschitz(self) -> float:
        """max |l''| |M|^2 max(w) / n."""
        norm = Matrix(self.matrix).norm(iterations=50).upper
        square = norm**2 + self.n * self.intercept  # |[M, 1]|^2 <= |M|^2 + n
        heaviest = 1.0 if self.sample_weight is None else float(self.sample_weight.max())
        return self.curvature * heaviest * square / self.n

    def mean_square_lipschitz(self) -> float:
        """max |l''| |diag(w_i |a_i|) M| / sqrt(n)."""
        rows = WeightedRows(self._rows(self.everything), self.shape, self.dtype, self.sample_weight)
        return self.curvature * rows.norm().upper / math.sqrt(self.n)


class Sigmoid(GLM):
    """l(z, b) = 1 / (1 + exp(b z)), bounded and nonconvex.

    >>> f = losses.Sigmoid([[1.0, 0.0], [0.0, 1.0]], [1, -1])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    0.5
    """

    curvature = 1 / (6 * math.sqrt(3))
    bounded_gradients = True

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(-b * z)

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        s = torch.sigmoid(-b * z)
        return -b * s * (1 - s)


class Logistic(GLM):
    """l(z, b) = log(1 + exp(-b z)).

    >>> f = losses.Logistic([[1.0, 0.0], [0.0, 1.0]], [1, -1])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    0.693
    """

    curvature = 0.25
    bounded_gradients = True

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return F.softplus(-b * z)

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        return -b * torch.sigmoid(-b * z)


class SquaredHinge(GLM):
    """l(z, b) = max(0, 1 - b z)^2.

    >>> f = losses.SquaredHinge([[1.0, 0.0], [0.0, 1.0]], [1, -1])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    1.0
    """

    curvature = 2.0
    bounded_gradients = False

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return (1 - b * z).clamp(min=0) ** 2

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        return -2 * b * (1 - b * z).clamp(min=0)


class Squared(GLM):
    """l(z, b) = 1/2 (z - b)^2.

    >>> f = losses.Squared([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    1.25
    """

    curvature = 1.0
    bounded_gradients = False
    quadratic = True
    signs = False

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (z - b) ** 2

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        return z - b


class Huber(GLM):
    """l(z, b) = 1/2 r^2 for |r| <= 1, else |r| - 1/2, with r = z - b: robust regression.

    >>> f = losses.Huber([[1.0, 0.0], [0.0, 1.0]], [1.0, 3.0])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    1.5
    """

    curvature = 1.0
    bounded_gradients = True
    signs = False

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return F.huber_loss(z, b, reduction="none")

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        return (z - b).clamp(-1, 1)


class Student(GLM):
    """l(z, b) = 2 log(1 + r^2 / 3), with r = z - b: robust regression that ignores far outliers; nonconvex.

    >>> f = losses.Student([[1.0, 0.0], [0.0, 1.0]], [0.0, 3.0])
    >>> round(float(f.value(torch.zeros(2), f.full())), 3)
    1.386
    """

    curvature = 4 / 3
    bounded_gradients = True
    signs = False

    def losses(self, z: Tensor, b: Tensor) -> Tensor:
        return 2 * torch.log1p((z - b) ** 2 / 3)

    def slopes(self, z: Tensor, b: Tensor) -> Tensor:
        return 4 * (z - b) / (3 + (z - b) ** 2)
