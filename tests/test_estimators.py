"""Every estimator: unbiased or exact, with an exact count of sample gradients, in the caller's dtype."""

import pytest
import torch

from smadmm import ADMM, ASVRG, SAGA, SGD, SVRG, Power, Problem, Spider, Storm
from smadmm.estimators import Measured
from smadmm.losses import LeastSquares, Sigmoid, Stream
from smadmm.proxes import L1
from smadmm.sampling import Rng, reshuffled
from smadmm.xsteps import Metric

N, D, B = 60, 4, 5
STORM = Storm(B, Power(0.5, -2 / 3), first=12)
ESTIMATORS = [
    SGD(B),
    SVRG(B, 7),
    SAGA(B),
    Spider(B, 7),
    Spider(B, 7, restart=20),
    ASVRG(B, 7, theta=0.8),
    STORM,
    Measured(B),
]


def names(estimator):
    return repr(estimator)


def make(g, dtype=torch.float64):
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    return Sigmoid(X.to(dtype), torch.sign(X[:, 0]).to(dtype))


def full(f, x):
    return f.gradient((x,), (1.0,), f.full())


def walk(g, count, dtype=torch.float64):
    """Points x_0, x_1, ... for an estimator to follow."""
    return [torch.randn(D, generator=g, dtype=torch.float64).to(dtype) for _ in range(count)]


def follow(estimator, f, points, seed=0):
    rng = Rng(seed, 0)
    e = estimator.init(f, points[0], rng)
    for k, x in enumerate(points[1:], start=1):
        rng = Rng(seed, k, rng.drawn)
        e = estimator.update(f, e, x, k, rng)
    return e


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=names)
def test_mean_over_seeds_is_the_gradient(g, estimator):
    """SGD, SVRG, SAGA, Storm and Spider started from an unbiased estimate stay unbiased along fixed points."""
    f, points = make(g), walk(g, 6)
    estimates = [follow(estimator, f, points, seed) for seed in range(1000)]
    values = torch.stack([e.v for e in estimates])
    error = values.mean(0) - full(f, estimates[0].at)
    spread = values.std(0) / 1000**0.5
    assert bool((spread > 0).all()), "the estimate does not depend on the samples: this test would not fail"
    assert bool((error.abs() < 4.5 * spread).all()), (error / spread).tolist()


EXACT = [SGD(N), SVRG(N, 7), SAGA(N), Spider(N, 7), Spider(N, 7, restart=N), ASVRG(N, 7, theta=0.8), Storm(N, 0.3)]


@pytest.mark.parametrize("estimator", EXACT, ids=names)
def test_full_batches_give_the_gradient_itself(g, estimator):
    f, points = make(g), walk(g, 11)
    f.sampling = reshuffled  # a batch of n samples is then all of them
    e = follow(estimator, f, points)
    torch.testing.assert_close(e.v, full(f, e.at), rtol=1e-12, atol=1e-14)


def test_measured_control_variate(g):
    """By hand: the first factor is 0; then v = g - gamma (t - mean), gamma from the batches before."""
    f, points, q = make(g), walk(g, 4), torch.rand(D, generator=g, dtype=torch.float64) + 0.5
    f.sampling = reshuffled
    estimator, rows = Measured(20, Metric(q), memory=0.7), torch.zeros(N, D, dtype=torch.float64)
    rng, along, across = Rng(0, 0), 0.0, 0.0
    e = estimator.init(f, points[0], rng)
    for k, x in enumerate(points):
        batch = f.draw(Rng(0, k, 20 * k), 20)
        single = torch.stack([f.gradient((x,), (1.0,), i[None]) for i in batch])
        w = rows[batch].mean(0) - rows.mean(0)
        gamma = min(max(along / across, 0), 1) if across > 0 else 0.0
        if k:
            rng = Rng(0, k, rng.drawn)
            e = estimator.update(f, e, x, k, rng)
        torch.testing.assert_close(e.v, single.mean(0) - gamma * w)
        along += 0.3 * (float((single.mean(0) * w / q).sum()) - along)
        across += 0.3 * (float((w * w / q).sum()) - across)
        rows[batch] = single
        torch.testing.assert_close(e.mean, rows.mean(0))
    assert e.along == pytest.approx(along) and e.across == pytest.approx(across) and across > 0


def counted(f):
    """f with a count of the sample gradients it really computes."""
    f.count = 0
    gradient, components = f.gradient, f.components

    def counting_gradient(points, weights, batch):
        f.count += len(points) * len(batch)
        return gradient(points, weights, batch)

    def counting_components(x, batch):
        f.count += len(batch)
        return components(x, batch)

    f.gradient, f.components = counting_gradient, counting_components
    return f


@pytest.mark.parametrize("estimator", [*ESTIMATORS, Storm(B, Power(2.0, -0.5, hi=1), first=3)], ids=names)
def test_sfo_counts_what_is_computed(g, estimator):
    f = counted(make(g))
    assert follow(estimator, f, walk(g, 20)).sfo == f.count


def test_sfo_formulas(g):
    """The prices of the table in estimators.py over 20 updates with restarts at k = 7, 14."""
    f, points = make(g), walk(g, 21)
    price = lambda estimator: follow(estimator, f, points).sfo  # noqa: E731
    assert price(SGD(B)) == 21 * B
    assert price(SVRG(B, 7)) == price(ASVRG(B, 7)) == price(Spider(B, 7)) == 3 * N + 18 * 2 * B
    assert price(Spider(B, 7, restart=20)) == 3 * 20 + 18 * 2 * B
    assert price(SAGA(B)) == N + 20 * B
    assert price(Storm(B, 0.5, first=12)) == 12 + 20 * 2 * B
    assert price(Storm(B, 1.0, first=12)) == 12 + 20 * B  # a = 1: one gradient


def test_special_cases_coincide(g):
    f, points = make(g), walk(g, 12)
    same = lambda a, b: torch.equal(follow(a, f, points).v, follow(b, f, points).v)  # noqa: E731
    assert same(Storm(B, 1.0), SGD(B)) and same(Storm(B, 1.7), SGD(B))  # a is cut to 1
    assert same(ASVRG(B, 7, theta=1.0), SVRG(B, 7))
    assert not same(Storm(B, 0.5), SGD(B)) and not same(ASVRG(B, 7, theta=0.5), SVRG(B, 7))
    e = follow(Spider(B, 1), f, points)
    assert torch.equal(e.v, full(f, e.at))


def test_asvrg_is_at_the_coupled_point(g):
    """theta x + (1 - theta) anchor; a restart at k = 3 moves the anchor there."""
    f, points, anchor = make(g), walk(g, 6), None
    for k, x in enumerate(points):
        at = x if anchor is None else 0.8 * x + 0.2 * anchor
        anchor = at if k % 3 == 0 else anchor
        torch.testing.assert_close(follow(ASVRG(B, 3, theta=0.8), f, points[: k + 1]).at, at)


def test_storm_uses_one_sample_for_both_points(g):
    """On the same point the correction vanishes only if both gradients come from the same samples."""
    f, x = make(g), torch.randn(D, generator=g, dtype=torch.float64)
    start = Storm(B, 0.25).init(f, x, Rng(0, 0))
    moved = Storm(B, 0.25).update(f, start, x, 1, Rng(0, 1))
    sample = f.gradient((x,), (1.0,), f.draw(Rng(0, 1), B))
    torch.testing.assert_close(moved.v, 0.75 * start.v + 0.25 * sample, rtol=1e-12, atol=1e-14)


def test_saga_by_hand(g):
    """v = g_S(x) - mean over S of the table + mean of the table, both as they were before S was drawn."""
    f, points = make(g), walk(g, 4)
    f.sampling = reshuffled
    rows = torch.stack([f.gradient((points[0],), (1.0,), i[None]) for i in torch.arange(N)])
    rng = Rng(0, 0)
    e = SAGA(B).init(f, points[0], rng)
    for k, x in enumerate(points[1:], start=1):
        rng = Rng(0, k, rng.drawn)
        batch = f.draw(Rng(0, k, rng.drawn), B)
        single = torch.stack([f.gradient((x,), (1.0,), i[None]) for i in batch])
        e = SAGA(B).update(f, e, x, k, rng)
        torch.testing.assert_close(e.v, single.mean(0) - rows[batch].mean(0) + rows.mean(0))
        rows[batch] = single


def test_saga_table_stays_consistent(g):
    """After many updates with repeated samples the stored mean is the mean of the table."""
    f = make(g)
    e = follow(SAGA(40), f, walk(g, 30))
    torch.testing.assert_close(e.mean, f.assemble(e.table, f.full()), rtol=1e-10, atol=1e-13)


def test_saga_on_a_loss_without_scalar_components(g):
    M = torch.randn(12, D, generator=g, dtype=torch.float64)
    f = LeastSquares(M, torch.ones(12, dtype=torch.float64), block=2)
    e = follow(SAGA(3), f, walk(g, 10))
    assert e.table.shape == (6, D)
    torch.testing.assert_close(e.mean, e.table.mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=names)
def test_dtype_is_kept(g, estimator, dtype):
    e = follow(estimator, make(g, dtype), walk(g, 9, dtype))
    assert e.v.dtype == e.at.dtype == dtype


@pytest.mark.parametrize("estimator", [SVRG(2, 3), SAGA(2), Spider(2, 3), ASVRG(2, 3), Measured(2)], ids=names)
def test_full_gradients_refuse_a_stream(g, estimator):
    stream = Stream(lambda x, batch: (x * batch).sum(), iter([torch.ones(8, D)]))
    with pytest.raises(ValueError, match=r"use Storm or SGD, or Spider\(restart=...\)"):
        ADMM(Problem(stream, L1(0.1)), estimator, 1.0, 2.0).init(torch.zeros(D))


@pytest.mark.parametrize(
    "make_bad", [lambda: SGD(0), lambda: Storm(3, 0.5, first=0), lambda: Spider(2, 0), lambda: ASVRG(2, 3, theta=0.0)]
)
def test_bad_sizes_are_refused(make_bad):
    with pytest.raises(ValueError, match=r"at least 1, got 0|theta must be"):
        make_bad()


def test_momentum_zero_is_refused(g):
    with pytest.raises(ValueError, match="use Spider"):
        follow(Storm(B, 0.0), make(g), walk(g, 2))
