"""The complexity experiment: its problem, its measure, its fit, and what the command leaves behind."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import smadmm
from smadmm.estimators import Estimate
from smadmm.operators.linear import Matrix
from smadmm.paper import complexity, complexity_runs
from smadmm.paper.complexity_runs import SIZE, WEIGHT, ComplexityRun, Population, distances
from smadmm.paper.experiment import Findings, Request
from smadmm.proxes import L1
from smadmm.sampling import Rng
from smadmm.solver import State


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """`smadmm reproduce complexity --quick`, once."""
    out = tmp_path_factory.mktemp("complexity")
    command = [sys.executable, "-m", "smadmm", "reproduce", "complexity", "--out", str(out), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return out, json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_results_have_the_promised_form(measured):
    out, results = measured
    promised = {"experiment", "command", "version", "code", "quick", "seed", "size", "seconds", "environment", "rows"}
    assert set(results) >= promised
    assert results["experiment"] == "complexity" and results["version"] == smadmm.__version__
    for row in results["rows"]:
        assert set(row) >= {"method", "variant", "slope", "slope_low", "slope_high", "sfo_to_1e-3", "level"}
        assert row["slope_low"] <= row["slope"] <= row["slope_high"] and row["level"] == row["level_at_100000"]
    assert (out / "complexity.png").stat().st_size > 10_000
    assert (out / "table.md").read_text() == complexity.table(Findings((), {}, results["rows"]))


def test_the_fit_finds_the_slope_of_a_power_law():
    budgets = [10**3, 10**4, 10**5]
    levels = np.array([[scale * 5 * T ** (-2 / 3) for scale in (0.5, 1.0, 1.5)] for T in budgets])
    slope, low, high, reach = complexity.fit(budgets, levels)
    assert (slope, low, high) == pytest.approx((-2 / 3,) * 3) and 5 * reach ** (-2 / 3) == pytest.approx(1e-3)
    assert np.isnan(complexity.fit(budgets, np.ones((3, 2)))[3])  # a flat line reaches nothing


def test_sample_gradients_have_the_mean_that_is_computed():
    f, x = Population(4), torch.linspace(-2, 2, 4 * SIZE, dtype=torch.float64).reshape(4, SIZE)
    mean = f.gradient((x,), (1.0,), f.draw(Rng(0, 0), 10**8))
    assert torch.allclose(mean, f.mean_gradient(x), atol=1e-3)
    small = torch.autograd.functional.jacobian(lambda x: f.value(x, (f.alpha, torch.zeros(4, SIZE))), x)
    assert torch.allclose(small, f.mean_gradient(x))


def test_the_measure_is_that_of_the_certificate():
    f, g = Population(1), torch.Generator().manual_seed(0)
    A = Matrix(torch.eye(SIZE, dtype=torch.float64) + torch.ones(SIZE, SIZE, dtype=torch.float64), batch=(1,))
    x, y, lam = (0.01 * torch.randn(1, SIZE, generator=g, dtype=torch.float64) for _ in range(3))
    y[0, ::3] = 0
    gradient = f.mean_gradient(x) - A.adjoint(lam)
    dual = L1(WEIGHT).subdifferential_distance(y, -lam)
    expected = gradient.square().sum() + dual**2 + (A(x) - y).square().sum()
    estimate = Estimate(gradient, x, 0)
    state = State(1, x, (y,), lam, est=estimate, Ax=A(x), Bys=(-y,), drawn=0)
    assert distances(f, A, state).item() == pytest.approx(float(expected))


def test_a_method_with_a_horizon_runs_once_per_budget():
    jobs = complexity.complexity_jobs(Request("out", quick=True))
    assert jobs == sorted(jobs, key=lambda job: -job.budgets[-1]) and len({job.name for job in jobs}) == len(jobs)
    for line in complexity.TABLE_1:
        budgets = [job.budgets for job in jobs if (job.method, job.variant) == (line.method, line.variant)]
        assert sorted(budgets) == (
            [(T,) for T in complexity.QUICK_BUDGETS] if line.horizon else [complexity.QUICK_BUDGETS]
        )


@pytest.mark.parametrize("line", complexity.TABLE_1, ids=lambda m: f"{m.method} {m.variant}")
def test_every_method_pays_for_what_it_computes(line, monkeypatch):
    """A run of the experiment ends where the sample gradients it really computed reach the budget."""
    computed = []

    class Counted(complexity_runs.Population):
        def draw(self, rng, size):
            self.size = size
            return super().draw(rng, size)

        def gradient(self, points, weights, batch):
            computed.append(self.size * len(points))
            return super().gradient(points, weights, batch)

    monkeypatch.setattr(complexity_runs, "Population", Counted)
    complexity_runs.run_complexity(ComplexityRun(line.method, line.variant, (1000,), runs=2, seed=0), None)
    assert sum(computed[:-1]) < 1000 <= sum(computed)


def test_levels_are_those_of_the_second_half(monkeypatch):
    """With the count of gradients in the place of dist^2 the mean over (T/2, T] is about 3 T/4."""
    counted = lambda f, A, s: torch.full((2,), float(s.sfo), dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr(complexity_runs, "distances", counted)
    found = complexity_runs.run_complexity(ComplexityRun("sadmm", "one", (200, 800), runs=2, seed=0), None)
    np.testing.assert_allclose(found["levels"], [[150, 150], [600, 600]], rtol=0.01)
