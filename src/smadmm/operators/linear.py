"""Linear operators: x -> A x, with an exact adjoint, shapes and a norm.

Every operator is linear over the reals: <A x, y> = <x, A' y> with <u, v> = Re sum conj(u) v, so that real images with
complex measurements are served too. Shapes are tuples; None means "any shape" (the identity, for one).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smadmm.extras import needs

Shape = tuple[int, ...]

SMALL = 512  # matrices up to this size get an exact spectral norm


class Norm(float):
    """A spectral norm |A| known from below: with probability >= .999, |A| lies in [self, self + error].

    >>> norm = (2.0 * operators.Identity((3,))).norm()
    >>> isinstance(norm, operators.Norm), float(norm)
    (True, 2.0)
    """

    error: float

    def __new__(cls, value: float, error: float = 0.0) -> Norm:
        norm = super().__new__(cls, value)
        norm.error = error
        return norm

    @property
    def upper(self) -> float:
        return float(self) + self.error


class Operator(ABC):
    """A x by `A(x)`, A' y by `A.T(y)`; combine with +, -, @ and scalar *.

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> (2.0 * M + operators.Identity())(torch.ones(2))
    tensor([7., 3.])
    """

    in_shape: Shape | None = None
    out_shape: Shape | None = None
    dtype: torch.dtype | None = None  # None: works in the dtype of its input
    device: torch.device = torch.device("cpu")  # where its own tensors are
    gram: float | None = None  # the number g if A'A = g I is known

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """A x."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """A' y."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    @property
    def T(self) -> Operator:  # noqa: N802
        return Adjoint(self)

    @property
    def H(self) -> Operator:  # noqa: N802
        """The adjoint, as other libraries call it."""
        return self.T

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix of A."""
        if self.in_shape is None:
            raise ValueError(f"the size of {type(self).__name__} depends on its input; give the operator a shape")
        return math.prod(self.output_shape(self.in_shape) or ()), math.prod(self.in_shape)

    def to_scipy(self) -> Any:
        """A as a LinearOperator of SciPy, on flattened arrays: for its solvers, PyLops and others.

        >>> operators.Matrix([[1.0, 2.0], [0.0, 1.0]]).to_scipy() @ np.ones(2)
        array([3., 1.], dtype=float32)
        """
        linear = needs("scipy.sparse.linalg", None, "linear operators of SciPy")
        dtype = self.dtype or torch.float64
        rows = self.output_shape(self.in_shape) or ()

        def flat(apply: Any, shape: Shape) -> Any:
            return lambda v: apply(torch.as_tensor(v).to(self.device, dtype).reshape(shape)).reshape(-1).cpu().numpy()

        return linear.LinearOperator(
            self.shape,
            matvec=flat(self.forward, self.in_shape or ()),
            rmatvec=flat(self.adjoint, rows),
            dtype=torch.zeros(0, dtype=dtype).numpy().dtype,
        )

    def output_shape(self, in_shape: Shape | None) -> Shape | None:
        """The shape of A x for x of this shape."""
        return self.out_shape if self.out_shape is not None else in_shape

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        """|A| by power iteration on A'A from a random start.

        With q iterations in dimension n, P(relative error of |A|^2 > e) <= .824 sqrt(n) (1 - e)^(q - 1/2)
        (Kuczynski and Wozniakowski 1992); `error` is that bound at probability .001.
        """
        if self.in_shape is None:
            raise ValueError(f"norm of {type(self).__name__} needs its input shape; give the operator one")
        size = math.prod(self.in_shape)
        generator = torch.Generator().manual_seed(seed)
        v = torch.randn(self.in_shape, generator=generator, dtype=torch.float64)
        v = v.to(dtype=self.dtype or torch.float64, device=self.device)
        square = 0.0
        for _ in range(iterations):
            length = float(torch.linalg.vector_norm(v))
            if length == 0:
                return Norm(0.0)
            v = v / length
            image = self.forward(v)
            square = float(torch.linalg.vector_norm(image)) ** 2
            v = self.adjoint(image)
        miss = 1 - (1e-3 / (0.824 * math.sqrt(size))) ** (1 / (iterations - 0.5)) if size > 1 else 0.0
        value = math.sqrt(square)
        return Norm(value, value / math.sqrt(1 - miss) - value)

    def dense(self, in_shape: Shape | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """The matrix of A, column by column; for small operators."""
        shape = self.in_shape or in_shape
        if shape is None:
            raise ValueError(f"the matrix of {type(self).__name__} needs its input shape; give in_shape")
        basis = torch.eye(math.prod(shape), dtype=self.dtype or dtype, device=self.device)
        return torch.stack([self.forward(e.reshape(shape)).reshape(-1) for e in basis], dim=1)

    def __add__(self, other: Operator) -> Operator:
        return Sum((self, other))

    def __sub__(self, other: Operator) -> Operator:
        return Sum((self, -other))

    def __matmul__(self, other: Any) -> Any:
        """A @ B is an operator; A @ x is A x for a tensor or a NumPy array, which comes back as the same kind."""
        if isinstance(other, Operator):
            return Composition(self, other)
        if isinstance(other, Tensor):
            return self.forward(other)
        return self.forward(torch.as_tensor(other, dtype=self.dtype, device=self.device)).cpu().numpy()

    def __mul__(self, scale: float) -> Operator:
        return Scaled(self, scale)

    __rmul__ = __mul__

    def __neg__(self) -> Operator:
        return Scaled(self, -1.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_shape} -> {self.out_shape})"


class Adjoint(Operator):
    """A' as an operator.

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> M.T(torch.ones(2))
    tensor([1., 3.])
    """

    def __init__(self, operator: Operator):
        self.operator = operator
        self.in_shape, self.out_shape, self.dtype = operator.out_shape, operator.in_shape, operator.dtype
        self.device = operator.device

    def forward(self, x: Tensor) -> Tensor:
        return self.operator.adjoint(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.operator.forward(y)

    @property
    def T(self) -> Operator:  # noqa: N802
        return self.operator

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        return self.operator.norm(iterations, seed)


class Identity(Operator):
    """x -> x.

    >>> operators.Identity()(torch.ones(2))
    tensor([1., 1.])
    """

    gram = 1.0

    def __init__(self, shape: Shape | None = None):
        self.in_shape = self.out_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        return y

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        return Norm(1.0)


class Scaled(Operator):
    """x -> s A x.

    >>> (3.0 * operators.Identity())(torch.ones(2))
    tensor([3., 3.])
    """

    def __init__(self, operator: Operator, scale: float):
        self.operator, self.scale = operator, float(scale)
        self.in_shape, self.out_shape, self.dtype = operator.in_shape, operator.out_shape, operator.dtype
        self.device = operator.device
        self.gram = None if operator.gram is None else operator.gram * self.scale**2

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.operator.forward(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.operator.adjoint(self.scale * y)

    def output_shape(self, in_shape: Shape | None) -> Shape | None:
        return self.operator.output_shape(in_shape)

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        inner = self.operator.norm(iterations, seed)
        return Norm(abs(self.scale) * inner, abs(self.scale) * inner.error)


def _sparse_csr(matrix: Any) -> Tensor:
    """A torch CSR tensor from a torch sparse tensor or a SciPy sparse matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls CSR a beta feature
        if isinstance(matrix, Tensor):
            return matrix.to_sparse_csr()
        csr = matrix.tocsr()
        return torch.sparse_csr_tensor(
            torch.from_numpy(csr.indptr).long(),
            torch.from_numpy(csr.indices).long(),
            torch.from_numpy(csr.data),
            size=csr.shape,
        )


def is_scipy_sparse(matrix: Any) -> bool:
    """Whether it is a sparse matrix of SciPy, without importing SciPy."""
    return type(matrix).__module__.startswith("scipy.sparse")


class Matrix(Operator):
    """x -> M x on the last axis of x, M dense or sparse (torch, NumPy or SciPy); `batch` names leading axes.

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> M(torch.ones(2)), M.T(torch.ones(2))
    (tensor([3., 1.]), tensor([1., 3.]))
    """

    def __init__(self, matrix: Any, batch: Shape = ()):
        if isinstance(matrix, Tensor) and matrix.layout == torch.strided:
            self.matrix = matrix
        elif isinstance(matrix, Tensor) or is_scipy_sparse(matrix):
            self.matrix = _sparse_csr(matrix)
        else:
            self.matrix = torch.as_tensor(matrix)
        if self.matrix.ndim != 2:
            raise ValueError(f"a matrix has two axes, got shape {tuple(self.matrix.shape)}")
        self.sparse = self.matrix.layout != torch.strided
        rows, columns = self.matrix.shape
        self.in_shape, self.out_shape = (*batch, columns), (*batch, rows)
        self.dtype, self.device = self.matrix.dtype, self.matrix.device
        self._transpose = _sparse_csr(self.matrix.to_sparse_coo().mH) if self.sparse else self.matrix.mH

    def _apply(self, matrix: Tensor, x: Tensor) -> Tensor:
        if not self.sparse or x.ndim == 1:
            return matrix @ x if x.ndim == 1 else x @ matrix.mT
        return (matrix @ x.reshape(-1, x.shape[-1]).mT).mT.reshape(*x.shape[:-1], matrix.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        return self._apply(self.matrix, x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self._apply(self._transpose, y)

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        if max(self.matrix.shape) <= SMALL:
            return Norm(float(torch.linalg.matrix_norm(self.dense_matrix(), ord=2)))
        return super().norm(iterations, seed)

    def dense_matrix(self) -> Tensor:
        """M itself, without the batch axes, as a dense tensor."""
        return self.matrix.to_dense() if self.sparse else self.matrix

    def dense(self, in_shape: Shape | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.dense_matrix() if self.in_shape == (self.matrix.shape[1],) else super().dense(in_shape, dtype)


def _common(label: str, shapes: Sequence[Shape | None]) -> Shape | None:
    known = [s for s in shapes if s is not None]
    if any(s != known[0] for s in known):
        different = next(s for s in known if s != known[0])
        raise ValueError(f"{label}: shapes {known[0]} and {different} do not match")
    return known[0] if known else None


def _common_dtype(operators: Sequence[Operator]) -> torch.dtype | None:
    return next((o.dtype for o in operators if o.dtype is not None), None)


def _common_device(operators: Sequence[Operator]) -> torch.device:
    return next((o.device for o in operators if o.device.type != "cpu"), torch.device("cpu"))


class Sum(Operator):
    """x -> A_1 x + A_2 x + ...

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> (M + M)(torch.ones(2))
    tensor([6., 2.])
    """

    def __init__(self, operators: Sequence[Operator]):
        self.operators = tuple(operators)
        self.in_shape = _common("sum of operators, inputs", [o.in_shape for o in self.operators])
        outs = [o.output_shape(self.in_shape) for o in self.operators]
        self.out_shape = _common("sum of operators, outputs", outs)
        self.dtype, self.device = _common_dtype(self.operators), _common_device(self.operators)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.operators
        return sum((o.forward(x) for o in rest), start=first.forward(x))

    def adjoint(self, y: Tensor) -> Tensor:
        first, *rest = self.operators
        return sum((o.adjoint(y) for o in rest), start=first.adjoint(y))


class Composition(Operator):
    """x -> A (B x).

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> (M @ M)(torch.ones(2))
    tensor([5., 1.])
    """

    def __init__(self, outer: Operator, inner: Operator):
        self.outer, self.inner = outer, inner
        middle = inner.output_shape(inner.in_shape)
        _common("composition A @ B, input of A and output of B", [outer.in_shape, middle])
        self.in_shape = inner.in_shape if inner.in_shape is not None else outer.in_shape
        self.out_shape = outer.output_shape(middle)
        self.dtype, self.device = _common_dtype((inner, outer)), _common_device((inner, outer))
        if outer.gram is not None and inner.gram is not None:
            self.gram = outer.gram * inner.gram

    def forward(self, x: Tensor) -> Tensor:
        return self.outer.forward(self.inner.forward(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(self.outer.adjoint(y))


class Stack(Operator):
    """x -> [A_1 x; A_2 x; ...], the results flattened one below the other.

    >>> M = operators.Matrix([[1.0, 2.0], [0.0, 1.0]])
    >>> operators.Stack([M, operators.Identity((2,))])(torch.ones(2))
    tensor([3., 1., 1., 1.])
    """

    def __init__(self, operators: Sequence[Operator]):
        self.operators = tuple(operators)
        self.in_shape = _common("stack of operators, inputs", [o.in_shape for o in self.operators])
        if self.in_shape is None:
            raise ValueError("a stack needs one operator with a known input shape; use Identity(shape)")
        self.shapes = [o.output_shape(self.in_shape) for o in self.operators]
        self.sizes = [math.prod(shape or ()) for shape in self.shapes]
        self.out_shape = (sum(self.sizes),)
        self.dtype, self.device = _common_dtype(self.operators), _common_device(self.operators)
        if all(o.gram is not None for o in self.operators):
            self.gram = sum(o.gram or 0.0 for o in self.operators)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([o.forward(x).reshape(-1) for o in self.operators])

    def adjoint(self, y: Tensor) -> Tensor:
        parts = torch.split(y, self.sizes)
        pieces = [o.adjoint(p.reshape(s or ())) for o, p, s in zip(self.operators, parts, self.shapes, strict=True)]
        return sum(pieces[1:], start=pieces[0])


class Slot(Operator):
    """y -> a vector of `size` zeros with y in [start, start + len(y)): one block of rows of a stacked constraint.

    >>> operators.Slot(length=2, start=1, size=4)(torch.ones(2))
    tensor([0., 1., 1., 0.])
    """

    gram = 1.0

    def __init__(self, length: int, start: int, size: int):
        if start < 0 or start + length > size:
            raise ValueError(f"slot [{start}, {start + length}) lies outside a vector of size {size}")
        self.start, self.in_shape, self.out_shape = start, (length,), (size,)

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_zeros(self.out_shape or ())
        y[self.start : self.start + x.shape[0]] = x
        return y

    def adjoint(self, y: Tensor) -> Tensor:
        return y[self.start : self.start + (self.in_shape or (0,))[0]].clone()

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        return Norm(1.0)
