"""Known answers: convex problems against independent convex solvers, full batch and stochastic."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso

from smadmm import ADMM, SAGA, SGD, SVRG, Power, Problem, Spider, Stop, Storm, run
from smadmm.losses import Logistic, Squared
from smadmm.operators import FiniteDifferences, Identity, Slot, Stack
from smadmm.proxes import L1, Box
from smadmm.sampling import reshuffled
from smadmm.solver import Average
from smadmm.xsteps import Exact

N, D, WEIGHT = 120, 12, 0.1


@pytest.fixture
def regression(g):
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    truth = torch.tensor([2.0] * 4 + [0.0] * 5 + [-1.0] * 3, dtype=torch.float64)
    return X, X @ truth + 0.3 * torch.randn(N, generator=g, dtype=torch.float64)


def solve(problem, estimator, iterations, **options):
    solver = ADMM(problem, estimator, **options)
    return run(solver, torch.zeros(D, dtype=torch.float64), Stop(iterations=iterations), every=10**9).state


def lasso_answer(X, b):
    return Lasso(alpha=WEIGHT, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(X.numpy(), b.numpy()).coef_


def fused_answer(X, b):
    x = cp.Variable(D)
    value = cp.sum_squares(X.numpy() @ x - b.numpy()) / (2 * N) + WEIGHT * cp.norm1(cp.diff(x))
    cp.Problem(cp.Minimize(value)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return x.value


def test_lasso_with_full_batches_equals_scikit_learn(regression):
    X, b = regression
    problem = Problem(Squared(X, b, sampling=reshuffled), L1(WEIGHT))
    state = solve(problem, SGD(N), 3000, rho=1.0, eta=problem.f.lipschitz() + 1.0)
    np.testing.assert_allclose(state.x.numpy(), lasso_answer(X, b), atol=1e-5)
    np.testing.assert_allclose(state.y.numpy(), lasso_answer(X, b), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_fused_lasso_with_full_batches_equals_cvxpy(regression, exact):
    X, b = regression
    A = FiniteDifferences((D,))
    problem = Problem(Squared(X, b, sampling=reshuffled), L1(WEIGHT), A)
    eta = problem.f.lipschitz() + (0 if exact else 4.0)
    x_step = {"x_step": Exact(A)} if exact else {}
    state = solve(problem, SGD(N), 5000, rho=1.0, eta=eta, **x_step)
    np.testing.assert_allclose(state.x.numpy(), fused_answer(X, b), atol=1e-5)


@pytest.mark.slow
def test_two_blocks_equal_cvxpy(regression):
    """Logistic loss, fused lasso and a box at once: two blocks."""
    X, b = regression
    A = Stack([FiniteDifferences((D,)), Identity((D,))])
    labels = torch.sign(b)
    Bs = [-Slot(D, 0, 2 * D), -Slot(D, D, 2 * D)]
    problem = Problem(Logistic(X, labels, sampling=reshuffled), [L1(0.02), Box(-0.3, 0.8)], A, Bs)
    state = solve(problem, SGD(N), 8000, rho=0.3, eta=problem.f.lipschitz() + 0.3 * 5.0)
    x = cp.Variable(D)
    value = cp.sum(cp.logistic(cp.multiply(-labels.numpy(), X.numpy() @ x))) / N + 0.02 * cp.norm1(cp.diff(x))
    cp.Problem(cp.Minimize(value), [x >= -0.3, x <= 0.8]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    np.testing.assert_allclose(state.x.numpy(), x.value, atol=1e-5)


STOCHASTIC = {  # estimator, iterations, accuracy |x - x*|_inf
    "SVRG": (SVRG(10, 24), 6000, 1e-5),
    "SAGA": (SAGA(10), 6000, 1e-5),
    "Spider": (Spider(10, 12), 6000, 1e-5),
    "Storm": (Storm(10, Power(2.0, -2 / 3, hi=1), first=N), 20_000, 2e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCHASTIC)
def test_lasso_stochastically(regression, name):
    X, b = regression
    estimator, iterations, accuracy = STOCHASTIC[name]
    problem = Problem(Squared(X, b), L1(WEIGHT))
    L = problem.f.lipschitz()
    growth = 1 / 3 if name == "Storm" else 0.0
    state = solve(problem, estimator, iterations, rho=Power(0.5 * L, growth), eta=Power(3 * L, growth))
    assert np.abs(state.x.numpy() - lasso_answer(X, b)).max() < accuracy


@pytest.mark.slow
def test_lasso_with_plain_sgd_averaged(regression):
    """SADMM with a constant step: its average comes close."""
    X, b = regression
    problem = Problem(Squared(X, b), L1(WEIGHT))
    L = problem.f.lipschitz()
    options = {"rho": 0.5 * L, "eta": 10 * L, "average": Average(Power(1.0, 1.0))}
    state = solve(problem, SGD(10), 20_000, **options)
    answer = lasso_answer(X, b)
    assert np.abs(state.mean.x.numpy() - answer).max() < 5e-3
