"""The certificate: its three parts by hand, zero at solutions, the sampled one covered by its interval."""

import itertools

import pytest
import torch

from smadmm import ADMM, SGD, Power, Problem, Reason, Stop, Storm, certify, run
from smadmm.certificate import certify_at
from smadmm.losses import Autograd, Logistic, Stream
from smadmm.operators import Matrix
from smadmm.proxes import L1, Box, Denoised
from smadmm.solver import Average


def problem(g, weight=0.05):
    X = torch.randn(400, 6, generator=g, dtype=torch.float64)
    A = torch.randn(4, 6, generator=g, dtype=torch.float64)
    return Problem(Logistic(X, torch.sign(X[:, 0] + 0.5 * X[:, 1])), L1(weight), Matrix(A))


def test_parts_by_hand(g):
    p = problem(g)
    x, y, lam = (torch.randn(n, generator=g, dtype=torch.float64) for n in (6, 4, 4))
    parts = certify_at(p, x, (y,), lam)
    gradient = p.f.gradient((x,), (1.0,), p.f.full()) - p.A.T(lam)
    assert parts.gradient == pytest.approx(float(gradient.square().sum()))
    assert parts.subdifferential == pytest.approx(float((-lam - 0.05 * y.sign()).square().sum()))
    assert parts.feasibility == pytest.approx(float((p.A(x) - y).square().sum()))
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
    assert averaged.subdifferential <= averaged.feasibility * (1 + 1e-9)  # by the choice of y
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
