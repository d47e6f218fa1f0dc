"""lipschitz(): against dense Jacobians, for gradient steps and foreign modules."""

import pytest
import torch
from torch import Tensor, nn

from smadmm.denoisers import DnCNN, GradientStep, lipschitz


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
