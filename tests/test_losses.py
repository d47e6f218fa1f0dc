"""Every loss: gradients against finite differences, several points in one call, streams and their limits."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

from smadmm import ADMM, SGD, Problem, Reason, Stop, Storm, run
from smadmm.losses import (
    AmplitudeLoss,
    Autograd,
    Huber,
    IntensityLoss,
    LeastSquares,
    Logistic,
    OperatorHuber,
    OperatorLeastSquares,
    OperatorPoisson,
    PoissonLoss,
    PtychographyLoss,
    RobustTomography,
    Sigmoid,
    Squared,
    SquaredHinge,
    Stream,
    Student,
)
from smadmm.losses.glm import PIECE
from smadmm.operators import CodedDiffraction, Matrix, Ptychography, Radon, circle_masks
from smadmm.proxes import L1
from smadmm.sampling import Ordered, Rng, iid, pass_batches, reshuffled, run_batches, runs

N, D = 24, 5


def random(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


X = random((N, D), 0) * (random((N, D), 1) > -0.5)
SIGNS = torch.sign(random(N, 2))
WEIGHTS = random(N, 3).abs()
BLOCKS = [Matrix(rows) for rows in X.split(6)]


def logistic(x, batch):
    return torch.nn.functional.softplus(-SIGNS[batch] * (X[batch] @ x)).mean()


DIFFRACTION = CodedDiffraction(circle_masks(N, (4, D)), torch.float64)
COMPLEX_DIFFRACTION = CodedDiffraction(random((N, 4, D), 10, torch.complex128), torch.complex128)
PATTERNS = 1 + random((N, 4, D), 9).abs()

SCAN = Ptychography(random((3, 2), 5, torch.complex128), [(i % 3, 0.5 * (i % 4)) for i in range(N)], (6, 5))
TURNS = Radon(6, np.arange(N) * np.pi / N, 9)
WEIGHTED = random((N, 9), 11).abs()
LOSSES = {
    "sigmoid": Sigmoid(X, SIGNS),
    "logistic": Logistic(X, SIGNS),
    "squared hinge": SquaredHinge(X, SIGNS),
    "squared": Squared(X, random(N, 4)),
    "huber": Huber(X, 2 * random(N, 4)),
    "student": Student(X, 2 * random(N, 4)),
    "weighted": Logistic(X, SIGNS, sample_weight=WEIGHTS),
    "sparse": Sigmoid(X.to_sparse(), SIGNS),
    "scipy": Logistic(scipy.sparse.csr_array(X.numpy()), SIGNS.numpy()),
    "numpy": Logistic(X.numpy(), SIGNS.numpy()),
    "intercept": Sigmoid(X, SIGNS, intercept=True),
    "intercept, sparse": Logistic(X.to_sparse(), SIGNS, WEIGHTS, intercept=True),
    "least squares": LeastSquares(X, random(N, 4)),
    "blocks": LeastSquares(X, random(N, 4), block=4),
    "sparse blocks": LeastSquares(X.to_sparse(), random(N, 4), block=4),
    "complex": LeastSquares(random((N, D), 5, torch.complex128), random(N, 6, torch.complex128), block=2),
    "operators": OperatorLeastSquares(BLOCKS, random(N, 4).reshape(4, 6), WEIGHTS.reshape(4, 6), dtype=torch.float64),
    "operators, Huber": OperatorHuber(
        BLOCKS, random(N, 4).reshape(4, 6), 0.7, WEIGHTS.reshape(4, 6), dtype=torch.float64
    ),
    "operators, Poisson": OperatorPoisson(BLOCKS, random(N, 4).abs().reshape(4, 6), 0.5, dtype=torch.float64),
    "tomography, Huber": RobustTomography(TURNS, random((N, 9), 4), 0.5, "huber", WEIGHTED, dtype=torch.float64),
    "tomography, Student": RobustTomography(TURNS, random((N, 9), 4), 0.5, "student", dtype=torch.float64),
    "amplitude": AmplitudeLoss(DIFFRACTION, PATTERNS),
    "amplitude, sum": AmplitudeLoss(DIFFRACTION, PATTERNS, reduction="sum"),
    "amplitude, complex": AmplitudeLoss(COMPLEX_DIFFRACTION, PATTERNS),
    "intensity": IntensityLoss(DIFFRACTION, PATTERNS),
    "intensity, complex": IntensityLoss(COMPLEX_DIFFRACTION, PATTERNS),
    "poisson": PoissonLoss(DIFFRACTION, PATTERNS, background=0.1),
    "poisson, complex": PoissonLoss(COMPLEX_DIFFRACTION, PATTERNS, background=0.1),
    "ptychography": PtychographyLoss(SCAN, random((N, 3, 2), 9).abs()),
    "ptychography counts": PtychographyLoss(SCAN, random((N, 3, 2), 9).abs(), dark=0.1),
    "autograd": Autograd(logistic, N),
}


def size(f):
    return f.shape or (D,)


def kind(f):
    return f.dtype or torch.float64


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_finite_differences(name):
    f = LOSSES[name]
    batch = f.draw(Rng(0, 1), 3)
    for chosen in (batch, f.full()):
        x, d = random(size(f), 7, kind(f)), random(size(f), 8, kind(f))
        h = 1e-5
        slope = (f.value(x + h * d, chosen) - f.value(x - h * d, chosen)) / (2 * h)
        gradient = f.gradient((x,), (1.0,), chosen)
        assert gradient.dtype == x.dtype
        assert float((gradient.conj() * d).real.sum()) == pytest.approx(float(slope), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_several_points_in_one_call(name):
    f = LOSSES[name]
    points, weights = [random(size(f), s, kind(f)) for s in (1, 2, 3)], [1.0, -0.7, 0.25]
    for batch in (f.draw(Rng(0, 1), 7), f.full()):
        single = sum(w * f.gradient((x,), (1.0,), batch) for x, w in zip(points, weights))
        torch.testing.assert_close(f.gradient(points, weights, batch), single, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", LOSSES)
def test_components_assemble_to_the_gradient(name):
    f, batch = LOSSES[name], torch.tensor([1, 3, 3, 0])
    x = random(size(f), 1, kind(f))
    torch.testing.assert_close(f.assemble(f.components(x, batch), batch), f.gradient((x,), (1.0,), batch))


@pytest.mark.parametrize("name", [n for n in LOSSES if LOSSES[n].lipschitz() is not None])
def test_lipschitz_constant_bounds_gradient_differences(name):
    f = LOSSES[name]
    L = f.lipschitz()
    ratios = []
    for seed in range(200):
        x, y = (10 ** ((seed % 5) - 3) * random(size(f), 10 * seed + i, kind(f)) for i in (0, 1))
        ratios.append(float(f.gradient((x, y), (1.0, -1.0), f.full()).norm() / (x - y).norm()))
    assert 0.05 * L < max(ratios) <= L * (1 + 1e-9)


@pytest.mark.parametrize("loss", [Sigmoid, Logistic, SquaredHinge, Squared, Huber, Student])
def test_curvature_is_the_largest_second_derivative(loss):
    """One sample a = 1: L is the largest |l''|, found here on a grid by automatic differentiation of the value."""
    f, largest = loss(torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)), 0.0
    for z in torch.linspace(-4, 4, 801, dtype=torch.float64):
        second = torch.autograd.functional.hessian(lambda x: f.value(x, f.full()), z[None])
        largest = max(largest, abs(float(second)))
    assert f.lipschitz() == pytest.approx(largest, rel=1e-4)


def test_lipschitz_constant_counts_the_intercept():
    """A column of ones and the intercept: the gradient of the squared loss grows by 2 along (1, 1)."""
    f = Squared(torch.ones(N, 1, dtype=torch.float64), torch.ones(N), intercept=True)
    assert f.lipschitz() == pytest.approx(2)


def test_sparse_equals_dense():
    dense, sparse = Sigmoid(X, SIGNS), Sigmoid(X.to_sparse(), SIGNS)
    batch, x = torch.tensor([3, 3, 0, 11]), random(D, 1)
    torch.testing.assert_close(dense.gradient((x,), (1.0,), batch), sparse.gradient((x,), (1.0,), batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_data(dtype):
    for f in (Sigmoid(X.to(dtype), SIGNS), LeastSquares(X.to(dtype), random(N, 4))):
        assert f.gradient((torch.zeros(D, dtype=dtype),), (1.0,), f.full()).dtype == dtype


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sigmoid(X, SIGNS[:5]), r"24 rows, but b has shape \(5,\)"),
        (lambda: Logistic(X, (SIGNS + 1) / 2), "labels -1 and \\+1, got 0"),
        (lambda: LeastSquares(X, random(N, 4), block=5), "24 rows cannot be cut into blocks of 5"),
        (lambda: LeastSquares(X, random(3, 4)), r"24 rows, but b has shape \(3,\)"),
        (lambda: Autograd(logistic, 0), "at least one sample"),
        (lambda: Sigmoid(X, SIGNS).draw(Rng(0, 0), 0), "at least one sample"),
        (lambda: Rng(-1, 0), "non-negative"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- sampling


def drawn(sampling, sizes, seed=0, n=10):
    position, out = 0, []
    for k, size in enumerate(sizes):
        rng = Rng(seed, k, position)
        out.append(sampling(rng, n, size).tolist())
        position = rng.drawn
    return out


def test_reshuffled_passes_visit_every_sample_once():
    flat = [*itertools.chain(*drawn(reshuffled, [3, 4, 6, 7]))]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert flat[:10] != flat[10:]
    assert drawn(reshuffled, [3, 4], seed=1) != drawn(reshuffled, [3, 4], seed=0)


def test_runs_visit_every_sample_about_once_a_pass():
    """Four runs of 3 of 13 samples a pass: consecutive, none twice, another order and offset in the next pass."""
    batches = [drawn(runs, [3] * 8, n=13)[i] for i in range(8)]
    for batch in batches:
        assert [(b - batch[0]) % 13 for b in batch] == [0, 1, 2]
    assert len(set(itertools.chain(*batches[:4]))) == len(set(itertools.chain(*batches[4:]))) == 12
    assert sorted(map(tuple, batches[:4])) != sorted(map(tuple, batches[4:]))
    assert np.array_equal(run_batches(0, 13, 3, 0, 8), batches)
    assert np.array_equal(run_batches(0, 13, 3, 5, 2), batches[5:7])
    flat = [*itertools.chain(*drawn(reshuffled, [3, 3, 3]))]
    assert np.array_equal(pass_batches(0, 10, 3, 1, 2), np.reshape(flat[3:], (2, 3)))


def test_iid_draws_are_uniform_and_repeat():
    flat = [*itertools.chain(*drawn(iid, [50] * 100))]
    counts = torch.bincount(torch.tensor(flat), minlength=10)
    assert int(counts.min()) > 400 and int(counts.max()) < 600  # 500 +- 4.7 standard deviations


def test_user_order_is_followed_and_checked():
    assert drawn(Ordered([3, 1, 2]), [2, 2, 3]) == [[3, 1], [2, 3], [1, 2, 3]]
    with pytest.raises(ValueError, match="names sample 12, but there are only 10"):
        drawn(Ordered([0, 12]), [1])
    with pytest.raises(ValueError, match="non-empty"):
        Ordered([])


# --- streams


def squared(x, batch):
    rows, targets = batch
    return 0.5 * ((rows @ x - targets) ** 2).mean()


def pieces(sizes):
    """The data in pieces of these sizes, as a list that can be iterated again."""
    targets = random(N, 4)
    return list(zip(X.split(sizes), targets.split(sizes), strict=True))


def test_stream_cuts_and_joins_to_the_asked_size():
    f = Stream(squared, pieces([5, 1, 10, 8]))
    rng, start = Rng(0, 0), 0
    for size in (4, 7, 1, 12):
        rows, targets = f.draw(rng, size)
        assert torch.equal(rows, X[start : start + size]) and len(targets) == size
        start += size


def test_stream_gradient_equals_the_finite_sum():
    batch = Stream(squared, pieces([24])).draw(Rng(0, 0), 24)
    x = random(D, 1)
    expected = Squared(X, random(N, 4)).gradient((x,), (1.0,), torch.arange(N))
    torch.testing.assert_close(Stream(squared, []).gradient((x,), (1.0,), batch), expected)


def test_stream_runs_from_a_dataloader_until_it_ends():
    set_ = torch.utils.data.TensorDataset(X, random(N, 4))
    f = Stream(squared, torch.utils.data.DataLoader(set_, batch_size=7))
    solver = ADMM(Problem(f, L1(0.01)), Storm(2, 0.5, first=4), rho=1.0, eta=5.0)
    result = run(solver, torch.zeros(D, dtype=torch.float64), Stop(iterations=1000), progress=False)
    assert result.state.k == 10 and result.reason is Reason.STREAM_ENDED
    assert result.state.sfo == 4 + 10 * 4 and result.state.drawn == 24


def test_endless_generator_and_plain_tensors():
    def endless():
        while True:
            yield torch.ones(3, 2)

    f = Stream(lambda x, batch: 0.5 * ((x - batch) ** 2).sum(1).mean(), endless())
    solver = ADMM(Problem(f, L1(0.0)), SGD(5), rho=1.0, eta=3.0)
    result = run(solver, torch.zeros(2), Stop(iterations=100), progress=False)
    torch.testing.assert_close(result.x, torch.ones(2), atol=1e-3, rtol=0)


def test_stream_resumes_at_the_right_sample():
    """A re-iterable source is read forward to where the state stands; an iterator that is past it is refused."""
    make = lambda source: ADMM(Problem(Stream(squared, source), L1(0.01)), SGD(3), rho=1.0, eta=5.0)  # noqa: E731
    solver = make(pieces([5, 19]))
    states = [solver.init(torch.zeros(D, dtype=torch.float64))]
    for _ in range(5):
        states.append(solver.step(states[-1]))
    fresh = make(pieces([24]))
    assert torch.equal(fresh.step(states[3]).est.v, states[4].est.v)
    assert torch.equal(fresh.step(states[1]).est.v, states[2].est.v)  # back again
    used = make(iter(pieces([24])))
    with pytest.warns(UserWarning, match="goes on at sample 12: .* all before it is read and dropped; give live=True"):
        used.step(states[3])
    with pytest.raises(ValueError, match="at sample 15 and cannot go back to 6"):
        used.step(states[1])


def test_streams_are_those_of_philox_with_this_key():
    for seed, k in ((0, 0), (3, 17), (2**64 - 1, 2**63 + 5)):
        direct = np.random.Generator(np.random.Philox(key=np.array([seed, k], dtype=np.uint64)))
        assert np.array_equal(Rng(seed, k).integers(2**40, size=20), direct.integers(2**40, size=20))


def test_operators_are_blocks_of_a_matrix():
    """Unequal lengths, weights, and operators that are made when they are drawn."""

    class Made:
        asked = 0

        def __len__(self):
            return 3

        def __getitem__(self, i):
            Made.asked += 1
            return Matrix(X[i * i : i * i + 2 * i + 1])  # 1, 3 and 5 rows

    parts = [slice(i * i, (i + 1) ** 2) for i in range(3)]
    b, w, x = random(N, 4), WEIGHTS, random(D, 5)
    f = OperatorLeastSquares(Made(), [b[p] for p in parts], [w[p] for p in parts], dtype=torch.float64)
    Made.asked = 0
    found = f.gradient((x,), (1.0,), torch.tensor([1]))
    torch.testing.assert_close(found, X[parts[1]].T @ (w[parts[1]] * (X[parts[1]] @ x - b[parts[1]])))
    assert Made.asked == 2  # forward and back, of the one that was drawn
    hessian = X[:9].T @ (w[:9, None] * X[:9]) / 3
    assert f.lipschitz() == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=0.2)
    with pytest.raises(ValueError, match="3 operators, but 2 data; give one array"):
        OperatorLeastSquares(Made(), [b[:1], b[1:4]])
    with pytest.raises(ValueError, match=r"A_0 x has shape \(6,\), but its data have \(5,\)"):
        OperatorLeastSquares(BLOCKS[0], b[:5], dtype=torch.float64).value(x, torch.tensor([0]))
    with pytest.raises(TypeError, match="for operators use losses.OperatorLeastSquares"):
        LeastSquares(BLOCKS, b)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_larger_than_a_piece_gives_the_mean_over_its_samples(sparse):
    rng = np.random.default_rng(0)
    X, b = rng.standard_normal((50, 3)), np.sign(rng.standard_normal(50))
    f = Logistic(scipy.sparse.csr_array(X) if sparse else X, b, sample_weight=rng.random(50))
    batch = torch.from_numpy(rng.integers(50, size=PIECE + 1000))
    x, old = torch.from_numpy(rng.standard_normal((2, 3)))
    found = f.gradient((x, old), (1.0, -0.5), batch)
    parts = [f.gradient((x, old), (1.0, -0.5), batch[i : i + 1]) for i in range(len(batch))]
    torch.testing.assert_close(found, torch.stack(parts).mean(0), rtol=1e-12, atol=1e-14)
