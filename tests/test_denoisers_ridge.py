"""The ridge potential: value, gradient, derivatives, and the certificate."""

import numpy as np
import pytest
import torch
from torch import Tensor

from smadmm.denoisers import GradientStep, Ridge, lipschitz
from smadmm.denoisers.ridge import (
    RidgeParameters,
    composed,
    scale_gradient,
    spline_pieces,
)


def random_ridge(filters: int = 6, size: int = 3, knots: int = 5, scales: tuple[int, ...] = ()) -> Ridge:
    generator = torch.Generator().manual_seed(filters + size)
    w = torch.randn(filters, size, size, generator=generator, dtype=torch.float64)
    return Ridge(w, torch.randn(filters, knots, generator=generator, dtype=torch.float64), 0.3, scales)


SCALES = pytest.mark.parametrize("scales", [(6,), (3, 3), (2, 0, 4)])


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


@SCALES
@pytest.mark.parametrize("shape", [(9, 8), (5, 13), (2, 2), (3, 2)])
def test_gradient_is_the_derivative_of_the_value(shape: tuple[int, int], scales: tuple[int, ...]) -> None:
    potential, x = random_ridge(size=5, scales=scales), image(2, 1, *shape).requires_grad_()
    (expected,) = torch.autograd.grad(potential(x).sum(), x)
    torch.testing.assert_close(potential.gradient(x), expected, rtol=1e-12, atol=1e-12)


@SCALES
def test_value_agrees_with_finite_differences_of_nothing_but_itself(scales: tuple[int, ...]) -> None:
    potential, x, d = random_ridge(scales=scales), image(1, 1, 7, 6), image(1, 1, 7, 6, seed=1)
    slope = (potential(x + 1e-6 * d) - potential(x - 1e-6 * d)) / 2e-6
    torch.testing.assert_close(slope, (potential.gradient(x) * d).sum()[None], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_gradcheck_in_image_filters_and_slopes(d: int) -> None:
    potential, x = random_ridge(4, 3), image(2, 11, 12)

    def gradient(x: Tensor, filters: Tensor, slopes: Tensor) -> Tensor:
        return scale_gradient(x, filters, slopes, 0.3, d)

    inputs = [t.detach().clone().requires_grad_() for t in (x, potential.filters, potential.slopes)]
    assert torch.autograd.gradcheck(gradient, inputs)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_compiled_equals_torch(dtype: torch.dtype, tolerance: float, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    potential = RidgeParameters(10, 5, 5 / 255).export().to(dtype)
    x = torch.rand(2, 90, 70, generator=torch.Generator().manual_seed(0)).to(dtype)
    fast = scale_gradient(x, potential.filters, potential.slopes, potential.spacing, d)
    monkeypatch.setattr("smadmm.denoisers.ridge.find_spec", lambda name: None)
    slow = scale_gradient(x, potential.filters, potential.slopes, potential.spacing, d)
    assert fast.dtype == dtype
    assert (fast - slow).abs().max() < tolerance * slow.abs().max()


def test_coarse_filters_are_the_composed_ones() -> None:
    potential, x = random_ridge(scales=(2, 3, 1)), image(1, 1, 14, 15)
    plain = Ridge(composed(potential.filters, potential.scales).detach(), potential.slopes.detach(), 0.3)
    torch.testing.assert_close(potential.gradient(x), plain.gradient(x), rtol=1e-11, atol=1e-11)
    assert potential.certificate() == pytest.approx(plain.certificate(), rel=1e-12)
    assert potential.radius == plain.radius == 10


def test_scales_must_add_up() -> None:
    with pytest.raises(ValueError, match=r"scales = \(2, 3\) must add up to the number of filters, 6"):
        random_ridge(scales=(2, 3))


def test_several_strips_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    potential, x = random_ridge(), image(1, 1, 23, 17)
    whole = potential.gradient(x)
    monkeypatch.setattr("smadmm.denoisers.ridge.STRIP", 40)
    torch.testing.assert_close(potential.gradient(x), whole, rtol=1e-12, atol=1e-12)


@SCALES
@pytest.mark.parametrize("shape", [(12, 12), (11, 7), (4, 3)])
def test_certificate_bounds_the_hessian_everywhere(shape: tuple[int, int], scales: tuple[int, ...]) -> None:
    potential = random_ridge(6, 5, scales=scales)
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
        free = RidgeParameters(7, 5, 5 / 255, means=seed % 3, seed=seed, coarse=seed % 4, dilation=2 + seed % 2)
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
