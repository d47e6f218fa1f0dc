"""The methods of the complexity experiment, what is tuned of each, and one of them on a problem as a job.

Every method has a grid of POINTS points, in its step, its batch sizes and its period, tuned for each problem and each
budget T on seeds of its own. The problems: smadmm.paper.complexity_kernel. Sources of the methods:

    SMADMM            Theorem 3.2: eta_k ~ k^(p/2), a_k ~ k^-p with p = 2/3, and other p; Theorem 3.1: constants of T
    SADMM             Huang and Chen, Mini-batch stochastic ADMMs for nonconvex nonsmooth optimization (2016)
    SPIDER-ADMM       Huang, Chen and Huang, Faster stochastic ADMM for nonconvex optimization (ICML 2019): online, with
                      a restart of n samples and inner batches and period q = b = sqrt n; and the same with b and q free
    ASVRG-ADMM        Liu, Shang and Cheng, Accelerated variance reduced stochastic ADMM (AAAI 2017): for strongly
                      convex f (theta fixed, every period starts at the anchor) and for convex f (theta falls); the
                      anchor is the mean of a period. Published for finite sums: full gradients are batches of n here
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from smadmm.protocol import Tried, Tuned

POINTS = 120
PROBLEMS = {"smooth": (20, 0.5, 1e-2, 1.5, 3.0), "flat": (20, 0.5, 1e-4, 3.0, 5.0), "chain": (25, 0.0, 0.0, 0.0, 4.0)}
# size, c of A, weight of the penalty, every entry of the start, unit of eta
EXPONENTS = {"smadmm-1/2": 1 / 2, "smadmm": 2 / 3, "smadmm-one": 2 / 3, "smadmm-4/5": 4 / 5, "smadmm-1": 1.0}
LABELS = {
    "smadmm-one": "SMADMM, one sample (Theorem 3.2)",
    "smadmm": "SMADMM, batch free",
    "smadmm-constant": "SMADMM, constants of T (Theorem 3.1)",
    "spider": "SPIDER-ADMM, published q = b = sqrt n",
    "spider-free": "SPIDER-ADMM, q and b free",
    "sadmm": "SADMM, batch free",
    "sadmm-one": "SADMM, one sample",
    "asvrg-strong": "ASVRG-ADMM, rule for strongly convex f",
    "asvrg-convex": "ASVRG-ADMM, rule for convex f",
    "smadmm-1/2": "SMADMM, a_k ~ k^(-1/2)",
    "smadmm-4/5": "SMADMM, a_k ~ k^(-4/5)",
    "smadmm-1": "SMADMM, a_k ~ k^(-1)",
}
Point = dict[str, float]


@dataclass(frozen=True)
class ComplexityRun:
    """A method on a problem with a budget: every point of its grid (tuning), or one of them."""

    problem: str
    method: str
    budget: int
    seeds: tuple[int, ...]
    point: int | None = None

    @property
    def name(self) -> str:
        what = "tuning" if self.point is None else f"point{self.point}"
        method = self.method.replace("/", "_")
        return f"{self.problem}-{method}-T{self.budget}-{what}-n{len(self.seeds)}-s{self.seeds[0]}"

    @property
    def sees(self) -> tuple[str, ...]:
        return tuple(f"seed {seed}" for seed in self.seeds)


def geometric(first: float, ratio: float, count: int) -> list[float]:
    return [first * ratio**i for i in range(count)]


def grid(method: str, T: int) -> list[Point]:
    """The points of a method, eta in the unit of the problem."""
    n = geometric(T ** (1 / 2), (T ** (1 / 2) / 4) ** (1 / 7), 8)  # samples of a restart, up to T/4
    long, short = geometric(1 / 64, 2, 12), geometric(1 / 16, 2, 5)
    batches, momenta = [1, 8, 64, 512], geometric(0.0125, 4, 5)
    choices: dict[str, Mapping[str, Sequence[float]]] = {
        "sadmm": {
            "eta": geometric(1 / 16, 2, 8),
            "batch": [1, *geometric(T ** (1 / 4), (T ** (3 / 4) / 4) ** (1 / 13), 14)],
        },
        "sadmm-one": {"eta": geometric(1 / 32, 2 ** (1 / 6), POINTS)},
        "spider": {"eta": long, "n": geometric(T ** (1 / 3), (T ** (2 / 3) / 2) ** (1 / 9), 10)},
        "spider-free": {"eta": short, "n": n, "split": [1 / 4, 1, 4]},
        "smadmm-constant": {"eta": geometric(1 / 40, 2.5, 6), "a": momenta, "batch": batches},
        "smadmm-one": {"eta": geometric(1 / 32, 2 ** (2 / 3), 12), "a": geometric(0.004, 2.3, 10)},
    }
    for name, p in EXPONENTS.items():  # about the same steps and momenta after a thousand iterations
        later = 1000 ** (p - 2 / 3)
        scaled = [later * a for a in momenta]
        choices.setdefault(name, {"eta": geometric(later**-0.5 / 32, 2.5, 6), "a": scaled, "batch": batches})
    chosen = choices.get(method, {"eta": short, "theta": [0.3, 0.6, 0.95], "n": n})
    return [dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]


def setting(problem: str, method: str, T: int, point: Mapping[str, float]) -> Any:
    """The kernel's parameters at a point of the grid."""
    from smadmm.paper import complexity_kernel as kernel

    batch, eta = max(1, round(point.get("batch", 1))), point["eta"] * PROBLEMS[problem][4]
    if method in EXPONENTS:
        p = EXPONENTS[method]
        return kernel.Setting(kernel.STORM, batch, batch, 1, eta, p / 2, point["a"], p, 1.0, False)
    if method == "smadmm-constant":
        root = (T / (2 * batch)) ** (1 / 3)
        first = max(batch, math.ceil(root))
        return kernel.Setting(kernel.STORM, batch, first, 1, eta * root, 0.0, point["a"] / root**2, 0.0, 1.0, False)
    if method.startswith("sadmm"):
        return kernel.Setting(kernel.SGD, batch, batch, 1, eta, 0.0, 1.0, 0.0, 1.0, False)
    n = max(2, round(point["n"]))
    root = math.sqrt(n)
    if method.startswith("spider"):
        split = point.get("split", 1.0)
        inner, every = max(1, round(root * split)), max(2, round(root / split))
        return kernel.Setting(kernel.SPIDER, inner, n, every, eta, 0.0, 1.0, 0.0, 1.0, False)
    falling = method == "asvrg-convex"
    inner = max(1, round(root))
    return kernel.Setting(kernel.ASVRG, inner, n, max(2, inner), eta, 0.0, 1.0, 0.0, point["theta"], falling)


def level(problem: str, chosen: Any, budget: int, seed: int) -> float:
    """dist^2 of one run, averaged over the second half of the budget; infinite if it diverged."""
    from smadmm.paper import complexity_kernel as kernel

    size, c, weight, start, _ = PROBLEMS[problem]
    A = np.eye(size) + c * np.diag(np.ones(size - 1), 1)
    made = kernel.Population(list(PROBLEMS).index(problem), c, weight, np.linalg.inv(np.eye(size) + A.T @ A))
    arrays = kernel.Arrays._make([np.full(size, start), *np.zeros((10, size)), np.zeros(1)])
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    return float(kernel.simulate(made, chosen, arrays, budget, state)[0])


def run_complexity(job: ComplexityRun, data: str | None) -> dict[str, Any]:
    """`levels`: of every seed at every point of the grid that the job is about; null where a run diverged."""
    points = grid(job.method, job.budget)
    if job.point is not None:
        points = [points[job.point]]
    made = [setting(job.problem, job.method, job.budget, point) for point in points]
    return {"levels": [[level(job.problem, one, job.budget, seed) for seed in job.seeds] for one in made]}


def tuned(job: ComplexityRun, result: Mapping[str, Any]) -> Tuned:
    """What a tuning job found; the best point by the mean of dist^2."""
    scores = [math.inf if None in levels else fmean(levels) for levels in result["levels"]]
    tried = [Tried(point, score) for point, score in zip(grid(job.method, job.budget), scores, strict=True)]
    return Tuned(tuple(tried), len(tried) * len(job.seeds))
