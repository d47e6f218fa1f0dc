"""lipschitz(): against dense Jacobians, for gradient steps and foreign modules."""

import pytest
import torch
from torch import Tensor, nn

from smadmm.denoisers import DnCNN, GradientStep, lipschitz, load
from smadmm.proxes import Denoised


class Linear(nn.Module):
    """x -> x - M x on 1 x 1 x 6 x 6 images."""

    def __init__(self) -> None:
        super().__init__()
        self.m = torch.randn(36, 36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return x - (x.flatten(1) @ self.m.T).view_as(x)


def test_foreign_unsymmetric_module() -> None:
    module = Linear()
    images = [torch.rand(2, 1, 6, 6, dtype=torch.float64)]
    report = lipschitz(module, images, iterations=36, tolerance=0.0)
    expected = float(torch.linalg.matrix_norm(module.m, 2))
    assert report.values == pytest.approx([expected] * 6, rel=1e-8)


def test_gradient_step_against_the_dense_hessian_and_remembered() -> None:
    denoiser = GradientStep(DnCNN(3, 4, 2).double())
    x = torch.rand(1, 1, 7, 6, dtype=torch.float64)
    report = lipschitz(denoiser, [x], iterations=42, tolerance=0.0)
    dense = torch.autograd.functional.jacobian(lambda z: denoiser.gradient(z.view_as(x)).flatten(), x.flatten())
    assert report.clean[0] == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-8)
    assert denoiser.lipschitz == report.largest


def test_kinds_and_histogram() -> None:
    denoiser = GradientStep(DnCNN(3, 4))
    report = lipschitz(denoiser, [torch.rand(1, 1, 8, 8), torch.rand(1, 1, 9, 6)], iterations=5)
    assert len(report.clean) == len(report.between) == len(report.noisy) == 2
    assert report.histogram(4).count("#") == 6


def test_the_measured_value_rises_with_iterations_towards_the_truth() -> None:
    module = Linear()
    images = [torch.rand(1, 1, 6, 6, dtype=torch.float64)]
    few, many = (lipschitz(module, images, iterations=n, tolerance=0.0).clean[0] for n in (3, 12))
    assert few < many <= float(torch.linalg.matrix_norm(module.m, 2)) + 1e-9


def test_a_ridge_inside_another_module_is_measured_like_itself() -> None:
    """Its Jacobian is found by differentiating the compiled gradient twice."""
    denoiser = load("ridge-natural").double()
    x = torch.rand(1, 1, 6, 5, dtype=torch.float64)
    dense = torch.autograd.functional.jacobian(lambda z: denoiser.gradient(z.view_as(x)).flatten(), x.flatten())
    wrapped = lipschitz(nn.Sequential(denoiser), [x], sigma=0.0, iterations=30, tolerance=0.0)
    assert wrapped.clean[0] == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-8)


def test_every_kind_of_point_has_a_start_of_its_own() -> None:
    """From the top vector of the clean image the method would stay near it."""

    class Turning(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bright = (x[..., 0, 0] > 0).double()
            scale = torch.ones_like(x)
            scale[..., 1, 1], scale[..., 2, 2] = 1 - 0.5 * (1 - bright), 1 - 0.9 * bright
            return x - x * (1 - scale)

    x = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    for seed in range(8):  # of which some noise is positive in the corner
        report = lipschitz(Turning(), [x], sigma=1.0, iterations=9, seed=seed)
        assert report.clean[0] == pytest.approx(0.5) and report.noisy[0] in (pytest.approx(0.5), pytest.approx(0.9))
    assert max(lipschitz(Turning(), [x], sigma=1.0, seed=seed).noisy[0] for seed in range(8)) == pytest.approx(0.9)


def test_what_cannot_be_measured_is_refused() -> None:
    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach() / 2

    x = torch.rand(1, 1, 4, 4)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        lipschitz(Detached(), [x])
    with pytest.raises(ValueError, match="image 1 has values that are not finite"):
        lipschitz(GradientStep(DnCNN(2, 2)), [x, x * torch.nan])
    with pytest.raises(ValueError, match="at least one image and one iteration, got 0 and 40"):
        lipschitz(GradientStep(DnCNN(2, 2)), [])
    with pytest.raises(ValueError, match="the Jacobian is not finite"):
        lipschitz(lambda y: y / (y - y), [x])


def test_modules_are_measured_in_evaluation_mode_and_left_as_they_were() -> None:
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.BatchNorm2d(1).eval())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = lipschitz(module, [torch.rand(2, 1, 4, 4)], iterations=16)
    assert [part.training for part in module] == [True, True, False]
    assert module.training and all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert report.largest < 1e-4  # batch normalisation of unit statistics is nearly the identity


def test_noise_is_that_of_the_denoiser() -> None:
    denoiser, x = load("ridge-natural-25"), torch.rand(1, 1, 12, 12)
    assert lipschitz(denoiser, [x]) == lipschitz(denoiser, [x], sigma=25 / 255) != lipschitz(denoiser, [x], sigma=0.01)


def test_a_foreign_module_keeps_its_value_and_a_prior_made_before_warns_once() -> None:
    class Tripled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -2 * x

    module = Tripled()
    prior, x = Denoised(module, image=True), torch.rand(4, 4)
    prior.prox(x, 1.0)
    assert lipschitz(module, [x[None, None]]).largest == pytest.approx(3)
    with pytest.warns(UserWarning, match=r"Lip\(I - D\) = 3.000"):
        prior.prox(x, 1.0)
    prior.prox(x, 1.0)  # no further warning: they are errors
