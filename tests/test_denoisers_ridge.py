"""The ridge potential: value, gradient, derivatives, and the certificate."""

import numpy as np
import pytest
import torch
from torch import Tensor

from smadmm.denoisers import GradientStep, Ridge, lipschitz
from smadmm.denoisers.ridge import spline_pieces, valid_gradient
from smadmm.denoisers.ridge_training import RidgeParameters


def random_ridge(filters: int = 6, size: int = 3, knots: int = 5, pool: int = 1) -> Ridge:
    generator = torch.Generator().manual_seed(filters + size)
    w, slopes, logits = (
        torch.randn(filters, *shape, generator=generator, dtype=torch.float64)
        for shape in ((size, size), (knots,), (2, pool))
    )
    return Ridge(w, slopes, 0.3, None if pool == 1 else logits.softmax(-1))


POOLS = pytest.mark.parametrize("pool", [1, 2, 5])


def image(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hessian(potential: Ridge, x: Tensor) -> Tensor:
    full = torch.autograd.functional.jacobian(lambda z: potential.gradient(z.view_as(x)).flatten(), x.flatten())
    return full


def test_profile_is_odd_continuous_and_has_the_given_slopes() -> None:
    slopes = torch.tensor([[1.0, -0.5, 0.25]], dtype=torch.float64)
    offset, slope = spline_pieces(slopes, 0.5)
    t = np.linspace(-3, 3, 601)
    piece = np.clip(t / 0.5 + 4, 0, 7).astype(int)
    phi = offset[0].numpy()[piece] + slope[0].numpy()[piece] * t
    expected = np.interp(np.abs(t), [0, 0.5, 1.0, 1.5, 9], [0, 0.5, 0.25, 0.375, 0.375]) * np.sign(t)
    np.testing.assert_allclose(phi, expected, atol=1e-12)


@POOLS
@pytest.mark.parametrize("shape", [(9, 8), (5, 13), (2, 2), (3, 2)])
def test_gradient_is_the_derivative_of_the_value(shape: tuple[int, int], pool: int) -> None:
    potential, x = random_ridge(size=5, pool=pool), image(2, 1, *shape).requires_grad_()
    (expected,) = torch.autograd.grad(potential(x).sum(), x)
    torch.testing.assert_close(potential.gradient(x), expected, rtol=1e-12, atol=1e-12)


@POOLS
def test_value_agrees_with_finite_differences_of_nothing_but_itself(pool: int) -> None:
    potential, x, d = random_ridge(pool=pool), image(1, 1, 7, 6), image(1, 1, 7, 6, seed=1)
    slope = (potential(x + 1e-6 * d) - potential(x - 1e-6 * d)) / 2e-6
    torch.testing.assert_close(slope, (potential.gradient(x) * d).sum()[None], rtol=1e-6, atol=1e-6)


@POOLS
def test_gradcheck_in_image_filters_slopes_and_pools(pool: int) -> None:
    potential, x = random_ridge(4, 3, pool=pool), image(2, 11, 12)

    def gradient(x: Tensor, filters: Tensor, slopes: Tensor, *pools: Tensor) -> Tensor:
        return valid_gradient(x, filters, slopes, pools[0] if pools else None, 0.3)

    inputs = [t.detach().clone().requires_grad_() for t in (x, *potential.parameters())]
    assert torch.autograd.gradcheck(gradient, inputs)


@POOLS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_compiled_equals_torch(
    dtype: torch.dtype, tolerance: float, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    potential = RidgeParameters(10, 5, 5 / 255, pool=pool).export().to(dtype)
    x = torch.rand(2, 90, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    arguments = (x, potential.filters, potential.slopes, potential.pools, potential.spacing)
    fast = valid_gradient(*arguments)
    monkeypatch.setattr("smadmm.denoisers.ridge.find_spec", lambda name: None)
    slow = valid_gradient(*arguments)
    assert fast.dtype == dtype
    assert (fast - slow).abs().max() < tolerance * slow.abs().max()


def test_a_pool_of_one_pixel_is_none() -> None:
    plain, x = random_ridge(), image(1, 1, 9, 8)
    pooled = Ridge(plain.filters.detach(), plain.slopes.detach(), 0.3, torch.ones(6, 2, 1, dtype=torch.float64))
    torch.testing.assert_close(pooled.gradient(x), plain.gradient(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pooled(x), plain(x), rtol=1e-12, atol=1e-12)
    assert pooled.certificate() == plain.certificate() and pooled.radius == plain.radius == 2


@pytest.mark.parametrize("weights", [(0.5, 0.6), (1.5, -0.5)])
def test_pools_that_do_not_average_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"weights of a pool must be >= 0 and sum up to 1"):
        Ridge(torch.ones(1, 3, 3), torch.ones(1, 4), 0.3, torch.tensor([[weights, (0.5, 0.5)]]))


@POOLS
def test_several_bands_and_strips_equal_one(pool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    potential, x = random_ridge(pool=pool), image(2, 1, 23, 17).requires_grad_()
    wanted = (x, *potential.parameters())
    whole = torch.autograd.grad((potential.gradient(x) ** 2).sum(), wanted)
    monkeypatch.setattr("smadmm.denoisers.ridge_cpu.STRIP", 40)
    monkeypatch.setattr("smadmm.denoisers.ridge_cpu.BAND", 5)
    parts = torch.autograd.grad((potential.gradient(x) ** 2).sum(), wanted)
    torch.testing.assert_close(parts, whole, rtol=1e-11, atol=1e-11)


@POOLS
@pytest.mark.parametrize("shape", [(12, 12), (11, 7), (4, 3)])
def test_certificate_bounds_the_hessian_everywhere(shape: tuple[int, int], pool: int) -> None:
    potential = random_ridge(6, 5, pool=pool)
    bound = potential.certificate()
    for seed, scale in enumerate((0.0, 0.05, 0.2, 1.0, 5.0)):
        h = hessian(potential, scale * image(1, 1, *shape, seed=seed))
        torch.testing.assert_close(h, h.T, rtol=1e-9, atol=1e-9)
        assert torch.linalg.matrix_norm(h, 2) <= bound


def test_certificate_is_tight_where_all_profiles_are_at_their_steepest() -> None:
    potential = random_ridge(5, 3)
    with torch.no_grad():
        potential.slopes.abs_()
        potential.slopes[:, 0] = potential.slopes.amax(1)
    h = hessian(potential, torch.zeros(1, 1, 24, 24, dtype=torch.float64))
    assert torch.linalg.matrix_norm(h, 2) == pytest.approx(potential.certificate(), rel=0.02)


def test_every_value_of_the_free_parameters_exports_below_one_and_bounded() -> None:
    for seed in range(5):
        free = RidgeParameters(7, 5, 5 / 255, means=seed % 3, seed=seed, pool=1 + seed % 3)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in free.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        potential = free.export()
        assert 0.5 < potential.certificate() <= 0.99 and potential.bounded_below
        centred = potential.filters[free.means :].mean((1, 2))
        assert centred.abs().max() < 1e-6


def test_a_profile_that_falls_for_ever_is_not_bounded_below() -> None:
    filters = torch.eye(3)[None] / 3
    assert Ridge(filters, torch.tensor([[1.0, -1.0]]), 0.1).bounded_below
    falling = Ridge(filters, torch.tensor([[1.0, -1.5]]), 0.1)
    far = falling(torch.full((1, 1, 6, 6), 1000.0))
    assert not falling.bounded_below and far < 0


def test_certificate_is_above_what_is_measured_on_images() -> None:
    potential = RidgeParameters(16, 5, 5 / 255).export()
    x = torch.rand(1, 1, 40, 33, generator=torch.Generator().manual_seed(0))
    flat = torch.full((1, 1, 40, 33), 0.5)
    report = lipschitz(GradientStep(potential), [x, flat], iterations=60, tolerance=0.0)
    assert 0.8 < report.largest <= potential.certificate()
