"""What users bring: each adapter is one line, and gives what its own library gives."""

from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import smadmm
from smadmm import ADMM, SGD, Diverged, Problem, Spider, Stop, interop, run
from smadmm.checkpoint import CheckpointError, describe, refuse_difference
from smadmm.denoisers import load
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import OperatorHuber, OperatorLeastSquares, OperatorPoisson
from smadmm.operators import FiniteDifferences, Identity, Matrix, Radon
from smadmm.proxes import L1, Denoised, Zero
from smadmm.xsteps import Newton

STUBBED = ["nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "qroi_align", "deform_conv2d"]


@pytest.fixture(scope="module")
def deepinv():
    """deepinv, where it can be had; its torchvision wants operators that a mismatched torch lacks."""
    if find_spec("deepinv") is None:
        pytest.skip("deepinv is not installed")
    for name in STUBBED:
        for end in ("", "_backward"):
            with suppress(RuntimeError):  # it is there
                torch.library.define(f"torchvision::{name}{end}", "(Tensor a) -> Tensor")
    return pytest.importorskip("deepinv")


@pytest.fixture(scope="module")
def astra():
    try:
        import astra
    except ImportError as error:  # without its CUDA runtime, too
        pytest.skip(f"ASTRA: {error}")
    return astra


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- pairs of functions -----------------------------------------------------------------------------------------------


def test_a_pair_of_functions_is_an_operator():
    M = np.random.default_rng(0).standard_normal((7, 6))
    A = interop.from_functions(lambda x: M @ x.ravel(), lambda y: (M.T @ y).reshape(2, 3), (2, 3), numpy=True)
    x = randn(2, 3)
    assert A.in_shape == (2, 3) and A.out_shape == (7,) and A(x).dtype == torch.float32
    torch.testing.assert_close(A(x), torch.from_numpy(M).float() @ x.flatten())
    torch.testing.assert_close(A.dense(), torch.from_numpy(M))


@pytest.mark.parametrize("wrong", [lambda y: 1.01 * y.roll(-1), lambda y: y.roll(1), lambda y: -y.roll(-1)])
def test_a_pair_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match=r"adjoint is not the adjoint of forward: <A x, y> = .* correct the pair"):
        interop.from_functions(lambda x: x.roll(1), wrong, (50,))


def test_pairs_say_what_they_lack():
    with pytest.raises(ValueError, match=r"tensor of shape \(3,\), it gives \(2,\)"):
        interop.from_functions(lambda x: x[:2], lambda y: y, (3,))
    with pytest.raises(TypeError, match="set numpy=True"):
        interop.from_functions(lambda x: x.numpy(), lambda y: y.numpy(), (3,))


# --- SciPy, PyLops ----------------------------------------------------------------------------------------------------


def test_scipy_there_and_back():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    radon = Radon(12, np.arange(5) * np.pi / 5, detectors=12)
    S = radon.to_scipy()
    assert S.shape == radon.shape == (60, 144)
    x = randn(12, 12)
    np.testing.assert_allclose(S @ x.numpy().ravel(), radon(x).numpy().ravel(), rtol=1e-5)
    np.testing.assert_allclose(S.rmatvec(np.ones(60)), radon.H(torch.ones(5, 12)).numpy().ravel(), rtol=1e-5)
    again = interop.from_scipy(S, in_shape=(12, 12), out_shape=(5, 12))
    torch.testing.assert_close(again(x), radon(x))
    complex_ = interop.from_scipy(linalg.aslinearoperator(np.array([[1j, 2.0]])))
    assert complex_(torch.ones(2, dtype=torch.complex64)).tolist() == [2 + 1j]
    with pytest.raises(ValueError, match=r"the shape \(3, 3\) has 9 entries, but .* needs 144"):
        interop.from_scipy(S, in_shape=(3, 3))


def test_operators_multiply_arrays_tensors_and_operators():
    A = Matrix(torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 1.0]]))
    found = A @ np.ones(2)
    assert isinstance(found, np.ndarray) and found.tolist() == [3, 1, 2]
    assert (A @ torch.ones(2)).tolist() == [3, 1, 2] and (A.H @ A).shape == (2, 2) and A.shape == (3, 2)
    with pytest.raises(ValueError, match="depends on its input; give the operator a shape"):
        _ = Identity().shape


def test_pylops():
    pylops = pytest.importorskip("pylops")
    theirs = pylops.FirstDerivative(dims=(4, 6), axis=0, kind="forward", dtype="float64")
    A = interop.from_scipy(theirs)
    assert A.in_shape == (4, 6) and A.out_shape == (4, 6)
    x = randn(4, 6, dtype=torch.float64)
    np.testing.assert_allclose(A(x).numpy(), theirs @ x.numpy())
    for ours in (Radon(8, np.arange(3) * np.pi / 3), FiniteDifferences((4, 5))):
        assert pylops.utils.dottest(pylops.aslinearoperator(ours.to_scipy()), *ours.shape, rtol=1e-4, raiseerror=False)


# --- proxes -----------------------------------------------------------------------------------------------------------


def least_squares():
    return smadmm.losses.LeastSquares(randn(20, 6), randn(20, seed=1))


def solved(prox):
    solver = ADMM(Problem(least_squares(), prox), Spider(20, every=1), 1.0, 4.0)
    return run(solver, torch.zeros(6), Stop(iterations=300), progress=False)


def test_a_prox_from_a_function_and_from_pyproximal_solve_what_ours_solves():
    ours = solved(L1(0.1))

    def shrink(v, t):
        return torch.sign(v) * (v.abs() - 0.1 * t).clamp(min=0)

    own = solved(interop.from_function(shrink, lambda y: 0.1 * y.abs().sum()))
    torch.testing.assert_close(own.x, ours.x)
    assert own.history["objective"][-1] == pytest.approx(ours.history["objective"][-1], rel=1e-4)
    pyproximal = pytest.importorskip("pyproximal")
    torch.testing.assert_close(solved(interop.from_pyproximal(pyproximal.L1(sigma=0.1))).x, ours.x)


def test_proxes_are_checked():
    with pytest.raises(ValueError, match=r"tensor of shape \(6,\), it gives \(1,\)"):
        solved(interop.from_function(lambda v, t: v[:1]))
    with pytest.raises(TypeError, match="has prox"):
        interop.from_pyproximal(3)


def test_a_denoiser_gets_its_level():
    D = Denoised(lambda x, sigma: x * sigma, image=True, sigma=0.25)
    assert D.prox(torch.ones(4, 4), 1.0).unique().tolist() == [0.25]
    with pytest.raises(ValueError, match="sigma is the noise level"):
        Denoised(lambda x, sigma: x, sigma=0.0)


# --- losses over operators --------------------------------------------------------------------------------------------


def test_the_newton_step_serves_any_operators_and_constraint():
    """With as many steps as unknowns it is the exact x-step, and it counts its products."""
    blocks = [randn(3, 4, dtype=torch.float64), randn(2, 4, seed=1, dtype=torch.float64)]
    f = OperatorLeastSquares([Matrix(M) for M in blocks], [torch.ones(3), torch.ones(2)], dtype=torch.float64)
    A, d = Matrix(randn(5, 4, seed=2, dtype=torch.float64)), randn(4, seed=3, dtype=torch.float64)
    hessian = sum(M.T @ M for M in blocks) / 2
    step = Newton(f, inner=4, A=A)
    torch.testing.assert_close(
        step(d.clone(), 2.0, 3.0), torch.linalg.solve(2 * hessian + 3 * A.matrix.T @ A.matrix, d)
    )
    assert step.sfo == 8
    with pytest.raises(ValueError, match="needs a quadratic loss of finite data, Logistic is none"):
        Newton(smadmm.losses.Logistic(torch.eye(2), torch.ones(2)), inner=1)


def test_one_operator_is_cut_into_its_views():
    radon = Radon(12, np.arange(7) * np.pi / 7, detectors=12)
    b, x, weights = randn(7, 12), randn(12, 12), randn(7, 12, seed=2).abs()
    f = OperatorLeastSquares(radon, b, weights, views=3)
    by_hand = OperatorLeastSquares([radon.subset(v) for v in ([0, 1, 2], [3, 4, 5], [6])], b.split(3), weights.split(3))
    assert f.n == 3
    torch.testing.assert_close(
        f.gradient((x,), (1.0,), f.everything[1:]), by_hand.gradient((x,), (1.0,), f.everything[1:])
    )
    with pytest.raises(TypeError, match="needs an operator with views"):
        OperatorLeastSquares(Identity((4,)), torch.ones(4), views=2)
    with pytest.raises(TypeError, match="a list of operators is cut already"):
        OperatorLeastSquares([radon], [b], views=2)
    with pytest.raises(ValueError, match="a sample has 1 to 7 views"):
        OperatorLeastSquares(radon, b, views=8)


def test_huber_forgives_wrong_numbers():
    """Least squares plus a Newton step are drawn away by a few wrong numbers, Huber's loss hardly."""
    blocks = [randn(30, 5, seed=i, dtype=torch.float64) for i in range(3)]
    truth = randn(5, seed=9, dtype=torch.float64)
    data = [M @ truth + 0.01 * randn(30, seed=20 + i, dtype=torch.float64) for i, M in enumerate(blocks)]
    for b in data:
        b[3] += 50
    A = [Matrix(M) for M in blocks]

    def error(f):
        solver = ADMM(Problem(f, Zero()), Spider(3, every=1), 1e-3, 1.0, x_step=Newton(f, inner=5))
        x = run(solver, torch.zeros(5, dtype=torch.float64), Stop(iterations=400), progress=False).x
        return float((x - truth).norm() / truth.norm())

    assert error(OperatorHuber(A, data, delta=0.1, dtype=torch.float64)) < 0.02
    assert error(OperatorLeastSquares(A, data, dtype=torch.float64)) > 0.2
    with pytest.raises(ValueError, match="delta is the largest residual of a good number"):
        OperatorHuber(A, data, delta=0.0)


def test_poisson_finds_the_mean_of_counts():
    counts = torch.tensor([[3.0, 8.0], [5.0, 0.0]])
    f = OperatorPoisson([Identity((2,))] * 2, counts, background=0.5)
    start = torch.full((2,), 4.0)
    solver = ADMM(Problem(f, Zero()), Spider(2, every=1), 1e-3, 1.0, x_step=Newton(f, inner=3))
    found = run(solver, start, Stop(iterations=2000), progress=False).x
    torch.testing.assert_close(found, torch.tensor([3.5, 3.5]), rtol=1e-2, atol=0)
    with pytest.raises(ValueError, match="background must be positive"):
        OperatorPoisson([Identity((2,))] * 2, counts, background=0.0)
    with pytest.raises(ValueError, match="the smallest is -1"):
        OperatorPoisson([Identity((2,))] * 2, counts - 1, background=1.0)


def test_reconstruct_takes_an_operator_and_finds_the_rest():
    """A Radon transform that is only known as a pair of functions gives an image as good as the scan's own way."""
    pytest.importorskip("safetensors")
    truth, radon = abdomen_image(64), Radon(64, np.arange(30) * np.pi / 30)
    b = radon(truth)
    b = b + 0.01 * b.square().mean().sqrt() * randn(*b.shape)
    K = interop.from_functions(radon.forward, radon.adjoint, (64, 64))
    own = smadmm.reconstruct(b, operator=K, truth=truth)
    scan = smadmm.reconstruct(b, size=64, truth=truth)
    assert own.mean("snr") > max(own.mean("snr_start"), scan.mean("snr") - 0.5)
    assert isinstance(own.image, torch.Tensor) and own.image.shape == (64, 64)
    unit = smadmm.reconstruct(1000 * b.numpy(), operator=K, iterations=5, prior=Denoised(lambda x: x.clamp(min=0)))
    assert isinstance(unit.image, np.ndarray) and unit.image.min() > -100
    with pytest.raises(ValueError, match="angles belongs to scans, and operator says it all"):
        smadmm.reconstruct(b, np.arange(30), operator=K)
    with pytest.raises(ValueError, match=r"the data have the shape \(30, 5\)"):
        smadmm.reconstruct(b[:, :5], operator=K)


def test_pixels_behind_a_mask_are_filled_in():
    """Half of the pixels are not measured: harmonic filling is the start, and the prior does better."""
    pytest.importorskip("safetensors")
    truth, generator = abdomen_image(64), torch.Generator().manual_seed(0)
    mask = (torch.rand(truth.shape, generator=generator) < 0.5).float()
    K = interop.from_functions(lambda x: mask * x, lambda y: mask * y, (64, 64))
    found = smadmm.reconstruct(mask * (truth + 0.01 * randn(64, 64)), operator=K, truth=truth)
    assert found.mean("snr_start") > 15 and found.mean("snr") > found.mean("snr_start") + 1


def test_data_that_leave_much_open_get_a_start_by_strong_denoising():
    """A third of random cosine coefficients: least squares spreads the image over all pixels as noise."""
    fft = pytest.importorskip("scipy.fft")
    pytest.importorskip("safetensors")
    truth, rng = abdomen_image(64).numpy(), np.random.default_rng(0)
    kept, signs = rng.permutation(64 * 64)[: 64 * 64 // 3], rng.choice([-1.0, 1.0], (64, 64))

    def adjoint(y):
        every = np.zeros(64 * 64)
        every[kept] = y
        return signs * fft.idctn(every.reshape(64, 64), norm="ortho")

    K = interop.from_functions(lambda x: fft.dctn(signs * x, norm="ortho").ravel()[kept], adjoint, (64, 64), numpy=True)
    found = smadmm.reconstruct(K @ truth, operator=K, truth=truth)
    assert found.mean("snr_start") < 4 and found.mean("snr") > 17


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_complex_data_of_real_and_complex_images(dtype):
    """Samples of the Fourier transform; the pair of functions decides whether images are real."""
    pytest.importorskip("safetensors")
    real, frequency = abdomen_image(64), torch.fft.fftfreq(64)
    seen = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.4
    seen |= torch.hypot(frequency[:, None], frequency) < 0.05
    truth = real * torch.exp(1j * frequency[:, None]) if dtype.is_complex else real
    K = interop.from_functions(
        lambda x: seen * torch.fft.fft2(x, norm="ortho"),
        lambda y: torch.fft.ifft2(seen * y, norm="ortho"),
        (64, 64),
        dtype=dtype,
    )
    found = smadmm.reconstruct(K(truth), operator=K, truth=truth)
    assert found.image.dtype == dtype
    assert found.mean("snr") > found.mean("snr_start") + 5
    assert found.shown["SMADMM"].dtype == np.float32
    with pytest.raises(ValueError, match=r"start has the shape \(2, 2\), but the images of operator have \(64, 64\)"):
        smadmm.reconstruct(K(truth), operator=K, start=np.zeros((2, 2)))


def test_a_foreign_operator_is_told_its_adapter():
    linear = pytest.importorskip("scipy.sparse.linalg").aslinearoperator(np.eye(64))
    with pytest.raises(ValueError, match=r"got MatrixLinearOperator; smadmm.interop makes one: from_scipy"):
        smadmm.reconstruct(np.ones(64), operator=linear)
    with pytest.raises(ValueError, match=r"its input is \(64,\); say in_shape"):
        smadmm.reconstruct(np.ones(64), operator=interop.from_scipy(linear))
    with pytest.raises(ValueError, match="method belongs to scans"):
        smadmm.reconstruct(np.ones(64), operator=interop.from_scipy(linear, (8, 8)), method="sadmm")
    flat = interop.from_scipy(linear, (8, 8), (8, 8))  # its users have flat data
    assert smadmm.reconstruct(np.arange(64.0), operator=flat, iterations=2, prior="tv").image.shape == (8, 8)


def test_reconstruct_takes_a_list_of_operators():
    truth, radon = abdomen_image(32), Radon(32, np.arange(12) * np.pi / 12)
    views = [radon.subset([i]) for i in range(12)]
    options = {"prior": "tv", "iterations": 3}
    several = smadmm.reconstruct([A(truth) for A in views], operator=views, **options)
    one = smadmm.reconstruct(radon(truth), operator=radon, **options)
    np.testing.assert_allclose(several.image, one.image, atol=0.02 * float(one.image.max()))


# --- deepinv ----------------------------------------------------------------------------------------------------------


def test_physics_of_deepinv_are_operators(deepinv):
    blur = deepinv.physics.Blur(filter=torch.arange(9.0).reshape(1, 1, 3, 3), padding="circular")
    A, x = interop.from_deepinv(blur, (16, 16)), randn(16, 16)
    torch.testing.assert_close(A(x), blur.A(x[None, None])[0])
    stacked = deepinv.physics.StackedLinearPhysics([blur, deepinv.physics.Inpainting((1, 16, 16), mask=0.5)])
    members = interop.from_deepinv(stacked, (16, 16))
    assert len(members) == 2
    torch.testing.assert_close(members[1](x), stacked.A(x[None, None])[1][0])


def test_physics_in_single_precision_have_a_norm():
    """Power iteration is done in double precision, which most physics do not take."""

    kernel = torch.full((1, 1, 1, 3), 1 / 3)
    blur = partial(torch.nn.functional.conv2d, weight=kernel, padding=(0, 1))
    A = interop.from_deepinv(SimpleNamespace(A=blur, A_adjoint=blur), (6, 6))
    assert 0.9 < float(A.norm()) < 1 and A(torch.ones(6, 6).double()).dtype == torch.float64


def test_operators_are_physics_of_deepinv(deepinv):
    radon = Radon(16, np.arange(6) * np.pi / 6)
    physics, x = interop.as_physics(radon), randn(2, 1, 16, 16)
    assert float(physics.adjointness_test(x).abs()) < 1e-2
    torch.testing.assert_close(physics.A(x)[1, 0], radon(x[1, 0]))
    back = interop.from_deepinv(physics, (16, 16))
    torch.testing.assert_close(back(x[0, 0])[0], radon(x[0, 0]))


def test_denoisers_of_deepinv(deepinv):
    D = deepinv.models.MedianFilter(3)
    x = randn(16, 16)
    torch.testing.assert_close(Denoised(D, image=True, sigma=0.1).prox(x, 1.0), D(x[None, None], 0.1)[0, 0])


# --- ASTRA ------------------------------------------------------------------------------------------------------------


def test_astra_views_are_operators(astra):
    volume = astra.create_vol_geom(16, 16)
    fan = astra.create_proj_geom("fanflat", 1.0, 24, np.linspace(0, 6, 5), 50.0, 20.0)
    views = interop.from_astra(fan, volume, "line_fanflat")
    x = randn(16, 16).abs()
    whole = astra.OpTomo(astra.create_projector("line_fanflat", fan, volume)).FP(x.numpy())
    assert len(views) == 5
    np.testing.assert_allclose(torch.stack([A(x) for A in views]).numpy(), whole, rtol=1e-4)


@pytest.mark.parametrize(("kind", "projector"), [("cone", "cuda3d"), ("fanflat", "cuda")])
def test_astra_on_a_gpu_is_refused_before_it_kills(kind, projector):
    with pytest.raises(ValueError, match="on a GPU alone"):
        interop.from_astra({"type": kind}, {}, projector)


# --- networks ---------------------------------------------------------------------------------------------------------


class Named(torch.utils.data.Dataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return {"X": self.X[i], "y": self.y[i]}


class OfNames(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, items):
        return self.linear(items["X"])


def test_a_network_is_trained_as_its_matrix_is():
    X = randn(30, 4)
    y = X @ torch.tensor([[1.0], [-2.0], [0.0], [0.5]]) + 1
    tensors = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y))
    mse, network = torch.nn.functional.mse_loss, torch.nn.Linear(4, 1)
    f = interop.ModuleLoss(network, mse, tensors)
    g = interop.ModuleLoss(OfNames(), lambda out, items: mse(out, items["y"]), torch.utils.data.DataLoader(Named(X, y)))
    x, z = randn(5), randn(5, seed=1)
    full = f.full()
    A = torch.cat([X, torch.ones(30, 1)], 1)
    torch.testing.assert_close(f.gradient((x,), (1.0,), full), 2 * A.T @ (A @ x - y[:, 0]) / 30)
    for loss in (f, g):
        both = loss.gradient((x, z), (1.0, -0.5), full[:7])
        parts = [loss.gradient((p,), (w,), full[:7]) for p, w in ((x, 1.0), (z, -0.5))]
        torch.testing.assert_close(both, parts[0] + parts[1])
    assert float(f.value(x, full)) == pytest.approx(float(g.value(x, full)))
    result = run(ADMM(Problem(f, Zero()), SGD(30), 0.1, 4.0), f.start(), Stop(iterations=200), progress=False)
    f.write(result.x)
    torch.testing.assert_close(network(X), y, atol=1e-2, rtol=0)
    with pytest.raises(ValueError, match="no trainable parameters"):
        interop.ModuleLoss(torch.nn.ReLU(), mse, tensors)


# --- a run with what users bring --------------------------------------------------------------------------------------


class Within(torch.nn.Module):
    """Plain attributes, a buffer that is not saved, and a convolution with a padding mode."""

    def __init__(self, high=1.0, padding="zeros", shift=0.0, factor=1.0):
        super().__init__()
        self.high, self.factor = high, lambda x: factor * x
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.mean = torch.nn.Conv2d(1, 1, 3, padding=1, padding_mode=padding, bias=False)
        torch.nn.init.constant_(self.mean.weight, 1 / 9)

    def forward(self, x):
        return (self.factor(self.mean(x)) + self.shift).clamp(0, self.high)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"high": 0.2}, "high was 1.0, now it is 0.2"),
        ({"padding": "circular"}, "padding_mode was 'zeros'"),
        ({"shift": 0.1}, "shift was tensor"),
        ({"factor": 0.5}, r"factor.closure\[0\] was 1.0, now it is 0.5"),
    ],
)
def test_a_run_is_not_resumed_with_a_changed_module(tmp_path, changed, name):
    def go_on(**options):
        f = OperatorLeastSquares(Identity((4, 4)), torch.ones(4, 4))
        solver = ADMM(Problem(f, Denoised(Within(**options), image=True)), SGD(1), 1.0, 2.0)
        where = {"checkpoint": tmp_path / "run", "resume": True, "progress": False}
        return run(solver, torch.zeros(4, 4), Stop(iterations=3), **where)

    go_on()
    go_on()
    with pytest.raises(CheckpointError, match=name):
        go_on(**changed)


def test_a_relaxed_denoiser_is_another():
    pytest.importorskip("safetensors")
    one, two = (describe(load("ridge-ct").relax(gamma)) for gamma in (0.9, 0.3))
    with pytest.raises(CheckpointError, match="(gamma|lipschitz) was"):
        refuse_difference(one, two)


def test_a_turned_physics_is_another(deepinv):
    views = [
        interop.from_deepinv(deepinv.physics.Tomography(torch.arange(0.0, 90, 30) + by, 16, normalize=False), (16, 16))
        for by in (0, 1)
    ]
    with pytest.raises(CheckpointError, match="physics|closure"):
        refuse_difference(*map(describe, views))


def test_nan_in_the_first_gradient_is_reported_as_what_it_is():
    b = torch.tensor([1.0, float("nan"), 1.0])
    f = smadmm.losses.LeastSquares(torch.eye(3), b)
    with pytest.raises(Diverged, match="the gradient is not finite at the start; look for NaN"):
        run(ADMM(Problem(f, Zero()), Spider(3, every=1), 1.0, 2.0), torch.zeros(3), Stop(iterations=3))
    with pytest.raises(ValueError, match="the first x holds NaN"):
        run(
            ADMM(Problem(smadmm.losses.LeastSquares(torch.eye(3), torch.ones(3)), Zero()), SGD(1), 1.0, 2.0),
            b,
            Stop(sfo=9),
        )


def test_nan_of_a_denoiser_is_not_blamed_on_the_step():
    f = smadmm.losses.LeastSquares(torch.eye(3), torch.ones(3))
    with pytest.raises(Diverged, match="gave values that are not finite in iteration 1"):
        run(ADMM(Problem(f, Denoised(lambda x: x / 0)), SGD(3), 1.0, 2.0), torch.zeros(3), Stop(iterations=3))


# --- RTK --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rtk():
    if find_spec("itk") is None:
        pytest.skip("itk-rtk is not installed")
    try:
        interop.cone([0.0], 60, 90)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("rtk")
def test_a_cone_beam_of_rtk_is_an_operator():
    shape, detector = (6, 10, 12), (8, 20)
    K = interop.from_rtk(interop.cone(np.arange(5) * 2 * np.pi / 5, 60, 90), shape, detector, pitch=1.5)
    x, y = randn(*shape), randn(5, *detector, seed=1)
    assert K.in_shape == shape and K.out_shape == (5, *detector)
    assert float((K(x) * y).sum()) == pytest.approx(float((x * K.T(y)).sum()), rel=1e-4)
    two = K.subset([3, 1])
    torch.testing.assert_close(two(x), K(x)[[3, 1]])
    assert "ConeBeam" in repr(K)
    # the axis of rotation points along the slices: of equal ones a source far away sees a parallel beam
    far = interop.from_rtk(interop.cone([0.3], 5000, 5020), (9, 12, 12), (5, 20))
    plane = torch.nn.functional.pad(torch.ones(4, 2), (3, 7, 2, 6))
    found = far(plane.expand(9, 12, 12).contiguous())[0, 2]
    parallel = Radon(12, [0.3], detectors=20)(plane.flip(0))[0]  # RTK's rows point upwards
    assert float((found - parallel).norm() / parallel.norm()) < 0.02


@pytest.mark.usefixtures("rtk")
def test_slabs_of_fdk_are_those_of_the_whole():
    K = interop.from_rtk(interop.cone(np.arange(30) * 2 * np.pi / 30, 60, 90), (9, 16, 16), (20, 36), pitch=1.5)
    ball = (torch.from_numpy(np.mgrid[-4:5, -7.5:8.5, -7.5:8.5]).square().sum(0) < 16).float()
    whole = K.fdk(K(ball))
    torch.testing.assert_close(K.fdk(K(ball), slab=2), whole, rtol=1e-4, atol=1e-5)
    assert float(whole[4, 8, 8]) == pytest.approx(1, abs=0.1) and float(whole[4, 0, 0]) == pytest.approx(0, abs=0.1)
    with pytest.raises(ValueError, match=r"the data have the shape \(1, 20, 36\), but ConeBeam"):
        K.fdk(torch.zeros(1, 20, 36))


def test_cones_say_what_is_wrong_before_rtk_is_asked():
    with pytest.raises(ValueError, match="voxel and pitch are widths"):
        interop.from_rtk(None, (8, 8, 8), (8, 8), voxel=0.0)
    with pytest.raises(ValueError, match="is not above source_to_axis"):
        interop.cone([0.0], 600, 400)
