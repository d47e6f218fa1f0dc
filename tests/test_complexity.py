"""The complexity experiment: its kernel is the engine's twin; its problems, its fit, and what it leaves behind."""

import json
import math

import numpy as np
import pytest
import torch

import smadmm
from smadmm.estimators import SGD, Spider, Storm
from smadmm.losses.inverse import combine
from smadmm.operators.linear import Matrix
from smadmm.paper import complexity, complexity_runs
from smadmm.paper.complexity_runs import LABELS, POINTS, PROBLEMS, grid, setting
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce
from smadmm.problem import Loss, Problem
from smadmm.proxes import L1
from smadmm.schedules import Power
from smadmm.solver import ADMM
from smadmm.xsteps import Exact

kernel = pytest.importorskip("smadmm.paper.complexity_kernel")
KINDS = {name: kind for kind, name in enumerate(PROBLEMS)}


def problem_of(name):
    size, c, weight, start, _ = PROBLEMS[name]
    A = np.eye(size) + c * np.diag(np.ones(size - 1), 1)
    made = kernel.Population(KINDS[name], c, weight, np.linalg.inv(np.eye(size) + A.T @ A))
    return made, torch.from_numpy(A), start


class Twin(Loss):
    """A problem of the kernel for the engine; batches are those that the kernel draws."""

    dtype = torch.float64

    def __init__(self, name, seed):
        self.kind, self.shape = KINDS[name], (PROBLEMS[name][0],)
        self.state, self.computed, self.size = np.array([seed], dtype=np.uint64), 0, 0

    def draw(self, rng, size):
        e, n = np.zeros(self.shape), np.zeros(self.shape)
        self.size = size
        with np.errstate(over="ignore"):
            kernel.draw(self.kind, self.state, size, e, n)
        return e, n

    def value(self, x, batch):
        raise AssertionError("runs are compared by their gradients; nothing asks for values")

    def gradient(self, points, weights, batch):
        self.computed += self.size * len(points)
        return combine([self.at(x, *batch) for x in points], weights)

    def at(self, x, e, n):
        e, n, x = torch.from_numpy(e), torch.from_numpy(n), x.clone().requires_grad_()
        if self.kind == kernel.CHAIN:
            gradient = torch.autograd.grad(chain(x), x)[0]
            steps = torch.tensor([kernel.step(abs(float(t))) for t in x.detach()], dtype=torch.float64)
            near = steps.square().flip(0).cumsum(0).flip(0).sqrt()
            theta = torch.tensor([kernel.step(1 - float(t)) for t in near], dtype=torch.float64)
            return gradient * (1 + theta * e[0])
        alpha = torch.linspace(0.5, 1.0, len(x), dtype=torch.float64)
        r = x**2 / (1 + x**2) if self.kind == kernel.SMOOTH else (x - 1) ** 4 / (1 + (x - 1) ** 4)
        return torch.autograd.grad((alpha * (1 + e / 2) * r + n * x).sum(), x)[0]


def chain(x):
    """F as in Arjevani et al."""

    def psi(t):
        return torch.where(t > 0.5, torch.exp(1 - 1 / (2 * t.clamp(min=0.5 + 1e-9) - 1) ** 2), torch.zeros_like(t))

    def phi(t):
        return math.sqrt(math.e * math.pi / 2) * (1 + torch.erf(t / math.sqrt(2)))

    before = torch.cat([torch.ones(1, dtype=x.dtype), x[:-1]])
    return (psi(-before) * phi(-x))[1:].sum() - (psi(before) * phi(x)).sum()


SETTINGS = {
    "sadmm": ({"eta": 2.0, "batch": 7.0}, lambda s: SGD(s.batch)),
    "smadmm": ({"eta": 0.5, "a": 0.8, "batch": 2.0}, lambda s: Storm(s.batch, Power(0.8, -2 / 3), first=s.first)),
    "smadmm-1": ({"eta": 0.5, "a": 3.2, "batch": 1.0}, lambda s: Storm(s.batch, Power(3.2, -1.0), first=s.first)),
    "spider": ({"eta": 2.0, "n": 25.0}, lambda s: Spider(s.batch, s.every, restart=s.first)),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", SETTINGS)
def test_the_kernel_is_the_twin_of_the_engine(name, method):
    """The same batches, the same iterates, the same count of sample gradients."""
    point, estimator = SETTINGS[method]
    chosen, (made, A, start) = setting(name, method, 1000, point), problem_of(name)
    twin, budget = Twin(name, 3), 400
    operator = Matrix(A)
    eta = Power(chosen.eta, chosen.eta_power)
    solver = ADMM(Problem(twin, L1(made.weight), operator), estimator(chosen), rho=eta, eta=eta, x_step=Exact(operator))
    state = solver.init(torch.full(twin.shape, start, dtype=torch.float64))
    levels = []
    while state.sfo < budget:
        state = solver.step(state)
        if budget / 2 < state.sfo <= budget:
            point = [state.x.numpy(), state.y.numpy(), state.lam.numpy(), *np.zeros((8, *twin.shape)), np.zeros(1)]
            levels.append(kernel.distance(made, kernel.Arrays._make(point)))
    arrays = kernel.Arrays._make([np.full(twin.shape, start), *np.zeros((10, *twin.shape)), np.zeros(1)])
    level, iterations = kernel.simulate(made, chosen, arrays, budget, np.array([3], dtype=np.uint64))
    assert level == pytest.approx(np.mean(levels), rel=1e-6)
    assert iterations == state.k and twin.computed == state.sfo
    for ours, engines in ((arrays.x, state.x), (arrays.y, state.y), (arrays.lam, state.lam), (arrays.v, state.est.v)):
        np.testing.assert_allclose(ours, engines.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_sample_gradients_have_the_mean_that_is_computed(name):
    """And dist^2 is that of the definition, with the exact gradient."""
    size, generator = PROBLEMS[name][0], np.random.default_rng(0)
    x, zero = generator.uniform(-1.5, 1.5, size), np.zeros(size)
    x[size // 2 :] *= 0.1  # the end of the chain is not found yet
    state, e, n, exact, mean = np.array([1], dtype=np.uint64), zero.copy(), zero.copy(), zero.copy(), zero.copy()
    kernel.add_gradient(KINDS[name], x, 1.0, e, n, exact)
    assert np.allclose(exact, Twin(name, 0).at(torch.from_numpy(x), zero, zero))
    with np.errstate(over="ignore"):
        kernel.draw(KINDS[name], state, 4000, e, n)
    kernel.add_gradient(KINDS[name], x, 1.0, e, n, mean)
    assert np.abs(mean - exact).max() < 0.06 + 1.5 * np.abs(exact).max() * (name == "chain")
    made, A, _ = problem_of(name)
    y, lam = 0.01 * generator.standard_normal(size), 0.01 * generator.standard_normal(size)
    y[::3] = 0
    arrays = kernel.Arrays._make([x, y, lam, *np.zeros((8, size)), np.zeros(1)])
    residual = [exact - A.numpy().T @ lam, A.numpy() @ x - y]
    dual = L1(made.weight).subdifferential_distance(torch.from_numpy(y), -torch.from_numpy(lam))
    assert kernel.distance(made, arrays) == pytest.approx(sum((r**2).sum() for r in residual) + dual**2)


@pytest.mark.parametrize("method", ["asvrg-strong", "asvrg-convex"])
def test_asvrg_is_that_of_its_source(method):
    """Liu, Shang and Cheng's algorithm line by line, on the same batches."""
    budget, n, theta = 600, 16, 0.6
    chosen, (made, A, start) = (
        setting("smooth", method, 1000, {"eta": 1.0, "theta": theta, "n": n}),
        problem_of("smooth"),
    )
    twin, A, every = Twin("smooth", 5), A.numpy(), 4
    gradient = lambda x, batch: twin.at(torch.from_numpy(x), *batch).numpy()  # noqa: E731
    z, lam = np.full(twin.shape, start), np.zeros(twin.shape)
    anchor = z.copy()
    full = v = gradient(anchor, twin.draw(None, n))
    sfo, k, coupled = n, 0, []
    while sfo < budget:
        k, eta = k + 1, chosen.eta * theta
        u = A @ z - lam / eta
        y = np.sign(u) * np.maximum(np.abs(u) - made.weight / eta, 0)
        w = lam - eta * (A @ z - y)
        z = z - made.M @ (v - A.T @ w) / eta
        lam = lam - eta * (A @ z - y)
        coupled.append(theta * z + (1 - theta) * anchor)
        if k % every == 0:
            anchor, coupled = np.mean(coupled, axis=0), []
            full = gradient(anchor, twin.draw(None, n))
            sfo += n
            if method == "asvrg-convex":
                theta = (math.sqrt(theta**4 + 4 * theta**2) - theta**2) / 2
            else:
                z, lam = anchor.copy(), np.linalg.solve(A.T, full)
        batch = twin.draw(None, 4)
        v = gradient(theta * z + (1 - theta) * anchor, batch) - gradient(anchor, batch) + full
        sfo += 2 * 4
    arrays = kernel.Arrays._make([np.full(twin.shape, start), *np.zeros((10, *twin.shape)), np.zeros(1)])
    assert kernel.simulate(made, chosen, arrays, budget, np.array([5], dtype=np.uint64))[1] == k
    np.testing.assert_allclose(arrays.x, z, rtol=1e-8)
    np.testing.assert_allclose(arrays.v, v, rtol=1e-6, atol=1e-12)


def test_levels_are_means_over_the_second_half_and_divergence_is_infinite():
    one = setting("smooth", "sadmm-one", 1000, {"eta": 100.0})
    assert 0.1 < complexity_runs.level("smooth", one, 2000, 0) < 20
    wild = setting("chain", "sadmm-one", 1000, {"eta": 1e-13})
    assert math.isinf(complexity_runs.level("chain", wild, 2000, 0))
    assert math.isinf(complexity_runs.level("smooth", one, 1, 0))  # not a single step fits


def test_every_method_has_as_many_points_and_the_published_ones_are_as_published():
    for method in LABELS:
        for T in (1000, 10**6):
            points = grid(method, T)
            assert len(points) == POINTS == len({tuple(point.items()) for point in points})
    for point in grid("spider", 10**5):
        made = setting("smooth", "spider", 10**5, point)
        assert made.batch == max(1, round(math.sqrt(made.first))) and made.every == max(2, made.batch)
    assert {setting("smooth", "smadmm-one", 10**5, point).batch for point in grid("smadmm-one", 10**5)} == {1}


def test_tuning_sees_no_seed_that_is_reported():
    for quick in (True, False):
        request = Request("out", quick=quick)
        jobs = complexity.complexity_jobs(request)
        results = {job.name: {"levels": [[float(i)] for i in range(POINTS)]} for job in jobs}
        reported = complexity.reported_jobs(request, jobs, results)
        assert not {s for job in jobs for s in job.sees} & {s for job in reported for s in job.sees}
        assert all(len(job.seeds) >= 8 and job.point == 0 for job in reported)
        assert {(j.problem, j.method, j.budget) for j in jobs} == {(j.problem, j.method, j.budget) for j in reported}
        assert len({job.name for job in [*jobs, *reported]}) == len(jobs) + len(reported)


def rows_with(levels_of):
    """Rows of all problems and methods, where levels_of(method, T) is dist^2."""
    rows = []
    for T in (10**4, 10**5):
        for problem in PROBLEMS:
            for method in LABELS:
                for parameters in ("tuned", "fixed") if method in complexity.EXPONENTS else ("tuned",):
                    levels = [levels_of(method, T) * scale for scale in (0.9, 1.0, 1.1)]
                    row = {"problem": problem, "method": method, "budget": T, "parameters": parameters, "n": 3}
                    row |= {"level": levels[1], "level_half": 0.1, "levels": levels, "flags": "", "runs": 6}
                    rows.append(row | {"diverged": 0, "tuned_eta": 1.0})
    return rows


def test_the_fit_finds_the_slope_of_a_power_law():
    rows = [{"budget": T, "levels": [scale * 5 * T ** (-2 / 3) for scale in (0.5, 1.0, 1.5)]} for T in (10**3, 10**5)]
    assert complexity.fit(rows) == pytest.approx((-2 / 3,) * 3)
    assert all(map(math.isnan, complexity.fit([{"budget": 10, "levels": [1.0, math.inf]}] * 2)))


def test_the_verdicts_follow_the_numbers():
    def outcomes(slopes):
        lines = complexity.summary(rows_with(lambda method, T: T ** slopes.get(method, -2 / 3)))
        own = [line for line in lines if line["problem"] == "flat"]
        return [verdict.outcome for verdict in complexity.verdicts("flat", own)]

    yes, no = "holds", "does not hold here"
    assert outcomes({"sadmm": -0.5}) == [yes, yes, yes, yes]
    assert outcomes({"smadmm-1": -1.0}) == [yes, no, yes, no]  # another exponent falls faster; SADMM as fast
    assert outcomes({"smadmm": -0.4, "smadmm-one": -0.4}) == [no, no, no, no]
    assert outcomes({"smadmm-one": -0.55})[0] == "holds in part"


@pytest.mark.slow
def test_results_have_the_promised_form(tmp_path, monkeypatch):
    """A smaller version of the experiment, from tuning to the files."""
    monkeypatch.setattr(complexity, "QUICK_BUDGETS", (500, 1000))
    rows = reproduce(complexity.COMPLEXITY, Request(tmp_path, quick=True, processes=0, progress=False))
    results = json.loads((tmp_path / "results.json").read_text())
    promised = {"experiment", "command", "version", "code", "quick", "seed", "size", "seconds", "environment", "rows"}
    assert set(results) >= promised and results["version"] == smadmm.__version__ and len(results["rows"]) == len(rows)
    tuned = [row for row in rows if row["parameters"] == "tuned"]
    assert len(tuned) == len(PROBLEMS) * len(LABELS) * 2 and {row["runs"] for row in rows} == {POINTS}
    assert all({"level", "level_half", "flags", "diverged"} <= set(row) and len(row["levels"]) == 8 for row in rows)
    tables = [part for part in results["report"] if isinstance(part, dict) and part["kind"] == "table"]
    assert all("unit: seed, n = 8" in table["note"] for table in tables)
    assert all(table["columns"][-1] == "flags" for table in tables[1:])
    assert sum(part["kind"] == "verdict" for part in results["report"] if isinstance(part, dict)) == 4 * len(PROBLEMS)
    assert (tmp_path / "complexity.png").stat().st_size > 10_000
    assert (tmp_path / "table.md").read_text().startswith("Oracle complexity (Table 1)")
