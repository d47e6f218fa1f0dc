"""The certificate: its three parts by hand, zero at solutions, the sampled one covered by its interval."""

import itertools

import pytest
import torch

from smadmm import ADMM, SGD, Power, Problem, Reason, Stop, Storm, certify, run
from smadmm.certificate import certify_at
from smadmm.losses import Autograd, LeastSquares, Logistic, Stream
from smadmm.operators import Matrix
from smadmm.problem import Loss, Prox
from smadmm.proxes import L1, Box, Denoised, Zero
from smadmm.sampling import Rng
from smadmm.solver import Average


def problem(g, weight=0.05):
    X = torch.randn(400, 6, generator=g, dtype=torch.float64)
    A = torch.randn(4, 6, generator=g, dtype=torch.float64)
    return Problem(Logistic(X, torch.sign(X[:, 0] + 0.5 * X[:, 1])), L1(weight), Matrix(A))


def test_parts_by_hand(g):
    p = problem(g)
    x, y, lam, c = (torch.randn(n, generator=g, dtype=torch.float64) for n in (6, 4, 4, 4))
    p = Problem(p.f, L1(0.05), p.A, c=c)
    parts = certify_at(p, x, (y,), lam)
    gradient = p.f.gradient((x,), (1.0,), p.f.full()) - p.A.T(lam)
    assert parts.gradient == pytest.approx(float(gradient.square().sum()))
    assert parts.subdifferential == pytest.approx(float((-lam - 0.05 * y.sign()).square().sum()))
    assert parts.feasibility == pytest.approx(float((p.A(x) - y - c).square().sum()))
    assert parts.total == parts.low == parts.high == parts.gradient + parts.subdifferential + parts.feasibility


def test_it_vanishes_at_a_solution(g):
    p = problem(g)
    p.f.sampling = lambda rng, n, size: torch.arange(n).numpy()
    square = float(p.A.norm()) ** 2
    solver = ADMM(p, SGD(400), rho=0.3, eta=0.3 * square + 0.5)
    result = run(solver, torch.zeros(6, dtype=torch.float64), Stop(certificate=1e-12, iterations=20_000), every=500)
    assert result.reason is Reason.CERTIFICATE
    assert certify(p, result.state).total < 1e-12


def test_sampled_interval_covers_the_truth(g):
    p = problem(g)
    x, y, lam = (torch.randn(n, generator=g, dtype=torch.float64) for n in (6, 4, 4))
    lam *= 0.1
    true = certify_at(p, x, (y,), lam).total
    sampled = [certify_at(p, x, (y,), lam, sample=640, seed=seed) for seed in range(400)]
    covered = sum(c.low <= true <= c.high for c in sampled)
    assert 0.90 * 400 <= covered <= 0.99 * 400
    spread = torch.tensor([c.total for c in sampled])
    assert abs(float(spread.mean()) - true) < 4 * float(spread.std()) / 20  # unbiased
    assert float(spread.std()) > 0


def assert_mean_zero(values):
    values = torch.tensor(values)
    assert abs(float(values.mean())) < 4.5 * float(values.std()) / len(values) ** 0.5


def test_sampled_gradient_part_is_unbiased_where_the_gradient_vanishes(g):
    """There the square of a mean over samples would be positive every time; the estimate is zero in the mean."""
    X = torch.randn(400, 6, generator=g, dtype=torch.float64)
    f, x = Logistic(X, torch.sign(X[:, 0])), torch.randn(6, generator=g, dtype=torch.float64)
    lam = f.gradient((x,), (1.0,), f.full())
    parts = [certify_at(Problem(f, Zero()), x, (x,), lam, sample=64, seed=seed).gradient for seed in range(100)]
    assert_mean_zero(parts)
    assert min(parts) < 0 < max(parts)


class Normal(Loss):
    """1/2 |x - xi|^2, xi ~ N(0, I): endless, but not a stream in order."""

    def draw(self, rng, size):
        rng.take(size)
        return torch.from_numpy(rng.standard_normal((size, 3)))

    def value(self, x, batch):
        return 0.5 * (x - batch).square().sum(1).mean()

    def gradient(self, points, weights, batch):
        return sum(w * (x - batch.mean(0)) for x, w in zip(points, weights))


@pytest.mark.parametrize("finite", [True, False])
def test_a_point_fitted_to_the_solvers_samples_is_not_certified_by_them(g, finite):
    """x minimises the mean of 1/2 |x - xi|^2 over the batches of iterations 0..31; E grad is x - E xi all the same."""
    targets = torch.randn(50, 3, generator=g, dtype=torch.float64)
    f, mean = Normal(), torch.zeros(3, dtype=torch.float64)
    if finite:
        f = LeastSquares(torch.eye(3, dtype=torch.float64).repeat(50, 1), targets.flatten(), block=3)
        mean = targets.mean(0)
    zero, errors = torch.zeros(3, dtype=torch.float64), []
    for seed in range(50):
        slopes = [f.gradient((zero,), (1.0,), f.draw(Rng(seed, k), 2)) for k in range(32)]
        x = -torch.stack(slopes).mean(0)
        part = certify_at(Problem(f, Zero()), x, (x,), zero, sample=64, seed=seed).gradient
        errors.append(part - float((x - mean).square().sum()))
    assert_mean_zero(errors)


class Quadratic(Prox):
    """h = w/2 |y|^2, w = 3, by its prox alone."""

    def prox(self, v, t):
        return v / (1 + 3 * t)


@pytest.mark.parametrize("r", [0.5, 1.0, 4.0, 1e6])
def test_prox_residual_of_a_quadratic_by_hand(g, r):
    """y - prox_{h/r}(y + B'lam/r) = (w y - B'lam)/(r + w): times r it is the gradient's distance for large r."""
    y, lam = (torch.randn(6, generator=g, dtype=torch.float64) for _ in range(2))
    p = Problem(LeastSquares(torch.eye(6, dtype=torch.float64), lam), Quadratic())
    distance = float((3 * y + lam).square().sum())  # B = -I
    assert certify_at(p, y, (y,), lam, r=r).subdifferential == pytest.approx((r / (r + 3)) ** 2 * distance)


def test_streams_are_certified_from_samples(g):
    rows = torch.randn(20_000, 3, generator=g)
    f = Stream(lambda x, batch: 0.5 * ((x - batch) ** 2).sum(1).mean(), [rows])
    solver = ADMM(Problem(f, Box(-1, 1)), SGD(20), rho=1.0, eta=2.0)
    state = solver.init(torch.zeros(3))
    parts = certify(solver.problem, state, sample=6400)
    assert parts.low <= float(rows.mean(0).square().sum()) + 0.1 and parts.high < 0.1
    with pytest.raises(ValueError, match="stream"):
        certify(solver.problem, state)
    with pytest.raises(ValueError, match="at least 32 samples, got 3"):
        certify(solver.problem, state, sample=3)


def test_denoisers_are_certified_by_their_prox_residual():
    """D = soft threshold as a denoiser: the residual vanishes where the true distance does."""
    target = torch.tensor([2.0, -0.1, -3.0], dtype=torch.float64)
    f = Autograd(lambda x, batch: 0.5 * ((x - target) ** 2).sum(), n=1)
    shrink = Denoised(lambda v: v.sign() * (v.abs() - 0.5).clamp(min=0))
    solver = ADMM(Problem(f, shrink), SGD(1), rho=1.0, eta=2.0)
    state = solver.init(torch.zeros(3, dtype=torch.float64))
    before = certify(solver.problem, state).total
    state = next(itertools.islice(solver.steps(state), 199, None))
    torch.testing.assert_close(state.x, torch.tensor([1.5, 0, -2.5], dtype=torch.float64), atol=1e-6, rtol=0)
    assert certify(solver.problem, state).total < 1e-10 < before


def test_averages_are_certified_and_smoother(g):
    p = problem(g)
    square = float(p.A.norm()) ** 2
    eta = 0.3 * square + 0.5
    solver = ADMM(p, SGD(4), rho=0.3, eta=eta, average=Average(Power(1.0, 1.0)))
    result = run(solver, torch.zeros(6, dtype=torch.float64), Stop(iterations=4000), every=4000)
    averaged, last = certify(p, result.state, averaged=True), certify(p, result.state)
    assert averaged.gradient < 0.05 * last.gradient and averaged.total < 0.5 * last.total
    for r in (0.3, 1.0, 3.0):  # r (A x - y) - lam is a subgradient at the y that is chosen
        parts = certify(p, result.state, averaged=True, r=r)
        assert parts.subdifferential <= r**2 * parts.feasibility * (1 + 1e-9)
        Ax = p.A(result.state.mean.x)
        v = Ax - result.state.mean.lam / r
        y = v.sign() * (v.abs() - 0.05 / r).clamp(min=0)
        assert parts.feasibility == pytest.approx(float((Ax - y).square().sum()))
    plain = ADMM(p, SGD(4), rho=0.3, eta=eta)
    with pytest.raises(ValueError, match="keeps no averages"):
        certify(p, plain.init(torch.zeros(6, dtype=torch.float64)), averaged=True)


def test_mean_is_the_weighted_mean_and_pull_moves_the_gradient(g):
    p = problem(g)
    eta = 0.3 * float(p.A.norm()) ** 2 + 0.5
    solver = ADMM(p, Storm(4, 0.5), rho=0.3, eta=eta, average=Average(Power(1.0, 1.0), pull=0.8))
    state, xs = solver.init(torch.zeros(6, dtype=torch.float64)), []
    for k in range(1, 6):
        state = solver.step(state)
        xs.append(k * state.x)
    torch.testing.assert_close(state.mean.x, sum(xs) / 15)
    torch.testing.assert_close(state.est.at, 0.2 * state.x + 0.8 * state.mean.x)
