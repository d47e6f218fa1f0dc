"""Corners of the engine: schedules of the theorems, unusual settings in checkpoints, refusals, and fallbacks."""

import functools
import math
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from smadmm import (
    ADMM,
    SAGA,
    SGD,
    Estimate,
    History,
    Loss,
    Power,
    Problem,
    Stop,
    Storm,
    auto,
    certify,
    run,
    theorem_constant,
    theorem_dynamic,
    theory,
)
from smadmm.checkpoint import CheckpointError, describe, load, save
from smadmm.estimators import Measured
from smadmm.losses import Autograd, LeastSquares
from smadmm.operators import Identity, Matrix
from smadmm.proxes import L1, Box, Denoised, GroupL2
from smadmm.sampling import Rng, golden, stride
from smadmm.solver import Average
from smadmm.stepsize import Decaying, StepSize
from smadmm.tuning import smoothness, spectrum
from smadmm.xsteps import Conjugate, Exact, conjugate_gradients

D = torch.float64
M = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=D)
b = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=D)
START = torch.zeros(5, dtype=D)


def problem(h=None, A=None, **options):
    return Problem(LeastSquares(M, b), h or L1(0.1), *([] if A is None else [A]), **options)


class Gaussian(Loss):
    """E |x - xi|^2 / 2 with xi normal: no finite sum, but with an exact gradient; a batch is its mean."""

    dtype = D

    def draw(self, rng, size):
        rng.take(size)
        return torch.from_numpy(rng.standard_normal((size, 5))).mean(0)

    def full(self):
        return torch.zeros(5, dtype=D)

    def value(self, x, batch):
        return 0.5 * ((x - batch) ** 2).sum()

    def gradient(self, points, weights, batch):
        return sum(w * (x - batch) for x, w in zip(points, weights))


def squares(x, batch):
    return (x * x).sum()


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 10, 1000, 12345])
def test_the_constant_theorem_ties_momentum_to_the_penalty(K):
    s = theorem_constant(K, c_rho=2.0, ratio=3.0, c_a=1.5)
    rho = 2.0 * K ** (1 / 3)
    assert s.rho(1) == s.rho(K) == pytest.approx(rho)
    assert s.eta(7) == pytest.approx(3 * rho) and s.a(7) == pytest.approx(min(1, 1.5**2 / rho**2))
    assert s.first - 1 < rho <= s.first + 1e-9


def test_the_dynamic_theorem_has_its_exponents():
    s = theorem_dynamic(c_rho=2.0, c_eta=5.0, c_a=3.0)
    assert s.rho(8) == pytest.approx(4) and s.eta(27) == pytest.approx(15) and s.first == 1
    assert s.a(1) == 1 and s.a(1000) == pytest.approx(3 / 100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Power(math.nan), "needs finite numbers, got c = nan"),
        (lambda: Power(1.0, math.inf), "p = inf"),
        (lambda: Power(-1.0), "positive, got c = -1"),
        (lambda: Power(1.0, lo=2.0, hi=1.0), "lo <= hi, got lo = 2.0, hi = 1.0"),
        (lambda: theorem_constant(0), "K must be at least 1 and constants positive, got K=0"),
        (lambda: theorem_constant(10, c_a=0.0), "c_a=0.0"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_decaying_step_goes_on_from_where_it_was():
    rule, step = Decaying(since=10), StepSize(0.5, 1.0, 0.0, 0.0, START)
    for k in range(11, 74):
        step = rule.update(step, START, START, START, k)
    assert step.step == pytest.approx(0.5 * 64 ** (-1 / 3))
    with pytest.raises(ValueError, match="start with DistanceOverGradients"):
        rule.init(START, START)


@pytest.mark.parametrize("sampling", [stride, golden])
def test_every_sample_comes_once_per_pass(sampling):
    drawn = [sampling(Rng(3, k, 4 * k), 12, 4) for k in range(9)]
    passes = [np.concatenate(drawn[first : first + 3]).tolist() for first in (0, 3, 6)]
    assert all(sorted(numbers) == list(range(12)) for numbers in passes)
    assert passes[0] != passes[1] or passes[1] != passes[2]


# --- losses that are no finite sum ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [SAGA(4), Measured(4)], ids=["SAGA", "Measured"])
def test_a_table_needs_samples_that_can_be_numbered(estimator):
    with pytest.raises(TypeError, match="needs a FiniteSum loss, got Gaussian"):
        ADMM(Problem(Gaussian(), L1(0.1)), estimator, 1.0, 2.0).init(START)


def test_samples_for_measuring_are_not_those_of_the_solver():
    f = Gaussian()
    measured = f.samples(0, 3, 10)
    assert all(torch.equal(a, b) for a, b in zip(measured, f.samples(0, 3, 10)))
    solver = [f.draw(Rng(0, k), 10) for k in range(3)]
    assert len({tuple(batch.tolist()) for batch in [*measured, *solver]}) == 6


def test_the_objective_has_a_value_only_where_all_penalties_have():
    x = torch.ones(5, dtype=D)
    smooth = 0.5 * 5
    assert Problem(Gaussian(), L1(0.1)).objective(x, (0 * x,)) == pytest.approx(smooth + 0.5)  # at y = A x
    assert Problem(Gaussian(), Box(0, 0.5)).objective(x, (0 * x,)) == pytest.approx(smooth)  # at y
    assert Problem(Gaussian(), Denoised(lambda v: v)).objective(x, (x,)) is None


def test_the_residual_adds_all_blocks(g):
    x, y, z, c = torch.randn(4, 5, generator=g, dtype=D)
    p = Problem(LeastSquares(M, b), [L1(0.1), Box(-1, 1)], B=[-Identity((5,)), 2 * Identity((5,))], c=c)
    torch.testing.assert_close(p.residual(x.clone(), [-y, 2 * z]), x - y + 2 * z - c)
    assert not p.explicit
    solver = ADMM(p, SGD(40), 1.0, 30.0, average=Average())
    with pytest.raises(ValueError, match=r"the averaged certificate needs B = -I"):
        certify(p, solver.step(solver.init(x)), averaged=True)


# --- refusals of the solver -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ADMM(problem(), SGD(4), 1.0, 20.0, seed=-1), "seed must be a non-negative whole number, got -1"),
        (lambda: ADMM(problem(), SGD(4), 1.0, 20.0, seed=0.5), "got 0.5"),
        (lambda: ADMM(problem(), SGD(4), Power(1.0, -200.0), 20.0), "rho must be positive and finite, got 0.0 at k"),
        (lambda: ADMM(problem(), SGD(4), 1.0, torch.zeros(5, dtype=D)), "eta must be positive and finite, got 0.0"),
        (
            lambda: ADMM(problem(GroupL2(0.1, [[0, 1], [2, 3, 4]])), SGD(4), torch.ones(5, dtype=D), 20.0),
            "row weights .* need functions h that act entry by entry",
        ),
        (
            lambda: ADMM(problem(A=Identity((5,))), SGD(4), 1.0, 20.0, x_step=Conjugate(Identity((4,)))),
            r"made for x of shape \(4,\), but the problem's A takes \(5,\)",
        ),
        (
            lambda: ADMM(problem(), SGD(4), torch.ones(5, dtype=D), 20.0, x_step=Exact(Identity())),
            "the exact x-step needs a number rho",
        ),
        (lambda: ADMM(problem(), SGD(4), 1.0, 20.0).init(START, [START, START]), "has 1 blocks y, got 2"),
        (
            lambda: ADMM(Problem(Autograd(squares, 3), L1(1.0)), SGD(1), 1.0, 20.0).init(torch.ones(2).int()),
            "x has dtype torch.int32; convert it",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_history_is_a_mapping_that_shows_itself():
    history = History({"k": [0, 1], "objective": [2.0, 1.0]})
    assert len(history) == 2 and list(history) == ["k", "objective"] and history.rows == 2
    assert repr(history) == "History(2 rows: k, objective)" and len(History()) == 0


# --- x-steps ----------------------------------------------------------------------------------------------------------


def system(A, eta, rho):
    dense = A.matrix.to_dense()
    return eta * torch.eye(dense.shape[1], dtype=dense.dtype) + rho * dense.mH @ dense


def sparse_matrix(g):
    return Matrix((torch.rand(9, 6, generator=g, dtype=D) * (torch.rand(9, 6, generator=g) < 0.4)).to_sparse())


@pytest.mark.parametrize("scipy", [True, False])
def test_exact_steps_with_a_sparse_matrix_do_without_scipy(scipy, g, monkeypatch):
    if scipy:
        pytest.importorskip("scipy")
    else:
        monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    A, d = sparse_matrix(g), torch.randn(6, generator=g, dtype=D)
    torch.testing.assert_close(Exact(A)(d, 2.0, 3.0), torch.linalg.solve(system(A, 2.0, 3.0), d))


def test_an_exact_step_keeps_few_factorisations_and_stays_exact(g):
    A, d = Matrix(torch.randn(7, 4, generator=g, dtype=D)), torch.randn(4, generator=g, dtype=D)
    step = Exact(A)
    for rho in (1.0, 2.0, 3.0, 4.0, 5.0, 1.0):
        torch.testing.assert_close(step(d, 2.0, rho), torch.linalg.solve(system(A, 2.0, rho), d))
    assert len(step._solvers) <= 4
    torch.testing.assert_close(Exact(3 * Identity())(d, 2.0, 5.0), d / 47)


def test_conjugate_gradients_end_where_a_singular_system_is_solved():
    """Two eigenvalues and a kernel: solved after two steps, and rounding is not blown up along the kernel."""
    values = torch.tensor([0.0] * 40 + [0.5] * 30 + [1.0] * 30)
    basis = torch.linalg.qr(torch.randn(100, 100, generator=torch.Generator().manual_seed(0)))[0]
    truth = basis @ ((values > 0) * torch.ones(100))
    x = conjugate_gradients(lambda p: basis @ (values * (basis.T @ p)), basis @ (values * (basis.T @ truth)), 50)
    assert float((x - truth).norm() / truth.norm()) < 1e-4


def test_conjugate_gradients_stop_at_their_limit(g):
    A, d = Matrix(torch.randn(30, 20, generator=g, dtype=D)), torch.randn(20, generator=g, dtype=D)
    exact = torch.linalg.solve(system(A, 1.0, 1.0), d)
    error = [float((Conjugate(A, 0.0, n)(d, 1.0, 1.0) - exact).norm()) for n in (1, 5, 40)]
    assert error[0] > error[1] > error[2] and error[2] < 1e-9


# --- settings from the problem ----------------------------------------------------------------------------------------


def test_smoothness_of_a_complex_problem(g):
    H = torch.randn(30, 4, generator=g, dtype=torch.complex128)
    H = H.mH @ H
    f = Autograd(lambda x, i: 0.5 * torch.vdot(x, H @ x).real, n=1)
    found = smoothness(f, torch.zeros(4, dtype=torch.complex128), iterations=200).value
    assert found == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)


def test_the_spectrum_of_tall_empty_and_huge_operators(g):
    tall = torch.randn(2100, 3, generator=g, dtype=D)
    ends, values = spectrum(Matrix(tall)), torch.linalg.svdvals(tall) ** 2
    assert ends.largest == pytest.approx(float(values[0])) and ends.smallest_columns == pytest.approx(float(values[-1]))
    assert ends.smallest_rows == 0
    empty = spectrum(Matrix(torch.zeros(0, 3, dtype=D)))
    assert (empty.largest, empty.smallest_rows, empty.smallest_columns, empty.smallest_nonzero) == (0, 0, 0, 0)
    huge = Matrix(2 * torch.eye(2, 3000, dtype=D))
    assert 4 <= spectrum(huge).largest < 5 and spectrum(huge).smallest_nonzero is None  # a bound


def ranks(A):
    f = Autograd(squares, n=1)
    f.shape, f.dtype = A.in_shape, D
    solver = ADMM(Problem(f, L1(0.1), A), Storm(1, 0.5), rho=1.0, eta=100.0)
    return next(a for a in theory.check(solver).assumptions if a.number == "2.5")


@pytest.mark.slow
def test_the_rank_of_an_operator_is_told_where_it_can_be():
    assert ranks(Matrix(torch.diag(torch.tensor([3.0, 2.0], dtype=D)))).holds
    assert "sigma_A = 4, cond(AA') = 2.25" in ranks(Matrix(torch.diag(torch.tensor([3.0, 2.0], dtype=D)))).why
    assert ranks(Matrix(torch.ones(2, 2, dtype=D))).holds is False
    huge = Matrix(2 * torch.eye(2, 3000, dtype=D))
    assert ranks(huge).holds is None and "too large" in ranks(huge).why


def test_auto_refuses_an_operator_that_is_zero():
    with pytest.raises(ValueError, match=r"\|A\|\^2 = 0.0: .* A is zero"):
        auto(problem(A=Matrix(torch.zeros(3, 5, dtype=D))), 1000)


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, v):
        return self.factor * v

    def apply(self, v):
        return self.factor * v


def network(weight):
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.fill_(weight)
    return layer


# settings that are told apart by their content: one value, another of the same kind
PAIRS = {
    "bfloat16": (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)),
    "sparse rows": (Matrix(torch.eye(3).to_sparse()).matrix, Matrix(2 * torch.eye(3).to_sparse()).matrix),
    "sparse coordinates": (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
    "conjugated": (torch.tensor([1j]).conj(), torch.tensor([1j])),
    "a NumPy number": (np.float64(1.5), np.float64(2.5)),
    "an array": (np.arange(6).reshape(2, 3)[:, ::2], np.arange(6).reshape(2, 3)[:, 1:]),
    "a method": (Scaler(2.0).apply, Scaler(3.0).apply),
    "an object": (Scaler(2.0), Scaler(3.0)),
    "a partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "a builtin": (math.sin, math.cos),
    "a network": (network(1.0), network(2.0)),
    "a mapping": ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3]}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_settings_are_told_apart_by_their_content(name):
    one, other = PAIRS[name]
    assert describe(one) == describe(one) != describe(other)


def test_sparse_matrices_of_scipy_are_settings():
    sparse = pytest.importorskip("scipy.sparse")
    assert describe(sparse.csr_array(np.eye(3))) == describe(sparse.csr_array(np.eye(3)))
    assert describe(sparse.csr_array(np.eye(3))) != describe(sparse.csr_array(2 * np.eye(3)))


def test_devices_and_loops_of_references_are_no_settings():
    loop = Scaler(2.0)
    loop.itself, loop.device = loop, torch.device("cpu")
    assert describe(loop) == describe(Scaler(2.0))


@dataclass(frozen=True)
class Noted(Estimate):
    note: object = None


def state_with(**changes):
    state = ADMM(problem(), SGD(4), 1.0, 20.0).init(START)
    return replace(state, est=Noted(state.est.v, state.est.at, state.est.sfo, **changes))


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (torch.zeros(2, dtype=torch.bfloat16), "state.est.note is bfloat16, which checkpoints cannot hold"),
        ({1, 2}, "state.est.note is a set; a state holds tensors, numbers and dataclasses"),
    ],
)
def test_a_state_that_cannot_be_stored_says_which_part(note, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "c", state_with(note=note), {})
    assert not list(tmp_path.iterdir())


def test_numbers_tuples_and_shared_tensors_come_back(tmp_path):
    shared = torch.arange(3.0)
    save(tmp_path / "c", state_with(note=(shared, shared, 0.1, 7, None)), {})
    a, b, *rest = load(tmp_path / "c")[0].est.note
    assert a is b and torch.equal(a, shared) and rest == [0.1, 7, None]


def test_an_estimate_that_is_not_defined_is_named(tmp_path):
    save(tmp_path / "c", state_with(), {})
    Noted.__qualname__ = "Gone"  # the class that the file names is not there any more
    try:
        with pytest.raises(CheckpointError, match=r"Noted, which is not defined; import its module first"):
            load(tmp_path / "c")
    finally:
        Noted.__qualname__ = "Noted"


def test_checkpoints_come_every_so_many_iterations(tmp_path):
    seen = {}

    def look(state):
        seen[state.k] = load(tmp_path / "c")[0].k if (tmp_path / "c").exists() else None

    solver = ADMM(problem(), SGD(4), 1.0, 20.0)
    run(solver, START, Stop(iterations=20), callback=look, checkpoint=tmp_path / "c", checkpoint_iterations=7)
    assert (seen[13], seen[20]) == (7, 14) and load(tmp_path / "c")[0].k == 20
