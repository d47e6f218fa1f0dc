"""The DnCNN potential: gradient written out against autograd, unshuffled form, scaling."""

import pytest
import torch

from smadmm.denoisers import DnCNN

SIZES = pytest.mark.parametrize("unshuffle", [1, 2, 3])


@SIZES
@pytest.mark.parametrize("shape", [(8, 6), (7, 5)])
def test_gradient_equals_autograd(unshuffle: int, shape: tuple[int, int]) -> None:
    g = DnCNN(4, 5, unshuffle).double()
    x = torch.rand(2, 1, *shape, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(g(x).sum(), x)
    torch.testing.assert_close(g.gradient(x), expected, rtol=1e-12, atol=1e-12)


@SIZES
def test_value_and_gradient_pass_gradcheck(unshuffle: int) -> None:
    g = DnCNN(3, 4, unshuffle).double()
    x = torch.rand(1, 1, 6, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(g, (x,))
    assert torch.autograd.gradcheck(g.gradient, (x,))


def test_the_default_is_the_network_of_the_paper() -> None:
    g = DnCNN()
    shapes = [tuple(weight.shape) for weight in g.weights]
    assert shapes == [(64, 1, 3, 3)] + [(64, 64, 3, 3)] * 15 + [(1, 64, 3, 3)]


def test_scaling_scales_value_and_gradient() -> None:
    g, x = DnCNN(3, 4, 2), torch.rand(1, 1, 8, 8)
    value, gradient = g(x), g.gradient(x)
    g.scale_(0.3)
    torch.testing.assert_close(g(x), 0.3 * value)
    torch.testing.assert_close(g.gradient(x), 0.3 * gradient)


def test_reach_is_at_most_the_radius() -> None:
    g = DnCNN(3, 4, 2).double()
    x = torch.rand(1, 1, 40, 40, dtype=torch.float64)
    y = x.clone()
    y[..., 20, 20] += 1
    rows = (g.gradient(y) - g.gradient(x)).abs().amax(-1).flatten().nonzero()
    assert 4 < int((rows - 20).abs().max()) <= g.radius
