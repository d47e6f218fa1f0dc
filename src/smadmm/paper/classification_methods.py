"""The methods of the classification experiment: what is tuned, run and measured.

    min_x  1/N sum_i 1/(1 + exp(b_i a_i'x)) + lam1 |A x|_1,   A = [G; I],   G the edges of the graphical lasso

Every published method has the same grid: step c/L at the first iteration, rho = r eta/|A|^2, batch size b, with L the
Lipschitz constant of grad F, and the exact x-step. It is tuned on the training half with seeds of its own, then run
with fresh ones. The batches are those of the grid (the paper's 100, 200, 300 among them) and sqrt N. The other
parameters are fixed:

    SVRG, ASVRG, SPIDER   restarts once a pass of inner batches: with batches of sqrt N, SPIDER is as published, q = b =
                          sqrt N (Huang, Chen and Huang, 2019)
    ASVRG                 theta = 1/2: the coupling of Liu, Shang and Cheng (2017) for strongly convex f, but with the
                          last point of a period as anchor, as in SVRG-ADMM for nonconvex f, not the mean
    SMADMM                Theorem 3.2: eta_k, rho_k ~ k^(1/3), a_k = k^(-2/3), and a first batch of min(N/4, 1000)

SMADMM as the paper prints it has eta_k = min(k^(1/3)/10, 1/2), a_k = max(k^(-2/3)/2, 1/100) and b = 100, read with eta
as inverse step (as in its theorems) and as step; its rho is not printed, here it is eta_k/(2 |A|^2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from smadmm.learn.fitting import fit_auto
from smadmm.learn.graphs import feature_graph
from smadmm.learn.published_loops import Published, smoothness
from smadmm.learn.scaling import column_sums
from smadmm.learn.tasks import Task
from smadmm.learn.twins import CompiledPublished
from smadmm.operators.linear import Matrix
from smadmm.paper.classification_runs import PAPER_INVERSE, PAPER_STEP, Array, ClassificationRun, load_halves
from smadmm.paper.oracle import Oracle
from smadmm.protocol import Tried, Tuned, refuse_seen
from smadmm.schedules import Power
from smadmm.solver import State

Record = dict[str, float]
SMOOTHING = (1e-3, 1e-5, 1e-7)  # |t| -> sqrt(t^2 + delta^2), delta falling


@lru_cache(maxsize=4)
def load_graph(name: str, data: str | None, seed: int) -> Any:
    """The edges of the graphical lasso, learned from the training half alone."""
    return feature_graph("glasso", load_halves(name, data, seed).X, seed)


class Setting:
    """The problem of a job, with all that is computed once."""

    def __init__(self, job: ClassificationRun, data: str | None):
        from scipy.sparse import csr_array, eye_array, vstack

        self.halves, self.graph = load_halves(job.set, data, job.seed), load_graph(job.set, data, job.seed)
        halves, d = self.halves, self.halves.X.shape[1]
        A = vstack([self.graph, eye_array(d)], format="csr")
        A = csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], d + int(job.intercept)))

        def task(X: Any, y: Array) -> Task:
            return Task(X, y, np.ones(len(y)), A, job.lam1, "sigmoid", intercept=job.intercept)

        self.job, self.train, self.test = job, task(halves.X, halves.y), task(halves.test_rows, halves.test_y)
        self.oracle, self.test_oracle = Oracle(self.train, True), Oracle(self.test, True)
        self.L, self.square = smoothness(self.train), Matrix(A).norm().upper ** 2

    def record(self, x: Array, state: State | None, sfo: int, seconds: float) -> Record:
        """What is shown of an answer x; dist^2(0, dL) is that of the state's x, y, lam, and with y = prox_h(A x - lam).

        The answer of ASVRG is its coupled point, to which no y and lam belong: there its iterate is certified.
        """
        point = None if state is None else [part.numpy() for part in (state.x, state.lam, state.y)]
        d = self.test.X.shape[1]
        scores = self.test.X @ x[:d] + (x[d] if self.job.intercept else 0.0)
        return {
            "objective": self.oracle.objective(x),
            "test_loss": self.test_oracle.value(x),
            "test_accuracy": float(np.mean((scores > 0) == (self.test.target > 0))),
            "certificate": math.nan if point is None else self.oracle.certificate(*point).total,
            "certificate_free_y": math.nan if point is None else self.oracle.certificate(*point[:2]).total,
            "spent": sfo / self.train.n,
            "seconds": seconds,
        }


def tuned_method(setting: Setting, method: str, c: float, r: float, batch: int) -> Published:
    """A published method with a point of the grid."""
    n, growth = setting.train.n, 1 / 3 if method == "smadmm" else 0.0
    eta = setting.L / c
    rho = r * eta / setting.square
    momentum, period, first = Power(1.0, -2 / 3, hi=1.0), max(1, n // batch), max(1, min(n // 4, 1000))
    made = Published(method, batch, Power(eta, growth), Power(rho, growth), momentum, period)
    return replace(made, theta=0.5, first=first)


def paper_method(setting: Setting, inverse: bool) -> Published:
    """SMADMM as printed, in one of the two readings of eta."""
    eta = Power(0.1, 1 / 3, hi=0.5) if inverse else Power(10.0, -1 / 3, lo=2.0)
    r = 0.5 / setting.square
    rho = Power(eta.c * r, eta.p, eta.lo * r, eta.hi * r)
    batch = min(100, setting.train.n)
    return Published("smadmm", batch, eta, rho, Power(0.5, -2 / 3, lo=0.01), first=batch)


Look = Callable[[CompiledPublished, float], Any]


def follow(setting: Setting, method: Published, seed: int, look: Look) -> list[Any]:
    """Run a method and look at it at every mark; looking is outside the clock."""
    begin = time.perf_counter()
    loop = CompiledPublished(setting.train, method, seed)
    seconds, seen = time.perf_counter() - begin, []
    for mark in setting.job.marks:
        begin = time.perf_counter()
        loop.advance(mark * setting.train.n)
        seconds += time.perf_counter() - begin
        seen.append(look(loop, seconds))
    return seen


def show(setting: Setting, method: Published) -> list[list[Record]]:
    """The records of the fresh seeds, at the last iterate."""

    def look(loop: CompiledPublished, seconds: float) -> Record:
        return setting.record(loop.last[0], loop.state, loop.sfo, seconds)

    return [follow(setting, method, seed, look) for seed in setting.job.shown_seeds]


def _described(method: Published) -> dict[str, float]:
    return {"step": 1 / method.eta(1), "rho": method.rho(1), "batch": method.batch}


def run_tuned(setting: Setting, method: str) -> dict[str, Any]:
    """Every point of the grid on the tuning seeds, then the best of every mark on fresh seeds."""
    refuse_seen(setting.job.tuning_seeds, setting.job.shown_seeds)
    grid, job = setting.job.grid, setting.job
    n = setting.train.n
    batches = sorted({min(b, max(1, n // 4)) for b in grid.batches} | {round(math.sqrt(n))})
    points = [(c, r, b) for b in batches for r in grid.rhos for c in grid.steps]

    def objective(loop: CompiledPublished, seconds: float) -> float:
        value = setting.oracle.objective(loop.last[0])
        return value if math.isfinite(value) else math.inf

    def tried(c: float, r: float, batch: int) -> Any:
        made = tuned_method(setting, method, c, r, batch)
        return np.mean([follow(setting, made, seed, objective) for seed in job.tuning_seeds], axis=0)

    levels = np.array([tried(*point) for point in points])
    best = [int(i) for i in levels.argmin(axis=0)]
    shown = []
    for i in sorted(set(best)):
        made = tuned_method(setting, method, *points[i])
        chosen = [mark for mark, winner in zip(job.marks, best, strict=True) if winner == i]
        flags = _tuned(points, levels[:, job.marks.index(chosen[-1])], job.tuning).flags
        shown.append({**_described(made), "chosen": chosen, "flags": flags, "seeds": show(setting, made)})
    return {"runs": len(points) * job.tuning, "configurations": shown}


def _tuned(points: Sequence[tuple[float, float, int]], levels: Any, seeds: int) -> Tuned:
    tried = [
        Tried({"step": c, "rho": r, "batch": b}, float(level)) for (c, r, b), level in zip(points, levels, strict=True)
    ]
    return Tuned(tuple(tried), len(points) * seeds)


def run_untuned(setting: Setting) -> dict[str, Any]:
    """auto, the paper's recipe in both readings, L-BFGS; and what the set is."""
    readings = {PAPER_INVERSE: paper_method(setting, True), PAPER_STEP: paper_method(setting, False)}
    warm_up = setting.job.shown_seeds[0]
    fit_auto(setting.train, column_sums(setting.train.X, setting.train.weight), 1, 0.0, warm_up)  # compiles
    follow(setting, readings[PAPER_INVERSE], warm_up, lambda loop, seconds: None)
    result: dict[str, Any] = {
        name: {**_described(method), "seeds": show(setting, method)} for name, method in readings.items()
    }
    result["auto"] = {"seeds": [_auto(setting, seed) for seed in setting.job.shown_seeds]}
    return result | {"lbfgs": lbfgs(setting), "set": described_set(setting)}


def described_set(setting: Setting) -> dict[str, Any]:
    """A line of Table 2."""
    halves = setting.halves
    row = {"set": setting.job.set, "training": len(halves.y), "test": len(halves.test_y)}
    row |= {"features": halves.X.shape[1], "classes": 2, "edges": setting.graph.shape[0]}
    return row | {"positive": halves.positive, "density": halves.density}


def _auto(setting: Setting, seed: int) -> list[Record]:
    """auto has no horizon: after `mark` passes it is where a longer run would be; its answer is the average."""
    begin = time.perf_counter()
    columns = column_sums(setting.train.X, setting.train.weight)
    preparing = time.perf_counter() - begin
    fits = [fit_auto(setting.train, columns, mark, 0.0, seed) for mark in setting.job.marks]
    longest, records = fits[-1].history, []
    for fit in fits:
        seconds = preparing + float(np.interp(fit.sfo, longest["sfo"], longest["seconds"]))
        record = setting.record(fit.x, None, fit.sfo, seconds)
        certificate = fit.certificate.total  # of the averages of x and lam, with y = prox_h(A x - lam)
        records.append({**record, "certificate": certificate, "certificate_free_y": certificate})
    return records


def lbfgs(setting: Setting) -> Record:
    """The reference: the better of two L-BFGS runs, from 0 and from the minimiser of the logistic loss.

    |t| is replaced by sqrt(t^2 + delta^2), delta from 1e-3 to 1e-7; reported is the objective itself at the last point.
    """
    task = setting.train
    logistic = replace(task, loss="logistic")
    begin = time.perf_counter()
    zero = np.zeros(task.size)
    convex, spent = _minimise(Oracle(logistic, True), zero, SMOOTHING[:1])
    points = []
    for start in (zero, convex):
        x, evaluations = _minimise(setting.oracle, start, SMOOTHING)
        spent += evaluations
        points.append(x)
    x = min(points, key=setting.oracle.objective)
    return setting.record(x, None, spent * task.n, time.perf_counter() - begin)


def _minimise(oracle: Oracle, start: Array, deltas: Sequence[float]) -> tuple[Array, int]:
    from scipy.optimize import minimize

    A, lam1, x, spent = oracle.task.A, oracle.task.lam1, start, 0
    for delta in deltas:

        def smooth(x: Array, delta: float = delta) -> tuple[float, Array]:
            Ax = A @ x
            soft = np.sqrt(Ax**2 + delta**2)
            return oracle.value(x) + lam1 * float(soft.sum()), oracle.gradient(x) + lam1 * (A.T @ (Ax / soft))

        done = minimize(
            smooth, x, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9}
        )
        x, spent = done.x, spent + int(done.nfev)
    return x, spent
