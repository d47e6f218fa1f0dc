"""The loop equals the naive reference, keeps the identities of the paper, and is a pure function of its state."""

import dataclasses

import numpy as np
import pytest
import torch
from reference import algorithm_1, algorithm_1_two_blocks, algorithm_2

from smadmm import ADMM, SGD, Power, Problem, Storm
from smadmm.losses import LeastSquares, Sigmoid
from smadmm.operators import EdgeDifferences, Identity, Matrix, Slot, Stack
from smadmm.proxes import L1, Box, Denoised, Zero
from smadmm.sampling import Rng
from smadmm.xsteps import Conjugate, Exact, Metric, Preconditioned

STEPS = 25


def data(g, n=40, d=6):
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    return X, torch.sign(torch.randn(n, generator=g, dtype=torch.float64))


def numpy_gradient(X, b):
    X, b = X.numpy(), b.numpy()

    def grad(x, sample):
        s = 1 / (1 + np.exp(b[sample] * (X[sample] @ x)))
        return X[sample].T @ (-b[sample] * s * (1 - s)) / len(sample)

    return grad


def soft(weight):
    return lambda v, t: np.sign(v) * np.maximum(np.abs(v) - weight * t, 0)


def batches(f, seed, size, first):
    """The samples that iterations 1..STEPS draw, and the first ones."""
    return f.draw(Rng(seed, 0), first).numpy(), [f.draw(Rng(seed, k), size).numpy() for k in range(1, STEPS + 1)]


def advance(solver, state, steps=STEPS):
    for _ in range(steps):
        state = solver.step(state)
    return state


def assert_close(state, expected):
    x, y, lam, v = expected
    pairs = [(state.x, x), (state.lam, lam), (state.est.v, v)]
    pairs += list(zip(state.ys, y if isinstance(y, list) else [y], strict=True))
    for ours, theirs in pairs:
        assert np.abs(ours.numpy() - theirs).max() <= 1e-12 * max(1, np.abs(theirs).max())


@pytest.mark.parametrize("exact", [False, True])
def test_loop_equals_algorithm_1(g, exact):
    X, b = data(g)
    f = Sigmoid(X, b)
    A = torch.randn(8, 6, generator=g, dtype=torch.float64)
    B = torch.randn(8, 5, generator=g, dtype=torch.float64)
    c = torch.randn(8, generator=g, dtype=torch.float64)
    norm = float(torch.linalg.matrix_norm(A, ord=2))
    rho, eta = Power(0.3, 1 / 3), Power(0.35 * norm**2, 1 / 3)
    r, a = Power(0.4 * float(torch.linalg.matrix_norm(B, ord=2)) ** 2, 1 / 3), Power(1.5, -2 / 3, hi=1)
    problem = Problem(f, L1(0.1), Matrix(A), Matrix(B), c)
    x_step = {"x_step": Exact(problem.A)} if exact else {}
    solver = ADMM(problem, Storm(3, a, first=7), rho, eta, r, seed=4, **x_step)
    x0, y0 = torch.randn(6, generator=g, dtype=torch.float64), torch.randn(5, generator=g, dtype=torch.float64)
    first, samples = batches(f, 4, 3, 7)
    grad = numpy_gradient(X, b)
    expected = algorithm_1(
        grad, soft(0.1), A.numpy(), B.numpy(), c.numpy(), x0.numpy(), y0.numpy(), np.zeros(8), grad(x0.numpy(), first),
        lambda k: (rho(k), eta(k), r(k), a(k)), samples, exact,
    )  # fmt: skip
    assert_close(advance(solver, solver.init(x0, y0)), expected)


@pytest.mark.parametrize("overlapping", [False, True])
def test_two_blocks_equal_the_reference(g, overlapping):
    """Blocks that share rows of the constraint see each other: only there does the order of updates matter."""
    X, b = data(g)
    f = Sigmoid(X, b)
    G = EdgeDifferences([(0, 1), (1, 2), (4, 5)], 6)
    A = Stack([G, Identity((6,))])
    Bs, square = [-Slot(3, 0, 9), -Slot(6, 3, 9)], 1.0
    if overlapping:
        Bs = [Matrix(torch.randn(9, size, generator=g, dtype=torch.float64)) for size in (3, 6)]
        square = 1.2 * max(float(B.norm()) for B in Bs) ** 2
    problem = Problem(f, [L1(0.05), Box(-0.2, 0.3)], A, Bs)
    rho, eta, a = Power(0.2, 1 / 3), Power(1.2, 1 / 3), Power(1.0, -2 / 3)
    r = Power(0.2 * square, 1 / 3)
    solver = ADMM(problem, Storm(2, a, first=5), rho, eta, r if overlapping else None, seed=1)
    x0 = torch.randn(6, generator=g, dtype=torch.float64)
    first, samples = batches(f, 1, 2, 5)
    grad = numpy_gradient(X, b)
    dense_A = A.dense().numpy()
    dense_B = [B.dense().numpy() for B in Bs]
    expected = algorithm_1_two_blocks(
        grad, [soft(0.05), lambda v, t: np.clip(v, -0.2, 0.3)], dense_A, dense_B, np.zeros(9), x0.numpy(),
        [np.zeros(3), np.zeros(6)], np.zeros(9), grad(x0.numpy(), first),
        lambda k: (rho(k), eta(k), r(k), a(k)), samples,
    )  # fmt: skip
    assert_close(advance(solver, solver.init(x0)), expected)


def test_plug_and_play_equals_algorithm_2(g):
    M = torch.randn(30, 6, generator=g, dtype=torch.float64)
    target = torch.randn(30, generator=g, dtype=torch.float64)
    f = LeastSquares(M, target, block=3)
    kernel = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64)
    smooth = lambda v: torch.conv1d(torch.nn.functional.pad(v[None], (1, 1), mode="circular"), kernel[None])[0]  # noqa: E731
    problem = Problem(f, Denoised(smooth))
    a = Power(1.0, -2 / 3)
    solver = ADMM(problem, Storm(2, a, first=4), rho=0.7, eta=9.0, seed=2)
    x0 = torch.randn(6, generator=g, dtype=torch.float64)
    first, samples = batches(f, 2, 2, 4)

    def grad(x, sample):
        rows = (sample[:, None] * 3 + np.arange(3)).ravel()
        return M.numpy()[rows].T @ (M.numpy()[rows] @ x - target.numpy()[rows]) / len(sample)

    def denoiser(v):
        return 0.5 * v + 0.25 * (np.roll(v, 1) + np.roll(v, -1))

    expected = algorithm_2(grad, denoiser, x0.numpy(), np.zeros(6), grad(x0.numpy(), first), 0.7, 9.0, a, samples)
    assert_close(advance(solver, solver.init(x0)), expected)


def test_multiplier_identity(g):
    """A'lam+ = v + eta Q (x+ - x): with the exact x-step Q = I."""
    X, b = data(g)
    A = torch.randn(8, 6, generator=g, dtype=torch.float64)
    problem = Problem(Sigmoid(X, b), L1(0.1), Matrix(A))
    solver = ADMM(problem, SGD(4), rho=0.3, eta=0.9, x_step=Exact(problem.A))
    state = solver.init(torch.ones(6, dtype=torch.float64))
    for _ in range(5):
        new = solver.step(state)
        torch.testing.assert_close(A.T @ new.lam, -(-state.est.v - 0.9 * (new.x - state.x)), rtol=0, atol=1e-13)
        state = new


def test_default_r_is_the_least_that_majorises(g):
    """H = r I - rho B'B, the metric of the y-step, is positive semidefinite, and hardly more than that."""
    f, B = Sigmoid(*data(g)), torch.randn(6, 5, generator=g, dtype=torch.float64)
    rho = Power(0.3, 1 / 3)
    solver = ADMM(Problem(f, L1(0.1), B=Matrix(B)), SGD(4), rho, Power(0.4, 1 / 3))
    tight = ADMM(Problem(f, L1(0.1), B=-3 * Identity((6,))), SGD(4), rho, Power(0.4, 1 / 3))
    square = float(torch.linalg.matrix_norm(B, ord=2)) ** 2
    for k in (1, 8, 1000):
        H = solver.rs[0](k) * torch.eye(5, dtype=torch.float64) - rho(k) * B.T @ B
        assert 0 <= float(torch.linalg.eigvalsh(H)[0]) < 0.05 * rho(k) * square
        assert tight.rs[0](k) == pytest.approx(9 * rho(k))  # B'B = 9 I: H = 0, the y-step is exact


def test_y_starts_on_the_constraint(g):
    """B = -I: y = A x - c; other B: zero."""
    f, c = Sigmoid(*data(g)), torch.randn(8, generator=g, dtype=torch.float64)
    A, x = torch.randn(8, 6, generator=g, dtype=torch.float64), torch.randn(6, generator=g, dtype=torch.float64)
    explicit = ADMM(Problem(f, L1(0.1), Matrix(A), c=c), SGD(4), rho=0.1, eta=9.0, x_step=Exact(Matrix(A)))
    torch.testing.assert_close(explicit.init(x).y, A @ x - c)
    other = ADMM(Problem(f, L1(0.1), Matrix(A), Matrix(A), c), SGD(4), rho=0.1, eta=9.0, x_step=Exact(Matrix(A)))
    assert torch.equal(other.init(x).y, torch.zeros(6, dtype=torch.float64))


def _one_step(problem, x_step, x0):
    solver = ADMM(problem, SGD(4), rho=0.3, eta=2.0, x_step=x_step)
    return solver.step(solver.init(x0)).x


@pytest.mark.parametrize("layout", ["dense", "sparse", "free"])
def test_x_steps_agree(g, layout):
    """Cholesky, SuperLU, conjugate gradients and the same solve given as a preconditioner."""
    X, b = data(g)
    M = torch.randn(8, 6, generator=g, dtype=torch.float64) * (torch.rand(8, 6, generator=g) < 0.6)
    A = {"dense": Matrix(M), "sparse": Matrix(M.to_sparse()), "free": Matrix(M) @ Identity()}[layout]
    problem = Problem(Sigmoid(X, b), L1(0.1), A)
    x0 = torch.randn(6, generator=g, dtype=torch.float64)
    expected = _one_step(problem, Exact(Matrix(M)), x0)
    inverse = torch.linalg.inv(torch.eye(6, dtype=torch.float64) + 0.15 * M.T @ M)
    for x_step in (Exact(A), Conjugate(A, tolerance=1e-12), Preconditioned(lambda d: inverse @ d)):
        torch.testing.assert_close(_one_step(problem, x_step, x0), expected, rtol=1e-10, atol=1e-12)


def test_exact_step_follows_a_changing_ratio(g):
    M = torch.randn(4, 3, generator=g, dtype=torch.float64)
    d = torch.randn(3, generator=g, dtype=torch.float64)
    step, multiple = Exact(Matrix(M)), Exact(2 * Identity((3,)))
    for eta, rho in ((1.0, 2.0), (3.0, 0.5), (1.0, 2.0)):
        expected = torch.linalg.solve(eta * torch.eye(3, dtype=torch.float64) + rho * M.T @ M, d)
        torch.testing.assert_close(step(d, eta, rho), expected)
        torch.testing.assert_close(multiple(d, eta, rho), d / (eta + 4 * rho))


def test_row_weights_and_diagonal_metric(g):
    """rho as a tensor is one weight a row of the constraint; Metric(q) divides by q."""
    X, b = data(g)
    w = torch.rand(6, generator=g, dtype=torch.float64) + 0.5
    q = torch.rand(6, generator=g, dtype=torch.float64) + 2
    x0 = torch.randn(6, generator=g, dtype=torch.float64)
    solver = ADMM(Problem(Sigmoid(X, b), L1(0.1)), SGD(4), rho=w, eta=1.0, x_step=Metric(q))
    state = solver.init(x0)
    new = solver.step(state)
    y = torch.sign(x0) * (x0.abs() - 0.1 / w).clamp(min=0)
    x = x0 - (state.est.v + w * (x0 - y)) / q
    torch.testing.assert_close(new.y, y)
    torch.testing.assert_close(new.x, x)
    torch.testing.assert_close(new.lam, -w * (x - y))


def test_metric_with_a_shared_direction(g):
    q, m, d = (torch.rand(6, generator=g, dtype=torch.float64) + 0.1 for _ in range(3))
    metric, Q = Metric(q, m), torch.diag(q) + torch.outer(m, m)
    torch.testing.assert_close(metric.inverse(d), torch.linalg.solve(Q, d))
    torch.testing.assert_close(metric(d, 2.0, 1.0), torch.linalg.solve(2 * Q, d))
    assert metric.square(d) == pytest.approx(float(d @ Q @ d))
    with pytest.raises(ValueError, match="must be positive, its smallest entry is -0.1"):
        Metric(-0.1 * torch.ones(2, dtype=torch.float64))


def test_step_is_pure(g):
    X, b = data(g)
    solver = ADMM(Problem(Sigmoid(X, b), L1(0.1)), Storm(3, 0.5), rho=0.3, eta=1.0)
    state = advance(solver, solver.init(torch.ones(6, dtype=torch.float64)), 3)
    before = {name: value.clone() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
    first, second = solver.step(state), solver.step(state)
    assert torch.equal(first.x, second.x) and torch.equal(first.est.v, second.est.v)
    assert all(torch.equal(getattr(state, name), value) for name, value in before.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.k = 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1,)])
def test_any_dtype_and_shape(g, dtype, shape):
    """min 1/2 |x - target|^2 + w |x|_1 over any shape: the answer is a soft threshold."""
    target = torch.randn(shape, generator=g, dtype=dtype)

    from smadmm.losses import Autograd

    f = Autograd(lambda x, batch: 0.5 * (x - target).abs().square().sum(), n=1)
    solver = ADMM(Problem(f, L1(0.3)), SGD(1), rho=1.0, eta=2.0)
    state = advance(solver, solver.init(torch.zeros(shape, dtype=dtype)), 300)
    expected = target * (1 - 0.3 / target.abs()).clamp(min=0)
    assert state.x.dtype == state.y.dtype == state.lam.dtype == state.est.v.dtype == dtype
    torch.testing.assert_close(state.x, expected, rtol=1e-4, atol=1e-5)


def test_streams_of_iterations_do_not_overlap():
    """Keyed by (seed, k), not counted by k: the numbers of one iteration are not the next one's shifted."""
    first, second = Rng(3, 1).integers(2**62, size=500), Rng(3, 2).integers(2**62, size=500)
    assert not set(first) & set(second)
    assert not set(Rng(4, 1).integers(2**62, size=500)) & set(first)


REFUSED = {
    "A and f": (lambda f: Problem(f, Zero(), Identity((5,))), r"\(5,\).*\(6,\)"),
    "A and B": (lambda f: Problem(f, Zero(), Identity((6,)), -Identity((4,))), r"\(6,\).*\(4,\)"),
    "A and c": (lambda f: Problem(f, Zero(), c=torch.zeros(3, dtype=torch.float64)), r"\(6,\).*\(3,\)"),
    "B and h": (lambda f: Problem(f, L1(torch.ones(7))), r"\(6,\).*\(7,\)"),
    "dtypes": (lambda f: Problem(f, Zero(), Matrix(torch.eye(6))), r"float64.*float32"),
    "blocks": (lambda f: Problem(f, [Zero(), Zero()], Identity(), [-Identity()]), "2 functions h but 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mismatch_is_refused_with_both_shapes(g, case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make(Sigmoid(*data(g)))


def test_bad_parameters_are_refused(g):
    problem = Problem(Sigmoid(*data(g)), L1(0.1), Matrix(2 * torch.eye(6, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"1/\(rho \|A\|\^2\) = 0.25 at k = 1, got 0.5"):
        ADMM(problem, SGD(1), rho=1.0, eta=2.0)
    with pytest.raises(ValueError, match="positive, got c = -1.0"):
        ADMM(problem, SGD(1), rho=-1.0, eta=2.0)
    with pytest.raises(ValueError, match="r must be at least"):
        ADMM(problem, SGD(1), rho=1.0, eta=8.0, r=0.5)
    solver = ADMM(problem, SGD(1), rho=1.0, eta=8.0)
    with pytest.raises(ValueError, match=r"x has shape \(5,\).*\(6,\)"):
        solver.init(torch.zeros(5, dtype=torch.float64))
    with pytest.raises(ValueError, match="x has dtype torch.float32"):
        solver.init(torch.zeros(6))
    with pytest.raises(ValueError, match="2 schedules r"):
        ADMM(problem, SGD(1), rho=1.0, eta=8.0, r=[1.0, 2.0])


def test_a_vanishing_step_is_caught_where_the_schedule_decays(g):
    problem = Problem(Sigmoid(*data(g)), L1(0.1))
    with pytest.raises(ValueError, match="at k = 1000"):
        ADMM(problem, SGD(1), rho=Power(1.0, 1 / 3), eta=4.0)


def metric(g, size):
    root = torch.randn(size, size, generator=g, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def general(g):
    """A problem whose A and B are plain matrices, and a point."""
    f = LeastSquares(torch.randn(20, 4, generator=g, dtype=torch.float64), torch.ones(20, dtype=torch.float64))
    shapes = ((6, 4), (6, 5), (6,), (4,), (5,), (6,))
    A, B, c, x, y, lam = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    return Problem(f, L1(1.5), Matrix(A), Matrix(B), c), A, B, c, (x, y, lam)


def test_y_step_with_an_own_h(g):
    """0 is in dh(y+) - B'lam + rho B'(A x + B y+ - c) + H (y+ - y): the minimum of line 3."""
    problem, A, B, c, (x, y, lam) = general(g)
    H = metric(g, 5)
    s = ADMM(problem, SGD(2), rho=0.7, eta=20.0, H=Matrix(H))
    state = s.step(s.init(x, y, lam))
    slope = B.T @ (lam - 0.7 * (A @ x + B @ state.y - c)) - H @ (state.y - y)
    assert L1(1.5).subdifferential_distance(state.y, slope) < 1e-9
    assert 0 < int((state.y == 0).sum()) < 5
    rough = ADMM(problem, SGD(2), rho=0.7, eta=20.0)
    assert (rough.step(rough.init(x, y, lam)).y - state.y).norm() > 1e-2


def test_h_a_multiple_of_the_identity_is_one_prox(g):
    X, b = data(g)
    problem = Problem(Sigmoid(X, b), L1(0.1))
    one = ADMM(problem, SGD(3), rho=0.4, eta=2.0, r=1.9, seed=1)
    other = ADMM(problem, SGD(3), rho=0.4, eta=2.0, H=1.5 * Identity(), seed=1)
    x = torch.ones(6, dtype=torch.float64)
    first, second = advance(one, one.init(x)), advance(other, other.init(x))
    assert torch.allclose(first.x, second.x, atol=1e-13) and torch.allclose(first.y, second.y, atol=1e-13)


def test_r_with_an_entry_for_every_unknown(g):
    """H = diag(r) - rho B'B."""
    X, b = data(g)
    problem, r = Problem(Sigmoid(X, b), L1(0.1)), torch.linspace(0.5, 3.0, 6, dtype=torch.float64)
    by_r = ADMM(problem, SGD(3), rho=0.4, eta=2.0, r=r, seed=1)
    by_h = ADMM(problem, SGD(3), rho=0.4, eta=2.0, H=Matrix(torch.diag(r - 0.4)), seed=1)
    x = torch.ones(6, dtype=torch.float64)
    first, second = advance(by_r, by_r.init(x)), advance(by_h, by_h.init(x))
    assert torch.allclose(first.x, second.x, atol=1e-10) and torch.allclose(first.y, second.y, atol=1e-10)


@pytest.mark.parametrize("make", [Exact, lambda A, Q: Conjugate(A, 1e-12, Q=Q)])
def test_x_step_with_an_own_q(g, make):
    problem, A, B, c, (x, y, lam) = general(g)
    Q = metric(g, 4)
    s = ADMM(problem, SGD(2), rho=0.7, eta=2.0, x_step=make(problem.A, Q=Matrix(Q)))
    start = s.init(x, y, lam)
    state = s.step(start)
    direction = start.est.v + A.T @ (0.7 * (A @ x + B @ state.y - c) - lam)
    expected = x - torch.linalg.solve(2.0 * Q + 0.7 * A.T @ A, direction)
    assert torch.allclose(state.x, expected, atol=1e-11)
    # the identity of the proofs, A'lam+ = v + eta Q (x+ - x)
    assert torch.allclose(A.T @ state.lam, start.est.v + 2.0 * Q @ (state.x - x), atol=1e-10)


def test_h_and_q_that_are_not_positive_definite_are_refused(g):
    problem = general(g)[0]

    def solver(**choice):
        return ADMM(problem, SGD(2), rho=0.7, eta=20.0, **choice)

    with pytest.raises(ValueError, match="H must be positive definite"):
        solver(H=Matrix(torch.diag(torch.tensor([1.0, 2, 3, 4, -1], dtype=torch.float64))))
    with pytest.raises(ValueError, match="H must be symmetric"):
        solver(H=Matrix(torch.eye(5, dtype=torch.float64).roll(1, 0) + 2 * torch.eye(5, dtype=torch.float64)))
    with pytest.raises(ValueError, match="H must be square"):
        solver(H=Matrix(torch.ones(4, 5, dtype=torch.float64)))
    with pytest.raises(ValueError, match="takes the place of r"):
        solver(H=Identity(), r=100.0)
    with pytest.raises(ValueError, match="1 blocks y, got 2 operators H"):
        solver(H=[Identity(), Identity()])
    with pytest.raises(ValueError, match="Q must be positive definite"):
        Exact(problem.A, Q=-Identity())
    with pytest.raises(ValueError, match="Q must be positive definite"):
        Conjugate(Identity((1000,)), Q=-Identity((1000,)))
