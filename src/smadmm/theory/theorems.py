"""Theorems 3.1 and 3.2 as formulas, as printed and corrected (docs/theory.md says what was corrected and why).

With L the mean-square smoothness of the sample gradients, sigma their noise, delta their bound, sigma_A the smallest
eigenvalue of AA', phi and H_min, H_max the ends of the spectra of Q and H:

3.1  tau = phi_min^2 sigma_A / (40 phi_max^2) + sigma_A/2                                       for a horizon K
     rho = c_rho K^(1/3),  a = c_a^2 / rho^2,  eta = phi_min sigma_A rho / (20 phi_max^2),  m = ceil(rho)
     mean_k E dist^2  <=  H_1 K^(-2/3) + H_2 K^(-4/3) + H_3 K^(-2)
3.2  rho_k = c_rho k^(1/3),  a_(k+1) = c_a k^(-2/3),  eta_k = c_eta k^(1/3),  m = 1
     mean_k E dist^2  <=  (G_1 + G_3) K^(-2/3) + G_2 K^(-1),   the G with a factor ln K

The mean is over k = 1..K. Bounds start from psi, the Lagrangian of the start, and from `floor`, a lower bound of F + h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from smadmm.schedules import Power, Schedules, theorem_constant

CUBE_ROOT_OF_2 = 2 ** (1 / 3)
SLACK = 1e-6  # relative, in comparisons with the theorems' constants
LEAST_C_RHO = math.sqrt(132 * 16 * CUBE_ROOT_OF_2)  # of L/sigma_A: from here on the corrected c_a is at most 1


@dataclass(frozen=True)
class Numbers:
    """What the theorems' constants are made of; Q = I and H = I unless said otherwise.

    >>> n = theory.Numbers(L=1.0, sigma=1.0, delta=1.0, sigma_A=1.0, A=1.0, B=1.0)
    >>> n.coupling
    1.0
    """

    L: float
    sigma: float
    delta: float
    sigma_A: float  # noqa: N815
    A: float  # |A|
    B: float  # |B|
    phi_min: float = 1.0
    phi_max: float = 1.0
    H_min: float = 1.0
    H_max: float = 1.0

    @property
    def coupling(self) -> float:
        """|A|^2 |B|^2."""
        return (self.A * self.B) ** 2


@dataclass(frozen=True)
class ConstantTheorem:
    """Theorem 3.1 with constants c_a and c_rho, and ratio = eta/rho.

    >>> n = theory.Numbers(L=1.0, sigma=1.0, delta=1.0, sigma_A=1.0, A=1.0, B=1.0)
    >>> round(theory.ConstantTheorem.literal(n).c_rho, 1)
    41.9
    """

    numbers: Numbers
    c_a: float
    c_rho: float
    ratio: float
    corrected: bool = True
    name = "3.1"

    @classmethod
    def literal(cls, n: Numbers, corrected: bool = True) -> ConstantTheorem:
        """With the constants of the theorem, which need no correction."""
        tau = _tau(n)
        c_a = max(((1 + 2 * n.L**2) / 2 + 20 * n.L**2 / n.sigma_A) * 2 / tau, 1.0)
        by_H = tau * n.H_max**2 / (4 * n.coupling * n.H_min)
        c_rho = max((20 * n.L**2 + 2 * n.sigma_A * n.L) / (n.sigma_A * tau), by_H, 1.0)
        return cls(n, c_a, c_rho, n.phi_min * n.sigma_A / (20 * n.phi_max**2), corrected)

    def unmet(self) -> list[str]:
        """What the theorem asks for and these constants are not."""
        least = self.literal(self.numbers, self.corrected)
        wrong = [*_below("c_a", self.c_a, least.c_a), *_below("c_rho", self.c_rho, least.c_rho)]
        if not math.isclose(self.ratio, least.ratio, rel_tol=1e-3):
            wrong.append(f"eta/rho = {self.ratio:.4g} is not {least.ratio:.4g}")
        return wrong

    @property
    def tau(self) -> float:
        return _tau(self.numbers)

    @property
    def least_K(self) -> float:  # noqa: N802
        """From here on a <= 1."""
        return (self.c_a / self.c_rho) ** 3

    def schedules(self, K: int) -> Schedules:
        return theorem_constant(K, self.c_rho, self.ratio, self.c_a)

    @property
    def C_1(self) -> float:  # noqa: N802
        s = self.numbers.sigma**2
        noise = s / self.c_a**2 + 2 * self.c_a**2 * s / self.c_rho**3
        return (self.c_a / 2 + 10 / self.numbers.sigma_A) * noise

    @property
    def kappa(self) -> float:
        """sum_k kappa rho E|x_(k+1) - x_k|^2 + H_min E|y_(k+1) - y_k|^2 <= C_1 + psi - psi_*; tau/4 as printed."""
        n = self.numbers
        if not self.corrected:
            return self.tau / 4
        spent = 3 * n.L**2 / (self.c_rho**2 * n.sigma_A) + 3 * n.phi_min**2 * n.sigma_A / (800 * n.phi_max**2)
        return self.tau / 4 - spent

    def lowest(self, floor: float) -> float:
        """psi_*: as printed the lower bound of F + h; corrected by what |lam|^2 / (2 rho) may take away (8.11)."""
        n = self.numbers
        return floor - 3 * (n.delta**2 + 3 * n.sigma**2) / (2 * self.c_rho * n.sigma_A) if self.corrected else floor

    def terms(self, K: float, psi: float, floor: float) -> tuple[float, float, float]:
        """H_1, H_2, H_3."""
        n, c_a, c_rho, s = self.numbers, self.c_a, self.c_rho, self.numbers.sigma**2
        drop = self.C_1 + psi - self.lowest(floor)
        moved = drop / (self.kappa * c_rho)  # sum_k E|x_(k+1) - x_k|^2 <= moved K^(-1/3)
        noise = 3 * s * c_rho / c_a**2 + 6 * c_a**2 * s / c_rho**2
        eta_square = (self.ratio * n.phi_max) ** 2  # over rho^2
        H_2 = 10 * s / (c_a**2 * n.sigma_A * c_rho) + 20 * c_a**2 * s / (c_rho**4 * n.sigma_A)
        H_2 += 20 * n.L**2 * moved / (c_a**2 * n.sigma_A) + 10 * eta_square * moved / n.sigma_A
        H_3 = 5 * n.L**2 * moved / (n.sigma_A * c_rho**2)
        if self.corrected:
            H_1 = noise + (6 * n.L**2 / c_a**2 + 3 * eta_square + 2 * n.coupling) * c_rho**2 * moved
            return H_1, H_2 + 3 * n.L**2 * moved, H_3
        rho = c_rho * K ** (1 / 3)
        unbracketed = (4 * self.C_1 + psi - floor) / (self.tau * c_rho)
        H_1 = noise + ((6 * n.L**2 / c_a**2 + eta_square) * rho**2 + n.L**2) * unbracketed
        return H_1 + 2 * c_rho * n.coupling * self.C_1 * psi / self.tau, H_2, H_3

    def value(self, K: float, psi: float, floor: float) -> float:
        H_1, H_2, H_3 = self.terms(K, psi, floor)
        return H_1 * math.pow(K, -2 / 3) + H_2 * math.pow(K, -4 / 3) + H_3 * math.pow(K, -2)


def _tau(n: Numbers) -> float:
    return n.phi_min**2 * n.sigma_A / (40 * n.phi_max**2) + n.sigma_A / 2


@dataclass(frozen=True)
class DynamicTheorem:
    """Theorem 3.2 with constants c_a, c_rho and c_eta.

    >>> n = theory.Numbers(L=1.0, sigma=1.0, delta=1.0, sigma_A=1.0, A=1.0, B=1.0)
    >>> theory.DynamicTheorem.literal(n).unmet()
    []
    """

    numbers: Numbers
    c_a: float
    c_rho: float
    c_eta: float
    corrected: bool = True
    name = "3.2"

    @classmethod
    def literal(cls, n: Numbers, corrected: bool = True) -> DynamicTheorem:
        """With the least c_rho, the least c_a for it and the largest c_eta that the theorem allows."""
        c_rho = 8 * n.L / n.sigma_A + 160 * n.L**2 / n.sigma_A**2
        if corrected:
            c_rho = max(c_rho, 1.0, LEAST_C_RHO * n.L / n.sigma_A, n.H_max / (n.A * n.B))
        else:
            c_rho += n.A * n.B / n.H_max**2
        c_eta = n.sigma_A * c_rho / (math.sqrt(160) * n.phi_max)
        return cls(n, _least_c_a(n, c_rho, corrected), c_rho, c_eta, corrected)

    def unmet(self) -> list[str]:
        """What the theorem asks for and these constants are not."""
        n, least = self.numbers, self.literal(self.numbers, self.corrected)
        wrong = [*_below("c_rho", self.c_rho, least.c_rho)]
        wrong += _below("c_a", self.c_a, _least_c_a(n, self.c_rho, self.corrected))
        most = n.sigma_A * self.c_rho / (math.sqrt(160) * n.phi_max)
        return wrong + ([f"c_eta = {self.c_eta:.4g} is above {most:.4g}"] if self.c_eta > most * (1 + SLACK) else [])

    @property
    def c_nu(self) -> float:
        return _c_nu(self.numbers, self.corrected)

    @property
    def c_gamma(self) -> float:
        """gamma_(k+1) = c_gamma k^(1/3) as printed; corrected, gamma_k = c_gamma k^(1/3)."""
        return _c_gamma(self.numbers, self.c_rho, self.corrected)

    def schedules(self) -> Schedules:
        return Schedules(Power(self.c_rho, 1 / 3), Power(self.c_eta, 1 / 3), Power(self.c_a, -2 / 3, hi=1.0), 1)

    @property
    def C_3(self) -> float:  # noqa: N802
        """sum_k C_3 k^(-1/3) E|eps_k|^2 + C_4 k^(1/3) E|x_(k+1) - x_k|^2 + H_min E|y_(k+1) - y_k|^2 <= the drop."""
        spent = 3 / (2 * self.numbers.sigma_A * self.c_rho) if self.corrected else 0.0
        return self.c_a * self.c_gamma / 2 - spent

    @property
    def C_4(self) -> float:  # noqa: N802
        n = self.numbers
        spent = 3 * (self.c_eta * n.phi_max) ** 2 / (2 * n.sigma_A * self.c_rho) if self.corrected else 0.0
        return n.sigma_A * self.c_rho / 16 - spent

    def drop(self, K: float, psi: float, floor: float) -> float:
        """Phi_1 - Phi_* and the noise that K iterations bring."""
        n = self.numbers
        noise = 2 * n.sigma**2 * self.c_a**2 * self.c_gamma
        if not self.corrected:
            return psi - floor + noise * math.log(K)
        lowest = floor - 3 * n.delta**2 / (2 * self.c_rho * n.sigma_A)
        return psi + self.c_gamma * n.sigma**2 - lowest + CUBE_ROOT_OF_2 * noise * (1 + math.log(K))

    def terms(self, K: float, psi: float, floor: float) -> tuple[float, float, float]:
        """G_1, G_2, G_3."""
        n = self.numbers
        total = self.drop(K, psi, floor) / min(self.C_3, self.C_4, n.H_min)
        G_3 = 2 * self.c_rho**2 * n.coupling * total
        per_rho = total / (self.c_rho**2 * n.sigma_A)
        if not self.corrected:
            G_1 = 6 * (self.c_gamma * n.phi_max) ** 2 * total
            return G_1, (10 + 5 * (n.L**2 + 2 * n.phi_max**2) * self.c_eta**2) * per_rho, G_3
        eta_square = (self.c_eta * n.phi_max) ** 2
        return 3 * max(1.0, n.L**2 + eta_square) * total, max(10.0, 5 * n.L**2 + 10 * eta_square) * per_rho, G_3

    def value(self, K: float, psi: float, floor: float) -> float:
        G_1, G_2, G_3 = self.terms(K, psi, floor)
        return (G_1 + G_3) * math.pow(K, -2 / 3) + G_2 / K


def _below(name: str, value: float, least: float) -> list[str]:
    return [f"{name} = {value:.4g} is below {least:.4g}"] if value < least * (1 - SLACK) else []


def _c_nu(n: Numbers, corrected: bool) -> float:
    return 4 / n.sigma_A if corrected else 1 / (4 * n.sigma_A)


def _c_gamma(n: Numbers, c_rho: float, corrected: bool) -> float:
    return n.sigma_A * c_rho / (16 * n.L**2 * (CUBE_ROOT_OF_2 if corrected else 1.0))


def _least_c_a(n: Numbers, c_rho: float, corrected: bool) -> float:
    c_nu, scale = _c_nu(n, corrected), _c_gamma(n, c_rho, corrected) * n.sigma_A * c_rho
    first = 3 * c_nu * n.sigma_A + 120 if corrected else 3 * c_nu * c_rho + 60
    return (first + 2 * scale) / (3 * scale)


Theorem = ConstantTheorem | DynamicTheorem


@dataclass(frozen=True)
class Bound:
    """A theorem's bound on the mean of E dist^2 over k = 1..K; the start has the Lagrangian psi, F + h >= floor.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> solver = theory.theorem_constant(problem, K=1000)
    >>> theory.bound(solver, 1000).iterations(1e-3) > 10**6
    True
    """

    theorem: Theorem
    K: int
    psi: float
    floor: float

    @property
    def terms(self) -> tuple[float, float, float]:
        """H_1, H_2, H_3 of Theorem 3.1; G_1, G_2, G_3 of Theorem 3.2."""
        return self.theorem.terms(self.K, self.psi, self.floor)

    @property
    def value(self) -> float:
        return self.theorem.value(self.K, self.psi, self.floor)

    def iterations(self, eps: float) -> float:
        """The least K, within a millionth, whose bound is at most eps; infinite where there is none up to 1e60."""
        low, high = 0.0, math.log(1e60)
        if self.theorem.value(math.exp(high), self.psi, self.floor) > eps:
            return math.inf
        while high - low > 1e-7:
            middle = (low + high) / 2
            enough = self.theorem.value(math.exp(middle), self.psi, self.floor) <= eps
            low, high = (low, middle) if enough else (middle, high)
        return math.ceil(math.exp(high))

    def __str__(self) -> str:
        letter = "H" if isinstance(self.theorem, ConstantTheorem) else "G"
        terms = ", ".join(f"{letter}_{i} = {term:.3g}" for i, term in enumerate(self.terms, start=1))
        how = "corrected" if self.theorem.corrected else "as printed"
        return f"Theorem {self.theorem.name} ({how}): mean E dist^2 <= {self.value:.3g} after {self.K} ({terms})"
