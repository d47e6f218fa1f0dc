"""torch.func through everything that is shipped: vjp, jvp, vmap and jacrev against plain autograd and products."""

import numpy as np
import pytest
import torch
from torch.func import jacrev, jvp, vjp, vmap

from smadmm.denoisers import load, shipped
from smadmm.operators import CodedDiffraction, FanBeam, Radon, circle_masks

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
SIZE = 6
ANGLES = np.arange(4) * np.pi / 4


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", shipped())
def test_denoisers(name):
    pytest.importorskip("safetensors")
    D = load(name)
    x, v, other = 0.5 + 0.1 * randn(1, 1, SIZE, SIZE), randn(1, 1, SIZE, SIZE, seed=1), torch.rand(1, 1, SIZE, SIZE)
    leaf = x.clone().requires_grad_()
    (pulled,) = torch.autograd.grad(D(leaf), leaf, v)
    y, pull = vjp(D, x)
    torch.testing.assert_close(y, D(x))
    torch.testing.assert_close(pull(v)[0], pulled)
    torch.testing.assert_close(jvp(D, (x,), (v,))[1], pulled, rtol=1e-3, atol=1e-5)  # gradient fields: J = J'
    torch.testing.assert_close(vmap(D)(torch.stack([x, other])), torch.stack([D(x), D(other)]))
    J = jacrev(D)(x).reshape(SIZE**2, SIZE**2)
    torch.testing.assert_close(J @ v.flatten(), pulled.flatten(), rtol=1e-3, atol=1e-5)
    points = torch.stack([x, other])
    torch.testing.assert_close(vmap(jacrev(D))(points)[0], jacrev(D)(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "A",
    [
        Radon(SIZE, ANGLES),
        FanBeam(SIZE, 2 * ANGLES, 9, source_to_axis=20, source_to_detector=30),
        CodedDiffraction(circle_masks(3, (SIZE, SIZE))),
    ],
    ids=lambda A: type(A).__name__,
)
def test_operators(A):
    x, other = randn(SIZE, SIZE), randn(SIZE, SIZE, seed=1)
    y, pull = vjp(A, x)
    torch.testing.assert_close(y, A(x))
    torch.testing.assert_close(pull(A(other))[0], A.T(A(other)))
    torch.testing.assert_close(jvp(A, (x,), (other,))[1], A(other))
    torch.testing.assert_close(vmap(A)(torch.stack([x, other])), torch.stack([A(x), A(other)]))

    def real(x):  # jacrev is defined for real numbers alone
        return torch.view_as_real(A(x)) if A(x).is_complex() else A(x)

    J = jacrev(real)(x)
    torch.testing.assert_close((J * other).sum((-2, -1)), real(other))


def test_what_is_not_served_is_said():
    pytest.importorskip("numba")
    D = load("ridge-ct")
    weights = {name: p.detach() for name, p in D.named_parameters()}
    x = torch.rand(1, 1, SIZE, SIZE)

    def of_weights(w):
        return torch.func.functional_call(D, w, (x,))

    with pytest.raises(RuntimeError, match="those in the image, not in its weights"):
        jvp(of_weights, (weights,), (weights,))
    with pytest.raises(RuntimeError, match="over the weights of a ridge potential it is not"):
        vmap(of_weights)({name: torch.stack([p, p]) for name, p in weights.items()})
