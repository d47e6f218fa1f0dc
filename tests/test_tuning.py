"""Estimates of L and the spectrum, and settings that need no tuning."""

import pytest
import torch

from smadmm import Power, Problem, Stop, auto, run, solve, theorem_constant, theorem_dynamic
from smadmm.losses import Autograd, LeastSquares, Logistic, Sigmoid, Stream
from smadmm.operators import EdgeDifferences, Identity, Matrix, Stack
from smadmm.proxes import L1, Denoised
from smadmm.tuning import batch_smoothness, smoothness, spectrum


def data(g, n=300, d=8, scale=1.0):
    X = scale * torch.randn(n, d, generator=g, dtype=torch.float64)
    return X, torch.sign(X @ torch.randn(d, generator=g, dtype=torch.float64))


def test_smoothness_by_power_iteration_finds_the_largest_eigenvalue(g):
    M = torch.randn(50, 6, generator=g, dtype=torch.float64)
    hessian = M.T @ M / 50
    f = Autograd(lambda x, batch: 0.5 * (x @ hessian @ x), n=1)
    estimate = smoothness(f, torch.zeros(6, dtype=torch.float64), iterations=100)
    assert not estimate.bound
    assert estimate.value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-3)


def test_smoothness_prefers_the_closed_form(g):
    f = Sigmoid(*data(g))
    assert smoothness(f, torch.zeros(8)).value == f.lipschitz()


def test_spectrum_of_known_matrices():
    tall = spectrum(Stack([EdgeDifferences([(0, 1), (1, 2)], 3), Identity()]))
    # A'A = I + Laplacian of a path of three nodes, eigenvalues 1, 2, 4
    assert tall.largest == pytest.approx(4) and tall.smallest_columns == pytest.approx(1)
    assert tall.smallest_rows == 0 and tall.smallest_nonzero == pytest.approx(1)
    square = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    assert spectrum(Matrix(square)).smallest_nonzero == pytest.approx(1)
    assert spectrum(Matrix(square)).smallest_columns == 0
    assert spectrum(-3 * Identity()).smallest_nonzero == 9
    huge = spectrum(Identity((5000,)) + Identity((5000,)))
    assert huge.smallest_nonzero is None and huge.largest == pytest.approx(4, rel=0.2)


def test_schedules_of_the_theorems():
    """K = 1000: K^(1/3) = 10. The momentum of Theorem 3.1 keeps a rho^2 = c_a^2 for every horizon."""
    rho, eta, a, first = theorem_constant(1000, c_rho=3.0, ratio=2.0, c_a=5.0)
    assert (rho(7), eta(7), a(7), first) == (30, 60, pytest.approx(25 / 900), 30)
    assert theorem_constant(1001, c_rho=0.25).first == 3  # of 2.5008
    assert theorem_constant(8, c_a=5.0).a(1) == 1
    rho, eta, a, first = theorem_dynamic(c_rho=3.0, c_eta=0.5, c_a=5.0)
    assert (rho(1000), eta(1000), a(1000), first) == (pytest.approx(30), pytest.approx(5), pytest.approx(0.05), 1)
    assert a(1) == 1
    assert [Power(2.0, -0.5, lo=0.9, hi=1.5)(k) for k in (1, 4, 100)] == [1.5, 1.0, 0.9]


def test_auto_takes_its_constants_from_the_problem(g):
    """eta_1 = L_b/2 = rho_1 |A|^2: a step along A's largest direction is 1/L_b; exponents of Theorem 3.2."""
    X, b = data(g)
    A = torch.randn(5, 8, generator=g, dtype=torch.float64)
    problem = Problem(LeastSquares(X, b), L1(0.1), Matrix(A))
    settings = auto(problem, budget=60_000)
    H = torch.einsum("ni,nj->nij", X, X)  # of the samples
    pairs = torch.einsum("nij,njk->ik", H, H) / 300 / settings.batch
    pairs += (1 - 1 / settings.batch) * torch.linalg.matrix_power(H.mean(0), 2)  # E H_S^2 of independent draws
    L = float(torch.linalg.eigvalsh(pairs)[-1]) ** 0.5
    square = float(torch.linalg.matrix_norm(A, ord=2)) ** 2
    assert settings.eta(1) == pytest.approx(L / 2, rel=0.05)
    assert settings.rho(1) * square == pytest.approx(settings.eta(1), rel=0.02)
    largest = torch.linalg.svd(A).Vh[0]
    step = settings.x_step(largest.clone(), settings.eta(1), settings.rho(1))
    assert float(step.norm()) == pytest.approx(1 / L, rel=0.05)
    assert settings.eta(1000) == pytest.approx(10 * settings.eta(1))
    assert settings.rho(1000) == pytest.approx(10 * settings.rho(1))
    assert [settings.a(k) for k in (1, 8, 1000)] == [1, pytest.approx(0.5), pytest.approx(0.02)]
    spent = settings.first + 2 * settings.batch * settings.iterations
    assert 60_000 - 2 * settings.batch < spent <= 60_000


def test_smoothness_of_batches_by_differences_is_near_the_closed_form(g):
    X, b = torch.randn(400, 60, generator=g), torch.randn(400, generator=g)
    closed, sampled = LeastSquares(X, b), Autograd(lambda x, i: 0.5 * (X[i] @ x - b[i]).square().mean(), 400)
    L, x = closed.lipschitz(), torch.zeros(60)
    for batch in (2, 16):
        known, found = batch_smoothness(closed, x, batch, L), batch_smoothness(sampled, x, batch, L)
        assert known.bound and not found.bound and known.value > 1.3 * L
        assert 0.6 * known.value < found.value < 1.5 * known.value


@pytest.mark.parametrize(("n", "d"), [(400, 80), (400, 300), (2000, 200)])
def test_auto_does_not_diverge_where_samples_differ_much(g, n, d):
    """Batches of 2 to 8 of many dimensions: their gradients are far less smooth than F's."""
    X, x = torch.randn(n, d, generator=g), torch.zeros(d)
    x[:5] = 1.0
    problem = Problem(LeastSquares(X, X @ x + 0.1 * torch.randn(n, generator=g)), L1(0.02))
    assert solve(problem, budget=40 * n).history["objective"][-1] < 0.12  # the minimum is about 0.104


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("loss", [Sigmoid, Logistic])
def test_auto_works_whatever_the_scale_of_the_data(g, scale, loss):
    X, b = data(g, scale=scale)
    graph = Stack([EdgeDifferences([(i, i + 1) for i in range(7)], 8), Identity()])
    problem = Problem(loss(X, b), L1(1e-4 * scale), graph)
    settings = auto(problem, budget=10_000)
    result = run(settings.solver(), torch.zeros(8, dtype=torch.float64), Stop(sfo=10_000), every=500)
    first, last = result.history["objective"][0], result.history["objective"][-1]
    assert last < 0.2 * first
    assert result.state.sfo <= 10_000 + 2 * settings.batch
    text = str(settings)
    assert all(word in text for word in ("L =", "eta_k", "rho_k", "a_k", "batch =", f"m = {settings.m}", "x-step"))


def test_auto_on_a_stream_a_large_problem_and_a_denoiser(g):
    rows = torch.randn(5000, 3, generator=g)
    stream = Stream(lambda x, batch: 0.5 * ((x - batch) ** 2).sum(1).mean(), [rows])
    assert auto(Problem(stream, L1(0.1)), 4000, x=torch.zeros(3)).first == 400
    matrix = torch.randn(4, 3000, generator=g)
    large = Problem(LeastSquares(matrix, torch.ones(4)), L1(0.1))
    assert "linearised" in str(auto(large, 1000))
    auto(large, 1000).solver()  # eta >= rho |A|^2 holds
    pnp = auto(Problem(LeastSquares(matrix, torch.ones(4)), Denoised(lambda v: v)), 1000)
    assert pnp.rho.p == pnp.eta.p == 0 and "weight of the prior" in str(pnp)
    pnp.solver()


def test_auto_refuses_what_it_cannot_know(g):
    f = Autograd(lambda x, batch: x.sum(), n=3)
    with pytest.raises(ValueError, match="give a point x"):
        auto(Problem(f, L1(0.1)), 1000)
    with pytest.raises(ValueError, match="looks linear"):
        auto(Problem(f, L1(0.1)), 1000, x=torch.zeros(3))
    with pytest.raises(ValueError, match="budget of 3"):
        auto(Problem(Sigmoid(*data(g)), L1(0.1)), 3)
