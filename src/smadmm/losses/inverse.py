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
from smadmm.operators.linear import Matrix, Operator, Stack
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


class OperatorLeastSquares(BlockLeastSquares):
    """1/n sum_i 1/2 |A_i x - b_i|^2_{W_i} for any operators A_i: each is one sample, of any length.

    `operators` is a list of them, or anything with a length and numbered items, which are then asked for when they are
    drawn; a Stack gives its members, and one operator alone is one sample. `data` and `weights` have an array for each.

    >>> A = [operators.Identity((2,)), operators.Matrix([[1.0, 1.0]])]
    >>> f = losses.OperatorLeastSquares(A, [torch.ones(2), torch.tensor([4.0])])
    >>> f.gradient((torch.ones(2),), (1.0,), f.full())
    tensor([-1., -1.])
    """

    def __init__(
        self,
        operators: Sequence[Operator] | Operator,
        data: Sequence[Any] | Tensor,
        weights: Sequence[Any] | Tensor | None = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
    ):
        if isinstance(operators, Stack):
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

    def residual(self, x: Tensor, scale: float, batch: Batch) -> tuple[Any, Tensor]:
        numbers = [int(i) for i in batch]
        parts = []
        for i in numbers:
            Ax = self.operators[i].forward(x)
            if Ax.shape != self.b[i].shape:
                raise ValueError(f"A_{i} x has shape {tuple(Ax.shape)}, but its data have {tuple(self.b[i].shape)}")
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

    def lipschitz(self) -> float | None:
        """The largest eigenvalue of the Hessian, by power iteration."""
        return None if self.shape is None else _Root(self).norm(iterations=50).upper ** 2 / self.n


def _part(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    part = torch.as_tensor(values, device=device)
    wanted = torch.promote_types(dtype, torch.complex32) if part.is_complex() else dtype
    return part.to(wanted)


class _Root(Operator):
    """x -> W^{1/2} A x, all blocks: its Gram matrix is n times the Hessian."""

    def __init__(self, loss: OperatorLeastSquares):
        self.loss, self.in_shape, self.dtype, self.device = loss, loss.shape, loss.dtype, loss.everything.device

    def forward(self, x: Tensor) -> Tensor:
        return self.loss.residual(x, 0.0, self.loss.everything)[1]

    def adjoint(self, y: Tensor) -> Tensor:
        return self.loss.back(range(self.loss.n), y)
