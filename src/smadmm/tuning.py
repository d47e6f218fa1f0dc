"""Parameters from the problem: L, |A|, the spectrum of A, and ready parameters.

The theorems give exponents (rho, eta ~ k^(1/3), a ~ k^(-2/3)); their literal constants are too careful to be of use.
`auto` takes the exponents from Theorem 3.2 and the constants from the problem: eta_1 = L_b/2 and rho tied to eta, so
that the first steps are about 1/L_b long and one factorisation serves all iterations. L_b is the mean-square smoothness
of the theorems' assumption for batches of b samples,

    E|g_S(x) - g_S(y)|^2 <= L_b^2 |x - y|^2,    L_b^2 = L^2 + (L_1^2 - L^2)/b,

not the L of grad F: where samples differ much, steps of 1/L diverge.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from smadmm.estimators import Storm
from smadmm.operators.linear import Operator, Shape
from smadmm.problem import Batch, Loss, Penalty, Problem
from smadmm.sampling import Rng
from smadmm.schedules import Power
from smadmm.solver import ADMM
from smadmm.xsteps import Exact, XStep, linearised

DENSE = 2000  # operators up to this size are looked at as matrices


@dataclass(frozen=True)
class Smoothness:
    """L, and whether it is a bound known in closed form or an estimate at the points looked at."""

    value: float
    bound: bool


def smoothness(f: Loss, x: Tensor, batch: int = 256, iterations: int = 20, seed: int = 0) -> Smoothness:
    """L of grad F: in closed form where the loss knows it, else by power iteration on gradient differences around x.

    The estimate uses one batch and takes the largest |grad f(x + d) - grad f(x)| / |d| met, around x and at a random
    point near it: a lower bound of L, close to it where F is nearly quadratic.
    """
    closed = f.lipschitz()
    if closed is not None:
        return Smoothness(closed, True)
    rng = Rng(seed, 0)
    (sample,) = f.samples(seed, 1, batch if f.n is None else min(batch, f.n))
    size = float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())
    length = 1e-3 * max(size, 1.0) * math.sqrt(x.numel())
    largest = 0.0
    for centre in (x, x + max(size, 1.0) * gaussian(x, rng)):
        d = gaussian(x, rng)
        for _ in range(iterations):
            d = d * (length / max(float(torch.linalg.vector_norm(d)), 1e-300))
            d = f.gradient((centre + d, centre), (1.0, -1.0), sample)
            size_of_change = float(torch.linalg.vector_norm(d))
            largest = max(largest, size_of_change / length)
            if size_of_change == 0:
                break
    return Smoothness(largest, False)


def batch_smoothness(f: Loss, x: Tensor, batch: int, L: float, seed: int = 0) -> Smoothness:
    """L_b: in closed form where the loss knows its L_1, else from gradient differences H_S d around x; at least L.

    The largest root of the mean of |H_S d|^2 / |d|^2 over batches S that d has not seen: a random d, and what the mean
    of H_S^2 makes of it.
    """
    single = f.mean_square_lipschitz()
    if single is not None:
        return Smoothness(math.sqrt(L**2 + max(single**2 - L**2, 0.0) / batch), True)
    length = 1e-3 * max(float(torch.linalg.vector_norm(x)), math.sqrt(x.numel()))

    def change(d: Tensor, sample: Batch) -> Tensor:
        size = max(float(torch.linalg.vector_norm(d)), 1e-300)
        return f.gradient((x + d * (length / size), x), (1.0, -1.0), sample) * (size / length)

    batches, d, largest = f.samples(seed, 24, batch), gaussian(x, Rng(seed, 1)), 0.0
    for fresh in (batches[:8], batches[8:16], batches[16:]):
        d = d / max(float(torch.linalg.vector_norm(d)), 1e-300)
        changes = torch.stack([change(d, sample) for sample in fresh])
        largest = max(largest, float(torch.linalg.vector_norm(changes)) / math.sqrt(len(fresh)))
        d = torch.stack([change(u, sample) for u, sample in zip(changes, fresh, strict=True)]).mean(0)
    return Smoothness(max(L, largest), False)


def gaussian(like: Tensor, rng: Rng) -> Tensor:
    """Normal numbers in the shape and dtype of `like`."""
    real = torch.from_numpy(rng.standard_normal(like.shape))
    if like.is_complex():
        real = torch.complex(real, torch.from_numpy(rng.standard_normal(like.shape)))
    return real.to(like)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of AA' and A'A: the largest (shared), the smallest, and the smallest that is not zero."""

    largest: float
    smallest_rows: float | None  # of AA'; None where A is too large to tell
    smallest_columns: float | None  # of A'A
    smallest_nonzero: float | None


def spectrum(A: Operator, in_shape: Shape | None = None) -> Spectrum:
    """The ends of the spectrum of A; exact up to 2000 x 2000, else only the largest."""
    if A.gram is not None and A.in_shape == A.out_shape:
        return Spectrum(A.gram, A.gram, A.gram, A.gram)
    shape = A.in_shape or in_shape
    out = A.output_shape(shape)
    if shape is None or out is None or math.prod(shape) > DENSE or math.prod(out) > 20 * DENSE:
        return Spectrum(A.norm().upper ** 2, None, None, None)
    rows, columns = math.prod(out), math.prod(shape)
    if rows > DENSE:
        matrix = A.dense(shape)
        matrix = matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)
        values = torch.linalg.eigvalsh(matrix.mH @ matrix).clamp(min=0).flip(0)
    else:
        values = torch.linalg.svdvals(
            A.dense(shape).to(torch.complex128 if A.dtype and A.dtype.is_complex else torch.float64)
        )
        values = values**2
    if not len(values):
        return Spectrum(0.0, 0.0, 0.0, 0.0)
    largest = float(values[0])
    zero = largest * 1e-12 * max(rows, columns)
    rank = int((values > zero).sum())
    smallest = float(values[rank - 1]) if rank else 0.0
    return Spectrum(largest, smallest if rank == rows else 0.0, smallest if rank == columns else 0.0, smallest)


@dataclass(frozen=True)
class Parameters:
    """Ready parameters of SMADMM for a problem, and the reason for each; print it to read them."""

    problem: Problem
    rho: Power
    eta: Power
    a: Power
    batch: int
    first: int
    iterations: int
    x_step: XStep
    reasons: tuple[str, ...]

    @property
    def m(self) -> int:
        """The size of the first batch, as the paper calls it."""
        return self.first

    def solver(self, seed: int = 0) -> ADMM:
        """SMADMM with these parameters."""
        storm = Storm(self.batch, self.a, self.first)
        return ADMM(self.problem, storm, self.rho, self.eta, x_step=self.x_step, seed=seed)

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def _batch_size(n: int | None, budget: int) -> int:
    """A power of two up to 32: small data want many steps, and a budget should allow for a thousand of them."""
    most = min((n or budget) // 128, budget // 2000, 32)
    return 2 ** int(math.log2(most)) if most >= 1 else 1


def start_of(problem: Problem) -> Tensor:
    """Zeros of the shape and dtype of x."""
    shape = problem.f.shape or problem.A.in_shape
    if shape is None:
        raise ValueError("the problem does not tell the shape of x; give a point x, such as x=torch.zeros(n)")
    return torch.zeros(shape, dtype=problem.f.dtype or problem.A.dtype or torch.get_default_dtype())


def auto(problem: Problem, budget: int, x: Tensor | None = None) -> Parameters:
    """Parameters of SMADMM for `budget` sample gradients; x is a typical point (default: zero).

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solver = auto(problem, budget=6000).solver()
    >>> solver.estimator.batch
    1
    """
    f = problem.f
    x = start_of(problem) if x is None else x
    budget = operator.index(budget)
    if budget < 10:
        raise ValueError(f"a budget of {budget} sample gradients is too small; give at least 10")
    L = smoothness(f, x)
    if not L.value > 0:
        raise ValueError(f"F looks linear around x (L = {L.value}); auto cannot tell a step, set eta yourself")
    square = problem.A.norm().upper ** 2
    if not 0 < square < math.inf:
        raise ValueError(f"|A|^2 = {square}: the constraint has no rows, or A is zero or not finite; give another A")
    exact = x.numel() <= DENSE
    batch = _batch_size(f.n, budget)
    first = max(batch, min(1000, budget // 10, f.n if f.n is not None else budget))
    iterations = max(1, (budget - first) // (2 * batch))
    prior = not all(isinstance(h, Penalty) for h in problem.hs)
    power = 0.0 if prior else 1 / 3
    L_batch = batch_smoothness(f, x, batch, L.value).value
    c_rho = L.value if prior else 0.5 * L_batch / square
    c_eta = 0.5 * L_batch if exact and not prior else L_batch + c_rho * square
    reasons = (
        f"L = {L.value:.4g} ({'closed form' if L.bound else 'from gradient differences'}), |A|^2 <= {square:.4g}",
        f"L_b = {L_batch:.4g}: the mean-square smoothness of batches of {batch}",
        f"eta_k = {c_eta:.4g} k^{power:.3g}: a first step of about 1/L_b, Theorem 3.2's exponent"
        + (" replaced by 0 because a denoiser is used" if prior else ""),
        f"rho_k = {c_rho:.4g} k^{power:.3g}: "
        + ("with a denoiser rho is the weight of the prior; set it to your noise" if prior else "tied to eta by |A|^2"),
        "a_k = min(1, 2 k^(-2/3)): Theorem 3.2's exponent",
        f"batch = {batch}: a power of two up to 32 that leaves {iterations} iterations",
        f"m = {first}: up to 1000 samples or a tenth of the budget, so that the first direction is not noise",
        f"x-step: {'exact' if exact else 'linearised'}, for x has {x.numel()} unknowns (exact up to {DENSE})",
    )
    step: XStep = Exact(problem.A, tuple(x.shape)) if exact else linearised
    momentum = Power(2.0, -2 / 3, hi=1.0)
    rho, eta = Power(c_rho, power), Power(c_eta, power)
    return Parameters(problem, rho, eta, momentum, batch, first, iterations=iterations, x_step=step, reasons=reasons)
