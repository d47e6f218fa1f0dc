"""x-steps: direction d, eta, rho -> (eta Q + rho A'A)^{-1} d, for the choices of Q.

linearised      Q = I - (rho/eta) A'A      d / eta                  needs eta >= rho |A|^2
Metric(q, m)    the same in a metric       Q^{-1} d / eta           needs eta Q >= A' rho A
Preconditioned  the same, any metric P     P d / eta                needs eta P^{-1} >= rho A'A
Exact(A)        Q = I, or Q=operator       cached inverse of Q + (rho/eta) A'A
Conjugate(A)    Q = I, or Q=operator       conjugate gradients
Newton(f, A)    Q = Hess F, F quadratic    a few conjugate gradients
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smadmm.operators.linear import SMALL, Matrix, Operator, Shape
from smadmm.problem import Loss, Step


def refuse_indefinite(name: str, operator: Operator, in_shape: Shape | None) -> None:
    """Refuse an operator that is not symmetric and positive definite; beyond 512 unknowns by one direction only."""
    shape = operator.in_shape or in_shape or (1,)
    if operator.output_shape(shape) != shape:
        raise ValueError(f"{name} must be square, it takes {shape} to {operator.output_shape(shape)}")
    if math.prod(shape) > SMALL:
        p = torch.ones(shape, dtype=operator.dtype or torch.float64, device=operator.device)
        lowest = float(torch.vdot(p.flatten(), operator(p).flatten()).real) / p.numel()
    else:
        matrix = operator.dense(shape)
        if not bool((matrix - matrix.mH).abs().max() <= 1e-6 * matrix.abs().max()):
            raise ValueError(f"{name} must be symmetric; give ({name} + {name}')/2")
        lowest = float(torch.linalg.eigvalsh(matrix)[0])
    if not lowest > 0:
        raise ValueError(
            f"{name} must be positive definite, but p'{name} p = {lowest:.4g} |p|^2 for some p; add I to it"
        )


class XStep(ABC):
    """What the loop subtracts from x; `sfo` is its price, the sample gradients that one call computes."""

    sfo: int = 0

    @abstractmethod
    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        """(eta Q + rho A'A)^{-1} d; the direction may be overwritten."""


@dataclass(frozen=True)
class Linearised(XStep):
    """d / eta, in place: the direction is the loop's own."""

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        return direction.div_(eta)


linearised = Linearised()


@dataclass(frozen=True, eq=False)
class Metric(XStep):
    """Q^{-1} d / eta for Q = diag(q) + m m': a scale for every unknown, and one direction m that they share.

    Q^{-1} = diag(1/q) - h h' / (1 + m'h), h = m/q. Linear models take m = the mean of their rows: without it every step
    would run along that mean.
    """

    q: Tensor
    m: Tensor | None = None

    def __post_init__(self) -> None:
        if not bool((self.q > 0).all()):
            raise ValueError(f"the metric must be positive, its smallest entry is {float(self.q.min())}")

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        return self.inverse(direction) / eta

    def inverse(self, d: Tensor) -> Tensor:
        """Q^{-1} d."""
        scaled = d / self.q
        if self.m is None:
            return scaled
        h = self.m / self.q
        return torch.sub(scaled, h, alpha=float((h * d).sum() / (1 + (self.m * h).sum())))

    def square(self, x: Tensor) -> float:
        """x'Q x."""
        along = 0.0 if self.m is None else float((self.m * x).sum())
        return float((x * x * self.q).sum()) + along**2


@dataclass(frozen=True)
class Preconditioned(XStep):
    """P d / eta: P is the inverse of the metric, given as a function."""

    apply: Callable[[Tensor], Tensor]

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        return self.apply(direction) / eta


class Exact(XStep):
    """(eta Q + rho A'A)^{-1} d by a factorisation that is kept while rho/eta stays the same; leading axes are batches.

    Keep rho/eta constant: a ratio that changes at every k costs a new factorisation at every k.

    Dense A: Cholesky of the d x d matrix. Sparse A: SuperLU of SciPy where it is installed, else dense.
    Q is I, or a positive definite operator.
    """

    def __init__(self, A: Operator, in_shape: tuple[int, ...] | None = None, Q: Operator | None = None):
        self.A, self.in_shape, self.Q = A, A.in_shape or in_shape, Q
        if Q is not None:
            refuse_indefinite("Q", Q, self.in_shape)
        self.sparse = isinstance(A, Matrix) and A.sparse and not A.matrix.is_complex() and Q is None
        self._gram: Any = None
        self._solvers: dict[tuple[Any, ...], Callable[[Tensor], Tensor]] = {}

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        if self.A.gram is not None and self.Q is None:  # A'A = g I
            return direction / (eta + rho * self.A.gram)
        # rounded: schedules that grow together differ in the last digit
        ratio = (float(f"{float(rho) / float(eta):.14g}"), direction.dtype, direction.device)
        if ratio not in self._solvers:
            if len(self._solvers) == 4:
                self._solvers.clear()
            self._solvers[ratio] = self._factorise(ratio[0], direction)
        size = self.A.matrix.shape[1] if isinstance(self.A, Matrix) else direction.numel()
        return self._solvers[ratio](direction.reshape(-1, size).mT).mT.reshape(direction.shape) / eta

    def _factorise(self, ratio: float, like: Tensor) -> Callable[[Tensor], Tensor]:
        solve = _sparse_solver(self.A, ratio) if self.sparse else None
        if solve is not None:
            return solve
        if self._gram is None:
            if isinstance(self.A, Matrix):
                matrix = self.A.dense_matrix()
            else:
                matrix = self.A.dense(self.in_shape or tuple(like.shape), like.dtype)
            self._gram = (matrix.mH @ matrix).to(like.device, like.dtype)
        if self.Q is None:
            metric = torch.eye(len(self._gram), dtype=like.dtype, device=like.device)
        else:
            metric = self.Q.dense((len(self._gram),), like.dtype).to(like.device, like.dtype)
        # Q + ratio A'A is well conditioned; one product with its inverse is far quicker than two triangular solves
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(metric + ratio * self._gram))
        return lambda d: inverse @ d


def _sparse_solver(A: Operator, ratio: float) -> Callable[[Tensor], Tensor] | None:
    try:
        from scipy.sparse import csc_array, csr_array, eye_array
        from scipy.sparse.linalg import splu
    except ImportError:
        return None
    assert isinstance(A, Matrix)
    csr = A.matrix.cpu()
    parts = (csr.values().double().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
    matrix = csr_array(parts, shape=tuple(csr.shape))
    factor = splu(csc_array(eye_array(csr.shape[1]) + ratio * (matrix.T @ matrix)))
    return lambda d: torch.from_numpy(factor.solve(d.double().cpu().numpy())).to(d)


ROUNDING = 10.0  # times the machine's precision: no residual means anything below


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    d: Tensor,
    iterations: int,
    tolerance: float = 0.0,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """H^{-1} d from zero, H positive definite and given as a product, by at most so many steps, one product each.

    They end where the residual r has sqrt(r'P r) below `tolerance` times its first value, P being the preconditioner,
    or below the rounding error: what is left then may lie where a singular H is zero, and would be blown up.
    """
    x, r, p = torch.zeros_like(d), d.clone(), torch.zeros_like(d)
    tolerance = max(tolerance, ROUNDING * torch.finfo(d.dtype).eps)
    before = stop = 0.0
    for number in range(iterations):
        z = r if precondition is None else precondition(r)
        size = _dot(r, z)
        stop = stop if number else tolerance**2 * size
        if size <= stop:
            break
        p = z + (size / before) * p if number else z.clone()
        image = product(p)
        curvature = _dot(p, image)
        if curvature <= 0:  # solved: the square of p underflows
            break
        x.add_(p, alpha=size / curvature)
        r.sub_(image, alpha=size / curvature)
        before = size
    return x


def _dot(x: Tensor, y: Tensor) -> float:
    return float(torch.vdot(x.flatten(), y.flatten()).real)


@dataclass(frozen=True)
class Conjugate(XStep):
    """(eta Q + rho A'A)^{-1} d by conjugate gradients to a relative residual `tolerance`; Q is I where it is None."""

    A: Operator
    tolerance: float = 1e-8
    max_iterations: int = 200
    Q: Operator | None = None

    def __post_init__(self) -> None:
        if self.Q is not None:
            refuse_indefinite("Q", self.Q, self.A.in_shape)

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        def product(p: Tensor) -> Tensor:
            image: Tensor = eta * (p if self.Q is None else self.Q(p)) + self.A.T(rho * self.A(p))
            return image

        return conjugate_gradients(product, direction, self.max_iterations, self.tolerance)


class Newton(XStep):
    """(eta Hess + rho A'A)^{-1} d by a few conjugate gradients, Hess that of all samples of a quadratic loss.

    Of a loss that is not quadratic it is the Hessian of its majorant. With eta = 1 and full gradients the x-step is
    nearly exact. It would amplify the noise of a batch. A step computes `inner` full gradients. A is I where it is
    None; `precondition(r, eta, rho)` is near (eta Hess + rho A'A)^{-1} r.
    """

    def __init__(
        self,
        f: Loss,
        A: Operator | None = None,
        inner: int = 5,
        precondition: Callable[[Tensor, Step, Step], Tensor] | None = None,
    ):
        if inner < 1:
            raise ValueError(f"at least one conjugate gradient step is needed, got {inner}")
        model = f.majorant()
        if model is None or f.n is None:
            name = type(f).__name__
            raise ValueError(f"a Newton step needs a quadratic loss of finite data, {name} is none, nor has a majorant")
        self.loss, self.inner, self.A, self.precondition = model, inner, A, precondition
        self.sfo = inner * f.n

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        zero, everything = torch.zeros_like(direction), self.loss.full()

        def product(p: Tensor) -> Tensor:
            constraint = rho * p if self.A is None else self.A.T(rho * self.A(p))
            return eta * self.loss.gradient((p, zero), (1.0, -1.0), everything) + constraint

        near = self.precondition
        P = None if near is None else lambda r: near(r, eta, rho)
        return conjugate_gradients(product, direction, self.inner, precondition=P)
