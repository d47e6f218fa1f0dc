"""Coded diffraction and its losses: zeros, compiled kernels, data on disk, and retrieval with every method."""

import h5py
import numpy as np
import pytest
import torch

from smadmm import Stop, run
from smadmm.checkpoint import describe
from smadmm.imaging.metrics import align, snr
from smadmm.imaging.pnp import METHODS, pnp
from smadmm.losses import AmplitudeLoss, IntensityLoss, PoissonLoss
from smadmm.losses.phase import NO_DATA, alternating_start, constant_start, spectral_start
from smadmm.operators import CodedDiffraction, circle_masks, quadrant_masks
from smadmm.proxes import Box, Zero
from smadmm.sampling import Rng

SHAPE = (12, 16)


def random(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def difference(a, b):
    return float((a - b).norm() / b.norm())


MASKS = circle_masks(6, SHAPE)
REAL = CodedDiffraction(MASKS)
PATTERNS = random((6, *SHAPE), 1).abs()


@pytest.mark.parametrize("make", [circle_masks, quadrant_masks])
def test_masks_have_modulus_one_and_belong_to_seed_and_number(make):
    masks = make(3, (40, 50), 7, torch.complex128)
    torch.testing.assert_close(masks.abs(), torch.ones(3, 40, 50, dtype=torch.float64))
    assert torch.equal(make(5, (40, 50), 7, torch.complex128)[:3], masks)
    assert not torch.equal(make(3, (40, 50), 8, torch.complex128), masks)
    angles = masks.angle() / (2 * np.pi)
    if make is circle_masks:  # 6000 draws: their mean moduli are below 4/sqrt(6000) but for 1e-7
        for power in (1, 2, 3):
            assert float((masks**power).mean().abs()) < 4 / 6000**0.5
    else:
        assert float(angles.min()) >= 0 and float(angles.max()) <= 0.25
        assert float(masks.real.mean()) == pytest.approx(0.5, abs=0.02)


def test_the_operator_is_the_unitary_transform_of_the_masked_image():
    x = random(SHAPE, 2)
    for i in range(6):
        expected = np.fft.fft2(MASKS[i].numpy() * x.numpy()) / np.sqrt(12 * 16)
        np.testing.assert_allclose(REAL(x)[i], expected, atol=1e-5)
    assert REAL.gram == pytest.approx(6)
    assert CodedDiffraction(torch.rand(2, 3, 3)).gram is None


def test_leading_axes_are_kept():
    x, y = random((2, 3, *SHAPE), 2), random((2, 3, 6, *SHAPE), 3, torch.complex64)
    torch.testing.assert_close(REAL(x)[1, 2], REAL(x[1, 2]))
    torch.testing.assert_close(REAL.T(y)[1, 2], REAL.T(y[1, 2]))


@pytest.mark.parametrize("points", [1, 2, 3])
@pytest.mark.parametrize("batch", [[4], [1, 1, 5], list(range(6))])
@pytest.mark.parametrize(
    ("reduction", "dtype"), [("mean", torch.float32), ("sum", torch.float32), ("mean", torch.complex64)]
)
def test_the_compiled_gradient_equals_the_plain_one(points, batch, reduction, dtype):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    data = torch.where(random(PATTERNS.shape, 5) > 1.5, NO_DATA, PATTERNS)
    f, plain = (AmplitudeLoss(CodedDiffraction(MASKS, dtype), data, reduction) for _ in range(2))
    plain.compiled = False
    exact = AmplitudeLoss(CodedDiffraction(MASKS, wide), data, reduction)
    xs, weights = [random(SHAPE, 10 + j, dtype) for j in range(points)], [1.0, -0.7, 0.4][:points]
    numbers = torch.tensor(batch)
    compiled = f.gradient(xs, weights, numbers)
    assert difference(compiled, plain.gradient(xs, weights, numbers)) < 2e-6
    assert difference(compiled.to(wide), exact.gradient([x.to(wide) for x in xs], weights, numbers)) < 2e-6
    strided = [torch.stack([x, x], -1)[..., 0] for x in xs]
    assert torch.equal(f.gradient(strided, weights, numbers), compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_zeros_give_no_nan(dtype):
    """At x = 0 every field is zero: the amplitude's gradient is taken as zero there, the others are zero."""
    operator = CodedDiffraction(MASKS, dtype)
    zero = torch.zeros(SHAPE, dtype=dtype)
    for loss in (AmplitudeLoss, IntensityLoss, PoissonLoss):
        f = loss(operator, PATTERNS)
        assert float(f.value(zero, f.full())) > -1e9
        assert torch.equal(f.gradient((zero,), (1.0,), f.full()), zero)
    dark = PoissonLoss(operator, torch.zeros(6, *SHAPE))
    assert bool(dark.gradient((zero,), (1.0,), dark.full()).isfinite().all())
    assert float(dark.value(zero, dark.full())) == pytest.approx(0.5 * 12 * 16 * 1e-3, rel=1e-5)


def test_the_amplitude_loss_lies_below_its_quadratic_model():
    f = AmplitudeLoss(CodedDiffraction(MASKS, torch.float64), PATTERNS)
    for seed in range(20):
        x, d = random(SHAPE, seed, torch.float64), random(SHAPE, 100 + seed, torch.float64)
        model = f.value(x, f.full()) + (f.gradient((x,), (1.0,), f.full()) * d).sum() + 0.5 * d.square().sum()
        assert float(f.value(x + d, f.full())) <= float(model)


class Counted:
    """An array that counts the masks read of it."""

    def __init__(self, array):
        self.array, self.shape, self.read = array, array.shape, 0

    def __getitem__(self, key):
        part = self.array[key]
        self.read += 1 if part.ndim == 2 else len(part)
        return part


@pytest.mark.parametrize("kind", ["memmap", "hdf5"])
@pytest.mark.parametrize("compiled", [True, False])
def test_masks_and_data_on_disk_are_read_as_drawn(kind, compiled, tmp_path):
    if kind == "memmap":
        np.save(tmp_path / "masks.npy", MASKS.numpy())
        np.save(tmp_path / "data.npy", PATTERNS.numpy())
        arrays = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("masks", "data")]
    else:
        file = h5py.File(tmp_path / "file.h5", "w")
        file["masks"], file["data"] = MASKS.numpy(), PATTERNS.numpy()
        arrays = [file["masks"], file["data"]]
    masks, data = map(Counted, arrays)
    f, memory = AmplitudeLoss(CodedDiffraction(masks), data), AmplitudeLoss(REAL, PATTERNS)
    f.compiled = memory.compiled = compiled
    masks.read = data.read = 0
    x, batch = random(SHAPE, 2), torch.tensor([4, 1, 4])
    gradient = f.gradient((x,), (1.0,), batch)
    assert masks.read == data.read <= 3
    torch.testing.assert_close(gradient, memory.gradient((x,), (1.0,), batch))
    torch.testing.assert_close(f.value(x, f.full()), memory.value(x, memory.full()))
    assert f.operator.norm() == pytest.approx(6**0.5)
    assert f.fingerprint == memory.fingerprint


def test_sum_convention_is_the_mean_with_other_constants():
    """A sum over B masks with (rho, step) is the mean with (rho/B, step B): the same iterates."""
    truth = random(SHAPE, 3).abs() + 0.5
    start, data = torch.full(SHAPE, 0.01), REAL(truth).abs()
    states = []
    for reduction, rho, step in (("sum", 1.2, 0.1), ("mean", 0.4, 0.3)):
        solver = pnp(AmplitudeLoss(REAL, data, reduction), Box(0, 1), "smadmm", 3, rho, 1 / step)
        states.append(run(solver, start, Stop(iterations=20), progress=False).x)
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_retrieves_a_positive_image(method):
    truth = random(SHAPE, 3).abs() + 0.5
    f = AmplitudeLoss(REAL, REAL(truth).abs())
    solver = pnp(f, Box(0, 10), method, 2, 0.1, eta=3.0)
    result = run(solver, torch.full(SHAPE, 0.01), Stop(iterations=900), every=900, progress=False)
    found = result.state.est.at
    assert snr(truth, align(truth, found)) > 35


@pytest.mark.parametrize("sign", [1, -1])
def test_complex_images_and_their_global_phase(sign):
    truth = torch.polar(1 + random(SHAPE, 3).abs(), 0.5 * random(SHAPE, 4))
    operator = CodedDiffraction(circle_masks(8, SHAPE), torch.complex64)
    f = AmplitudeLoss(operator, operator(truth).abs())
    start = torch.full(SHAPE, 1.0 * sign, dtype=torch.complex64)
    result = run(pnp(f, Zero(), "smadmm", 4, 0.1, eta=1.2), start, Stop(iterations=800), every=800, progress=False)
    assert snr(truth, align(truth, result.x)) > 35


def test_pixels_without_data_have_no_part():
    """What the truth makes of the others is fitted exactly; the loss there is that of the others alone."""
    truth, lost = random(SHAPE, 3).abs(), random((6, *SHAPE), 4) > 1
    clean = REAL(truth).abs()
    f = AmplitudeLoss(REAL, torch.where(lost, NO_DATA, clean))
    assert float(f.value(truth, f.full())) < 1e-9 and float(f.gradient((truth,), (1.0,), f.full()).norm()) < 1e-5
    other = 2 * truth
    expected = 0.5 * ((REAL(other).abs() - clean)[~lost] ** 2).sum() / 6
    assert float(f.value(other, f.full())) == pytest.approx(float(expected), rel=1e-5)


def test_few_masks_and_no_mean_need_reflections():
    """Descent from a constant ends in a local minimum; from RAAR it finds a complex object of random phases."""
    truth = random((32, 32), 1, torch.complex64)
    operator = CodedDiffraction(circle_masks(5, (32, 32), 7), torch.complex64)
    f = AmplitudeLoss(operator, operator(truth).abs())

    def descended(x):
        for _ in range(60):
            x = x - f.gradient((x,), (1.0,), f.full())
        return snr(truth, align(truth, x))

    constant = constant_start(f)
    assert descended(constant) < 10
    assert descended(alternating_start(f, constant)) > 40
    spectral = spectral_start(f)
    assert snr(truth, align(truth, spectral)) > snr(truth, align(truth, constant)) + 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CodedDiffraction(torch.ones(3, 4)), r"n x height x width, got shape \(3, 4\)"),
        (lambda: circle_masks(0, SHAPE), "at least 1, got 0"),
        (lambda: AmplitudeLoss(REAL, PATTERNS[:5]), r"shape \(5, 12, 16\), but the masks need \(6, 12, 16\)"),
        (lambda: AmplitudeLoss(REAL, -PATTERNS), "not negative"),
        (lambda: AmplitudeLoss(REAL, PATTERNS / 0), "finite"),
        (lambda: AmplitudeLoss(REAL, PATTERNS, "max"), "'mean' or 'sum', got 'max'"),
        (lambda: PoissonLoss(REAL, PATTERNS, 0.0), "background must be positive"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_checkpoint_knows_the_data():
    one, other = (pnp(AmplitudeLoss(REAL, data), Zero(), "sadmm") for data in (PATTERNS, PATTERNS + 1))
    assert describe(one) != describe(other)
    batch = one.problem.f.draw(Rng(0, 1), 2)
    before = describe(one)
    one.problem.f.gradient((random(SHAPE, 1),), (1.0,), batch)
    assert describe(one) == before
