"""D = I - grad g: sizes and types, relaxation, noise levels, tiles, and the proposition that D is a prox."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from smadmm import Problem
from smadmm.denoisers import DnCNN, GradientStep, lipschitz, load
from smadmm.denoisers.gradient_step import Potential
from smadmm.denoisers.training.ridge_parameters import RidgeParameters
from smadmm.losses import Logistic
from smadmm.proxes import Denoised

SIGMA = 25 / 255


def ridge() -> Potential:
    return RidgeParameters(12, 5, SIGMA).export()


def network() -> Potential:
    """A small network with Lip(grad g) about .8."""
    g = DnCNN(4, 6, unshuffle=2, seed=1).double()
    x = rand(1, 1, 16, 16).double()
    g.scale_(0.8 / lipschitz(GradientStep(g), [x], SIGMA).largest)
    return g


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


POTENTIALS = pytest.mark.parametrize("make", [ridge, network])


@POTENTIALS
@pytest.mark.parametrize("shape", [(1, 1, 17, 30), (2, 3, 9, 9), (1, 1, 2, 5), (1, 1, 31, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_size_batch_and_type(make: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    denoiser = GradientStep(make().to(dtype))  # type: ignore[operator]
    x = rand(*shape).to(dtype)
    y = denoiser(x)
    assert y.shape == x.shape and y.dtype == dtype
    one = torch.stack([torch.stack([denoiser(c[None, None])[0, 0] for c in image]) for image in x])
    torch.testing.assert_close(y, one, rtol=1e-5, atol=1e-5)


@POTENTIALS
def test_wrong_shapes_are_refused(make: object) -> None:
    denoiser = GradientStep(make().float())  # type: ignore[operator]
    with pytest.raises(ValueError, match="at least 2 pixels wide and high, got 20 x 1"):
        denoiser(rand(1, 1, 20, 1))
    with pytest.raises(ValueError, match=r"B x C x H x W, got shape \(20, 20\)"):
        denoiser(rand(20, 20))


@POTENTIALS
def test_is_identity_minus_the_gradient_of_the_potential(make: object) -> None:
    denoiser = GradientStep(make().double()).relax(0.7)  # type: ignore[operator]
    x = rand(2, 2, 9, 8).double().requires_grad_()
    (gradient,) = torch.autograd.grad(denoiser.potential(x).sum(), x)
    torch.testing.assert_close(denoiser(x), x - gradient, rtol=1e-10, atol=1e-12)


@POTENTIALS
def test_relaxation_scales_the_step_and_its_lipschitz_constant(make: object) -> None:
    denoiser = GradientStep(make().double(), lipschitz=0.9)  # type: ignore[operator]
    x = rand(1, 1, 9, 8).double()
    relaxed = denoiser.relax(0.5).relax(0.5)
    torch.testing.assert_close(relaxed(x), x + (denoiser(x) - x) / 4)
    assert relaxed.lipschitz == pytest.approx(0.225)
    with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\], got 1.5"):
        denoiser.relax(1.5)


@POTENTIALS
def test_another_noise_level_rescales_the_image(make: object) -> None:
    denoiser = GradientStep(make().double(), sigma=SIGMA)  # type: ignore[operator]
    x = rand(1, 1, 9, 8).double().requires_grad_()
    torch.testing.assert_close(denoiser(x, 3 * SIGMA), 3 * denoiser(x / 3))
    torch.testing.assert_close(denoiser(x, SIGMA), denoiser(x))
    (gradient,) = torch.autograd.grad(denoiser.potential(x, 3 * SIGMA).sum(), x)
    torch.testing.assert_close(denoiser(x, 3 * SIGMA), x - gradient)
    with pytest.raises(ValueError, match="does not know the level"):
        GradientStep(denoiser.g)(x, 0.1)


@POTENTIALS
@pytest.mark.parametrize("shape", [(61, 50), (41, 33)])
def test_tiles_equal_the_whole(make: object, shape: tuple[int, int]) -> None:
    denoiser = GradientStep(make().double())  # type: ignore[operator]
    x = rand(1, 2, *shape).double()
    torch.testing.assert_close(denoiser.tiled(x, tile=20), denoiser(x), rtol=1e-10, atol=1e-12)
    rough = denoiser.tiled(x, tile=20, overlap=2)
    assert (rough - denoiser(x)).abs().max() > 1e-9  # too little overlap shows


def inverse(denoiser: GradientStep, y: Tensor) -> Tensor:
    """D^{-1}(y): z = y + grad g(z) contracts."""
    z = y
    for _ in range(150):
        z = y + denoiser.gradient(z)
    torch.testing.assert_close(denoiser(z), y, rtol=0, atol=1e-11)
    return z


def phi(denoiser: GradientStep, y: Tensor) -> Tensor:
    z = inverse(denoiser, y)
    return denoiser.potential(z) - (z - y).square().sum() / 2


@pytest.mark.slow
@POTENTIALS
def test_the_denoiser_is_the_prox_of_phi(make: object) -> None:
    potential = make().double()  # type: ignore[operator]
    denoiser = GradientStep(potential).requires_grad_(False)
    if hasattr(potential, "slopes"):
        potential.slopes.data *= 0.8 / potential.certificate()
    x = rand(1, 1, 8, 8).double()
    y = denoiser(x).detach()
    torch.testing.assert_close(phi(denoiser, y), denoiser.potential(x) - (x - y).square().sum() / 2)
    at_prox = phi(denoiser, y) + (y - x).square().sum() / 2
    for seed in range(4):
        d = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        d = d / d.norm()
        slope = (phi(denoiser, y + 1e-4 * d) - phi(denoiser, y - 1e-4 * d)) / 2e-4
        assert float(slope + ((y - x) * d).sum()) == pytest.approx(0, abs=1e-5)  # y is critical
        for step in (0.01, 0.1, 0.3):
            other = y + step * d
            assert float(phi(denoiser, other) + (other - x).square().sum() / 2) > float(at_prox)


def test_a_known_lipschitz_constant_of_one_or_more_is_warned_of_once() -> None:
    big, unknown, fine = (GradientStep(ridge(), lipschitz=bound) for bound in (1.25, None, 0.99))
    with pytest.warns(UserWarning, match=r"Lip\(I - D\) = 1.250 of this denoiser is not below 1") as caught:
        prior = Denoised(big, image=True)
    assert len(caught) == 1
    for _ in range(3):
        prior.prox(rand(8, 8), 1.0)  # no further warning: they are errors
    for denoiser in (unknown, fine, big.relax(0.7), torch.relu):
        Denoised(denoiser)


@pytest.mark.parametrize("name", ["ridge-natural", "unshuffled-natural"])
def test_images_of_either_precision_on_weights_of_either(name: str) -> None:
    single, double = load(name), load(name).double()
    x = torch.rand(2, 1, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = double(x)
    for denoiser, image in ((single, x), (single, x.float()), (double, x.float())):
        assert denoiser(image).dtype == image.dtype and denoiser.potential(image).dtype == image.dtype
        torch.testing.assert_close(denoiser(image).double(), exact, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"real numbers in \[0, 1\], got torch.uint8"):
        single((255 * x).byte())


def test_a_noise_level_for_every_image() -> None:
    denoiser, x = load("ridge-natural"), rand(2, 3, 9, 8).float()
    levels = torch.tensor([0.01, 0.04])
    both = denoiser(x, levels)
    for n, level in enumerate(levels):
        torch.testing.assert_close(both[n], denoiser(x[n : n + 1], float(level))[0])
        expected = denoiser.potential(x[n : n + 1], float(level))[0]
        torch.testing.assert_close(denoiser.potential(x, levels)[n], expected)
    torch.testing.assert_close(denoiser(x, torch.tensor(0.02)), denoiser(x, 0.02))
    for wrong in (0.0, -0.1, torch.ones(3)):
        with pytest.raises(ValueError, match="sigma must be positive, one number or one for each of 2 images"):
            denoiser(x, wrong)


def test_tiles_of_images_on_disk(tmp_path: Path) -> None:
    denoiser = load("unshuffled-natural")
    x, out = (
        torch.from_numpy(np.memmap(tmp_path / name, np.float32, "w+", shape=(1, 1, 61, 50))) for name in ("x", "out")
    )
    x.copy_(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)))
    assert denoiser.tiled(x, 20, out=out) is out
    torch.testing.assert_close(out, denoiser(x), rtol=0, atol=1e-6)
    assert denoiser.tiled(x, 20, overlap=0).isfinite().all()  # the last tile is a line of pixels
    for tile, overlap in ((0, 4), (20, -4)):
        with pytest.raises(ValueError, match=f"no negative overlap, got {tile} and {overlap}"):
            denoiser.tiled(x, tile, overlap)
    with pytest.raises(ValueError, match="out must be torch.float32 of"):
        denoiser.tiled(x, out=out.double())


def test_a_bare_denoiser_and_one_that_changes_the_size_are_refused() -> None:
    with pytest.raises(TypeError, match=r"wrap a denoiser in Denoised\(...\)"):
        Problem(Logistic(torch.eye(4), torch.ones(4)), load("ridge-natural"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"made shape \(1, 1, 3, 3\) of \(1, 1, 4, 4\); it must keep"):
        Denoised(lambda x: x[..., 1:, 1:], image=True).prox(rand(4, 4), 1.0)
    with pytest.raises(
        ValueError, match=r"made shape \(1, 1, 3, 4\) of \(1, 1, 4, 3\)"
    ):  # as many pixels, another image
        Denoised(lambda x: x.mT, image=True).prox(rand(4, 3), 1.0)


class Smoothed(torch.nn.Module):
    """An ordinary module, with a weight to be learned; no gradient written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        squares = x.diff(dim=-1).square().sum((1, 2, 3)) + x.diff(dim=-2).pow(4).sum((1, 2, 3))
        return self.weight * squares / 4


def test_an_ordinary_module_is_differentiated_automatically() -> None:
    g = Smoothed()
    denoiser = GradientStep(g)
    x = rand(2, 2, 6, 7).double().requires_grad_()
    (gradient,) = torch.autograd.grad(denoiser.potential(x).sum(), x)
    y = denoiser(x)
    torch.testing.assert_close(y, x - gradient, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(denoiser, (x,))
    (of_weight,) = torch.autograd.grad(y.square().sum(), g.weight)
    with torch.no_grad():
        assert torch.equal(denoiser(x), y)
        g.weight += 1e-6
        rise = (denoiser(x).square().sum() - y.square().sum()) / 1e-6
    torch.testing.assert_close(of_weight, rise, rtol=1e-4, atol=0)
    frozen = GradientStep(Smoothed()).requires_grad_(False)
    assert not frozen(x.detach()).requires_grad
    x = x.detach()
    report = lipschitz(frozen, [x[:1]], 0.01)
    hessian = torch.autograd.functional.hessian(lambda z: frozen.g(z.view(2, 1, 6, 7)).sum(), x[:1].flatten())
    assert report.clean[0] == pytest.approx(float(torch.linalg.matrix_norm(hessian, 2)), rel=1e-4)


def test_tiles_of_an_ordinary_module_need_an_overlap() -> None:
    denoiser, x = GradientStep(Smoothed()).requires_grad_(False), rand(1, 1, 20, 21).double()
    with pytest.raises(ValueError, match="does not say how far its gradient reaches .`radius`.; pass the overlap"):
        denoiser.tiled(x, 8)
    torch.testing.assert_close(denoiser.tiled(x, 8, overlap=1), denoiser(x), rtol=0, atol=1e-15)


def test_a_potential_that_is_no_value_for_each_image_is_refused() -> None:
    denoiser = GradientStep(lambda x: x.square().sum())
    with pytest.raises(ValueError, match=r"one value for each of 2 images, got shape \(\)"):
        denoiser(rand(2, 1, 5, 5))
    with pytest.raises(ValueError, match=r"one value for each of 3 images, got shape \(3, 5, 5\)"):
        GradientStep(lambda x: x[:, 0].square()).potential(rand(1, 3, 5, 5))


def test_floats_of_bytes_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"takes images in \[0, 1\], got a mean of .*; divide images of 0..255 by 255"):
        load("ridge-natural")(255 * torch.rand(1, 1, 8, 8))


def test_arrays_bytes_levels_and_names_are_refused_with_the_cure() -> None:
    denoiser = load("ridge-natural")
    with pytest.raises(TypeError, match="takes tensors, got ndarray; use torch.from_numpy"):
        denoiser(np.zeros((1, 1, 8, 8)))
    with pytest.raises(ValueError, match=r"sigma = 15 is more than images in \[0, 1\] can bear; .* sigma / 255"):
        denoiser(rand(1, 1, 8, 8), 15)
    with pytest.raises(ValueError, match="set image=True in Denoised"):
        Denoised(denoiser).prox(rand(8, 8), 1.0)
    with pytest.raises(TypeError, match=r"got 'ridge-ct'; load a shipped one by smadmm.denoisers.load"):
        Denoised("ridge-ct")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the denoiser made ndarray of a tensor"):
        Denoised(lambda x: x.numpy()).prox(rand(8, 8), 1.0)  # type: ignore[arg-type, return-value]
