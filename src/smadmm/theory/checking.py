"""Which assumptions of Theorems 3.1 and 3.2 a solver meets: each measured, each holds, fails or cannot be known.

The assumptions carry their numbers in the paper, 2.2 to 2.6. Beside them stands what Algorithm 1 and the theorems' own
sentences ask for. Where a proof needs more than the paper prints, that is what is checked; 8.1 to 8.17 are the entries
of docs/theory.md. No report says that a theorem applies: at best its assumptions hold, and its proof has a gap, 8.11.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from smadmm.estimators import Storm
from smadmm.problem import FiniteSum, Loss, Penalty, Problem
from smadmm.proxes import Denoised
from smadmm.sampling import iid
from smadmm.schedules import Schedule
from smadmm.solver import ADMM, CHECKED_ITERATIONS
from smadmm.theory.measuring import denoiser_slope, gradient_noise, h_ends, mean_square_smoothness, q_ends
from smadmm.theory.theorems import SLACK, ConstantTheorem, DynamicTheorem, Numbers, Theorem
from smadmm.tuning import Spectrum, spectrum, start_of
from smadmm.xsteps import Linearised

BOTH = ("3.1", "3.2")
GAP = "all assumptions of Theorem {} hold; its proof has the open gap 8.11"


@dataclass(frozen=True)
class Assumption:
    """One thing the theorems ask for: `holds` is True, False, or None where it cannot be known.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.check(auto(problem, 100).solver()).assumptions[0].number
    '2.2'
    """

    number: str  # in the paper
    name: str
    holds: bool | None
    why: str
    theorems: tuple[str, ...] = BOTH

    def __str__(self) -> str:
        word = {True: "holds", False: "FAILS", None: "cannot be known"}[self.holds]
        return f"{self.number} {self.name}: {word} - {self.why}"


@dataclass(frozen=True)
class Report:
    """The assumptions of both theorems for a solver; print it to read them.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.check(theory.theorem_dynamic(problem)).verdict("3.2")
    'all assumptions of Theorem 3.2 hold; its proof has the open gap 8.11'
    """

    assumptions: tuple[Assumption, ...]

    def verdict(self, theorem: str) -> str:
        """One sentence on Theorem 3.1 or 3.2."""
        needed = [a for a in self.assumptions if theorem in a.theorems]
        failing = [f"{a.number} {a.name}" for a in needed if a.holds is False]
        unknown = [f"{a.number} {a.name}" for a in needed if a.holds is None]
        if failing:
            fails = ", ".join(failing)
            return f"Theorem {theorem} says nothing about this run, which may still work well; failing: {fails}"
        if unknown:
            return f"Theorem {theorem}: nothing was found to fail, but {', '.join(unknown)} cannot be known"
        return GAP.format(theorem)

    def __str__(self) -> str:
        return "\n".join([*(str(a) for a in self.assumptions), *(self.verdict(theorem) for theorem in BOTH)])


def check(solver: ADMM, x: Tensor | None = None, seed: int = 0) -> Report:
    """Look at problem, estimator, H, Q, schedules and constants; x is a typical point (default: zero).

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> problem = Problem(losses.Sigmoid(X, [1, -1, 1]), proxes.L1(0.1))
    >>> theory.check(auto(problem, 100).solver()).verdict("3.1")[:40]
    'Theorem 3.1 says nothing about this run,'
    """
    if not isinstance(solver, ADMM):
        raise TypeError(
            f"the theorems are about a solver, got {type(solver).__name__}; "
            "make one by ADMM(problem, ...) or auto(problem, budget).solver()"
        )
    problem = solver.problem
    x = start_of(problem) if x is None else x
    L = mean_square_smoothness(problem.f, x, seed)
    noise, largest = gradient_noise(problem.f, x, seed)
    ends = spectrum(problem.A, tuple(x.shape))
    smooth = "in closed form" if L.known else "sampled, at least, by gradient differences around x"
    found = [
        Assumption("2.2", "smooth f, in mean square (8.9)", True if L.known else None, f"L = {L} ({smooth})"),
        _bounded(problem.f, largest),
        _below(problem),
        _rank(ends),
        _independent(problem.f, f"sigma = {noise} at x"),
        _convex(problem, x),
        *_algorithm(solver),
        *_positive(solver),
    ]
    sigma_A = min(ends.smallest_rows or 0.0, ends.smallest_columns or 0.0)
    Q, H = q_ends(solver), h_ends(solver)
    if Q is None or H is None or not min(sigma_A, Q[0], H[0]) > 0:
        why = "they need sigma_A, Q and H that are known and positive"
        found.append(Assumption("Thm 3.1, 3.2", "constants", None, why))
    else:
        B = max(float(B.norm()) for B in problem.Bs)
        numbers = Numbers(L.high, noise.high, largest, sigma_A, math.sqrt(ends.largest), B, *Q, *H)
        found += _constants(solver, numbers)
    return Report((*found, *_schedules(solver)))


def _bounded(f: Loss, largest: float) -> Assumption:
    why = {
        True: "the slope of the loss is bounded and so are the data",
        False: "they grow with x, as for least squares; harmless while the iterates stay bounded",
        None: "depends on the loss that was given",
    }[f.bounded_gradients]
    return Assumption(
        "2.3", "bounded sample gradients", f.bounded_gradients, f"{why}; the largest at x is {largest:.4g}"
    )


def _below(problem: Problem) -> Assumption:
    floor = all(isinstance(h, Penalty) for h in problem.hs) and problem.f.bounded_gradients is not None
    why = "a loss and penalties that are not negative" if floor else "the loss or the prior has no known bound"
    return Assumption("2.4", "f and h bounded below", True if floor else None, why)


def _rank(ends: Spectrum) -> Assumption:
    name = "A of full row and full column rank (8.1)"
    rows, columns = ends.smallest_rows, ends.smallest_columns
    if rows is None or columns is None:
        return Assumption("2.5", name, None, "A is too large to compute its smallest eigenvalues")
    if rows > 0 and columns > 0:
        return Assumption("2.5", name, True, f"sigma_A = {rows:.4g}, cond(AA') = {ends.largest / rows:.4g}")
    lacking = [part for part, value in (("rows", rows), ("columns", columns)) if value == 0]
    why = f"the {' and the '.join(lacking)} of A are linearly dependent; the proofs need both ranks full"
    return Assumption("2.5", name, False, why)


def _independent(f: Loss, measured: str) -> Assumption:
    name = "independent samples of bounded variance"
    if isinstance(f, FiniteSum) and f.sampling is not iid:
        return Assumption("2.6", name, False, f"the samples are drawn in passes, not independently; {measured}")
    if not isinstance(f, FiniteSum):
        return Assumption("2.6", name, None, f"how the loss draws its samples cannot be seen; {measured}")
    bounded = f.bounded_gradients or None
    why = (
        "drawn independently, gradients bounded" if bounded else "drawn independently, but the variance may grow with x"
    )
    return Assumption("2.6", name, bounded, f"{why}; {measured}")


def _convex(problem: Problem, x: Tensor) -> Assumption:
    """Convexity of h, or for a denoiser L_g < 1 of the plug-and-play proposition, which does not follow (8.3)."""
    for h, B in zip(problem.hs, problem.Bs, strict=True):
        if not isinstance(h, Penalty):
            known = h.lipschitz if isinstance(h, Denoised) else None
            seen = denoiser_slope(h, -1 * B.T(problem.A(x)))  # x itself where A = -B = I
            why = f"L_g = {known:.4g} as the denoiser says, " if known is not None else ""
            why += f"at least {seen:.4g} by differences around A x; "
            why += "below 1 D is the prox of a weakly convex phi, but its weight is r, which grows with rho (8.3)"
            holds = False if max(known or 0.0, seen) >= 1 else None
            return Assumption("5.2", "a denoiser in the place of a convex h, L_g < 1", holds, why)
    holds = all(isinstance(h, Penalty) and h.convex for h in problem.hs)
    return Assumption("(1.1)", "h convex", holds, "all penalties are convex" if holds else "a penalty is not convex")


def _algorithm(solver: ADMM) -> Iterable[Assumption]:
    """One block, the momentum estimator, nothing beside it, 0 < a <= 1."""
    storm = solver.estimator
    extras = {
        "several blocks y": len(solver.problem.Bs) > 1,
        f"the estimator {type(storm).__name__}": not isinstance(storm, Storm),
        "a step that sets itself": solver.stepsize is not None,
        "gradients at averages": solver.average is not None and solver.average.pull > 0,
        "row weights rho": isinstance(solver.rho(1), Tensor),
    }
    beside = [name for name, there in extras.items() if there]
    yield Assumption(
        "Alg. 1", "the algorithm", not beside, "not of it: " + ", ".join(beside) if beside else "as printed"
    )
    if isinstance(storm, Storm):
        values = [float(storm.a(k)) for k in CHECKED_ITERATIONS]
        why = f"a_1 = {values[0]:.4g}, the largest looked at is {max(values):.4g}"
        yield Assumption("Alg. 1", "0 < a <= 1", min(values) > 0 and max(values) <= 1, why)


def _positive(solver: ADMM) -> Iterable[Assumption]:
    for name, ends in (("H", h_ends), ("Q", q_ends)):
        found = [ends(solver, k) for k in CHECKED_ITERATIONS]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            yield Assumption("Alg. 1", f"{name} > 0", None, "its eigenvalues are not known")
            continue
        low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
        tail = "" if low > 0 else "; Algorithm 2 has H = 0" if name == "H" else "; raise eta or use Exact(A)"
        yield Assumption("Alg. 1", f"{name} > 0", low > 0, f"eigenvalues in [{low:.4g}, {high:.4g}]{tail}")


def _follows(schedule: Schedule, power: float) -> bool:
    first = float(schedule(1))
    return all(math.isclose(float(schedule(k)), first * math.pow(k, power), rel_tol=SLACK) for k in CHECKED_ITERATIONS)


def _schedules(solver: ADMM) -> Iterable[Assumption]:
    storm = solver.estimator
    if not isinstance(storm, Storm) or isinstance(solver.rho(1), Tensor) or isinstance(solver.eta(1), Tensor):
        return
    parts = (("rho", solver.rho), ("eta", solver.eta), ("a", storm.a))
    for theorem, powers in (("3.1", (0.0, 0.0, 0.0)), ("3.2", (1 / 3, 1 / 3, -2 / 3))):
        wrong = [name for (name, part), power in zip(parts, powers, strict=True) if not _follows(part, power)]
        asked = "constant rho, eta, a" if theorem == "3.1" else "rho, eta ~ k^(1/3), a ~ k^(-2/3), not cut"
        why = f"{asked}" + (f"; not so: {', '.join(wrong)}" if wrong else "")
        yield Assumption(f"Thm {theorem}", "schedules", not wrong, why, (theorem,))
    least = math.ceil(float(solver.rho(1)) * (1 - SLACK))
    why = f"m = {storm.first}, ceil(rho) = {least}"
    yield Assumption("Thm 3.1", "first batch", storm.first >= least, why, ("3.1",))


def _constants(solver: ADMM, n: Numbers) -> Iterable[Assumption]:
    """The solver's constants beside the least (c_eta: the largest) that the corrected theorems allow."""
    if not isinstance(solver.estimator, Storm):
        return
    rho = float(solver.rho(1))
    least = ConstantTheorem.literal(n)
    horizon = max(1, math.floor(math.pow(rho / least.c_rho, 3) * (1 + SLACK)))
    for theorem, most in (
        (own_constants(solver, "3.1", n, horizon), 81 / 80),
        (own_constants(solver, "3.2", n), 1 + 1 / math.sqrt(160)),
    ):
        wrong = theorem.unmet()
        why = "; ".join(wrong) if wrong else f"c_a = {theorem.c_a:.4g}, c_rho = {theorem.c_rho:.4g}"
        if theorem.name == "3.1" and not wrong:
            why += f", for runs of up to K = {horizon}"
        why += _linearised(solver, n, most)
        yield Assumption(f"Thm {theorem.name}", "constants", not wrong, why, (theorem.name,))


def own_constants(solver: ADMM, name: str, n: Numbers, K: int = 1) -> Theorem:
    """Theorem 3.1 (for K iterations) or 3.2 with the constants that a solver's parameters amount to."""
    storm = solver.estimator
    if not isinstance(storm, Storm) or isinstance(solver.rho(1), Tensor):
        raise ValueError("the theorems are about SMADMM with a number rho: ADMM(problem, Storm(...), rho, ...)")
    rho, eta, a = float(solver.rho(1)), float(solver.eta(1)), float(storm.a(1))
    if name == "3.1":
        return ConstantTheorem(n, rho * math.sqrt(a), rho / math.pow(K, 1 / 3), eta / rho)
    return DynamicTheorem(n, a, rho, eta)


def _linearised(solver: ADMM, n: Numbers, most: float) -> str:
    condition = n.A**2 / n.sigma_A
    if not isinstance(solver.x_step, Linearised) or condition <= most:
        return ""
    return f"; no linearised x-step meets them, cond(AA') = {condition:.4g} > {most:.4g} (8.2)"
