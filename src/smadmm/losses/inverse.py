"""Linear inverse problems, F(x) = 1/n sum_i 1/2 |A_i x - b_i|^2 over blocks of measurements A_i.

The gradient is affine in x, so a weighted sum over several points costs ONE product with A_i and one with A_i':
    sum_j w_j A_i'(A_i x_j - b_i) = A_i'(A_i (sum_j w_j x_j) - (sum_j w_j) b_i).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smadmm.losses.rows import DenseRows, SparseRows, WeightedRows, data_matrix, is_sparse
from smadmm.operators.linear import Matrix, Operator
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid


def combine(points: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_j w_j x_j."""
    first, *rest = points
    total = first if weights[0] == 1 else weights[0] * first
    for x, weight in zip(rest, weights[1:], strict=True):
        total = torch.add(total, x, alpha=weight)
    return total


class BlockLeastSquares(FiniteSum):
    """1/n sum_i 1/2 |A_i x - b_i|^2; a subclass says what A_i, A_i' and b_i are for a batch of blocks.

    >>> f = losses.LeastSquares(torch.eye(4), torch.ones(4), block=2)
    >>> isinstance(f, losses.BlockLeastSquares), f.n
    (True, 2)
    """

    bounded_gradients = False
    quadratic = True

    @abstractmethod
    def residual(self, x: Tensor, scale: float, batch: Batch) -> tuple[Any, Tensor]:
        """A_S x - scale b_S for the blocks S of the batch, and whatever `back` needs to know of them."""

    @abstractmethod
    def back(self, context: Any, residual: Tensor) -> Tensor:
        """A_S' r."""

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        _, residual = self.residual(x, 1.0, batch)
        return 0.5 * residual.abs().square().sum() / len(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        context, residual = self.residual(combine(points, weights), float(sum(weights)), batch)
        return self.back(context, residual / len(batch))


class LeastSquares(BlockLeastSquares):
    """Least squares with a dense or sparse matrix whose rows are taken in blocks of `block` rows.

    >>> f = losses.LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0])
    >>> f.gradient((torch.tensor([1.0, 2.0]),), (1.0,), f.full())
    tensor([0., 0.])
    """

    def __init__(self, matrix: Any, b: Any, block: int = 1, sampling: Sampling = iid):
        if isinstance(matrix, Operator) or (isinstance(matrix, (list, tuple)) and isinstance(matrix[0], Operator)):
            raise TypeError(
                "LeastSquares takes a matrix; for operators use losses.OperatorLeastSquares(operators, data)"
            )
        matrix = data_matrix(matrix)
        rows = matrix.shape[0]
        if block < 1 or rows % block:
            raise ValueError(f"{rows} rows cannot be cut into blocks of {block}; choose a divisor of {rows}")
        super().__init__(rows // block, sampling, matrix.device if isinstance(matrix, Tensor) else "cpu")
        self.matrix, self.block = matrix, block
        self.all_rows = torch.arange(rows, device=self.everything.device)
        self.rows = SparseRows(matrix) if is_sparse(matrix) else DenseRows(matrix, self.all_rows)
        self.dtype = self.rows.values.dtype if isinstance(self.rows, SparseRows) else matrix.dtype
        if torch.as_tensor(b).is_complex() and not self.dtype.is_complex:
            raise ValueError(f"b is complex, but the matrix is {self.dtype}; make the matrix complex too")
        self.b = torch.as_tensor(b, dtype=self.dtype, device=self.everything.device)
        self.shape = (matrix.shape[1],)
        if self.b.shape != (rows,):
            raise ValueError(f"the matrix has {rows} rows, but b has shape {tuple(self.b.shape)}")

    def _row_numbers(self, batch: Tensor) -> Tensor:
        if batch is self.everything:
            return self.all_rows
        if self.block == 1:
            return batch
        return (batch[:, None] * self.block + torch.arange(self.block, device=batch.device)).flatten()

    def residual(self, x: Tensor, scale: float, batch: Batch) -> tuple[Any, Tensor]:
        numbers = self._row_numbers(batch)
        rows = self.rows.gather(numbers)
        return rows, rows.forward(x) - scale * self.b[numbers]

    def back(self, context: Any, residual: Tensor) -> Tensor:
        back: Tensor = context.adjoint(residual)
        return back

    def lipschitz(self) -> float:
        """|A|^2 / n."""
        return Matrix(self.matrix).norm(iterations=50).upper ** 2 / self.n

    def mean_square_lipschitz(self) -> float | None:
        """|diag(|a_i|) A| / sqrt(n) where every block is one row a_i."""
        if self.block > 1:
            return None
        rows = WeightedRows(self.rows.gather(self.all_rows), self.shape, self.dtype)
        return rows.norm().upper / math.sqrt(self.n)
