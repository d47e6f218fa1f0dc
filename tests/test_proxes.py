"""Every prox against brute force, the Moreau identity, and the distance to the subdifferential."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from smadmm.problem import Prox
from smadmm.proxes import (
    L1,
    TV,
    Box,
    Denoised,
    ElasticNet,
    GroupL2,
    Modulus,
    Nonnegative,
    Simplex,
    Support,
    Zero,
    total_variation,
)

W = torch.tensor([0.2, 1.0, 0.0, 0.7, 0.4, 0.1], dtype=torch.float64)
LABELLED = GroupL2(0.6, labels=torch.tensor([0, 0, 2, 2, 2, 1]))
PRECISE_TV = TV(0.3, accuracy=1e-7, max_iterations=2_000)  # as many for every distance


def tv(y):
    """Isotropic TV of a 2 x 3 image given as a vector."""
    image = cp.reshape(y, (2, 3), order="C")
    down = cp.vstack([image[1:] - image[:-1], np.zeros((1, 3))])
    right = cp.hstack([image[:, 1:] - image[:, :-1], np.zeros((2, 1))])
    return cp.sum(cp.norm(cp.vstack([cp.vec(down, order="C"), cp.vec(right, order="C")]), 2, axis=0))


def groups(y, members):
    return sum(cp.norm(y[group]) for group in members)


# name: (penalty, its value in CVXPY, constraints in CVXPY, shape of y)
PENALTIES = {
    "zero": (Zero(), lambda y: 0, lambda y: [], (6,)),
    "l1": (L1(0.4), lambda y: 0.4 * cp.norm1(y), lambda y: [], (6,)),
    "weighted l1": (L1(W), lambda y: cp.norm1(cp.multiply(W.numpy(), y)), lambda y: [], (6,)),
    "elastic net": (ElasticNet(0.3, 2.0), lambda y: 0.3 * cp.norm1(y) + cp.sum_squares(y), lambda y: [], (6,)),
    "group axis": (GroupL2(0.6, axis=0), lambda y: 0.6 * groups(y, [[0, 3], [1, 4], [2, 5]]), lambda y: [], (2, 3)),
    "group labels": (LABELLED, lambda y: 0.6 * groups(y, [[0, 1], [2, 3, 4], [5]]), lambda y: [], (6,)),
    "box": (Box(-0.5, 0.25), lambda y: 0, lambda y: [y >= -0.5, y <= 0.25], (6,)),
    "nonnegative": (Nonnegative(), lambda y: 0, lambda y: [y >= 0], (6,)),
    "simplex": (Simplex(1.5), lambda y: 0, lambda y: [y >= 0, cp.sum(y) == 1.5], (6,)),
    "support": (Support(W > 0.3, 0.5), lambda y: 0, lambda y: [y[[0, 2, 5]] == 0.5], (6,)),
    "modulus": (Modulus(0.0, 0.8), lambda y: 0, lambda y: [cp.abs(y) <= 0.8], (6,)),
    "tv": (PRECISE_TV, lambda y: 0.3 * tv(y), lambda y: [], (2, 3)),
}  # fmt: skip


def random(seed, shape=(6,)):
    return 1.5 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("t", [0.3, 2.0])
def test_prox_equals_a_convex_solver(name, t):
    penalty, value, constraints, shape = PENALTIES[name]
    v = random(5, shape)
    y = cp.Variable(6)
    objective = value(y) + cp.sum_squares(y - v.numpy().ravel()) / (2 * t)
    cp.Problem(cp.Minimize(objective), constraints(y)).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    np.testing.assert_allclose(penalty.prox(v, t).numpy().ravel(), y.value, atol=2e-6)


@pytest.mark.parametrize("name", [n for n in PENALTIES if n != "tv"])
def test_prox_is_not_beaten_by_random_points(name):
    """Brute force: no point near the prox, or anywhere, has a lower value."""
    penalty, _, _, shape = PENALTIES[name]
    v, t = random(6, shape), 0.7
    y = penalty.prox(v, t)

    def value(z):
        return penalty.value(z) + float(((z - v) ** 2).sum()) / (2 * t)

    best = value(y)
    assert np.isfinite(best)
    for seed in range(300):
        for length in (1e-3, 0.1, 1.0):
            trial = y + length * random(100 + seed, shape)
            if penalty.indicator:
                trial = penalty.prox(trial, 1.0)
            assert value(trial) >= best - 1e-12


@pytest.mark.parametrize("name", PENALTIES)
def test_moreau_identity(name):
    """(v - prox(v)) / t is a subgradient at prox(v): its distance to the subdifferential is zero."""
    penalty, _, _, shape = PENALTIES[name]
    for seed in range(5):
        v, t = random(seed, shape), 0.8
        y = penalty.prox(v, t)
        assert penalty.distance(y, (v - y) / t, 1 / t).value < (1e-5 if name == "tv" else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", PENALTIES)
def test_subdifferential_distance_is_an_infimum(name):
    """dist(g, dh(y)) <= |g - s| for subgradients s, and it is reached where the subdifferential is one point."""
    penalty, _, _, shape = PENALTIES[name]
    y = penalty.prox(random(1, shape), 0.5)
    subgradient = (random(1, shape) - y) / 0.5
    for seed in range(10, 20):
        g = random(seed, shape)
        low, distance, high = penalty.distance(y, g, 2.0)
        assert 0 <= low <= distance <= high and distance <= float((g - subgradient).norm()) + 1e-6
        assert Prox.distance(penalty, y, g, 2.0).value <= high + 1e-6  # the residual is a lower bound, for convex h


def test_distances_in_known_cases():
    y, g = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([1.0, 0.9, -0.2])
    assert L1(0.5).subdifferential_distance(y, g) == pytest.approx((0.5**2 + 0.4**2 + 0.3**2) ** 0.5)
    assert Box(-1, 2).subdifferential_distance(y, g) == pytest.approx(0.9)
    assert Box(-1, 1).subdifferential_distance(y, g) == float("inf")
    assert ElasticNet(0.5, 1.0).subdifferential_distance(y, g) == pytest.approx((1.5**2 + 0.4**2 + 1.3**2) ** 0.5)
    corner = torch.tensor([1.0, 0.0, 0.0])
    assert Simplex().subdifferential_distance(corner, torch.tensor([0.0, -1.0, -2.0])) == pytest.approx(0, abs=1e-9)
    assert Simplex().subdifferential_distance(corner, torch.tensor([0.0, 1.0, -2.0])) == pytest.approx(0.5**0.5)
    pair = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert GroupL2(1.0).value(pair) == pytest.approx(5)
    g = torch.tensor([[0.6, 0.8], [3.0, 0.0]])
    assert GroupL2(1.0).subdifferential_distance(pair, g) == pytest.approx(2)


@pytest.mark.parametrize("penalty", [L1(0.5), ElasticNet(0.5, 1.0), GroupL2(0.5, axis=0)])
def test_complex_magnitudes_are_shrunk(penalty):
    v = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    y = penalty.prox(v, 0.7)
    assert y.dtype == v.dtype
    angles = torch.where(y == 0, v, y).angle()
    torch.testing.assert_close(angles, v.angle())
    assert penalty.subdifferential_distance(y, (v - y) / 0.7) < 1e-12


def test_tensor_steps_for_separable_penalties():
    v, t = random(3), torch.rand(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    for penalty in (L1(0.5), L1(W), ElasticNet(0.5, 2.0), Box(-0.2, 0.2)):
        expected = torch.stack([_single(penalty, i).prox(v[i : i + 1], float(t[i]))[0] for i in range(6)])
        torch.testing.assert_close(penalty.prox(v, t), expected)


def _single(penalty, i):
    return L1(W[i : i + 1]) if isinstance(penalty, L1) and isinstance(penalty.weight, torch.Tensor) else penalty


def test_tv_is_fast_enough_and_accurate_on_an_image(g):
    image = torch.zeros(64, 64)
    image[16:48, 20:50] = 1
    noisy = image + 0.1 * torch.randn(64, 64, generator=g)
    y = TV(0.1).prox(noisy, 1.0)
    exact = TV(0.1, accuracy=1e-6, max_iterations=4_000).prox(noisy.double(), 1.0)
    assert y.dtype == torch.float32
    assert float((y - exact).norm() / noisy.norm()) < 2e-4
    assert float((y - image).square().mean()) < 0.1 * float((noisy - image).square().mean())


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (7, 5), (2, 3, 40, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_tv_equals_torch(g, shape, dtype):
    v, errors = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype), []
    plain, compiled = total_variation._TorchDual(v, 0.3), total_variation._CompiledDual(v, 0.3)
    momentum = 1.0
    for _ in range(3):
        pulls, momentum = total_variation._pulls(momentum)
        expected, uphill = plain.advance(pulls), compiled.advance(pulls)
        (y, gap), (z, other) = plain.image_and_gap(), compiled.image_and_gap()
        assert z.shape == v.shape and z.dtype == dtype
        errors += [abs(uphill - expected) / float(v.square().sum()), abs(other - gap) / float(v.square().sum())]
        errors.append(float((y - z).abs().max()))
    assert max(errors) < 20 * torch.finfo(dtype).eps
    assert isinstance(total_variation._dual(v, 0.3), total_variation._CompiledDual)
    assert isinstance(total_variation._dual(v.half(), 0.3), total_variation._TorchDual)


@pytest.mark.parametrize("seed", range(3))
def test_tv_is_as_accurate_as_promised(seed):
    """Noise under so large a weight becomes its mean: there `accuracy` bounds |y - mean| / |v|."""
    v = torch.randn(24, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for accuracy in (0.1, 0.03, 0.01):
        y = TV(2.0, accuracy).prox(v, 1.0)
        assert 0 < float((y - v.mean()).norm() / v.norm()) <= accuracy


def test_tv_distances_in_known_cases(g):
    """Without flat pixels TV is differentiable; at a constant image the subgradients are w D'p, |p| <= 1."""
    y = torch.randn(7, 5, generator=g, dtype=torch.float64).requires_grad_()
    right, down = y[:, 1:] - y[:, :-1], y[1:] - y[:-1]
    inner = torch.hypot(right[:-1], down[:, :-1]).sum()
    (gradient,) = torch.autograd.grad(0.3 * (inner + right[-1].abs().sum() + down[:, -1].abs().sum()), y)
    direction = torch.randn(7, 5, generator=g, dtype=torch.float64)
    penalty, y = TV(0.3, accuracy=1e-12), y.detach()
    assert penalty.subdifferential_distance(y, gradient) == pytest.approx(0, abs=1e-12)
    assert penalty.subdifferential_distance(y, gradient + direction) == pytest.approx(float(direction.norm()))
    flat = torch.full((7, 5), 2.0, dtype=torch.float64)
    assert penalty.subdifferential_distance(flat, flat) == pytest.approx(2 * 35**0.5)  # constants are normal to D'
    step = torch.tensor([[1.0, -1.0]], dtype=torch.float64)  # = D'p with p = -1
    assert penalty.subdifferential_distance(0 * step, 0.2 * step) == pytest.approx(0, abs=1e-9)
    assert penalty.subdifferential_distance(0 * step, 0.5 * step) == pytest.approx(0.2 * 2**0.5)


def test_denoiser_is_a_prox_without_a_value():
    seen = []

    def denoiser(v):
        seen.append(tuple(v.shape))
        return 0.5 * v

    image = torch.ones(4, 6)
    assert torch.equal(Denoised(denoiser, image=True).prox(image, 7.0), 0.5 * image)
    assert torch.equal(Denoised(denoiser).prox(image, 7.0), 0.5 * image)
    assert seen == [(1, 1, 4, 6), (4, 6)]
    assert not hasattr(Denoised(denoiser), "value")


@pytest.mark.parametrize(
    "make", [lambda: L1(-1.0), lambda: L1(-W), lambda: TV(-0.1), lambda: GroupL2(-1), lambda: ElasticNet(1, -1)]
)
def test_negative_weights_are_refused(make):
    with pytest.raises(ValueError, match="must not be negative"):
        make()


def test_more_refusals():
    with pytest.raises(ValueError, match="lo <= hi"):
        Box(1.0, 0.0)
    with pytest.raises(ValueError, match="two axes"):
        TV(1.0).prox(torch.ones(5), 1.0)


def test_objects_that_only_turn_phases_or_lie_in_a_support():
    """Complex projections, their normals, and refusals."""
    y, g = torch.tensor([3 + 4j, 0.1j, 1 + 0j, 0j]), torch.tensor([0.6 + 0.8j, -1j, 1j, 0j])
    phases = Modulus(1.0, 1.0)
    there = phases.prox(y, 1.0)
    assert torch.allclose(there, torch.tensor([0.6 + 0.8j, 1j, 1 + 0j, 1 + 0j])) and phases.value(there) == 0
    assert not phases.convex and phases.value(y) == float("inf") == phases.subdifferential_distance(y, g)
    assert phases.subdifferential_distance(there, g) == pytest.approx(1.0)  # of the third alone: along the circle
    disc = Modulus(0.0, 1.0)
    assert disc.subdifferential_distance(there, g) == pytest.approx(2**0.5)  # no normal points inwards
    part = Support(torch.tensor([True, False, True, True]), 1.0)
    assert part.prox(y, 1.0).tolist() == [3 + 4j, 1, 1, 0]
    assert part.subdifferential_distance(part.prox(y, 1.0), g) == pytest.approx(2**0.5)
    with pytest.raises(ValueError, match="0 <= lo <= hi"):
        Modulus(2.0, 1.0)
    with pytest.raises(ValueError, match="True where the object is"):
        Support(torch.zeros(3))
