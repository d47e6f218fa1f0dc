"""The compiled loops equal the generic ones on the same batches, to 1e-10."""

from dataclasses import replace

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from smadmm.learn.loops import LOSSES, REGRESSION, GenericAuto, glm_of
from smadmm.learn.published_loops import GenericPublished, Published
from smadmm.learn.scaling import batch_size, column_sums, convex_start, metric, row_weights
from smadmm.learn.tasks import Task
from smadmm.learn.twins import CompiledAuto, CompiledLoss, CompiledPublished
from smadmm.sampling import pass_batches
from smadmm.schedules import Power

N, D, STEPS = 120, 9, 40


def task(loss="sigmoid", intercept=False, sparse=False, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.5) * 10.0 ** rng.uniform(-0.3, 0.3, D) + 0.2
    target = np.where(X @ rng.standard_normal(D) + 3 * rng.standard_normal(N) > 0, 1.0, -1.0)
    if loss in REGRESSION:
        target = target + rng.standard_normal(N)
    weight = rng.uniform(0.5, 1.5, N)
    edges = [(0, 1), (1, 2), (3, 7), (4, 8)]
    rows = np.zeros((len(edges), D))
    for row, (i, j) in zip(rows, edges):
        row[i], row[j] = 1, -1
    A = sp.csr_array(np.hstack([np.vstack([rows, np.eye(D)]), np.zeros((len(edges) + D, int(intercept)))]))
    X = X.astype(dtype)
    return Task(sp.csr_array(X) if sparse else X, target, weight / weight.mean(), A, 1e-3, loss, intercept)


def both(t, table=True):
    return [kind(t, column_sums(t.X, t.weight), table, seed=3) for kind in (CompiledAuto, GenericAuto)]


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12 * max(1, np.abs(theirs).max()))


def assert_equal_states(one, two):
    """Both forms have the engine's state; the compiled one has no estimator's table in it."""
    assert (one.k, one.sfo, one.drawn) == (two.k, two.sfo, two.drawn)
    for part in ("x", "y", "lam", "Ax"):
        assert_close(getattr(one, part).numpy(), getattr(two, part).numpy())
    for part in ("v", "at"):
        assert_close(getattr(one.est, part).numpy(), getattr(two.est, part).numpy())
    assert_close(one.answer.numpy(), two.answer.numpy())
    if two.mean is not None:
        assert_close(one.mean.lam.numpy(), two.mean.lam.numpy())
        assert one.mean.weight == pytest.approx(two.mean.weight)


@pytest.mark.parametrize("loss", [*LOSSES, *REGRESSION])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("table", [False, True])
def test_auto_compiled_equals_generic(loss, intercept, sparse, table):
    loops = both(task(loss, intercept, sparse), table)
    batches = pass_batches(3, N, 4, 0, STEPS)
    sums = []
    for loop in loops:
        assert loop.begin(batches[0])
        sums.append([loop.advance(batches[1:15]), loop.advance(batches[15:])])
    assert_equal_states(loops[0].state, loops[1].state)
    np.testing.assert_allclose(*sums, rtol=1e-10)
    assert loops[0].state.sfo == STEPS * 4 and loops[0].state.k == STEPS - 1


def test_auto_phases_compiled_equals_generic():
    """Another loss, a restart with a shorter step, momentum, a restart with it: the same in both forms."""
    loops = both(task("logistic", intercept=True))
    batches = pass_batches(3, N, 4, 0, 4 * STEPS)
    for loop in loops:
        loop.begin(batches[0])
        loop.advance(batches[1:STEPS])
        t = task("sigmoid", intercept=True)
        loop.change_task(t, column_sums(t.X, t.weight))
        loop.advance(batches[STEPS : STEPS + 10])
        loop.start = np.full(D + 1, 0.1)
        loop.begin(batches[STEPS + 10], 0.5)
        loop.advance(batches[STEPS + 11 : 2 * STEPS])
        loop.use_momentum()
        loop.advance(batches[2 * STEPS : 3 * STEPS])
    assert_equal_states(loops[0].state, loops[1].state)
    assert loops[0].state.sfo == 2 * STEPS * 4 + STEPS * 8 - 4  # a = 1 at first
    for loop in loops:
        loop.begin(batches[3 * STEPS], 0.25)
        loop.advance(batches[3 * STEPS + 1 :])
    assert_equal_states(loops[0].state, loops[1].state)
    assert loops[0].state.x.isfinite().all() and loops[0].state.k == STEPS - 1


def test_a_state_is_left_alone_by_later_iterations():
    t = task()
    loops = [*both(t), *(kind(t, Published("saga", 4, 0.25, 0.05)) for kind in (CompiledPublished, GenericPublished))]
    batches = pass_batches(3, N, 4, 0, STEPS)
    for loop in loops[:2]:
        loop.begin(batches[0])
    for loop, more in zip(loops, (batches[1:], batches[1:], 200, 200)):
        state = loop.state
        before = [part.clone() for part in (state.x, state.y, state.lam, state.answer, state.est.v)]
        loop.advance(more)
        assert all(map(torch.equal, before, (state.x, state.y, state.lam, state.answer, state.est.v)))
        assert not torch.equal(loop.state.x, state.x)


@pytest.mark.parametrize("loss", [*LOSSES, *REGRESSION])
@pytest.mark.parametrize("sparse", [False, True])
def test_compiled_loss_equals_the_engines(loss, sparse):
    t = task(loss, intercept=True, sparse=sparse)
    one, two = CompiledLoss(t), glm_of(t)
    points = torch.randn(2, D + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for batch in (None, torch.tensor([3, 5, 5, 0])):
        batches = [f.full() if batch is None else batch for f in (one, two)]
        values = [float(f.value(points[0], b)) for f, b in zip((one, two), batches)]
        assert values[0] == pytest.approx(values[1], rel=1e-12)
        ours, theirs = (f.gradient(points, (1.0, -0.3), b) for f, b in zip((one, two), batches))
        assert_close(ours.numpy(), theirs.numpy())


METHODS = ["sadmm", "svrg", "saga", "spider", "asvrg", "smadmm"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_published_compiled_equals_generic(method, exact, sparse):
    growth = 1 / 3 if method == "smadmm" else 0.0
    rho, eta = Power(0.05, growth), Power(0.05 * 5, growth)
    made = Published(method, 4, eta, rho, Power(1.2, -2 / 3), period=7, theta=0.8, first=10, exact=exact)
    t = replace(task("sigmoid", intercept=True, sparse=sparse), shuffled=sparse)
    loops = [kind(t, made, seed=5) for kind in (CompiledPublished, GenericPublished)]
    for limit in (200, 600):
        for loop in loops:
            loop.advance(limit)
        assert_equal_states(loops[0].state, loops[1].state)
        assert loops[0].sfo >= limit


def test_runs_drawn_together_are_those_of_the_generic_loop():
    made = Published("sadmm", 4, Power(0.25), Power(0.05))
    t = replace(task(sparse=True), shuffled=True)
    loops = [kind(t, made, seed=5) for kind in (CompiledPublished, GenericPublished)]
    for limit in (100, 300, 1400):  # eight passes are 960 samples
        for loop in loops:
            loop.advance(limit)
        assert_equal_states(loops[0].state, loops[1].state)


@pytest.mark.slow
def test_binary_rows_and_a_general_constraint_compiled_equals_generic():
    """Rows of ones are read without their values; A has a row of three entries and no identity at its end."""
    t = task(sparse=True, intercept=True)
    A = sp.csr_array(np.vstack([t.A.toarray()[-3:] * 2, np.eye(D + 1)[0] + np.eye(D + 1)[3] - np.eye(D + 1)[5]]))
    t = replace(t, X=sp.csr_array((t.X.toarray() > 0.2).astype(float)), A=A)
    loops = both(t)
    assert loops[0].samples.X.data is None and loops[0].A.first == A.shape[0]
    batches = pass_batches(3, N, 4, 0, STEPS)
    for loop in loops:
        loop.begin(batches[0])
        loop.advance(batches[1:])
    assert_equal_states(loops[0].state, loops[1].state)


@pytest.mark.slow
def test_constraint_finds_edges_and_the_identity():
    from smadmm.learn._kernels.constraint import constraint, product
    from smadmm.learn._kernels.rows import Csr, Edges

    edges, eye = np.array([[0, 1.0, 0, 1], [1, 0, -1, 0]]), np.eye(4)
    cases = [
        (np.vstack([edges, eye]), 2, Edges),
        (np.vstack([edges, eye[:3]]), 2, Edges),  # an intercept
        (eye, 0, Edges),
        (edges, 2, Edges),
        (np.vstack([edges, 2 * eye]), 6, Csr),
        (np.vstack([edges, eye[::-1]]), 5, Csr),
        (np.vstack([edges, 0 * eye[:1], eye[1:3]]), 5, Csr),
        (np.vstack([2 * edges, eye]), 2, Csr),
        (eye[3:], 1, Csr),
    ]
    x = np.random.default_rng(0).standard_normal(4)
    compiled_product = numba.njit(lambda A, x, out: product(A, x, out))
    for dense, first, kind in cases:
        A, out = constraint(sp.csr_array(dense)), np.empty(len(dense))
        assert A.first == first and isinstance(A.G, kind)
        compiled_product(A, x, out)
        np.testing.assert_allclose(out, dense @ x, rtol=1e-14)


def test_float32_data_are_used_as_they_are():
    single, double = task(dtype=np.float32), task()
    rounded = Task(single.X.astype(np.float64), *list(vars(double).values())[1:])
    loops = [both(t)[0] for t in (single, rounded)]
    batches = pass_batches(3, N, 4, 0, STEPS)
    for loop in loops:
        loop.begin(batches[0])
        loop.advance(batches[1:])
    np.testing.assert_allclose(loops[0].state.answer, loops[1].state.answer, rtol=1e-5, atol=1e-7)
    assert loops[0].samples.X is single.X  # no copy


# --- what auto learns from the columns


def test_weights_equal_repetition():
    rng = np.random.default_rng(0)
    X, counts = rng.standard_normal((20, 4)) * (rng.random((20, 4)) < 0.5), rng.integers(0, 4, 20)
    weighted, repeated = (
        column_sums(X, counts.astype(float)),
        column_sums(np.repeat(X, counts, 0), np.ones(counts.sum())),
    )
    for one, two in zip(vars(weighted).values(), vars(repeated).values()):
        np.testing.assert_allclose(one, two)
    sparse = column_sums(sp.csr_array(X), counts.astype(float))
    for one, two in zip(vars(weighted).values(), vars(sparse).values()):
        np.testing.assert_allclose(one, two)


def test_row_weights_stay_below_half_the_metric():
    """A'RA <= Q/2: the largest eigenvalue of the difference is not positive."""
    t = task(intercept=True)
    q, m = metric(column_sums(t.X, t.weight), True)
    A, R = t.A.toarray(), row_weights(t.A, q)
    difference = A.T @ np.diag(R) @ A - 0.5 * (np.diag(q) + np.outer(m, m))
    assert np.linalg.eigvalsh(difference).max() <= 1e-12


def test_metric_survives_empty_and_constant_columns():
    X = np.array([[0.0, 3.0, 1.0], [0.0, 3.0, 2.0]])
    q, _ = metric(column_sums(X, np.ones(2)), False)
    assert (q > 0).all() and np.isfinite(q).all()
    q, _ = metric(column_sums(np.zeros((2, 3)), np.ones(2)), True)
    assert (q > 0).all() and np.isfinite(q).all()


def test_batch_size_and_convex_start():
    def size(n, d, entries):
        X = sp.csr_array((np.ones(n * entries), np.arange(n * entries) % d, np.arange(n + 1) * entries), shape=(n, d))
        return batch_size(X, sp.eye_array(d, format="csr"))

    assert [size(n, 100, 20) for n in (1, 100, 1000, 16_280, 100_000)] == [2, 2, 16, 64, 64]
    assert size(8000, 40_000, 20) == 256 and size(80_000, 40_000, 20) == 512  # n/16; balanced
    assert batch_size(np.ones((1000, 300)), sp.eye_array(300, format="csr")) == 16
    balanced = np.array([1.0, -1.0] * 50)
    assert convex_start(balanced) == 0
    rare = np.where(np.arange(10_000) % 50 == 0, 1.0, -1.0)
    assert convex_start(rare) == 5000 and convex_start(-rare) == 5000
    assert convex_start(-np.ones(30)) == 30


# --- the pieces of the compiled loops


def test_vector_exponential_is_exact_to_the_last_digit():
    from smadmm.learn._kernels.samples import exp_minus

    compiled = numba.njit(lambda t: exp_minus(t))
    t = np.concatenate([np.linspace(0, 40, 4001), np.linspace(40, 708, 2001)])
    np.testing.assert_allclose([compiled(u) for u in t], np.exp(-t), rtol=5e-16)
    assert compiled(0.0) == 1.0 and 0 < compiled(np.inf) < 1e-307 and np.isnan(compiled(np.nan))


@pytest.mark.parametrize("d", [1, 3, 4, 5, 23, 40])
def test_symmetric_product_reads_half_of_the_matrix(d):
    from smadmm.learn._kernels.constraint import half, symmetric_product

    compiled = numba.njit(lambda L, r, out: symmetric_product(L, r, out))
    rng = np.random.default_rng(d)
    M = rng.standard_normal((d, d))
    M += M.T
    L = half(M)
    r, out = np.zeros(len(L)), np.empty(len(L))
    r[:d] = rng.standard_normal(d)
    above = np.triu(np.ones(L.shape, dtype=bool)) & ~np.kron(np.eye(len(L) // 4), np.ones((4, 4))).astype(bool)
    compiled(np.where(above, np.nan, L), r, out)  # nothing above the diagonal blocks is read
    np.testing.assert_allclose(out[:d], M @ r[:d], rtol=1e-12, atol=1e-12)
