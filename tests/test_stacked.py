"""Several terms on one stacked y: their proxes, schedules that checkpoints see, and the Newton x-step for any A."""

import pytest
import torch

from smadmm import ADMM, SGD, Problem, Stop, losses, run
from smadmm.checkpoint import describe
from smadmm.operators import FiniteDifferences, Identity, Stack
from smadmm.proxes import L1, Box, DoubleWell, GroupL2, Scheduled, Separate
from smadmm.xsteps import Newton


@pytest.fixture
def loss(g):
    return losses.Squared(torch.randn(12, 6, generator=g, dtype=torch.float64), torch.ones(12, dtype=torch.float64))


A = Stack([FiniteDifferences((6,)), Identity((6,))])


def test_newton_step_solves_its_system(loss, g):
    H = loss.gradient((torch.zeros(6, dtype=torch.float64),), (1.0,), loss.full())  # its dtype and shape
    columns = [loss.gradient((e, 0 * e), (1.0, -1.0), loss.full()) for e in torch.eye(6, dtype=H.dtype)]
    dense = A.dense((6,))
    d = torch.randn(6, generator=g, dtype=torch.float64)
    expected = torch.linalg.solve(0.7 * torch.stack(columns) + 0.3 * dense.T @ dense, d)
    step = Newton(loss, A, inner=6)
    torch.testing.assert_close(step(d, 0.7, 0.3), expected)
    assert step.sfo == 6 * 12 and not torch.allclose(Newton(loss, A, inner=2)(d, 0.7, 0.3), expected)
    with pytest.raises(ValueError, match="at least one"):
        Newton(loss, A, inner=0)


def test_double_well_is_the_lowest_point_of_a_grid():
    grid = torch.linspace(-1, 2, 30001, dtype=torch.float64)
    for weight, t in ((0.3, 1.0), (0.8, 1.0), (0.2, 0.5)):
        h = DoubleWell(weight, -0.5, 1.0)
        inside = (grid >= -0.5) & (grid <= 1)
        for v in (-1.0, 0.1, 0.24, 0.27, 0.6, 1.7):
            values = weight * (grid + 0.5) * (1 - grid) + (grid - v) ** 2 / (2 * t)
            best = grid[torch.where(inside, values, torch.inf).argmin()]
            y = h.prox(torch.tensor([v], dtype=torch.float64), t)
            assert abs(float(y - best)) < 2e-4
            assert h.subdifferential_distance(y, (v - y) / t) < 1e-9 and h.value(y) < float("inf")
    assert h.value(torch.tensor([1.5])) == float("inf")


def test_parts_of_a_stack_keep_to_themselves(g):
    h = Separate([GroupL2(0.4, axis=0), L1(0.2), Box(0.0, 0.5)], [(2, 3), (3,), (3,)])
    v = torch.randn(12, generator=g)
    y = h.prox(v, 2.0)
    assert torch.equal(y[:6], GroupL2(0.4, axis=0).prox(v[:6].reshape(2, 3), 2.0).flatten())
    assert torch.equal(y[6:9], L1(0.2).prox(v[6:9], 2.0)) and torch.equal(y[9:], v[9:].clamp(0, 0.5))
    assert h.value_after(v, y, 0.5) == pytest.approx(
        GroupL2(0.4, axis=0).value(y[:6].reshape(2, 3)) + L1(0.2).value(y[6:9])
    )
    with pytest.raises(ValueError, match="2 functions, but 1 shapes"):
        Separate([L1(1.0), L1(1.0)], [(2,)])


def solver(loss, slope):
    h = Separate([L1(0.01), Scheduled(lambda k: DoubleWell(min(0.2, slope * k)))], [(1, 6), (6,)])
    return ADMM(Problem(loss, h, A), SGD(loss.n), rho=1.0, eta=1.0, x_step=Newton(loss, A))


def test_a_schedule_acts_and_resumes_and_is_seen(loss, tmp_path):
    x = torch.zeros(6, dtype=torch.float64)
    whole = run(solver(loss, 0.01), x, Stop(iterations=20), objective=False, progress=False)
    still = run(solver(loss, 0.0), x, Stop(iterations=20), objective=False, progress=False)
    assert float((whole.x - still.x).abs().max()) > 1e-3
    path = tmp_path / "c"
    run(solver(loss, 0.01), x, Stop(iterations=8), objective=False, progress=False, checkpoint=path)
    again = run(
        solver(loss, 0.01), x, Stop(iterations=20), objective=False, progress=False, checkpoint=path, resume=True
    )
    assert torch.equal(again.x, whole.x)
    assert describe(solver(loss, 0.01)) != describe(solver(loss, 0.02))
