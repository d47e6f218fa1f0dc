"""Plug-and-play methods: RED against its formula, every method by name, the defaults for CT, and the metrics."""

import math

import numpy as np
import pytest
import torch

from smadmm import ADMM, ASVRG, SGD, SVRG, Problem, Spider, Stop, Storm, run
from smadmm.imaging import metrics
from smadmm.imaging.pnp import METHODS, estimator, pnp, posterior_weight, sinogram_noise, tomography
from smadmm.imaging.preconditioner import FourierStep, NewtonStep
from smadmm.imaging.red import RED
from smadmm.losses import LeastSquares, Tomography
from smadmm.operators import Matrix, Radon
from smadmm.proxes import TV, Denoised
from smadmm.sampling import Rng, iid, stride


def shrink(x):
    return 0.9 * x


def least_squares():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    return LeastSquares(rows, rows @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64))


def ct(size=48, views=40, decibel=40.0, sampling=stride):
    axis = torch.linspace(-1, 1, size)
    truth = ((axis[:, None] ** 2 + (axis / 0.8) ** 2) < 0.6).float() * 0.5
    truth[size // 3 : size // 2, size // 3 : size // 2] += 0.3
    radon = Radon(size, np.arange(views) * np.pi / views)
    clean = radon(truth)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    noise *= clean.norm() / noise.norm() * 10 ** (-decibel / 20)
    return truth, radon, clean + noise, float(noise.std()), Tomography(radon, clean + noise, sampling=sampling)


def test_red_is_its_formula():
    f, tau, eta = least_squares(), 0.7, 40.0
    solver = RED(Problem(f, Denoised(shrink)), SGD(3), tau, eta, seed=5)
    s = solver.init(torch.ones(4, dtype=torch.float64))
    x = torch.ones(4, dtype=torch.float64)
    v = f.gradient((x,), (1.0,), f.draw(Rng(5, 0), 3))
    for k in range(1, 6):
        s = solver.step(s)
        x = x - (v + tau * (x - shrink(x))) / eta
        v = f.gradient((x,), (1.0,), f.draw(Rng(5, k), 3))
    torch.testing.assert_close(s.x, x, rtol=1e-13, atol=0)
    assert s.sfo == 18


def test_red_with_full_gradients_ends_where_gradient_and_denoiser_balance():
    f = least_squares()
    solver = RED(Problem(f, Denoised(shrink)), Spider(1, 1), 0.7, 5.0)
    result = run(solver, torch.zeros(4, dtype=torch.float64), stop=Stop(iterations=400))
    gradient = f.gradient((result.x,), (1.0,), f.full())
    torch.testing.assert_close(gradient, -0.7 * (result.x - shrink(result.x)), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.state.lam, gradient, rtol=1e-8, atol=1e-12)


def test_red_refuses_other_constraints():
    h = Denoised(shrink)
    with pytest.raises(ValueError, match="use ADMM"):
        RED(Problem(least_squares(), h, A=Matrix(torch.randn(3, 4, dtype=torch.float64))), SGD(1), 1.0, 10.0)
    with pytest.raises(ValueError, match="lower the step"):
        RED(Problem(least_squares(), h), SGD(1), 1.0, 0.5)


def test_red_resumes(tmp_path):
    solver = RED(Problem(least_squares(), Denoised(shrink)), SGD(2), 0.5, 40.0, seed=3)
    x = torch.zeros(4, dtype=torch.float64)
    whole = run(solver, x, stop=Stop(iterations=9))
    run(solver, x, stop=Stop(iterations=4), checkpoint=tmp_path / "c")
    rest = run(solver, x, stop=Stop(iterations=9), checkpoint=tmp_path / "c", resume=True)
    assert torch.equal(whole.x, rest.x)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_improves_on_filtered_back_projection(method):
    truth, radon, sinogram, noise, loss = ct(size=32, views=30)
    start = radon.fbp(sinogram)
    rho = posterior_weight(loss, noise, 0.05)
    solver = tomography(loss, TV(0.5 * 0.05 * rho), rho, method, batch=10)
    result = run(solver, start, stop=Stop(iterations=15))
    assert metrics.snr(truth, result.x) > metrics.snr(truth, start) + 1


def test_methods_differ_by_their_estimators():
    f, h = least_squares(), Denoised(shrink)
    assert estimator("smadmm", 5, 30) == Storm(5, a=estimator("smadmm", 5, 30).a)
    assert estimator("smadmm", 5, 30).a(8) == pytest.approx(0.25)
    assert estimator("spider", 7, 30) == Spider(7, 5)
    assert estimator("red-sd", 7, 30) == Spider(7, 1)
    assert estimator("svrg", 7, 30) == SVRG(7, 5) and estimator("asvrg", 7, 30) == ASVRG(7, 5)
    assert estimator("sadmm", 7, 30) == estimator("on-red", 7, 30) == SGD(7)
    assert pnp(f, h, rho=3.0).eta(5) == 4  # 1-smooth F and the quadratic of rho
    assert isinstance(pnp(f, h, "on-red"), RED) and isinstance(pnp(f, h, "svrg"), ADMM)
    with pytest.raises(ValueError, match="no method 'adam'; there are smadmm"):
        pnp(f, h, "adam")
    with pytest.raises(ValueError, match="only smadmm has a momentum"):
        pnp(f, h, "sadmm", a=0.5)


@pytest.mark.slow
def test_rho_is_the_weight_of_a_posterior():
    """With a Gaussian prior of deviation p the denoiser is x p^2 / (p^2 + sigma^2), and the posterior is known."""
    _, _, _, noise, loss = ct(size=24, views=30)
    p, sigma = 0.2, 0.05
    rho = posterior_weight(loss, noise, sigma)
    denoiser = Denoised(lambda x: x * p**2 / (p**2 + sigma**2))
    result = run(
        tomography(loss, denoiser, rho, "spider", batch=30), torch.zeros(24, 24), stop=Stop(iterations=3000), every=3000
    )
    # gradient of the negative log posterior |A x - b|^2 / (2 noise^2) + |x|^2 / (2 p^2), in units of the first term
    residual = loss.gradient((result.x,), (1.0,), loss.full()) * (loss.c * loss.n / noise**2) + result.x / p**2
    first = loss.gradient((torch.zeros(24, 24),), (1.0,), loss.full()) * (loss.c * loss.n / noise**2)
    assert float(residual.norm() / first.norm()) < 1e-4


@pytest.mark.parametrize("decibel", [25, 35, 45])
def test_noise_of_a_sinogram_is_estimated(decibel):
    _, _, sinogram, noise, _ = ct(size=128, views=60, decibel=decibel)
    assert noise * 0.95 < sinogram_noise(sinogram) < noise * 1.4


def test_bad_weights_are_refused():
    loss = ct(size=16, views=4)[-1]
    with pytest.raises(ValueError, match="must be positive"):
        posterior_weight(loss, 0.0, 0.1)
    with pytest.raises(ValueError, match="one detector"):
        sinogram_noise(torch.ones(4, 1))


def test_tomography_uses_the_x_step_for_its_batch():
    _, radon, sinogram, _, loss = ct(size=16, views=8)
    assert loss.sampling is stride
    default = tomography(loss, Denoised(shrink), 0.1)
    assert isinstance(default.x_step, NewtonStep) and default.estimator.batch == 8 and default.eta(1) == 1
    batches = tomography(loss, Denoised(shrink), 0.1, batch=4)
    assert isinstance(batches.x_step, FourierStep) and batches.estimator.batch == 4
    drawn = Tomography(radon, sinogram, sampling=iid)  # n independent draws are not all views
    assert isinstance(tomography(drawn, Denoised(shrink), 0.1).x_step, FourierStep)


def test_the_newton_step_solves_the_quadratic():
    _, _, _, _, loss = ct(size=10, views=7)
    g = torch.Generator().manual_seed(0)
    direction, zero, rho = torch.randn(10, 10, generator=g), torch.zeros(10, 10), 0.02
    for eta in (1.0, 0.2):
        d = NewtonStep(loss, inner=60)(direction, eta, rho)
        back = eta * loss.gradient((d, zero), (1.0, -1.0), loss.full()) + rho * d
        torch.testing.assert_close(back, direction, atol=1e-4, rtol=1e-3)
    assert NewtonStep(loss, inner=3).sfo == 21
    assert torch.equal(NewtonStep(loss)(zero, 1.0, rho), zero)
    with pytest.raises(ValueError, match="at least one conjugate gradient step"):
        NewtonStep(loss, inner=0)


def test_a_few_newton_iterations_are_the_best_of_their_krylov_space():
    """Conjugate gradients: m steps minimise 1/2 d'H d - b'd over the span of P b, P H P b, ..., (P H)^(m-1) P b."""
    _, radon, sinogram, _, _ = ct(size=10, views=7)
    loss = Tomography(radon, sinogram.double(), dtype=torch.float64)
    b = torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero, eta, rho = torch.zeros_like(b), 0.7, 0.02
    for steps in (1, 2, 3, 5):
        newton, vectors, images = NewtonStep(loss, inner=steps), [], []
        for _ in range(steps):
            vectors.append(newton.fourier(images[-1] if images else b, eta, rho))
            vectors[-1] = vectors[-1] / vectors[-1].norm()
            images.append(eta * loss.gradient((vectors[-1], zero), (1.0, -1.0), loss.full()) + rho * vectors[-1])
        V, HV = (torch.stack(columns).flatten(1).T for columns in (vectors, images))
        best = V @ torch.linalg.solve(V.T @ HV, V.T @ b.flatten())
        torch.testing.assert_close(newton(b, eta, rho).flatten(), best, rtol=1e-6, atol=1e-6 * float(best.abs().max()))


def blur(x):
    """A prox: symmetric, with eigenvalues in (0, 1]."""
    return 0.5 * (x + torch.nn.functional.avg_pool2d(x[None], 3, 1, 1)[0])


@pytest.mark.slow
def test_few_views_converge_in_few_iterations():
    """Both x-steps have one fixed point; the nearly exact one is there much earlier."""
    _, radon, sinogram, noise, loss = ct(size=48, views=15)
    rho = posterior_weight(loss, noise, 0.05)
    prior, start = Denoised(blur), radon.fbp(sinogram)
    newton, fourier = tomography(loss, prior, rho), tomography(loss, prior, rho, batch=15)
    exact = run(newton, start, stop=Stop(iterations=200), every=200).x
    slow = run(fourier, start, stop=Stop(iterations=800), every=800).x
    assert metrics.snr(exact, slow) > 40  # the same answer
    at_ten = [run(solver, start, stop=Stop(iterations=10)).x for solver in (newton, fourier)]
    assert metrics.snr(exact, at_ten[0]) > metrics.snr(exact, at_ten[1]) + 6


def test_metrics():
    pytest.importorskip("skimage")
    truth = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert metrics.snr(truth, truth + torch.tensor([[0.5, 0.0], [0, 0]])) == pytest.approx(20.0)
    assert metrics.snr(truth, truth) == math.inf
    image = torch.rand(32, 32, generator=torch.Generator().manual_seed(0))
    assert metrics.ssim(image, image) == pytest.approx(1.0)
    assert metrics.ssim(image, 1 - image) < 0
    assert torch.equal(metrics.align(truth, -truth), truth)
    field = torch.polar(image, 3 * image)
    turned = field * torch.exp(torch.tensor(0.7j))
    torch.testing.assert_close(metrics.align(field, turned), field)
    for metric in (metrics.snr, metrics.ssim, metrics.align):
        with pytest.raises(ValueError, match="has shape"):
            metric(truth, truth[0])
    with pytest.raises(ValueError, match="constant image"):
        metrics.ssim(torch.ones(8, 8), torch.ones(8, 8))
    with pytest.raises(ValueError, match="zero everywhere"):
        metrics.snr(torch.zeros(3), torch.ones(3))
