"""The paper's Table 1, measured: how dist^2(0, dL) falls with the number T of sample gradients.

A population problem with closed-form gradients, so that nothing but sampling is random:

    f(x; xi) = sum_j alpha_j (1 + e_j / 2) r(x_j) + <w, x>,   r(t) = t^2 / (1 + t^2),   e_j = +-1,   w ~ N(0, I/d)
    h(y) = .01 |y|_1,   A = I + superdiagonal / 2,   d = 20,   alpha in [.5, 1],   x_0 = 1.5

The theorems say T^(-2/3) for SMADMM and SPIDER-ADMM, T^(-1/2) for SADMM with growing batches, no decrease for SADMM
with one sample. Reported is dist^2 averaged over the second half of each run (the theorem's random iterate), its
log-log slope over the budgets, and the budget at which the fitted line reaches 1e-3. Each x is a stack of independent
runs, one row a seed, so all seeds go through one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.estimators import SGD, Estimator, Spider, Storm
from smadmm.experiments.complexity_report import chapter
from smadmm.experiments.jobs import run_all
from smadmm.experiments.results import markdown_table, write_results
from smadmm.files import atomic_write, output_folder
from smadmm.losses.inverse import combine
from smadmm.operators.linear import Matrix
from smadmm.problem import Batch, Loss, Problem
from smadmm.proxes import L1
from smadmm.report.figures import write_figure
from smadmm.sampling import Rng
from smadmm.schedules import Power
from smadmm.solver import ADMM, State
from smadmm.xsteps import Exact

SIZE = 20
ONE = torch.ones((), dtype=torch.float64)
WEIGHT = 0.01
L = 3.0  # of the sample gradients: max alpha (1 + 1/2) |r''|
TARGET = 1e-3

FULL_BUDGETS = (10_000, 31_623, 100_000, 316_228, 1_000_000)
QUICK_BUDGETS = FULL_BUDGETS[:3]


def slope_of_r(t: Tensor) -> Tensor:
    """r'(t) = 2 t / (1 + t^2)^2."""
    return 2 * t / torch.addcmul(ONE, t, t).square_()


class Population(Loss):
    """The population problem, for `runs` independent runs at once; a batch holds the means of e and of w."""

    dtype = torch.float64
    bounded_gradients = True

    def __init__(self, runs: int):
        self.shape = (runs, SIZE)
        self.alpha = torch.linspace(0.5, 1.0, SIZE, dtype=torch.float64)

    def draw(self, rng: Rng, size: int) -> Batch:
        rng.take(size)
        plus = rng.binomial(size, 0.5, size=self.shape) / size  # the share of e_j = +1: 1 + mean(e_j)/2 = 1/2 + plus
        noise = rng.standard_normal(self.shape) / math.sqrt(size * SIZE)
        return self.alpha * torch.from_numpy(plus).add_(0.5), torch.from_numpy(noise)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        scale, noise = batch
        total: Tensor = (scale * x * x / (1 + x * x) + noise * x).sum()
        return total

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        scale, noise = batch
        slopes = combine([slope_of_r(x) for x in points], weights)
        return torch.addcmul(sum(weights) * noise, scale, slopes)

    def mean_gradient(self, x: Tensor) -> Tensor:
        """grad F, exactly."""
        return self.alpha * slope_of_r(x)


def distances(f: Population, A: Matrix, s: State) -> Tensor:
    """dist^2(0, dL) of every run."""
    y, lam = s.ys[0], s.lam
    gradient = f.mean_gradient(s.x) - A.adjoint(lam)
    at_zero = (lam.abs() - WEIGHT).clamp(min=0)
    dual = torch.where(y == 0, at_zero, lam + WEIGHT * y.sign())
    return (gradient.square() + dual.square() + (s.Ax - y).square()).sum(-1)


@dataclass(frozen=True)
class Job:
    """A method with the parameters of the largest of its budgets, and how many runs."""

    method: str
    variant: str
    budgets: tuple[int, ...]
    runs: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.variant}-T{self.budgets[-1]}-of{len(self.budgets)}-r{self.runs}-s{self.seed}"


@dataclass(frozen=True)
class Method:
    """A row of the table. With a horizon its parameters depend on the budget T; else one run serves all budgets."""

    method: str
    variant: str
    theory: float
    horizon: bool

    def jobs(self, budgets: tuple[int, ...], runs: int, seed: int) -> list[Job]:
        parts = [(T,) for T in budgets] if self.horizon else [budgets]
        return [Job(self.method, self.variant, part, runs, seed) for part in parts]


def _settings(method: str, variant: str, T: int) -> tuple[Estimator, Power]:
    """The estimator, and eta = rho; each method's factor of L is the best of a coarse grid."""
    root = T ** (1 / 3)
    if (method, variant) == ("smadmm", "dynamic"):
        return Storm(1, Power(2.0, -2 / 3, hi=1.0), first=1), Power(L / 2, 1 / 3)
    if (method, variant) == ("smadmm", "constant"):
        return Storm(1, 4 / root**2, first=int(np.ceil(root))), Power(0.3 * L * root)
    if method == "spider":
        inner = max(2, int(root / 2))
        return Spider(inner, inner, restart=int(root**2 / 4)), Power(2 * L)
    if variant == "sqrt":
        return SGD(int(T**0.5)), Power(0.9 * L)
    return SGD(1), Power(2 * L)


METHODS = (
    Method("smadmm", "dynamic", -2 / 3, horizon=False),
    Method("smadmm", "constant", -2 / 3, horizon=True),
    Method("spider", "constant", -2 / 3, horizon=True),
    Method("sadmm", "sqrt", -1 / 2, horizon=True),
    Method("sadmm", "one", 0.0, horizon=False),
)


def run_job(job: Job, data: str | None) -> dict[str, Any]:
    """Mean dist^2 over the second half of each budget: `levels`, budgets x runs."""
    f = Population(job.runs)
    matrix = torch.eye(SIZE, dtype=torch.float64) + 0.5 * torch.diag(torch.ones(SIZE - 1, dtype=torch.float64), 1)
    A = Matrix(matrix, batch=(job.runs,))
    estimator, eta = _settings(job.method, job.variant, job.budgets[-1])
    problem = Problem(f, L1(WEIGHT), A)
    solver = ADMM(problem, estimator, rho=eta, eta=eta, x_step=Exact(A), seed=job.seed)
    state = solver.init(torch.full(f.shape or (), 1.5, dtype=torch.float64))
    sums = torch.zeros(len(job.budgets), job.runs, dtype=torch.float64)
    counts = torch.zeros(len(job.budgets), 1, dtype=torch.float64)
    while state.sfo < job.budgets[-1]:
        state = solver.step(state)
        stride = max(1, state.k // 500)  # about a thousand looks at each half
        if state.k % stride == 0:
            value = distances(f, A, state)
            for row, T in enumerate(job.budgets):
                if T / 2 < state.sfo <= T:
                    sums[row] += value
                    counts[row] += 1
    return {"levels": (sums / counts).tolist()}


def fit(budgets: Sequence[int], levels: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Log-log slope of the mean over runs, its 95 % bootstrap interval, and the budget where the line meets 1e-3."""
    logs = np.log(np.asarray(budgets, dtype=float))
    count = levels.shape[1]
    rng = np.random.default_rng(0)
    resampled = [levels[:, rng.integers(count, size=count)] for _ in range(500)]
    slopes = [np.polyfit(logs, np.log(part.mean(1)), 1)[0] for part in resampled]
    slope, offset = np.polyfit(logs, np.log(levels.mean(1)), 1)
    low, high = np.percentile(slopes, [2.5, 97.5])
    reach = float(np.exp((np.log(TARGET) - offset) / slope)) if slope < -0.1 else float("nan")
    return float(slope), float(low), float(high), reach


def reproduce(
    out: str, quick: bool = False, seed: int = 0, progress: bool = True, processes: int = 2
) -> list[dict[str, Any]]:
    """Run or resume all methods; results.json, table.md and complexity.png go to `out`."""
    folder = output_folder(out)
    budgets, runs = (QUICK_BUDGETS, 10) if quick else (FULL_BUDGETS, 16)
    jobs = {m: m.jobs(budgets, runs, seed) for m in METHODS}
    longest_first = sorted((job for part in jobs.values() for job in part), key=lambda job: -job.budgets[-1])
    results = run_all(longest_first, run_job, None, output_folder(folder / "parts"), processes, progress)
    rows, curves = [], {}
    for m in METHODS:
        levels = np.concatenate([results[job.name]["levels"] for job in jobs[m]])
        slope, low, high, reach = fit(budgets, levels)
        row = {"method": m.method, "variant": m.variant, "slope": slope, "slope_low": low, "slope_high": high}
        row |= {"theory": m.theory, "sfo_to_1e-3": reach, "level": float(levels[-1].mean())}
        at = {f"level_at_{T}": float(level) for T, level in zip(budgets, levels.mean(1), strict=True)}
        rows.append(row | at)
        curves[f"{m.method} ({m.variant})"] = levels
    command = f"smadmm reproduce complexity --out DIR --seed {seed}" + (" --quick" if quick else "")
    seconds = sum(result["work"] for result in results.values())
    write_results(folder, "complexity", command, seconds, rows, quick=quick, seed=seed, report=chapter(rows))
    atomic_write(folder / "table.md", (table(rows) + "\n").encode())
    write_figure(folder / "complexity.png", lambda: _figure(budgets, curves), dpi=150)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    columns = {"method": "", "variant": "", "slope": ".3f", "slope_low": ".3f", "slope_high": ".3f", "theory": ".3f"}
    return markdown_table(rows, {**columns, "sfo_to_1e-3": ".2g", "level": ".2e"})


def _figure(budgets: Sequence[int], curves: dict[str, NDArray[np.float64]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, levels), marker in zip(curves.items(), "osD^v", strict=True):
        low, high = np.percentile(levels, [10, 90], axis=1)
        (line,) = axes.loglog(budgets, levels.mean(1), marker=marker, label=name)
        axes.fill_between(budgets, low, high, alpha=0.15, color=line.get_color())
    for power, style in ((-2 / 3, "--"), (-1 / 2, ":")):
        first = next(iter(curves.values())).mean(1)[0] * 1.6
        line_values = [first * (T / budgets[0]) ** power for T in budgets]
        axes.loglog(budgets, line_values, style, color="0.5", label=f"slope {power:.2f}")
    axes.set(xlabel="sample gradients T", ylabel="dist$^2$(0, $\\partial L$), mean over the second half")
    axes.legend(fontsize=8)
    return figure
