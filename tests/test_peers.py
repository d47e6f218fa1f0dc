"""Tests that other libraries have for their own parts, run on ours: `make test-peers` installs the libraries.

Without a library its tests are skipped by name. torch's opcheck has nothing to check: no operation is registered.
"""

import numpy as np
import pytest
import torch
from test_interop import astra, deepinv  # noqa: F401, fixtures

from smadmm import ADMM, Problem, Spider, Stop, fan, interop, reconstruct, run
from smadmm.denoisers import load, shipped
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import OperatorLeastSquares
from smadmm.operators import (
    CodedDiffraction,
    EdgeDifferences,
    FanBeam,
    FiniteDifferences,
    Identity,
    Matrix,
    Radon,
    Slot,
    Stack,
    circle_masks,
)
from smadmm.proxes import L1, TV, Box, Denoised, ElasticNet, GroupL2, Nonnegative, Simplex, Zero
from smadmm.xsteps import Newton

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
ANGLES = np.arange(6) * np.pi / 6
PROJECTORS = {
    "radon": Radon(16, ANGLES),
    "fan": FanBeam(16, 2 * ANGLES, 24, source_to_axis=60, source_to_detector=90),
    "differences": FiniteDifferences((16, 16)),
}
OPERATORS = PROJECTORS | {
    "identity": Identity((5,)),
    "matrix": Matrix(torch.arange(15.0).reshape(3, 5)),
    "sparse": Matrix(torch.eye(5).to_sparse()),
    "edges": EdgeDifferences([(0, 1), (3, 2)], 5),
    "stack": Stack([Identity((5,)), Matrix(torch.ones(3, 5))]),
    "slot": Slot(5, 2, 9),
    "sum": Matrix(torch.ones(5, 5)) + 2 * Identity((5,)),
    "composition": Matrix(torch.ones(3, 5)) @ Matrix(torch.arange(25.0).reshape(5, 5)),
    "adjoint": Matrix(torch.arange(15.0).reshape(3, 5)).T,
    "diffraction": CodedDiffraction(circle_masks(2, (6, 6)), torch.complex128),
}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- PyLops, torch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_dottest_of_pylops(name):
    pylops = pytest.importorskip("pylops")
    A = OPERATORS[name].to_scipy()
    wide = 3 if np.dtype(A.dtype).kind == "c" else 0
    rtol = 1e-4 if A.dtype in (np.float32, np.complex64) else 1e-10
    assert pylops.utils.dottest(pylops.aslinearoperator(A), *A.shape, complexflag=wide, rtol=rtol)


@pytest.mark.parametrize("name", ["radon", "fan"])
def test_gradcheck_of_torch_on_projectors(name):
    A, x = PROJECTORS[name], randn(16, 16, dtype=torch.float64).requires_grad_()
    y = A(x.detach()).requires_grad_()
    options = {"fast_mode": True, "check_forward_ad": True}  # batches: tests/test_transforms.py
    for function, at in ((A, x), (A.T, y)):
        assert torch.autograd.gradcheck(function, at, **options)
        assert torch.autograd.gradgradcheck(function, at, fast_mode=True)


@pytest.mark.parametrize("name", shipped())
def test_gradcheck_of_torch_on_denoisers(name):
    pytest.importorskip("safetensors")
    D = load(name).double().requires_grad_(False)
    x = (0.5 + 0.1 * randn(1, 1, 6, 6, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(D, x, eps=1e-7, atol=1e-4, fast_mode=True)


# --- PyProximal, SCICO ------------------------------------------------------------------------------------------------

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


def penalties():
    """Ours, and the conjugate's prox by someone else: PyProximal's, or the closed form (elastic net)."""
    pyproximal = pytest.importorskip("pyproximal")

    class Conjugate(pyproximal.ProxOperator):
        """u -> prox of tau h*, h = .3 |.|_1 + |.|^2."""

        def proxdual(self, u, tau):
            small = np.abs(u) <= 0.3
            return np.where(small, u, (u + 0.5 * tau * 0.3 * np.sign(u)) / (1 + 0.5 * tau))

    return {
        "zero": (Zero(), pyproximal.L1(sigma=1e-12)),
        "l1": (L1(0.4), pyproximal.L1(sigma=0.4)),
        "elastic net": (ElasticNet(0.3, 2.0), Conjugate(None, False)),
        "groups": (GroupL2(0.6, axis=0), pyproximal.L21(ndim=2, sigma=0.6)),
        "box": (Box(-0.5, 0.25), pyproximal.Box(-0.5, 0.25)),
        "nonnegative": (Nonnegative(), pyproximal.Box(0, np.inf)),
        "simplex": (Simplex(1.5), pyproximal.Simplex(6, 1.5)),
        "tv": (TV(0.3, accuracy=1e-9), pyproximal.TV((2, 3), sigma=0.3, niter=5000, rtol=1e-12)),
    }


SHAPES = {"groups": (2, 3), "tv": (2, 3)}


@pytest.mark.parametrize("name", ["zero", "l1", "elastic net", "groups", "box", "nonnegative", "simplex", "tv"])
def test_moreau_test_of_pyproximal(name):
    """x = prox_{t h}(x) + t prox_{h*/t}(x/t): the first prox is ours, the second theirs."""
    pyproximal = pytest.importorskip("pyproximal")
    ours, theirs = penalties()[name]

    class Both(pyproximal.ProxOperator):
        def prox(self, x, tau):
            v = torch.from_numpy(x).reshape(SHAPES.get(name, x.shape))
            return ours.prox(v, tau).numpy().ravel()

        def proxdual(self, u, tau):
            return theirs.proxdual(u, tau)

    for seed, tau in ((0, 0.3), (1, 1.0), (2, 2.0)):
        x = 1.5 * randn(6, seed=seed, dtype=torch.float64).numpy()
        assert pyproximal.utils.moreau(Both(None, False), x, tau, tol=1e-3 if name == "tv" else 1e-6)


@pytest.mark.parametrize("name", ["l1", "elastic net", "groups", "nonnegative"])
def test_prox_test_of_scico(name):
    """Brute force by Nelder and Mead on SCICO's functional finds nothing better than our prox."""
    functional = pytest.importorskip("scico.functional")
    pytest.importorskip("jax").config.update("jax_enable_x64", True)
    prox = pytest.importorskip("scico.test.functional.prox")
    l1, square = functional.L1Norm(), functional.SquaredL2Norm()
    ours, theirs = {
        "l1": (L1(1.0), l1),
        "elastic net": (ElasticNet(0.3, 2.0), lambda x: 0.3 * l1(x) + square(x)),
        "groups": (GroupL2(1.0, axis=0), functional.L21Norm(l2_axis=0)),
        "nonnegative": (Nonnegative(), functional.NonNegativeIndicator()),
    }[name]

    def of_arrays(v, t, v0=None):
        return ours.prox(torch.from_numpy(np.array(v, np.float64)), t).numpy()

    for seed in range(3):
        prox.prox_test(randn(2, 2, seed=seed, dtype=torch.float64).numpy(), theirs, of_arrays, 0.7, rtol=1e-5)


# --- deepinv ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROJECTORS)
def test_physics_functions_of_deepinv(deepinv, name):  # noqa: F811
    A = PROJECTORS[name]
    physics, x = interop.as_physics(A), randn(2, 1, 16, 16)
    y = physics.A(x)
    rows = y.flatten(1) @ y.flatten(1).T  # <A x_i, A x_j>
    torch.testing.assert_close(physics.forward(x), y)
    torch.testing.assert_close(physics.A_adjoint_A(x), physics.A_adjoint(y))
    torch.testing.assert_close(physics.A_A_adjoint(y), physics.A(physics.A_adjoint(y)))
    torch.testing.assert_close(physics.A_vjp(x, y), physics.A_adjoint(y))
    torch.testing.assert_close((physics.A_adjoint(y).flatten(1) @ x.flatten(1).T), rows, rtol=1e-4, atol=1e-2)
    assert float(physics.adjointness_test(x).abs().max()) < 1e-3 * float(rows.abs().max())
    norm = physics.compute_sqnorm(x[:1], max_iter=1000, tol=1e-6, verbose=False)
    assert float(norm) == pytest.approx(float(A.norm(200)) ** 2, rel=1e-2)
    assert float(physics.condition_number(x[:1])) > 1
    found = physics.prox_l2(x, y, gamma=0.1, max_iter=200, tol=1e-6)
    torch.testing.assert_close(
        found + 0.1 * physics.A_adjoint_A(found), x + 0.1 * physics.A_adjoint(y), rtol=1e-3, atol=1e-3
    )
    again = physics.A_dagger(y, max_iter=500, tol=1e-6)
    torch.testing.assert_close(physics.A(again), y, rtol=2e-2, atol=2e-2 * float(y.abs().max()))
    both = physics.stack(physics)
    torch.testing.assert_close(both.A(x)[1], y)
    torch.testing.assert_close(physics.clone().A(x), y)
    physics.set_noise_model(deepinv.physics.GaussianNoise(0.1))
    noisy = physics(x)
    assert noisy.shape == y.shape and 0.05 < float((noisy - y).std()) < 0.2


@pytest.fixture(scope="module")
def scan():
    truth = abdomen_image(32)
    radon = Radon(32, np.arange(24) * np.pi / 24)
    clean = radon(truth)
    return truth, radon, clean + 0.01 * clean.square().mean().sqrt() * randn(*clean.shape)


def error(x, truth):
    return float((x.reshape(truth.shape) - truth).norm() / truth.norm())


@pytest.mark.parametrize("method", ["ADMM", "PGD", "HQS", "RED"])
def test_our_prior_in_algorithms_of_deepinv(deepinv, scan, method):  # noqa: F811
    truth, radon, b = scan
    size = float(radon.norm().upper)
    physics, D = interop.as_physics((1 / size) * radon), load("ridge-ct").requires_grad_(False)
    optim, first = deepinv.optim, radon.fbp(b)
    start = first[None, None]
    common = {"data_fidelity": optim.L2(), "custom_init": lambda y, physics: {"est": (start, start)}}
    level, PnP = 5 / 255, optim.PnP
    model = {
        "ADMM": lambda: optim.ADMM(prior=PnP(D), sigma_denoiser=level, stepsize=100.0, max_iter=20, **common),
        "HQS": lambda: optim.HQS(prior=PnP(D), sigma_denoiser=level, stepsize=300.0, max_iter=20, **common),
        "PGD": lambda: optim.PGD(prior=PnP(D), sigma_denoiser=level / 10, stepsize=1.0, max_iter=100, **common),
        "RED": lambda: optim.PGD(prior=optim.RED(D), sigma_denoiser=level, lambda_reg=0.01, stepsize=1.0,
                                 max_iter=200, g_first=True, **common),
    }[method]()  # fmt: skip
    with torch.no_grad():
        found = model(b[None, None] / size, physics)
    assert error(found, truth) < 0.8 * error(first, truth)


def test_the_same_image_by_our_operator_and_by_its_physics(deepinv, scan):  # noqa: F811
    truth, radon, b = scan
    back = interop.from_deepinv(interop.as_physics(radon), (32, 32))
    images = []
    for A, data in ((radon, b), (back, b[None])):
        f = OperatorLeastSquares(A, data)
        solver = ADMM(Problem(f, Denoised(load("ridge-ct"), image=True)), Spider(1, every=1), 1.0, 1.0,
                      x_step=Newton(f, inner=5))  # fmt: skip
        images.append(run(solver, torch.zeros(32, 32), Stop(iterations=20), objective=False, progress=False).x)
    assert error(images[1], images[0]) < 1e-4 and error(images[0], truth) < 0.1


# --- ASTRA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2])
def test_data_of_astras_strip_model_by_its_projector_and_by_ours(astra, width):  # noqa: F811
    """At 256 x 256: benchmarks/fan.py. Detectors that are wider than pixels want several rays."""
    truth, axis, detector, degrees = abdomen_image(64), 700.0, 950.0, np.arange(60) * 6.0
    turned, volume = truth.flip(0).numpy(), astra.create_vol_geom(64, 64)  # y points upwards in ASTRA
    pitch, detectors = width * detector / axis, 100 // width
    rays = astra.create_proj_geom("fanflat", pitch, detectors, np.deg2rad(degrees), axis, detector - axis)
    data = astra.OpTomo(astra.create_projector("strip_fanflat", rays, volume)).FP(turned)
    scanners = [fan(axis, detector, pitch, rays=count) for count in (1, 2)]
    one, two = (error(scanner.projector(64, np.deg2rad(degrees), detectors, width)(truth), torch.from_numpy(data))
                for scanner in scanners)  # fmt: skip
    assert one < 0.003 if width == 1 else two < 0.3 * one
    if width == 1:
        ours = reconstruct(data, degrees, geometry=scanners[0], size=64, truth=truth.numpy(), raw=True)
        theirs = reconstruct(data, operator=interop.from_astra(rays, volume, "line_fanflat"), truth=turned)
        assert ours.mean("snr") > 27 and theirs.mean("snr") > 22
        assert max(ours.mean("iterations"), theirs.mean("iterations")) <= 30
