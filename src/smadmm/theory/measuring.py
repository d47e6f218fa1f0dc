"""The numbers of the theorems, measured on a problem and a solver.

L is that of the sample gradients in mean square, E|grad f(x', xi) - grad f(x, xi)|^2 <= L^2 |x' - x|^2, in closed form
where the loss knows one. Otherwise it is sampled: the worst direction by power iteration on E J'J (J from gradient
differences) on some samples, its value with a 95 % interval on others. That bounds L from below, around the points
looked at; nothing sampled can bound it from above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from smadmm.operators.linear import Operator, Shape
from smadmm.problem import Batch, Loss, Problem, Prox
from smadmm.sampling import Rng
from smadmm.solver import ADMM
from smadmm.theory.theorems import Numbers
from smadmm.tuning import DENSE, gaussian, spectrum, start_of
from smadmm.xsteps import Conjugate, Exact, Linearised, Metric

SEARCH, JUDGE = 64, 256  # samples that find the worst direction, and that measure it
ROUNDS = 5


@dataclass(frozen=True)
class Interval:
    """A measured value and its 95 % interval; a single number where it is known in closed form.

    >>> theory.Interval(1.0, 0.9, 1.1).high
    1.1
    """

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return self.low == self.high

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.known else f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def _root_of_mean(squares: list[float]) -> Interval:
    """The root of a mean, with the normal interval of the mean."""
    values = torch.tensor(squares, dtype=torch.float64)
    mean, half = float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(squares))
    return Interval(math.sqrt(mean), math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half))


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def mean_square_smoothness(f: Loss, x: Tensor, seed: int = 0) -> Interval:
    """L of the sample gradients: closed form, or a sampled lower bound around x with its interval.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> L = theory.mean_square_smoothness(problem.f, torch.zeros(2, dtype=torch.float64))
    >>> L.low == L.value == L.high
    True
    """
    closed = f.mean_square_lipschitz()
    return sampled_smoothness(f, x, seed) if closed is None else Interval(closed, closed, closed)


def sampled_smoothness(f: Loss, x: Tensor, seed: int = 0) -> Interval:
    """sqrt(E|grad f(x + d, xi) - grad f(x, xi)|^2) / |d| for the worst d found, at x or at a random point near it.

    >>> f = losses.Squared(torch.eye(2), torch.ones(2))
    >>> 0.6 < theory.sampled_smoothness(f, torch.zeros(2)).value < 0.9
    True
    """
    batches = f.samples(seed, SEARCH + JUDGE, 1)
    rng, spread = Rng(seed, 0), max(_length(x) / math.sqrt(x.numel()), 1.0)
    length = 1e-3 * spread * math.sqrt(x.numel())
    found = []
    for centre in (x, x + spread * gaussian(x, rng)):
        d = gaussian(x, rng)
        for _ in range(ROUNDS):
            total = torch.zeros_like(d)
            for batch in batches[:SEARCH]:
                total += _slope(f, centre, _slope(f, centre, d, length, batch), length, batch)
            if _length(total) == 0:
                break
            d = total / _length(total)
        size = max(_length(d), 1e-300)
        found.append(_root_of_mean([(_length(_slope(f, centre, d, length, b)) / size) ** 2 for b in batches[SEARCH:]]))
    return max(found, key=lambda interval: interval.value)


def _slope(f: Loss, x: Tensor, d: Tensor, length: float, batch: Batch) -> Tensor:
    """The derivative of the batch's gradient along d, from a difference of the given length."""
    size = _length(d)
    if size == 0:
        return torch.zeros_like(d)
    return f.gradient((x + d * (length / size), x), (1.0, -1.0), batch) * (size / length)


def gradient_noise(f: Loss, x: Tensor, seed: int = 0) -> tuple[Interval, float]:
    """sigma = sqrt(E|grad f(x, xi) - grad F(x)|^2), and the largest |grad f(x, xi)| seen.

    >>> f = losses.Squared(torch.eye(2), torch.ones(2))
    >>> sigma, largest = theory.gradient_noise(f, torch.zeros(2))
    >>> round(largest, 3)
    1.0
    """
    batches, squares, largest = f.samples(seed, JUDGE, 1), [], 0.0
    for one, other in zip(batches[::2], batches[1::2], strict=True):  # E|g - g'|^2 is twice the variance
        g, h = (f.gradient((x,), (1.0,), batch) for batch in (one, other))
        squares.append(0.5 * _length(g - h) ** 2)
        largest = max(largest, _length(g), _length(h))
    return _root_of_mean(squares), largest


def denoiser_slope(h: Prox, y: Tensor, seed: int = 0) -> float:
    """A lower bound of L_g, the Lipschitz constant of I - D, by power iteration on differences around y."""
    d, largest = gaussian(y, Rng(seed, 0)), 0.0
    length = 1e-3 * max(_length(y), math.sqrt(y.numel()))
    still = y - h.prox(y, 1.0)
    for _ in range(ROUNDS):
        moved = y + d * (length / _length(d))
        d = moved - h.prox(moved, 1.0) - still
        largest = max(largest, _length(d) / length)
        if _length(d) == 0:
            break
    return largest


def eigenvalue_ends(operator: Operator, in_shape: Shape | None) -> tuple[float, float] | None:
    """The smallest and the largest eigenvalue of a positive definite operator; None beyond 2000 unknowns."""
    if operator.gram is not None:
        return math.sqrt(operator.gram), math.sqrt(operator.gram)
    shape = operator.in_shape or in_shape
    if shape is None or math.prod(shape) > DENSE:
        return None
    values = torch.linalg.eigvalsh(operator.dense(shape))
    return float(values[0]), float(values[-1])


def q_ends(solver: ADMM, k: int = 1) -> tuple[float, float] | None:
    """The ends of the spectrum of Q at iteration k; None where they are not known."""
    step, A, rho, eta = solver.x_step, solver.problem.A, solver.rho(k), solver.eta(k)
    shape = A.in_shape or solver.problem.f.shape
    if isinstance(rho, Tensor) or isinstance(eta, Tensor):
        return None
    if isinstance(step, (Exact, Conjugate)):
        return (1.0, 1.0) if step.Q is None else eigenvalue_ends(step.Q, shape)
    if isinstance(step, Linearised):
        ends = spectrum(A, shape)
        lowest = ends.smallest_columns
        return None if lowest is None else (1 - rho / eta * ends.largest, 1 - rho / eta * lowest)
    if isinstance(step, Metric) and shape is not None and math.prod(shape) <= DENSE:
        matrix = A.dense(shape, step.q.dtype)
        metric = torch.diag(step.q.flatten()) - rho / eta * matrix.mH @ matrix
        if step.m is not None:
            metric = metric + torch.outer(step.m.flatten(), step.m.flatten())
        values = torch.linalg.eigvalsh(metric)
        return float(values[0]), float(values[-1])
    return None


def h_ends(solver: ADMM, k: int = 1) -> tuple[float, float] | None:
    """The ends of the spectrum of H at iteration k, over all blocks; None where they are not known."""
    rho, found = solver.rho(k), []
    if isinstance(rho, Tensor):
        return None
    for j, B in enumerate(solver.problem.Bs):
        if solver.Hs is not None:
            ends = eigenvalue_ends(solver.Hs[j].H, B.in_shape)
        else:
            r, values = solver.rs[j](k), spectrum(B)
            lowest = values.smallest_columns
            known = lowest is not None and not isinstance(r, Tensor)
            ends = (r - rho * values.largest, r - rho * lowest) if lowest is not None and known else None
        if ends is None:
            return None
        found.append(ends)
    return min(low for low, _ in found), max(high for _, high in found)


def measure(problem: Problem, x: Tensor | None = None, seed: int = 0) -> Numbers:
    """The numbers of a problem around x (default: zero), for Q = I and H = I; sampled where no closed form is known.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.measure(problem).sigma_A
    1.0
    """
    x = start_of(problem) if x is None else x
    L = mean_square_smoothness(problem.f, x, seed)
    noise, delta = gradient_noise(problem.f, x, seed)
    ends = spectrum(problem.A, tuple(x.shape))
    sigma_A = min(ends.smallest_rows or 0.0, ends.smallest_columns or 0.0)
    if not sigma_A > 0:
        raise ValueError(
            f"sigma_A = {sigma_A}: the theorems need A of full row and column rank, of at most {DENSE} unknowns; "
            "look at theory.check(solver)"
        )
    B = max(float(B.norm()) for B in problem.Bs)
    return Numbers(L.high, noise.high, delta, sigma_A, math.sqrt(ends.largest), B)
