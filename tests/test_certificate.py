"""The certificate: its three parts by hand, zero at solutions, the sampled one covered by its interval."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from smadmm import ADMM, ASVRG, SGD, Power, Problem, Reason, Spider, Stop, Storm, certify, run
from smadmm.certificate import certify_at, certify_means
from smadmm.denoisers import GradientStep
from smadmm.imaging.priors import ComplexProx
from smadmm.imaging.red import RED, Residual
from smadmm.losses import Autograd, LeastSquares, Logistic, Stream
from smadmm.operators import Matrix
from smadmm.problem import Loss, Prox
from smadmm.proxes import L1, TV, Box, Denoised, Zero
from smadmm.sampling import Rng
from smadmm.solver import Average
from smadmm.stepsize import Decaying


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
    parts = certify_at(p, y, (y,), lam, rs=(r,))
    assert parts.subdifferential == pytest.approx((r / (r + 3)) ** 2 * distance)
    assert parts.subdifferential_low == 0 and parts.subdifferential_high == math.inf  # a residual, not the distance
    for measure in (lambda: certify_at(p, y, (y,), lam), lambda: certify_means(p, y, lam)):
        with pytest.raises(ValueError, match="Quadratic has only a prox.*give rs"):
            measure()


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
    assert averaged.subdifferential <= averaged.feasibility * (1 + 1e-9)  # A x - y - lam is a subgradient at that y
    Ax = p.A(result.state.mean.x)
    v = Ax - result.state.mean.lam
    y = v.sign() * (v.abs() - 0.05).clamp(min=0)
    assert averaged.feasibility == pytest.approx(float((Ax - y).square().sum()))
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


# --- denoisers --------------------------------------------------------------------------------------------------------

SIDE = 4
SHARE = 0.8  # Lip(grad g)


def bowl(x):
    """g = sum 0.8 sqrt(1 + x^2): D = I - grad g acts entry by entry, so that its inverse is found easily."""
    return SHARE * (1 + x**2).sqrt().sum((1, 2, 3))


def denoiser(gamma=1.0):
    return GradientStep(bowl, lipschitz=SHARE).relax(gamma)


def prior(gamma=1.0, limits=None):
    return Denoised(denoiser(gamma), image=True, limits=limits)


def inverse(y, gamma=1.0):
    """z with D(z) = y, that is z = y + gamma grad g(z): a contraction."""
    z = y.clone()
    for _ in range(300):
        z = y + gamma * SHARE * z / (1 + z**2).sqrt()
    return z


def squares(target):
    """1/2 |x - target|^2."""
    return Autograd(lambda x, batch: 0.5 * ((x - target) ** 2).sum(), n=1)


def noise(seed, *shape):
    return torch.randn(*shape or (SIDE, SIDE), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def square(x):
    return float(x.square().sum())


WEIGHTS = [(0.01, 0.01, 1.0), (0.3, 0.3, 1.0), (3.0, 3.0, 1.0), (0.3, 0.5, 1.0), (0.3, 0.3, 0.6)]  # rho, r, gamma


@pytest.mark.parametrize(("rho", "r", "gamma"), WEIGHTS)
def test_denoisers_are_certified_at_known_solutions(rho, r, gamma):
    """x = y = D(z), lam = -r (z - y) and grad F(x) = lam: a solution of F + r phi, and a fixed point."""
    z = 2 * noise(0)
    x = z - gamma * SHARE * z / (1 + z**2).sqrt()
    lam = -r * (z - x)
    p = Problem(squares(x - lam), prior(gamma))
    solver = ADMM(p, SGD(1), rho=rho, eta=1 + rho, r=r)
    start = solver.init(x, lam=lam)
    for state in (start, solver.step(start), solver.step(solver.step(start))):
        assert certify(p, state).total < 1e-9
        torch.testing.assert_close(state.x, x, rtol=1e-12, atol=1e-12)
    assert certify_at(p, x, (x,), lam, rs=(2 * r,)).total > 1e-4  # of another problem it is no solution


@pytest.mark.parametrize(("rho", "r", "gamma"), WEIGHTS)
def test_the_distance_of_a_gradient_step_is_exact_at_iterates(rho, r, gamma):
    p = Problem(squares(noise(1)), prior(gamma))
    solver = ADMM(p, SGD(1), rho=rho, eta=2 + rho, r=r)
    before = next(itertools.islice(solver.steps(solver.init(noise(2))), 2, None))
    state = solver.step(before)
    parts, y = certify(p, state), state.y
    exact = square(-state.lam - r * (inverse(y, gamma) - y))
    assert parts.subdifferential == pytest.approx(exact, rel=1e-9) and exact > 1e-9
    assert parts.subdifferential_low == parts.subdifferential == parts.subdifferential_high
    low, residual, high = p.hs[0].distance(y, -state.lam, r)
    assert low <= math.sqrt(exact) <= high and high < 20 * low and residual > 0  # from the residual alone
    moved = rho * (state.x - before.x) + (r - rho) * (y - before.y)
    assert parts.subdifferential == pytest.approx(square(moved), rel=1e-9)


def test_the_objective_of_a_denoiser_is_recorded():
    """phi is the integral of D^{-1} - I, along the line from one iterate to another."""
    target, rho = noise(3), 0.3
    solver = ADMM(Problem(squares(target), prior()), SGD(1), rho=rho, eta=1.3)
    states = []
    result = run(solver, 3 * noise(4), Stop(iterations=4), every=1, callback=lambda s: states.append(s))
    first, last = states[0], states[-1]
    shares = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    line = first.y + shares[:, None, None] * (last.y - first.y)
    slopes = float(((inverse(line) - line).mean(0) * (last.y - first.y)).sum())
    smooth = [0.5 * square(s.x - target) for s in (first, last)]
    found = result.history["objective"]
    assert math.isnan(found[0])  # before the first y-step phi is not known
    assert found[4] - found[1] == pytest.approx(smooth[1] - smooth[0] + rho * slopes, abs=1e-5) and abs(slopes) > 0.1


def test_what_is_known_of_other_denoisers():
    """A denoiser that need not be a prox has a value to go by, no bounds; cut images have a lower bound of phi."""
    z, y, g = noise(5), noise(6), noise(7)
    expected = math.sqrt(square(g - 0.3 * (z - y)))
    unknown = Denoised(lambda v: 0.5 * v)
    assert unknown.distance_after(z, y, g, 0.3) == (0.0, pytest.approx(expected), math.inf)
    assert unknown.value_after(z, y, 0.3) is None
    cut = prior(limits=(0.0, math.inf))
    y = cut.prox(z, 1.0)
    assert float(y.min()) == 0 and cut.distance_after(z, y, g, 0.3)[::2] == (0.0, math.inf)
    inside = y.clamp(min=1e-3)
    assert cut.distance_after(z, inside, g, 0.3)[::2] == (pytest.approx(math.sqrt(square(g - 0.3 * (z - inside)))),) * 2
    preimage = inverse(y)
    phi = float(bowl(preimage[None, None])) - 0.5 * square(preimage - y)
    assert cut.value_after(z, y, 1.0) < phi < cut.value_after(z, y, 1.0) + 0.5 * square(prior().prox(z, 1.0) - y) / 0.2
    whole = ComplexProx(prior())
    z, y, g = (torch.complex(noise(n), noise(n + 1)) for n in (8, 10, 12))
    assert whole.ignores_step
    assert whole.distance_after(z, y, g, 0.3).value == pytest.approx(float((g - 0.3 * (z - y)).norm()))
    parts = [prior().value_after(part(z), part(y), 0.3) for part in (torch.real, torch.imag)]
    assert whole.value_after(z, y, 0.3) == pytest.approx(sum(parts))
    assert ComplexProx(unknown).value_after(z, y, 0.3) is None


def test_averages_of_a_denoiser_take_r_from_the_solver():
    p = Problem(squares(noise(1)), prior())
    solver = ADMM(p, SGD(1), rho=0.3, eta=1.3, r=0.5, average=Average())
    state = next(itertools.islice(solver.steps(solver.init(noise(2))), 20, None))
    parts = certify(p, state, averaged=True)
    x, lam = state.mean.x, state.mean.lam
    y = prior().prox(x - lam / 0.5, 1.0)
    assert parts.feasibility == pytest.approx(square(x - y))
    assert parts.subdifferential == pytest.approx(square(-lam - 0.5 * (inverse(y) - y)))
    assert parts.subdifferential == pytest.approx(0.25 * parts.feasibility)
    assert "objective" not in run(solver, noise(2), Stop(iterations=3)).history  # phi is not known at averages


PRIORS = {
    "denoiser": Denoised(GradientStep(bowl, lipschitz=SHARE)),
    "tv": TV(0.01, accuracy=1e-6, max_iterations=200),
}


@pytest.mark.parametrize("form", ["last", "averaged", "sampled"])
@pytest.mark.parametrize("name", PRIORS)
def test_runs_stop_by_their_certificate(name, form):
    f = Autograd(
        lambda x, batch: 0.5 * ((x - noise(9)[None, None]) ** 2).sum() * (1 + 0.1 * batch.double()).mean(), n=4
    )
    average = {"average": Average(Power(1.0, 2.0))} if form == "averaged" else {}
    solver = ADMM(Problem(f, PRIORS[name]), Spider(4, 1), rho=0.3, eta=1.6, **average)
    sample = {"certify_sample": 320} if form == "sampled" else {}
    level = 1e-3 if form == "averaged" else 0.1 if form == "sampled" else 1e-6
    stop = Stop(certificate=level, iterations=600)
    result = run(solver, torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64), stop, every=20, **sample)
    assert result.reason is Reason.CERTIFICATE
    assert result.history["certificate"][0] > 10 * level


def test_red_is_certified_for_its_own_problem():
    """min F + tau g, g the potential of D; with a penalty its Moreau envelope."""
    tau, x = 0.3, 2 * noise(0)
    pull = tau * SHARE * x / (1 + x**2).sqrt()
    solved = RED(Problem(squares(x + pull), prior()), SGD(1), tau, 2.0)
    start = solved.init(x)
    assert certify(solved.problem, replace(start, lam=-pull)).total < 1e-20
    assert certify(solved.problem, solved.step(start)).total < 1e-20
    solver = RED(Problem(squares(noise(1)), prior()), SGD(1), tau, 2.0)
    before = solver.step(solver.init(x))
    state = solver.step(before)
    parts = certify(solver.problem, state)
    at_y = tau * SHARE * before.x / (1 + before.x**2).sqrt()
    assert parts.gradient == pytest.approx(square(state.x - noise(1) + at_y))
    assert parts.subdifferential < 1e-25 and parts.feasibility == pytest.approx(square(state.x - before.x))
    value = solver.problem.objective(state.x, state.ys, state.zs, state.rs)
    assert value == pytest.approx(0.5 * square(state.x - noise(1)) + tau * float(bowl(before.x[None, None])))
    for h in (prior(), L1(0.2), PRIORS["tv"]):
        stop = Stop(certificate=1e-12, iterations=500)
        result = run(RED(Problem(squares(noise(1)), h), Spider(1, 1), tau, 2.0), x, stop, every=20)
        assert result.reason is Reason.CERTIFICATE
    state, h = RED(Problem(squares(noise(1)), L1(0.2)), SGD(1), tau, 2.0).step(start), L1(0.2)
    z = h.prox(x, 1 / tau)
    assert Residual(h).value_after(z, x, tau) == pytest.approx(h.value(z) + tau / 2 * square(x - z))


def test_asvrg_is_certified_at_its_answer(g):
    p = problem(g)
    solver = ADMM(p, ASVRG(4, 7, theta=0.6), rho=0.3, eta=0.3 * float(p.A.norm()) ** 2 + 0.5)
    state = next(itertools.islice(solver.steps(solver.init(torch.zeros(6, dtype=torch.float64))), 9, None))
    assert not torch.equal(state.answer, state.x)
    parts = certify(p, state)
    assert parts.gradient == pytest.approx(square(p.f.gradient((state.answer,), (1.0,), p.f.full()) - p.A.T(state.lam)))
    assert parts.feasibility == pytest.approx(square(p.A(state.answer) - state.y))


def test_a_denoiser_refuses_weights_that_change():
    p = Problem(squares(noise(1)), prior())
    for rho, r in ((Power(0.3, 1 / 3), None), (0.3, Power(0.5, 0.1))):
        with pytest.raises(ValueError, match="r, the weight of the prior Denoised, would change from .* give numbers"):
            ADMM(p, SGD(1), rho=rho, eta=100.0, r=r)
    with pytest.raises(ValueError, match="would change with the step"):
        ADMM(p, SGD(1), rho=0.3, eta=2.0, stepsize=Decaying(5))
    ADMM(p, SGD(1), rho=0.3, eta=Power(2.0, 1 / 3))  # the step may change
    ADMM(Problem(squares(noise(1)), L1(0.1)), SGD(1), rho=Power(0.3, 1 / 3), eta=100.0)


# --- total variation --------------------------------------------------------------------------------------------------


def ramp(slope=5e-5):
    """8 rows: the only subgradient is w times -1 in the first column and 1 in the last, of length 4 w."""
    line = 1 + slope * torch.arange(12, dtype=torch.float64)
    return line.expand(8, 12).contiguous(), TV(0.779 / 4, max_iterations=300)


def test_tv_on_a_gentle_ramp():
    y, h = ramp()
    found = h.distance(y, torch.zeros_like(y), 1.0)
    assert found.high == pytest.approx(0.779) and found.low <= 0.779 <= found.high * (1 + 1e-9)
    assert found.low <= found.value <= found.high and found.low < found.high
    p = Problem(squares(y), h)
    parts = certify_at(p, y, (y,), torch.zeros_like(y), rs=(1.0,))
    assert parts.subdifferential_low <= 0.779**2 <= parts.subdifferential_high * (1 + 1e-9)
    steep, h = ramp(5e-3)
    assert h.distance(steep, torch.zeros_like(y), 1.0) == (pytest.approx(0.779),) * 3
    flat = torch.ones_like(y)
    assert h.distance(flat, torch.zeros_like(y), 1.0) == (pytest.approx(0, abs=1e-9),) * 3


@pytest.mark.parametrize("r", [0.5, 2.0])
def test_tv_residual_is_widened_by_the_gap(r):
    """With a coarse inner solver the interval still holds the residual of an exact one."""
    y, g = ramp()[0] + 1e-3 * noise(1, 8, 12), 0.3 * noise(2, 8, 12)
    y[3, 4:6] = y[3, 4]
    y[3, 5] += 1e-7
    coarse = TV(0.2, accuracy=3e-2, max_iterations=100)
    exact = TV(0.2, accuracy=1e-7, max_iterations=3000).solve(y + g / r, 0.2 / r)[0]
    residual = r * math.sqrt(square(y - exact))
    found = coarse.distance(y, g, r)
    near, gap = coarse.solve(y + g / r, 0.2 / r)
    assert math.sqrt(square(near - exact)) <= math.sqrt(2 * gap)
    assert found.low <= residual <= found.value <= found.high
    assert found.value == pytest.approx(min(r * math.sqrt(square(y - near)) + r * math.sqrt(2 * gap), found.high))
