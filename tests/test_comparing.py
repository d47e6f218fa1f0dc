"""solve, compare and tune: one call each, counted and judged alike."""

import math

import matplotlib
import pytest
import torch

import smadmm
from smadmm import ADMM, ASVRG, SGD, SVRG, Problem, Reason, Stop, compare, run, solve, tune
from smadmm.losses import LeastSquares, Logistic
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1
from smadmm.solver import Average

matplotlib.use("Agg")


@pytest.fixture
def problem(g):
    X = torch.randn(400, 8, generator=g, dtype=torch.float64)
    labels = torch.sign(X[:, 0] - X[:, 1])
    return Problem(Logistic(X, labels), L1(0.01), EdgeDifferences([(i, i + 1) for i in range(7)], 8))


def svrg(problem, seed, eta, batch=16):
    return ADMM(problem, SVRG(batch, 25), rho=0.1, eta=eta, seed=seed)


@pytest.mark.slow
def test_solve_takes_a_problem_or_a_solver(problem):
    ours = solve(problem, budget=20_000)
    assert ours.reason is Reason.GRADIENTS and 20_000 <= ours.state.sfo < 20_100
    assert ours.history["certificate"][-1] < 1e-2 * ours.history["certificate"][0] and 20 < ours.history.rows < 200
    rival = solve(svrg(problem, 0, 1.0), budget=20_000)
    assert 20_000 <= rival.state.sfo < 20_500
    assert rival.history["objective"][-1] == pytest.approx(ours.history["objective"][-1], rel=0.02)
    again = solve(problem, budget=20_000)
    assert torch.equal(ours.x, again.x) and not torch.equal(ours.x, solve(problem, budget=20_000, seed=1).x)


def test_a_result_prints_as_one_line_and_saves_itself(problem, tmp_path):
    result = solve(problem, budget=2_000)
    said = repr(result)
    assert "\n" not in said and said.startswith("Result(x 8, objective ") and "dist^2" in said
    assert f"{result.state.k} iterations, {result.state.sfo} sample gradients" in said
    result.save(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"x.npy", "history.csv", "run.json"}
    assert result.plot().get_ylabel() == "objective" and result.warnings == () and not result.interrupted


def test_the_answer_of_a_method_is_what_its_result_holds(problem):
    """ASVRG answers with its coupled point, an averaging method with the average; history is measured there."""
    start = torch.zeros(8, dtype=torch.float64)
    coupled = run(ADMM(problem, ASVRG(16, 25, theta=0.5), rho=0.1, eta=1.0), start, Stop(iterations=30))
    assert torch.equal(coupled.x, coupled.state.est.at) and not torch.equal(coupled.x, coupled.state.x)
    averaged = run(ADMM(problem, SGD(16), rho=0.1, eta=1.0, average=Average()), start, Stop(iterations=30))
    assert torch.equal(averaged.x, averaged.state.mean.x) and not torch.equal(averaged.x, averaged.state.x)
    for result in (coupled, averaged):
        assert result.history["objective"][-1] == pytest.approx(problem.objective(result.x, result.state.ys))
    plain = run(ADMM(problem, SGD(16), rho=0.1, eta=1.0), start, Stop(iterations=30))
    assert torch.equal(plain.x, plain.state.x)


def test_a_budget_includes_the_products_of_the_x_step(g):
    """NewtonStep computes 3 N sample gradients per iteration: Stop(sfo=400) means 400."""
    from smadmm.imaging.pnp import tomography
    from smadmm.losses import Tomography
    from smadmm.operators import Radon
    from smadmm.proxes import Zero
    from smadmm.sampling import stride

    class Counting(Tomography):
        counted = 0

        def gradient(self, points, weights, batch):
            self.counted += len(points) * len(batch)
            return super().gradient(points, weights, batch)

    radon = Radon(16, [0.1 * i for i in range(20)])
    loss = Counting(radon, radon(torch.rand(16, 16, generator=g)), sampling=stride)
    solver = tomography(loss, Zero(), rho=0.1)
    loss.counted = 0
    result = run(solver, torch.zeros(16, 16), Stop(sfo=400), objective=False)
    # each product Hess p is one gradient, computed as the difference of those at p and at 0
    assert loss.counted == result.state.sfo + result.state.k * 3 * 20
    assert 400 <= result.state.sfo < 400 + 5 * 20 and result.state.products == result.state.k * 60


def test_compare_draws_both_axes(problem):
    results = {"ours": solve(problem, 3000), "SVRG": [solve(svrg(problem, seed, 1.0), 3000) for seed in (0, 1)]}
    axes = compare(results, "certificate")
    assert [ax.get_xlabel() for ax in axes] == ["sample gradients", "seconds"]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["ours", "SVRG"]
    assert all(ax.get_yscale() == "log" and len(ax.lines) == 2 and len(ax.collections) == 1 for ax in axes)
    band = axes[0].lines[1].get_ydata()
    runs = [result.history["certificate"] for result in results["SVRG"]]
    assert band[-1] == pytest.approx((runs[0][-1] + runs[1][-1]) / 2)


def test_tune_finds_the_best_point_and_says_where_the_grid_ends(problem):
    start = torch.zeros(8, dtype=torch.float64)
    tuned = tune(svrg, {"eta": (0.5, 1.0, 3.0, 30.0), "batch": (8, 32)}, problem, 4000)
    assert tuned.runs == 8 * 2 and len(tuned.tried) == 8
    scores = {(one.point["eta"], one.point["batch"]): one.score for one in tuned.tried}
    assert scores[tuned.best["eta"], tuned.best["batch"]] == min(scores.values())
    ends = [run(svrg(problem, seed, 30.0, 8), start, Stop(sfo=4000)) for seed in (1000, 1001)]
    assert scores[30.0, 8] == pytest.approx(sum(result.history["objective"][-1] for result in ends) / 2)
    end = tune(svrg, {"eta": (3.0, 30.0, 300.0)}, problem, 4000)
    assert end.best == {"eta": 3.0} and end.at_end == ("eta",) and "at the end of the grid" in repr(end)


def test_tuning_survives_divergence_and_equals_the_effort(g):
    A = torch.randn(60, 4, generator=g, dtype=torch.float64)
    problem = Problem(LeastSquares(A, A.sum(1)), L1(0.01))

    def sgd(problem, seed, eta, rho):
        return ADMM(problem, SGD(4), rho=rho, eta=eta, seed=seed)

    tuned = tune(sgd, {"eta": (1e-3, 10.0), "rho": (1e-4, 1e-3)}, problem, 2000)
    assert tuned.diverged == 2 and tuned.best["eta"] == 10.0 and math.isfinite(min(one.score for one in tuned.tried))
    few = tune(sgd, {"eta": (5.0, 10.0, 20.0), "rho": (1e-4, 1e-3)}, problem, 500, points=4, seeds=(7,))
    assert few.runs == 4 and len({tuple(one.point.items()) for one in few.tried}) == 4
    with pytest.raises(ValueError, match="the grid has 6 points, fewer than points = 7"):
        tune(sgd, {"eta": (5.0, 10.0, 20.0), "rho": (1e-4, 1e-3)}, problem, 500, points=7)


def test_public_names_do_not_shadow_modules():
    """`import smadmm.certificate; smadmm.certificate.certify` must work, everywhere in the package."""
    import importlib
    import pkgutil
    import types

    packages = ["smadmm"] + [m.name for m in pkgutil.walk_packages(smadmm.__path__, "smadmm.") if m.ispkg]
    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__):
            if module.name != "__main__":
                found = getattr(package, module.name, None)
                assert found is None or isinstance(found, types.ModuleType), f"{name}.{module.name} is shadowed"


def test_a_point_that_the_solver_refuses_loses_and_is_flagged():
    problem = Problem(smadmm.losses.Squared(torch.eye(3), torch.ones(3)), L1(0.1))

    def sgd(problem, seed, eta):
        return ADMM(problem, SGD(1), rho=1.0, eta=eta, seed=seed)

    tuned = tune(sgd, {"eta": (0.5, 9.0)}, problem, 300)
    assert tuned.best == {"eta": 9.0} and (tuned.refused, tuned.diverged) == (1, 0)
    assert "raise eta" in tuned.tried[0].refused and "1 of 2 points were refused" in tuned.flags
    with pytest.raises(ValueError, match=r"every point of the grid was refused.*raise eta"):
        tune(sgd, {"eta": (0.5, 0.1)}, problem, 300)
