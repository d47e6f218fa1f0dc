"""The loss over views, ways to draw them, sinograms on disk, and the preconditioned x-step."""

import itertools
import math

import h5py
import numpy as np
import pytest
import torch

from smadmm import ADMM, SGD, Power, Problem, Stop, Storm, run
from smadmm.checkpoint import describe
from smadmm.imaging.preconditioner import FourierStep
from smadmm.losses import RobustTomography, Tomography, Transmission
from smadmm.operators import Radon
from smadmm.proxes import Box, Zero
from smadmm.sampling import Rng, golden, iid, reshuffled, stride

VIEWS = 30
ANGLES = np.arange(VIEWS) * math.pi / VIEWS


def random(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def difference(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


RADON = Radon((24, 30), ANGLES, detectors=40, spacing=0.9, centre=1.5)
SINOGRAM = random(RADON.out_shape, 0).abs()
WEIGHTS = random(RADON.out_shape, 1).abs() + 0.1
LOSSES = {
    "plain": {},
    "array weights": {"weights": WEIGHTS},
    "transmission": {"weights": Transmission(0.5)},
}


@pytest.mark.parametrize("name", LOSSES)
def test_fused_gradient_equals_the_plain_one_and_finite_differences(name):
    f = Tomography(RADON, SINOGRAM, **LOSSES[name])
    slow = Tomography(Radon((24, 30), ANGLES, 40, 0.9, 1.5, compiled=False), SINOGRAM, **LOSSES[name])
    exact = Tomography(RADON, SINOGRAM.double(), **LOSSES[name], dtype=torch.float64)
    x, old, d = (random(RADON.in_shape, seed) for seed in (2, 3, 4))
    for batch in (f.draw(Rng(0, 1), 7), torch.tensor([4, 4, 4]), f.full()):
        fused = f.gradient((x, old), (1.0, -0.3), batch)
        assert difference(fused, slow.gradient((x, old), (1.0, -0.3), batch)) < 1e-6
        two = exact.gradient((x.double(),), (1.0,), batch) - 0.3 * exact.gradient((old.double(),), (1.0,), batch)
        assert difference(fused, two) < 1e-6
        ahead, behind = (exact.value((x + h * d).double(), batch) for h in (0.5, -0.5))  # quadratic: exact for any h
        slope = float((exact.gradient((x.double(),), (1.0,), batch) * d).sum())
        assert slope == pytest.approx(float(ahead - behind), rel=1e-5)


@pytest.mark.parametrize("shape", ["huber", "student"])
def test_robust_losses_are_least_squares_for_good_rays_and_lie_below_it(shape):
    x, d = random(RADON.in_shape, 2), random(RADON.in_shape, 3)
    plain = Tomography(RADON, SINOGRAM, WEIGHTS)
    wide, narrow = (RobustTomography(RADON, SINOGRAM, delta, shape, WEIGHTS) for delta in (1e5, 0.1))
    assert difference(wide.gradient((x,), (1.0,), plain.full()), plain.gradient((x,), (1.0,), plain.full())) < 1e-5
    assert float(wide.value(x, plain.full())) == pytest.approx(float(plain.value(x, plain.full())), rel=1e-4)
    assert float(narrow.value(x, plain.full())) < 0.1 * float(plain.value(x, plain.full()))
    slope = (narrow.gradient((x,), (1.0,), plain.full()) * d).sum()  # least squares around x is a majorant
    for length in (-1.0, -0.1, 0.1, 1.0):
        model = narrow.majorant()
        bent = model.value(x + length * d, model.full()) - model.value(x, model.full())
        bent -= length * (model.gradient((x,), (1.0,), model.full()) * d).sum()
        above = narrow.value(x, plain.full()) + length * slope + bent
        assert float(narrow.value(x + length * d, plain.full())) <= float(above) * (1 + 1e-5)


def test_one_wrong_ray_pulls_with_a_bounded_force():
    right = torch.zeros_like(SINOGRAM)
    wrong = right.clone()
    wrong[7, 20] = 1e4
    x = torch.zeros(RADON.in_shape)
    pulls = {}
    for name, make in {"squares": Tomography, "huber": RobustTomography, "student": RobustTomography}.items():
        more = () if name == "squares" else (0.5, name)
        one, two = (make(RADON, data, *more).gradient((x,), (1.0,), torch.tensor([7])) for data in (right, wrong))
        pulls[name] = float((two - one).norm())
    assert pulls["student"] < pulls["huber"] < 1e-3 * pulls["squares"]
    with pytest.raises(ValueError, match="must be positive, got 0"):
        RobustTomography(RADON, SINOGRAM, 0)
    with pytest.raises(ValueError, match="one of huber, student, got 'l1'"):
        RobustTomography(RADON, SINOGRAM, 1, "l1")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("geometry", [{}, {"spacing": 0.3, "detectors": 200}, {"spacing": 3.0, "centre": 2.0}])
def test_every_view_is_one_smooth(name, geometry):
    """The scale c is valid and not far from the best."""
    A = Radon((14, 18), ANGLES[::3], **geometry)
    weights = LOSSES[name].get("weights")
    weights = random(A.out_shape, 1).abs() + 0.1 if isinstance(weights, torch.Tensor) else weights
    f = Tomography(A, random(A.out_shape, 0).double(), weights, dtype=torch.float64)
    rows = A.dense().reshape(A.views, A.detectors, -1)
    w = torch.ones(A.out_shape) if f.data(f.full())[1] is None else f.data(f.full())[1]
    squares = torch.linalg.matrix_norm(w.double().sqrt()[:, :, None] * rows, ord=2) ** 2 / f.c
    assert float(squares.max()) <= 1
    if weights is None:
        assert float(squares.max()) > 0.95
    full = (w.double().sqrt()[:, :, None] * rows).reshape(-1, 14 * 18)
    L = float(torch.linalg.matrix_norm(full, ord=2)) ** 2 / (A.views * f.c)
    assert L <= f.lipschitz() < (1.05 if weights is None else 5) * L


class OnlyRows:
    """An array that counts what is read of it."""

    def __init__(self, array):
        self.array, self.shape, self.read = array, array.shape, 0

    def __getitem__(self, key):
        rows = self.array[key]
        self.read += rows.shape[-2]
        return rows


@pytest.mark.parametrize("kind", ["npy", "hdf5"])
def test_sinograms_on_disk_give_the_same_and_are_read_by_view(kind, tmp_path):
    if kind == "npy":
        np.save(tmp_path / "s.npy", SINOGRAM.numpy())
        array = np.load(tmp_path / "s.npy", mmap_mode="r")
    else:
        with h5py.File(tmp_path / "s.h5", "w") as file:
            file["sinogram"] = SINOGRAM.numpy().astype(np.float64)
        array = h5py.File(tmp_path / "s.h5", "r")["sinogram"]
    rows = OnlyRows(array)
    memory, disk = Tomography(RADON, SINOGRAM), Tomography(RADON, rows)
    assert rows.read <= 8  # the fingerprint
    rows.read = 0
    x = random(RADON.in_shape, 2)
    batch = torch.tensor([9, 3, 3, 27])
    assert torch.equal(disk.gradient((x,), (1.0,), batch), memory.gradient((x,), (1.0,), batch))
    assert rows.read == 3
    describe(ADMM(Problem(disk, Zero()), SGD(2), rho=0.1, eta=1.0))
    assert rows.read == 3  # a checkpoint's settings do not read the data


def test_a_full_gradient_goes_through_the_data_in_pieces(monkeypatch):
    monkeypatch.setattr("smadmm.losses.tomography.PIECE", 8)
    rows = OnlyRows(SINOGRAM.numpy())
    f = Tomography(RADON, rows)
    x = random(RADON.in_shape, 2)
    whole = RADON.T(RADON(x) - SINOGRAM) / (VIEWS * f.c)
    assert difference(f.gradient((x,), (1.0,), f.full()), whole) < 1e-6
    value = 0.5 * (RADON(x) - SINOGRAM).square().sum() / (VIEWS * f.c)
    torch.testing.assert_close(f.value(x, f.full()), value)


def test_slices_share_their_views():
    A = Radon(16, ANGLES, batch=(3,))
    data, x = random(A.out_shape, 0), random(A.in_shape, 1)
    f = Tomography(A, data)
    batch = torch.tensor([1, 20, 7])
    single = Radon(16, ANGLES)
    for s in range(3):
        expected = Tomography(single, data[s]).gradient((x[s],), (1.0,), batch)
        torch.testing.assert_close(f.gradient((x,), (1.0,), batch)[s], expected)


# --- ways to draw ----------------------------------------------------------------------------------------------------


def drawn(sampling, n, size, count, seed=0):
    position, batches = 0, []
    for k in range(count):
        rng = Rng(seed, k, position)
        batches.append(sampling(rng, n, size))
        position = rng.drawn
    return batches


@pytest.mark.parametrize("sampling", [stride, golden, reshuffled])
def test_every_view_once_a_pass(sampling):
    batches = drawn(sampling, 60, 12, 10)
    for epoch in (batches[:5], batches[5:]):
        assert sorted(np.concatenate(epoch)) == list(range(60))
    assert not np.array_equal(np.concatenate(batches[:5]), np.concatenate(batches[5:]))


@pytest.mark.parametrize(("n", "size"), [(60, 12), (61, 7), (5, 9)])
def test_stride_is_equispaced_and_unbiased(n, size):
    batches = drawn(stride, n, size, 4000)
    for batch in batches[:50]:
        assert len(batch) == size and batch.min() >= 0 and batch.max() < n
        gaps = np.diff(np.append(batch, batch[0] + n))
        assert gaps.max() - gaps.min() <= 1
    counts = np.bincount(np.concatenate(batches), minlength=n)
    expected = 4000 * size / n
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)


def test_golden_spreads_any_few_in_a_row():
    for batch in drawn(golden, 180, 5, 30):
        gaps = np.diff(np.append(np.sort(batch), np.sort(batch)[0] + 180))
        assert gaps.max() < 1.7 * 36 and gaps.min() > 0.5 * 36


def test_views_are_numbered_by_angle():
    """Views acquired in any order: batches of `stride` are equispaced in angle."""
    angles = np.random.default_rng(0).permutation(40) * (math.pi / 40) + math.pi * (np.arange(40) % 2)
    f = Tomography(Radon(8, angles), torch.zeros(40, 11), sampling=stride)
    chosen = np.sort(angles[f.draw(Rng(0, 1), 8).numpy()] % math.pi)
    np.testing.assert_allclose(np.diff(np.append(chosen, chosen[0] + math.pi)), math.pi / 8)


# --- the preconditioned x-step ---------------------------------------------------------------------------------------


def phantom(size):
    rows, columns = np.mgrid[:size, :size] / (size - 1) * 2 - 1
    image = 0.6 * (columns**2 / 0.7 + rows**2 / 0.5 < 1)
    image += 0.4 * ((columns - 0.3) ** 2 + rows**2 < 0.04) - 0.3 * ((columns + 0.3) ** 2 + (rows - 0.1) ** 2 < 0.03)
    image += 0.2 * (np.abs(columns + rows) < 0.04) * (columns**2 + rows**2 < 0.3)
    return torch.from_numpy(image).float()


def snr(x, truth):
    return 20 * math.log10(float(truth.norm() / (x - truth).norm()))


def test_filter_is_symmetric_positive_and_below_the_batch_inverse():
    """(s H + rho)^{-1}, padded and cut, lies below (Hess_S + rho)^{-1} for drawn batches and several rho."""
    A = Radon(12, ANGLES)
    f = Tomography(A, torch.zeros(A.out_shape).double(), sampling=stride, dtype=torch.float64)
    step = FourierStep(f, batch=5)
    eye = torch.eye(144, dtype=torch.float64).reshape(144, 12, 12)
    for k, rho in enumerate((1e-4, 1e-2, 1.0)):
        P = torch.stack([step(e, 1.0, rho).flatten() for e in eye])
        torch.testing.assert_close(P, P.T)
        assert float(torch.linalg.eigvalsh(P)[0]) > 0
        rows = A.forward_views(eye, f.draw(Rng(5, k), 5)).flatten(1)
        hessian = rows @ rows.T / (5 * f.c)
        root = torch.linalg.cholesky(P)
        largest = float(torch.linalg.eigvalsh(root.T @ (hessian + rho * eye.flatten(1)) @ root)[-1])
        assert 0.3 < largest < 1.0 + 1e-9


def test_filter_takes_eta_and_rho_as_its_formula_says():
    """(eta s H + rho)^{-1}: homogeneous of degree -1 in (eta, rho); about d/rho where eta is small."""
    A = Radon(16, ANGLES)
    f = Tomography(A, torch.zeros(A.out_shape).double(), dtype=torch.float64)
    step, d = FourierStep(f, batch=5), random(A.in_shape, 0, torch.float64)
    torch.testing.assert_close(step(d, 0.6, 0.02), step(d, 3.0, 0.1) * 5)
    assert difference(step(d, 0.6, 0.02), step(d, 3.0, 0.02)) > 0.1
    torch.testing.assert_close(step(d, 1e-12, 0.1), d / 0.1)


@pytest.mark.parametrize("spacing", [1.0, 0.5])
@pytest.mark.parametrize("nu", [0.05, 0.1])
def test_symbol_is_the_hessian_of_many_views(spacing, nu):
    """A wave packet of frequency nu: the mean of A_i'A_i multiplies it by 1/(pi nu), measured as a quotient."""
    size, views = 64, 200
    A = Radon(size, np.arange(views) * math.pi / views, detectors=int(100 / spacing), spacing=spacing)
    f = Tomography(A, torch.zeros(A.out_shape))
    rows, columns = np.mgrid[:size, :size] - (size - 1) / 2
    packet = np.cos(2 * math.pi * nu * (0.8 * columns + 0.6 * rows)) * np.exp(-(rows**2 + columns**2) / (2 * 9**2))
    packet = torch.from_numpy(packet).float()
    hessian = f.gradient((packet, torch.zeros_like(packet)), (1.0, -1.0), f.full())
    measured = float((packet * hessian).sum() / packet.square().sum())
    step = FourierStep(f, views, s=1.0)
    i, j = round(2 * size * 0.6 * nu), round(2 * size * 0.8 * nu)
    assert float(step.H[i, j]) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("sampling", [iid, reshuffled, stride, golden])
@pytest.mark.parametrize("batch", [1, 3, 10])
def test_preconditioned_runs_do_not_diverge_and_beat_linearised(sampling, batch):
    truth = phantom(48)
    A = Radon(48, np.arange(60) * math.pi / 60)
    data = A(truth)
    data = data + random(data.shape, 0) * 10 ** (-50 / 20) * data.norm() / math.sqrt(data.numel())
    f = Tomography(A, data, sampling=sampling)
    problem, start = Problem(f, Box(0.0, 1.0)), A.fbp(data)
    estimator = Storm(batch, Power(1.0, -2 / 3))
    reached = {}
    for name, options in {"linearised": {}, "fourier": {"x_step": FourierStep(f, batch)}}.items():
        solver = ADMM(problem, estimator, rho=0.01, eta=1.0, **options)
        result = run(solver, start, Stop(iterations=200), objective=False, progress=False)
        reached[name] = snr(result.x, truth)
    assert reached["fourier"] > snr(start, truth)
    if batch > 1:  # one view alone acts on a line: there is nothing to precondition
        assert reached["fourier"] > reached["linearised"] + 0.5


@pytest.mark.parametrize(
    "geometry", [{"spacing": 0.5}, {"spacing": 2.0}, {"size": (20, 60)}, {"span": 1.5}, {"span": 6.2}]
)
def test_other_geometries_do_not_diverge(geometry):
    geometry = dict(geometry)
    span, size = geometry.pop("span", math.pi), geometry.pop("size", 40)
    A = Radon(size, np.linspace(0, span, 40, endpoint=False), **geometry)
    truth = torch.rand(A.in_shape, generator=torch.Generator().manual_seed(0))
    f = Tomography(A, A(truth), sampling=stride)
    solver = ADMM(Problem(f, Zero()), SGD(4), rho=1e-3, eta=1.0, x_step=FourierStep(f, 4))
    result = run(solver, torch.zeros(A.in_shape), Stop(iterations=300), every=50)
    objective = result.history["objective"]
    assert all(b < a for a, b in itertools.pairwise(objective)) and objective[-1] < 1e-3 * objective[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tomography(RADON, SINOGRAM[:5]), r"\(5, 40\)"),
        (lambda: Tomography(RADON, SINOGRAM, weights=WEIGHTS[:5]), r"weights: shape \(5, 40\)"),
        (lambda: Tomography(Radon(8, [0.0], 4, centre=99.0), torch.zeros(1, 4)), "no ray"),
        (lambda: FourierStep(Tomography(RADON, SINOGRAM), 0), "at least one view"),
        (lambda: FourierStep(Tomography(RADON, SINOGRAM), 2, s=-1.0), "positive"),
        (lambda: FourierStep(Tomography(RADON, SINOGRAM), 2, s=1.0)(SINOGRAM, 1.0, SINOGRAM), "numbers for eta"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
