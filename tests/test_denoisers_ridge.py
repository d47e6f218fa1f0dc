"""The ridge potential: value, gradient, derivatives, and the certificate."""

import numpy as np
import pytest
import torch
from torch import Tensor

from smadmm.denoisers import GradientStep, Ridge, lipschitz
from smadmm.denoisers.ridge import mirrored, of_parity, repeated, spline_pieces, valid_gradient, valid_gradient_torch
from smadmm.denoisers.ridge_cpu import SIGNS
from smadmm.denoisers.training.ridge_parameters import RidgeParameters


def random_ridge(size: int = 3, seed: int = 0) -> Ridge:
    """Four filters alone, one of each parity, and two that stand for four each."""
    generator = torch.Generator().manual_seed(seed)
    filters, slopes = (
        torch.randn(6, *shape, generator=generator, dtype=torch.float64) for shape in ((size, size), (5,))
    )
    for n, signs in enumerate(SIGNS):
        filters[n] = of_parity(filters[n], *signs)
    return Ridge(filters, slopes, 0.3, singles=4)


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


@pytest.mark.parametrize("shape", [(9, 8), (5, 13), (2, 2), (3, 2)])
def test_gradient_is_the_derivative_of_the_value(shape: tuple[int, int]) -> None:
    potential, x = random_ridge(size=5), image(2, 1, *shape).requires_grad_()
    (expected,) = torch.autograd.grad(potential(x).sum(), x)
    torch.testing.assert_close(potential.gradient(x), expected, rtol=1e-12, atol=1e-12)


def test_value_agrees_with_finite_differences_of_nothing_but_itself() -> None:
    potential, x, d = random_ridge(), image(1, 1, 7, 6), image(1, 1, 7, 6, seed=1)
    slope = (potential(x + 1e-6 * d) - potential(x - 1e-6 * d)) / 2e-6
    torch.testing.assert_close(slope, (potential.gradient(x) * d).sum()[None], rtol=1e-6, atol=1e-6)


def test_value_is_the_integral_of_the_profile() -> None:
    """One filter of one pixel: g of an image of one pixel t is the area below phi from 0 to t."""
    potential = Ridge(torch.ones(1, 1, 1).double(), torch.tensor([[1.0, -0.5, 0.25]]).double(), 0.5, singles=1)
    t = np.linspace(0, 3, 301)
    phi = np.interp(t, [0, 0.5, 1.0, 1.5, 9], [0, 0.5, 0.25, 0.375, 0.375])
    area = np.concatenate([[0], np.cumsum(0.5 * (phi[1:] + phi[:-1]) * 0.01)])
    for sign in (1, -1):
        found = potential(torch.from_numpy(sign * t).reshape(-1, 1, 1, 1))
        np.testing.assert_allclose(found.detach(), area, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_compiled_values_are_those_of_torch(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    potential, x = random_ridge(), scale * image(2, 1, 23, 17)
    monkeypatch.setattr("smadmm.denoisers.ridge_cpu.STRIP", 40)
    with torch.no_grad():
        values = potential(x)
    assert values.shape == (2,) and values.dtype == x.dtype
    torch.testing.assert_close(values, potential(x).detach(), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_gradcheck_in_image_filters_and_slopes() -> None:
    potential, x = random_ridge(), image(2, 9, 8)

    def gradient(x: Tensor, filters: Tensor, slopes: Tensor) -> Tensor:
        alone = torch.stack([of_parity(w, *signs) for w, signs in zip(filters, SIGNS, strict=False)])
        return valid_gradient(x, torch.cat([alone, filters[4:]]), slopes, 0.3, 4)

    inputs = [t.detach().clone().requires_grad_() for t in (x, *potential.parameters())]
    assert torch.autograd.gradcheck(gradient, inputs)


def test_several_strips_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    potential, x = random_ridge(), image(2, 1, 23, 17).requires_grad_()
    wanted = (x, *potential.parameters())
    whole = torch.autograd.grad((potential.gradient(x) ** 2).sum(), wanted)
    monkeypatch.setattr("smadmm.denoisers.ridge_cpu.STRIP", 40)
    parts = torch.autograd.grad((potential.gradient(x) ** 2).sum(), wanted)
    torch.testing.assert_close(parts, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 12), (11, 7), (3, 2), (2, 2)])
def test_certificate_bounds_the_hessian_everywhere(shape: tuple[int, int]) -> None:
    potential = random_ridge(5)
    bound = potential.certificate()
    for seed, scale in enumerate((0.0, 0.05, 0.2, 1.0, 5.0)):
        h = hessian(potential, scale * image(1, 1, *shape, seed=seed))
        torch.testing.assert_close(h, h.T, rtol=1e-9, atol=1e-9)
        assert torch.linalg.matrix_norm(h, 2) <= bound


def test_certificate_holds_on_coarse_grids_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum between the points of the grid is covered by the factor, however few they are."""
    for seed in range(4):
        potential = random_ridge(5, seed)
        fine = potential.certificate()
        for grid in (10, 13, 16):
            with monkeypatch.context() as patch:
                patch.setattr("smadmm.denoisers.ridge.GRID", grid)
                assert potential.certificate() >= fine


def test_certificate_counts_falling_slopes_as_rising_ones() -> None:
    potential = random_ridge(5)
    with torch.no_grad():
        potential.slopes.abs_()
    rising = potential.certificate()
    with torch.no_grad():
        potential.slopes.neg_()
    assert potential.certificate() == pytest.approx(rising) and rising > 0


def test_at_zero_the_hessian_is_the_symbol_of_the_filters() -> None:
    """There it is a convolution, which cosines diagonalise: its norm is the symbol's maximum at theirs."""
    potential = random_ridge()
    with torch.no_grad():
        potential.slopes.abs_()
        potential.slopes[:, 0] = potential.slopes.amax(1)
    h = hessian(potential, torch.zeros(1, 1, 12, 12, dtype=torch.float64))
    filters, slopes = mirrored(potential.filters.detach(), 4), repeated(potential.slopes.detach(), 4)
    powers = torch.fft.fft2(filters, s=(24, 24)).abs()[:, :12, :12] ** 2
    symbol = torch.einsum("c,chw->hw", slopes[:, 0], powers)
    norm = torch.linalg.matrix_norm(h, 2)
    torch.testing.assert_close(norm, symbol.max(), rtol=1e-9, atol=0)
    assert norm == pytest.approx(potential.certificate(), rel=0.02)


def test_every_value_of_the_free_parameters_exports_below_one_and_bounded() -> None:
    for seed in range(5):
        free = RidgeParameters(24, 5, 5 / 255, means=seed % 3, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in free.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        potential = free.export()
        assert 0.5 < potential.certificate() <= 0.99 and potential.bounded_below
        centred = potential.filters[free.means :].mean((1, 2))
        assert centred.abs().max() < 1e-6


def test_a_profile_that_falls_for_ever_is_not_bounded_below() -> None:
    filters = torch.ones(1, 3, 3) / 9
    assert Ridge(filters, torch.tensor([[1.0, -1.0]]), 0.1, singles=1).bounded_below
    falling = Ridge(filters, torch.tensor([[1.0, -1.5]]), 0.1, singles=1)
    far = falling(torch.full((1, 1, 6, 6), 1000.0))
    assert not falling.bounded_below and far < 0


def test_certificate_is_above_what_is_measured_on_images() -> None:
    potential = RidgeParameters(16, 5, 5 / 255).export()
    x = torch.rand(1, 1, 40, 33, generator=torch.Generator().manual_seed(0))
    flat = torch.full((1, 1, 40, 33), 0.5)
    report = lipschitz(GradientStep(potential), [x, flat], iterations=60, tolerance=0.0)
    assert 0.8 < report.largest <= potential.certificate()


def with_margins(x: Tensor, margin: int) -> Tensor:
    """By NumPy: x with its mirror images around it."""
    return torch.from_numpy(np.pad(x.numpy(), [(0, 0), (0, 0), (margin, margin), (margin, margin)], "symmetric"))


@pytest.mark.parametrize(("size", "shape"), [(5, (10, 7)), (7, (2, 3))])
def test_images_are_continued_by_reflection(size: int, shape: tuple[int, int]) -> None:
    """The gradient is the middle of that of the image between its mirror images."""
    potential, x = random_ridge(size), image(2, 1, *shape)
    offset, slope = (repeated(table.detach(), 4) for table in spline_pieces(potential.slopes, 0.3))
    wide = valid_gradient_torch(with_margins(x, 7)[:, 0], mirrored(potential.filters.detach(), 4), offset, slope, 0.3)
    torch.testing.assert_close(potential.gradient(x)[:, 0], wide[:, 7:-7, 7:-7], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("axis", [-1, -2])
def test_symmetric_filters_denoise_a_mirrored_image_as_the_image(axis: int) -> None:
    potential, x = random_ridge(), image(1, 1, 9, 12)
    torch.testing.assert_close(potential.gradient(x.flip(axis)), potential.gradient(x).flip(axis))


def test_tiles_of_reflected_images_equal_the_whole() -> None:
    denoiser, x = GradientStep(random_ridge()), image(1, 2, 41, 30)
    torch.testing.assert_close(denoiser.tiled(x, tile=13), denoiser(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("filters", "size"), [(7, 3), (16, 5), (41, 7)], ids=["singles", "one octet", "octets"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_folded_products_equal_torch(
    filters: int, size: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = RidgeParameters(filters, size, 5 / 255, means=2)
    with torch.no_grad():
        free.slopes += 0.5 * torch.randn(free.slopes.shape, generator=torch.Generator().manual_seed(0))
    potential = free.export().to(dtype)
    x = torch.rand(2, 40, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    arguments = (x, potential.filters, potential.slopes, potential.spacing, potential.singles)
    found = []
    for strip in (1, 20_000, 10**6):
        monkeypatch.setattr("smadmm.denoisers.ridge_cpu.STRIP", strip)
        found.append(valid_gradient(*arguments))
    monkeypatch.setattr("smadmm.denoisers.ridge.find_spec", lambda name: None)
    slow = valid_gradient(*arguments)
    for fast in found:
        assert fast.dtype == dtype and (fast - slow).abs().max() < tolerance * slow.abs().max()


def test_folded_derivatives_equal_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the image and in all free parameters, which keep the filters symmetric."""
    free = RidgeParameters(25, 5, 5 / 255, means=2).double()
    with torch.no_grad():
        free.slopes += 0.5 * torch.randn(free.slopes.shape, generator=torch.Generator().manual_seed(0))
    y = torch.rand(2, 1, 30, 33, generator=torch.Generator().manual_seed(0)).double().requires_grad_()

    def derivatives() -> tuple[Tensor, ...]:
        return torch.autograd.grad((free.denoise_patches(y) ** 3).sum(), [y, *free.parameters()])

    fast = derivatives()
    monkeypatch.setattr("smadmm.denoisers.ridge.find_spec", lambda name: None)
    for one, other in zip(fast, derivatives(), strict=True):
        assert (one - other).abs().max() < 1e-11 * other.abs().max()


@pytest.mark.parametrize("singles", [-1, 2, 3])
def test_filters_that_stand_alone_without_parity_are_refused(singles: int) -> None:
    even, oblique = torch.ones(1, 3, 3), torch.tensor([[[1.0, 2.0, 0.0], [0, 0, 0], [0, 0, 0]]])
    filters = torch.cat([even, oblique])
    assert Ridge(filters, torch.ones(2, 4), 0.3, singles=1).certificate() > 0
    with pytest.raises(ValueError, match=f"the first {singles} of 2 filters must be there and be even or odd"):
        Ridge(filters, torch.ones(2, 4), 0.3, singles)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3)])
def test_filters_of_other_shapes_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"filters must be square and of odd size, got {shape[0]} x {shape[1]}"):
        Ridge(torch.ones(1, *shape), torch.ones(1, 4), 0.3, singles=1)


@pytest.mark.slow
def test_a_double_image_is_taken_by_single_weights_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    potential, x = random_ridge().float(), image(1, 1, 9, 8)
    fast = potential.gradient(x)
    monkeypatch.setattr("smadmm.denoisers.ridge.find_spec", lambda name: None)
    slow = potential.gradient(x)
    assert fast.dtype == slow.dtype == torch.float64
    assert (fast - slow).abs().max() < 1e-5 * slow.abs().max()
