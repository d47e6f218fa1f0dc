"""The projector: compiled = torch, exact adjoint, subsets, geometry, analytic images, norms, back-projection."""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from smadmm.operators import Radon, hann, ramp, shepp_logan
from smadmm.operators.radon.filters import angular_weights

ANGLES = np.array([0.0, 0.3, math.pi / 4, 1.2, math.pi / 2, 2.0, 3 * math.pi / 4, 3.0, 4.4, -0.8, 6.1])
GEOMETRIES = {
    "square": {"size": 36},
    "wide": {"size": (40, 70), "detectors": 90, "spacing": 0.7, "centre": 3.3},
    "tall": {"size": (41, 23), "detectors": 24, "spacing": 2.1, "centre": -1.7},
    "tiny": {"size": (1, 3), "detectors": 5},
    "odd detectors off the image": {"size": (27, 26), "detectors": 61, "centre": 9.25},
}


def make(name, **options):
    return Radon(**GEOMETRIES[name], angles=ANGLES, **options)


def random(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def difference(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def dot_residual(A, x, y):
    image, back = A(x).double(), A.T(y).double()
    return abs(float((image * y).sum() - (x * back).sum())) / float(image.norm() * y.double().norm())


def naive_joseph(image, angle, detectors, spacing, centre):
    """Joseph's sum, ray by ray, from the definition."""
    if abs(math.cos(angle)) < abs(math.sin(angle)):
        return naive_joseph(image.T, math.pi / 2 - angle, detectors, spacing, centre)
    height, width = image.shape
    t = (np.arange(detectors) - (detectors - 1) / 2 - centre) * spacing
    columns, out = np.arange(-1, width + 1), np.zeros(detectors)
    for r in range(height):
        place = (t - (r - (height - 1) / 2) * math.sin(angle)) / math.cos(angle) + (width - 1) / 2
        out += np.interp(place, columns, np.pad(image[r], 1), left=0, right=0)
    return out / abs(math.cos(angle))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_compiled_equals_torch_in_both_precisions(name):
    fast, slow = make(name), make(name, compiled=False)
    x, y = random((2, *fast.in_shape), 0), random((2, *fast.out_shape), 1)
    assert fast.runs_compiled(x.dtype, x.device) and not slow.runs_compiled(x.dtype, x.device)
    for precise in (slow(x.double()), slow(x)):
        assert difference(fast(x), precise) < 1e-6
    for precise in (slow.T(y.double()), slow.T(y)):
        assert difference(fast.T(y), precise) < 1e-6


@pytest.mark.parametrize("name", GEOMETRIES)
def test_adjoint_is_exact(name):
    A = make(name)
    assert dot_residual(A, random(A.in_shape, 0), random(A.out_shape, 1)) < 1e-7
    x, y = random(A.in_shape, 0, torch.float64), random(A.out_shape, 1, torch.float64)
    assert dot_residual(A, x, y) < 1e-15 * 100


def test_adjoint_residual_at_full_size():
    A = Radon(512, np.arange(0, 180, 7) * math.pi / 180, 724)
    residuals = [dot_residual(A, random(A.in_shape, s), random(A.out_shape, s + 9)) for s in range(3)]
    assert max(residuals) < 1e-7


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name != "tiny"])
def test_smooth_images_agree_with_josephs_sum(name):
    """Between shifts 1/8 apart a kink of f_r is smeared: an error of at most 1/8 1/4 |f''|, f'' its change of slope."""
    A = make(name)
    sigma = min(A.height, A.width) / 12  # vanishes at the border
    rows, columns = np.mgrid[: A.height, : A.width]
    image = np.exp(-((rows - 0.45 * A.height) ** 2 + (columns - 0.52 * A.width) ** 2) / (2 * sigma**2))
    reference = [naive_joseph(image, a, A.detectors, A.spacing, A.centre) for a in ANGLES]
    largest_integral = sigma * math.sqrt(2 * math.pi)
    assert np.abs(A(torch.from_numpy(image)).numpy() - reference).max() < largest_integral / (32 * sigma**2)


def test_images_of_usual_size_agree_with_josephs_sum_to_five_digits():
    angles = np.arange(30) * math.pi / 30 + 0.01
    image, _ = gaussians(256, angles, 362)
    reference = np.stack([naive_joseph(image.double().numpy(), a, 362, 1.0, 0.0) for a in angles])
    assert difference(Radon(256, angles, 362)(image), torch.from_numpy(reference)) < 1e-5


def test_axis_views_are_plain_sums():
    image = random((6, 9), 0)
    A = Radon((6, 9), [0.0, math.pi / 2], detectors=9)
    down, across = A(image)
    torch.testing.assert_close(down, image.sum(0))
    torch.testing.assert_close(across[1:-2], torch.nn.functional.pad(image.sum(1), (1, 1)).unfold(0, 2, 1).mean(1)[:-1])


def gaussians(size, angles, detectors, spacing=1.0, centre=0.0):
    """Three Gaussians and their exact projections."""
    rows, columns = np.mgrid[:size, :size] - (size - 1) / 2
    t = (np.arange(detectors) - (detectors - 1) / 2 - centre) * spacing
    image, sinogram = np.zeros((size, size)), np.zeros((len(angles), detectors))
    for x, y, width, height in ((0.1, -0.15, 0.06, 1.0), (-0.2, 0.1, 0.03, 0.7), (0.05, 0.2, 0.05, 0.4)):
        x, y, width = x * size, y * size, width * size
        image += height * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * width**2))
        along = t - (x * np.cos(angles) + y * np.sin(angles))[:, None]
        sinogram += height * width * math.sqrt(2 * math.pi) * np.exp(-(along**2) / (2 * width**2))
    return torch.from_numpy(image).float(), torch.from_numpy(sinogram).float()


@pytest.mark.parametrize(("spacing", "centre"), [(1.0, 0.0), (1.0, 12.4), (0.6, -3.0), (1.7, 0.5)])
def test_gaussians_have_their_exact_line_integrals(spacing, centre):
    angles = np.arange(60) * math.pi / 60 + 0.01
    image, exact = gaussians(512, angles, 800, spacing, centre)
    A = Radon(512, angles, 800, spacing, centre)
    assert difference(A(image), exact) < 5e-4
    wrong = Radon(512, angles, 800, spacing, centre + 0.5)
    assert difference(wrong(image), exact) > 5e-3


@pytest.mark.parametrize("compiled", [None, False])
def test_a_subset_is_rows_of_the_whole(compiled):
    A = make("wide", compiled=compiled)
    x, views = random(A.in_shape, 0), [7, 2, 2, 9]
    rows = A(x)[views]
    assert torch.equal(A.forward_views(x, views), rows) and torch.equal(A.subset(views)(x), rows)
    y = random(rows.shape, 1)
    scattered = torch.zeros(A.out_shape).index_add_(0, torch.tensor(views), y)
    torch.testing.assert_close(A.adjoint_views(y, torch.tensor(views)), A.T(scattered), rtol=1e-5, atol=1e-4)
    assert torch.equal(A.adjoint_views(y[:0], []), torch.zeros(A.in_shape))


def test_threads_and_batches_change_nothing():
    one, two = make("wide", batch=(3, 2)), make("wide", batch=(3, 2), threads=2)
    x, y = random(one.in_shape, 0), random(one.out_shape, 1)
    single = make("wide")
    assert torch.equal(one(x)[2, 1], single(x[2, 1])) and torch.equal(one.T(y)[2, 1], single.T(y[2, 1]))
    assert torch.equal(one(x), two(x)) and torch.equal(one.T(y), two.T(y))
    many = np.linspace(0, 3, 50)
    x, y = random((32, 32), 0), random((50, 45), 1)
    assert torch.equal(Radon(32, many, threads=3)(x), Radon(32, many)(x))
    torch.testing.assert_close(Radon(32, many, threads=3).T(y), Radon(32, many).T(y), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autograd_is_the_adjoint_to_any_order(dtype):
    A = make("square")
    x = random(A.in_shape, 0, dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(0.5 * A(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, A.T(A(x.detach())))
    (second,) = torch.autograd.grad((gradient * x.detach()).sum(), x)
    torch.testing.assert_close(second, A.T(A(x.detach())))
    y = random(A.out_shape, 1, dtype).requires_grad_()
    (gradient,) = torch.autograd.grad((A.T(y) * x.detach()).sum(), y)
    torch.testing.assert_close(gradient, A(x.detach()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_of_torch_func_are_products_with_the_matrix():
    A, xs = make("tall"), random((3, *GEOMETRIES["tall"]["size"]), 0, torch.float64)
    y, matrix = random(A.out_shape, 1, torch.float64), A.dense()
    image, pull = torch.func.vjp(A, xs[0])
    torch.testing.assert_close(pull(y)[0], A.T(y))
    torch.testing.assert_close(torch.func.jvp(A, (xs[0],), (xs[1],)), (image, A(xs[1])))
    torch.testing.assert_close(torch.func.jvp(A.T, (y,), (2 * y,)), (A.T(y), 2 * A.T(y)))
    torch.testing.assert_close(torch.func.vmap(A, 2)(xs.movedim(0, 2)), A(xs))
    torch.testing.assert_close(torch.func.vmap(A.T)(A(xs)), A.T(A(xs)))
    torch.testing.assert_close(torch.func.jacrev(A)(xs[0]).flatten(2).flatten(0, 1), matrix)


@pytest.mark.parametrize("name", ["square", "tall", "odd detectors off the image"])
def test_norms_bracket_the_exact_ones(name):
    A = make(name)
    pixels = torch.eye(A.height * A.width, dtype=torch.float64).reshape(-1, A.height, A.width)
    matrix = A(pixels).flatten(1).T
    true = float(torch.linalg.matrix_norm(matrix, ord=2))
    norm = A.norm()
    assert norm <= true <= norm.upper < 1.01 * true
    views = torch.linalg.matrix_norm(matrix.reshape(len(ANGLES), A.detectors, -1), ord=2)
    bounds = A.view_norms()
    seen = views > 0
    assert bool((bounds[seen] >= views[seen]).all()) and bool((bounds <= 1.03 * views + 1e-6).all())
    part = A.subset([1, 0])  # it knows them from the whole
    assert torch.equal(part.view_norms(), bounds[[1, 0]])


def disc(size, radius):
    fine = (np.arange(4 * size) + 0.5) / 4 - 0.5 - (size - 1) / 2
    inside = (fine[:, None] ** 2 + fine**2 <= radius**2).astype(np.float32)
    return torch.from_numpy(inside.reshape(size, 4, size, 4).mean((1, 3)))


@pytest.mark.parametrize("window", [ramp, hann, shepp_logan])
@pytest.mark.parametrize(("spacing", "centre"), [(1.0, 0.0), (0.8, 5.0)])
def test_filtered_back_projection_of_a_disc(window, spacing, centre):
    size, radius = 128, 40
    A = Radon(size, np.arange(180) * math.pi / 180, int(190 / spacing), spacing, centre)
    t = (np.arange(A.detectors) - (A.detectors - 1) / 2 - centre) * spacing
    exact = 2 * np.sqrt(np.maximum(radius**2 - t**2, 0))
    image = A.fbp(torch.from_numpy(exact).float().expand(180, -1), window)
    truth = disc(size, radius)
    inner, outer = disc(size, radius - 6) == 1, disc(size, radius + 6) == 0
    assert float(image[inner].mean()) == pytest.approx(1, abs=3e-3) and float(image[inner].std()) < 0.01
    assert float(image[outer].abs().mean()) < 0.01
    assert float((image - truth).norm() / truth.norm()) < (0.1 if window is not hann else 0.15)


def test_filtered_back_projection_of_some_views_weighs_gaps():
    """Views bunched on one side: each stands for its share of the half circle, so the level is right."""
    truth = disc(96, 30)
    angles = np.concatenate([np.linspace(0, 0.7, 40, endpoint=False), np.linspace(0.7, math.pi, 80, endpoint=False)])
    A = Radon(96, np.concatenate([angles, [0.1, 0.2]]))
    image = A.fbp(A(truth)[:120], views=np.arange(120))
    inner = disc(96, 24) == 1
    assert float(image[inner].mean()) == pytest.approx(1, abs=3e-3)
    # a full turn sees every line twice
    half, full = Radon(96, np.arange(90) * math.pi / 90), Radon(96, np.arange(180) * math.pi / 90)
    torch.testing.assert_close(full.fbp(full(truth)), half.fbp(half(truth)), atol=1e-4, rtol=0)


def test_angular_weights_by_hand():
    """Gaps .1, .1, .2, .6 of the half circle: the last, a missing wedge, counts as twice the mean gap, .5."""
    weights = angular_weights(np.array([1.2, 0.0, 0.4, 0.1]) * math.pi, math.pi)  # 1.2 is the line of .2
    np.testing.assert_allclose(weights / math.pi, [0.15, 0.3, 0.35, 0.1])


def test_nothing_is_stored_for_a_view():
    A = Radon(64, np.linspace(0, 3, 4000))
    A(torch.ones(64, 64))
    kept = sum(a.nbytes for memory in A._memory for a in memory) + A._cosines.nbytes + A._sines.nbytes + A.angles.nbytes
    assert kept < 4000 * 3 * 8 + 200_000
    assert torch.equal(copy.deepcopy(A)(torch.ones(64, 64)), A(torch.ones(64, 64)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Radon(0, [0.0]), "0 x 0"),
        (lambda: Radon(4, []), "angles are a list"),
        (lambda: Radon(4, [math.nan]), "finite numbers in radians"),
        (lambda: Radon(4, [0.0], spacing=-1.0), "-1.0"),
        (lambda: Radon(4, [0.0], threads=0), "threads must be at least 1"),
        (lambda: Radon(4, [0.0])(torch.ones(5, 5)), r"\(5, 5\)"),
        (lambda: Radon(4, [0.0])(torch.ones(4, 4).int()), "int32"),
        (lambda: Radon(4, [0.0]).T(torch.ones(2, 5)), r"\(2, 5\)"),
        (lambda: Radon(4, [0.0, 1.0]).forward_views(torch.ones(4, 4), [2]), "below 2"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.command
def test_the_first_process_computes_what_later_ones_load_from_the_cache(tmp_path):
    code = (
        "import hashlib, torch; from smadmm.operators import Radon; r = Radon(32, [0.1 * i for i in range(9)]); "
        "x = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)); y = r(x); "
        "print(hashlib.sha256(y.numpy().tobytes() + r.adjoint(y).numpy().tobytes()).hexdigest())"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    said = [subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) for _ in range(2)]
    assert said[0] == said[1] and list(tmp_path.rglob("*.nbi"))


@pytest.mark.filterwarnings("error")
def test_angles_may_be_a_tensor():
    angles = torch.linspace(0, 3, 4, dtype=torch.float64)
    radon = Radon(8, angles)
    expected = angles.numpy().copy()
    angles += 1  # the operator has its own copy
    np.testing.assert_array_equal(radon.angles, expected)
