"""Mistakes that users make are refused where they are made; measuring leaves the run alone."""

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from smadmm import ADMM, SGD, SVRG, Diverged, Power, Problem, Reason, Stop, Storm, auto, certify, run, solve, tune
from smadmm.checkpoint import describe, load
from smadmm.estimators import Measured
from smadmm.interop import from_function
from smadmm.losses import Autograd, LeastSquares, Logistic, Stream
from smadmm.operators import EdgeDifferences, Identity, Matrix, Slot
from smadmm.proxes import L1, Box, Denoised, GroupL2, Simplex
from smadmm.sampling import reshuffled
from smadmm.solver import Average
from smadmm.theory import check
from smadmm.xsteps import Exact

D = torch.float64
M = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=D)
b = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=D)
START = torch.zeros(5, dtype=D)


def solver(problem=None, estimator=None, **options):
    problem = problem or Problem(LeastSquares(M, b), L1(0.1))
    return ADMM(problem, estimator or SGD(4), 1.0, 20.0, **options)


@dataclass(frozen=True)
class Careless(SGD):
    """Does not count the gradients of its updates, or returns them bare."""

    bare: bool = False

    def update(self, f, e, x, k, rng):
        estimate = self.init(f, x, rng)
        return estimate.v if self.bare else replace(estimate, sfo=e.sfo)


def squared(x, batch):
    rows, targets = batch
    return 0.5 * ((rows @ x - targets) ** 2).mean()


def test_sampled_certificate_whatever_the_sampling():
    """Reshuffled passes for the run, independent samples for the certificate: the interval holds the truth."""
    problem = Problem(LeastSquares(M, b, sampling=reshuffled), L1(0.1))
    state = solver(problem).init(START)
    true = certify(problem, state).total
    parts = [certify(problem, state, sample=640, seed=seed) for seed in range(40)]
    assert sum(c.low <= true <= c.high for c in parts) >= 34 and len({c.total for c in parts}) == 40


def endless():
    for start in itertools.cycle(range(0, 40, 8)):
        yield M[start : start + 8], b[start : start + 8]


def test_measuring_takes_nothing_from_a_stream():
    plain, measured = (ADMM(Problem(Stream(squared, endless()), L1(0.1)), SGD(4), 1.0, 20.0) for _ in range(2))
    state = measured.init(START)
    certify(measured.problem, state, sample=320)
    auto(measured.problem, 10_000, x=START)
    assert torch.equal(measured.step(state).x, plain.step(plain.init(START)).x)
    certified = run(measured, state, Stop(iterations=5), certify_sample=320, certify=True, every=1)
    assert len(certified.history["certificate"]) == 6


def test_a_poisoned_sample_leaves_a_good_state(tmp_path):
    def value(x, batch):
        return squared(x, (M[batch], b[batch])) * (float("nan") if 7 in batch else 1.0)

    bad = ADMM(Problem(Autograd(value, 40), L1(0.1)), SGD(4), 1.0, 20.0)
    with pytest.raises(Diverged, match="the gradient is not finite after iteration"):
        run(bad, START, Stop(iterations=1000), objective=False, checkpoint=tmp_path / "c")
    kept, _ = load(tmp_path / "c")
    assert torch.isfinite(kept.x).all() and torch.isfinite(kept.est.v).all()


SHIFT = torch.zeros(5, dtype=D)


def test_settings_see_code_globals_partials_and_methods():
    make = lambda value: describe(ADMM(Problem(Autograd(value, 40), L1(0.1)), SGD(4), 1.0, 20.0))  # noqa: E731
    sine, cosine = make(lambda x, i: torch.sin(x).sum()), make(lambda x, i: torch.cos(x).sum())
    assert sine != cosine
    shifted = lambda x, i: (x - SHIFT).sum()  # noqa: E731
    before = make(shifted)
    SHIFT[2] += 1
    assert make(shifted) != before
    scaled = lambda scale, x, i: scale * x.sum()  # noqa: E731
    assert make(functools.partial(scaled, 1.0)) != make(functools.partial(scaled, 2.0))
    denoised = lambda d: describe(solver(Problem(LeastSquares(M, b), Denoised(d))))  # noqa: E731
    assert denoised(torch.tanh) != denoised(torch.sin)
    other = torch.tensor([[0.0, 1, 0], [0, 0, 1]]), torch.tensor([[1.0, 0, 0], [0, 0, 1]])
    assert describe(Matrix(other[0].to_sparse())) != describe(Matrix(other[1].to_sparse()))
    large, changed = torch.zeros(3_000_000), torch.zeros(3_000_000)
    changed[12_345] = 1
    assert describe([large]) != describe([changed])


def test_a_checkpoint_that_cannot_be_written_is_found_at_once(tmp_path):
    steps = []
    for path in (tmp_path / "no" / "c", tmp_path):
        with pytest.raises(ValueError, match="cannot be written"):
            run(solver(), START, Stop(iterations=50), checkpoint=path, callback=lambda s: steps.append(s.k))
    assert steps == []


def test_numpy_sizes_are_whole_numbers(tmp_path):
    result = run(solver(estimator=SGD(np.int64(4))), START, Stop(iterations=5), checkpoint=tmp_path / "c")
    assert type(result.state.sfo) is int
    with pytest.raises(TypeError, match="batch must be a whole number, got 4.0"):
        SGD(4.0)


def test_a_sampled_certificate_stops_by_its_upper_end():
    result = run(solver(), START, Stop(iterations=300, certificate=1e-3), certify_sample=32, every=1)
    assert result.reason is Reason.ITERATIONS


def test_explicit_means_minus_the_identity():
    slotted = Problem(LeastSquares(M, b), L1(0.1), Identity((5,)), -Slot(2, 0, 5))
    assert not slotted.explicit and Problem(LeastSquares(M, b), L1(0.1)).explicit
    state = solver(slotted).init(START)
    assert state.y.shape == (2,) and solver(slotted).step(state).y.shape == (2,)


@pytest.mark.parametrize("top", [5e7, 1e17])
def test_simplex_of_large_numbers(top):
    assert Simplex().prox(torch.tensor([top, 0.0, 0.0], dtype=D), 1.0).tolist() == [1.0, 0.0, 0.0]


def test_complex_data_with_every_estimator():
    A = torch.randn(30, 3, generator=torch.Generator().manual_seed(2), dtype=torch.complex128)
    truth = torch.tensor([1 + 1j, 0, -2j], dtype=A.dtype)
    problem = Problem(LeastSquares(A, A @ truth), L1(1e-3))
    for estimator in (SGD(30), Storm(5, 0.5), SVRG(5, 6), Measured(5)):
        made = ADMM(problem, estimator, rho=1.0, eta=20.0, average=Average(Power(1.0)))
        assert run(made, torch.zeros(3, dtype=A.dtype), Stop(iterations=300)).state.x.dtype == A.dtype


def test_init_keeps_its_own_copy():
    x = torch.ones(5, dtype=D, requires_grad=True)
    state = solver().init(x)
    with torch.no_grad():
        x += 5
    assert state.x.tolist() == [1.0] * 5 and not state.x.requires_grad


REFUSED = {
    "edges as columns": (lambda: EdgeDifferences(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4), r"shape \(edges, 2\)"),
    "a loss per sample": (
        lambda: solver(Problem(Autograd(lambda x, i: (M[i] @ x) ** 2, 40), L1(0.1))).init(START),
        "return the mean over the batch",
    ),
    "integer data": (lambda: LeastSquares(torch.ones(4, 3, dtype=torch.int64), [1.0] * 4), "convert them to floating"),
    "complex targets": (lambda: LeastSquares(M, b + 1j), "b is complex"),
    "negative weights": (lambda: Logistic(M, b.sign(), sample_weight=-torch.ones(40)), "not negative"),
    "float32 c": (lambda: Problem(LeastSquares(M, b), L1(0.1), c=torch.zeros(5)), "float64.*float32"),
    "no h": (lambda: Problem(LeastSquares(M, b), None), r"use Zero\(\)"),
    "a matrix as A": (lambda: Problem(LeastSquares(M, b), L1(0.1), M), r"wrap a matrix in Matrix"),
    "a function of other numbers": (
        lambda: solve(
            Problem(Autograd(lambda x, i: (M[i] @ x).mean(), 40), L1(0.1), EdgeDifferences([(0, 1)], 5)), 100
        ),
        "start from an x with the dtype of your data",
    ),
    "tuning without an objective": (
        lambda: tune(lambda p, seed: solver(p), {}, Problem(LeastSquares(M, b), from_function(lambda v, t: v)), 100),
        'use score="certificate"',
    ),
    "a theorem about a problem": (lambda: check(Problem(LeastSquares(M, b), L1(0.1))), "about a solver, got Problem"),
    "a denoiser of arrays": (
        lambda: Denoised(lambda x: x.astype(float)).prox(torch.zeros(4, 4), 1.0),
        r"torch.from_numpy\(D\(x.numpy\(\)\)\)",
    ),
    "a function as f": (lambda: Problem(lambda x: x, L1(0.1)), "Autograd"),
    "row weights for groups": (
        lambda: ADMM(Problem(LeastSquares(M, b), GroupL2(0.1)), SGD(4), torch.ones(5, dtype=D), 20.0),
        "entry by entry",
    ),
    "row weights, exact": (
        lambda: ADMM(
            Problem(LeastSquares(M, b), L1(0.1)), SGD(4), torch.ones(5, dtype=D), 20.0, x_step=Exact(Identity())
        ),
        "needs a number rho",
    ),
    "an array as x": (lambda: solver().init(np.zeros(5)), "must be a tensor"),
    "an array to run": (lambda: run(solver(), np.zeros(5), Stop(iterations=3)), "use torch.from_numpy"),
    "a number as stop": (lambda: run(solver(), START, 100), r"such as Stop\(iterations=100\)"),
    "every = 0": (lambda: run(solver(), START, Stop(iterations=3), every=0), "every must be a whole number"),
    "patience without objective": (
        lambda: run(solver(Problem(LeastSquares(M, b), Denoised(lambda v: v))), START, Stop(patience=3)),
        "patience needs an objective",
    ),
    "full certificate of a stream": (
        lambda: run(solver(Problem(Stream(squared, endless()), L1(0.1))), START, Stop(certificate=1.0)),
        "give certify_sample",
    ),
    "a growing denoiser": (lambda: Denoised(lambda v: v[None]).prox(START, 1.0), "image=True"),
    "another estimator's state": (
        lambda: solver(estimator=SVRG(2, 3)).step(solver().init(START)),
        "of another estimator",
    ),
    "an estimator that does not count": (
        lambda: run(solver(estimator=Careless(4)), START, Stop(sfo=50)),
        "iteration 1 drew 4 samples, but the estimator's sfo stayed 4",
    ),
    "an estimator that returns v": (
        lambda: run(solver(estimator=Careless(4, bare=True)), START, Stop(iterations=5)),
        r"update returns an Estimate with v of shape \(5,\), got Tensor",
    ),
    "a simplex of nothing": (lambda: Simplex(0.0), "must be positive, got 0"),
    "an empty box": (lambda: Box(float("nan"), 1.0), "lo <= hi"),
    "a stream of dicts": (
        lambda: solver(Problem(Stream(squared, [{"x": 1}]), L1(0.1))).init(START),
        "tensors or tuples of them, one row per sample, got dict",
    ),
    "unequal parts": (lambda: Stream(squared, [(M, b[:3])]).samples(0, 1, 2), "equally many rows|rows must match"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_refused_with_the_cure(name):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()
