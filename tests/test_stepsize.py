"""The step that sets itself: its formula by hand, its place in the loop, resume, and no tuning whatever the scale."""

import math

import pytest
import torch

from smadmm import ADMM, SGD, Power, Problem, Stop, run
from smadmm.estimators import Measured
from smadmm.losses import Logistic
from smadmm.proxes import L1
from smadmm.sampling import reshuffled
from smadmm.solver import Average
from smadmm.stepsize import DistanceOverGradients
from smadmm.xsteps import Metric


def make(g, estimator=None, scale=1.0):
    X = scale * torch.randn(200, 4, generator=g, dtype=torch.float64)
    q = X.square().mean(0)
    f = Logistic(X, torch.sign(X[:, 0] + 0.3 * X[:, 1]), sampling=reshuffled)
    metric = Metric(q, 0.3 * q.sqrt())
    stepsize = DistanceOverGradients(metric, floor=0.3)
    options = {"average": Average(Power(1.0, 1.0), pull=0.8), "stepsize": stepsize, "x_step": metric}
    return ADMM(Problem(f, L1(1e-3 * scale)), estimator or Measured(4, metric), rho=0.5 * q, eta=1.0, **options), q


START = torch.zeros(4, dtype=torch.float64)


def test_the_loop_by_hand(g):
    solver, q = make(g)
    Q = torch.diag(q) + 0.09 * torch.outer(q.sqrt(), q.sqrt())
    s = solver.init(START)
    speed = float(s.est.v @ torch.linalg.solve(Q, s.est.v))
    assert s.stepsize.step == pytest.approx(0.3 / math.sqrt(speed))
    walk = reach = weights = 0.0
    mean_x = mean_lam = torch.zeros(4, dtype=torch.float64)
    for k in range(1, 30):
        step, new = s.stepsize.step, solver.step(s)
        rho = 0.5 * q / step
        y = (s.x - s.lam / rho).sign() * ((s.x - s.lam / rho).abs() - 1e-3 / rho).clamp(min=0)
        w = s.lam - rho * (s.x - y)
        x = s.x - step * torch.linalg.solve(Q, s.est.v - w)
        torch.testing.assert_close(new.y, y)
        torch.testing.assert_close(new.x, x)
        torch.testing.assert_close(new.lam, s.lam - rho * (x - y))
        weights += step**2 * k
        mean_x = mean_x + step**2 * k / weights * (x - mean_x)
        mean_lam = mean_lam + step**2 * k / weights * (w - mean_lam)
        torch.testing.assert_close(new.mean.x, mean_x)
        torch.testing.assert_close(new.mean.lam, mean_lam)
        torch.testing.assert_close(new.est.at, 0.2 * x + 0.8 * mean_x)
        walk += float((x - s.x) @ Q @ (x - s.x))
        far = float(x @ Q @ x)
        reach = max(reach, (far - walk) / math.sqrt(far))
        speed += 7 / (k + 7) * (float(new.est.v @ torch.linalg.solve(Q, new.est.v)) - speed)
        assert new.stepsize.step == pytest.approx(max(3 * reach, 0.3) / math.sqrt((k + 1) * speed))
        s = new
    assert reach > 0.1, "the distance never mattered: this test would not see it"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_no_tuning_whatever_the_scale(g, scale):
    solver, _ = make(g, scale=scale)
    result = run(solver, START, Stop(sfo=200 * 20), every=10**6)
    f = solver.problem.f
    assert float(f.value(result.state.mean.x, f.full())) < 0.15 < math.log(2)


def test_resume_is_bit_equal(g, tmp_path):
    make_again = lambda: make(torch.Generator().manual_seed(3))[0]  # noqa: E731
    whole = run(make_again(), START, Stop(iterations=50))
    for iterations in (21, 50):
        part = run(make_again(), START, Stop(iterations=iterations), checkpoint=tmp_path / "c", resume=True)
    assert torch.equal(part.state.mean.x, whole.state.mean.x) and part.state.stepsize.step == whole.state.stepsize.step


def test_refusals():
    with pytest.raises(ValueError, match="floor must be positive, got 0"):
        DistanceOverGradients(Metric(torch.ones(2)), floor=0.0)


def test_works_with_any_estimator(g):
    solver, _ = make(g, SGD(4))
    assert run(solver, START, Stop(iterations=200)).state.stepsize.reach > 0
