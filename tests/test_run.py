"""run(): history, stop rules, the divergence guard; clock and gradient count are the solver's alone."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from smadmm import ADMM, SAGA, SGD, Diverged, History, Problem, Reason, Stop, Storm, certify, run
from smadmm.checkpoint import load
from smadmm.losses import Autograd, Logistic, Squared, Stream
from smadmm.proxes import L1, Denoised
from smadmm.sampling import next_kept


@pytest.fixture
def problem(g):
    X = torch.randn(200, 6, generator=g, dtype=torch.float64)
    return Problem(Logistic(X, torch.sign(X[:, 0])), L1(0.01))


def solver(problem, **options):
    return ADMM(problem, Storm(4, 0.3, first=20), rho=0.1, eta=1.0, **options)


START = torch.zeros(6, dtype=torch.float64)


def test_history_columns_and_exports(problem, tmp_path):
    metrics = {"size": lambda s: float(s.x.norm())}
    result = run(solver(problem), START, Stop(iterations=25), every=10, certify=True, metrics=metrics)
    h = result.history
    assert h["k"] == [0, 10, 20, 25] and h["sfo"] == [20, 100, 180, 220]
    assert set(h) == {
        "k", "sfo", "seconds", "objective", "certificate", "gradient", "subdifferential", "feasibility", "size"
    }  # fmt: skip
    assert h["objective"][-1] < h["objective"][0] and h["size"][0] == 0
    assert h["certificate"][-1] == pytest.approx(h["gradient"][-1] + h["subdifferential"][-1] + h["feasibility"][-1])
    h.to_csv(tmp_path / "h.csv")
    pd = pytest.importorskip("pandas")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "h.csv"), h.to_dataframe())
    h.append({"k": 30})
    h.to_json(tmp_path / "h.json")
    assert json.loads((tmp_path / "h.json").read_text())["objective"][-1] is None
    assert result.reason is Reason.ITERATIONS
    with pytest.raises(KeyError, match="no column 'loss'; there are k, sfo"):
        h["loss"]


def test_history_plots_itself(problem):
    matplotlib = pytest.importorskip("matplotlib")

    matplotlib.use("Agg")
    axes = run(solver(problem), START, Stop(iterations=25), every=10).history.plot("objective", "seconds", label="a")
    assert axes.get_xlabel() == "seconds" and len(axes.lines[0].get_xdata()) == 4


def test_metrics_are_outside_the_clock_and_the_count(problem):
    slow = {"slow": lambda s: time.sleep(0.05) or 1.0}
    begin = time.perf_counter()
    result = run(solver(problem), START, Stop(iterations=10), every=1, metrics=slow, certify=True)
    assert time.perf_counter() - begin - result.history["seconds"][-1] > 0.5
    assert result.state.sfo == 20 + 10 * 8


def test_stop_rules(problem):
    assert run(solver(problem), START, Stop(sfo=100)).state.sfo == 100
    timed = run(solver(problem), START, Stop(seconds=0.2), every=10**9)
    assert timed.reason is Reason.SECONDS and 0.2 <= timed.history["seconds"][-1] < 1
    called = run(solver(problem), START, Stop(iterations=50), callback=lambda s: s.k == 7)
    assert called.state.k == 7 and called.reason is Reason.CALLBACK
    flat = run(ADMM(problem, SGD(4), rho=0.1, eta=1.0), START, Stop(patience=10, iterations=10_000), every=5)
    assert flat.reason is Reason.PATIENCE and flat.state.k < 10_000
    with pytest.raises(ValueError, match="needs a stop rule"):
        Stop()
    with pytest.raises(ValueError, match="sfo must be positive, got -3"):
        Stop(sfo=-3)


def test_the_best_iterate_has_the_smallest_certificate(problem, tmp_path):
    noisy = ADMM(problem, SAGA(2), rho=0.1, eta=0.3)
    result = run(noisy, START, Stop(iterations=60), every=3, certify=True)
    recorded = result.history["certificate"]
    assert min(recorded) < recorded[-1]
    assert result.best.k == result.history["k"][recorded.index(min(recorded))]
    assert certify(problem, result.best).total == min(recorded)
    assert not hasattr(result.best.est, "table")
    for iterations in (30, 60):
        again = run(noisy, START, Stop(iterations=iterations), every=3, certify=True, checkpoint=tmp_path / "c",
                    resume=True)  # fmt: skip
    assert again.best.k == result.best.k and torch.equal(again.best.x, result.best.x)
    plain = run(noisy, START, Stop(iterations=60), every=3)
    assert plain.best is None and plain.random is None and torch.equal(plain.x, result.x)


def test_every_iterate_is_kept_equally_often():
    counts = [0] * 7
    for seed in range(6000):
        k, after = 1, 1
        while after <= 6:
            k, after = after, next_kept(seed, after)
        counts[k] += 1
    assert counts[0] == 0 and all(abs(count - 1000) < 4.5 * (1000 * 5 / 6) ** 0.5 for count in counts[1:])


def test_the_random_iterate_is_uniform_and_survives_a_resume(problem, tmp_path):
    drawn = set()
    for seed in range(8):
        states, made = {}, solver(problem, seed=seed)
        whole = run(made, START, Stop(iterations=40), random_iterate=True, callback=lambda s: states.update({s.k: s}))  # noqa: B023
        k = whole.random.k
        assert torch.equal(whole.random.x, states[k].x) and torch.equal(whole.random.lam, states[k].lam)
        assert torch.equal(whole.x, run(made, START, Stop(iterations=40)).x)  # the run is not disturbed
        for iterations in (15, 40):
            file = {"checkpoint": tmp_path / f"{seed}", "resume": True}
            resumed = run(made, START, Stop(iterations=iterations), random_iterate=True, **file)
        assert resumed.random.k == k and torch.equal(resumed.random.x, whole.random.x)
        drawn.add(k)
    assert len(drawn) > 4 and max(drawn) > 15
    later = run(made, resumed.state, Stop(iterations=45), random_iterate=True)
    assert 40 < later.random.k <= 45
    run(made, START, Stop(iterations=5), checkpoint=tmp_path / "without")
    with pytest.raises(ValueError, match="was written without random_iterate; go on without it"):
        run(made, START, Stop(iterations=9), random_iterate=True, checkpoint=tmp_path / "without", resume=True)


def test_sparse_rows_hold_what_is_cheap(problem):
    size = {"size": lambda s: float(s.x.norm())}
    h = run(solver(problem), START, Stop(iterations=11), every=2, sparse=2, certify=True, metrics=size).history
    assert h["k"] == [0, 2, 4, 6, 8, 10, 11]
    for name in ("objective", "certificate", "gradient"):
        assert [k for k, value in zip(h["k"], h[name], strict=True) if value == value] == [0, 4, 8, 11]
    assert all(value == value for value in h["size"])
    with pytest.raises(ValueError, match="leave sparse at 1"):
        run(solver(problem), START, Stop(patience=3), sparse=2)


def test_prox_without_value_has_no_objective(problem):
    pnp = ADMM(Problem(problem.f, Denoised(lambda v: 0.9 * v)), SGD(4), rho=0.1, eta=1.0)
    assert "objective" not in run(pnp, START, Stop(iterations=3)).history


def test_divergence_names_iteration_and_cause(problem, g, tmp_path):
    X = torch.randn(200, 6, generator=g, dtype=torch.float64)
    wild = ADMM(Problem(Squared(X, X[:, 0]), L1(0.01)), SGD(4), rho=1e-4, eta=0.01)
    with pytest.raises(Diverged, match=r"after iteration \d+; the step 1/eta is likely too long.*raise eta") as caught:
        run(wild, START, Stop(iterations=10_000), every=10, checkpoint=tmp_path / "c")
    assert torch.isfinite(caught.value.state.x).all() and caught.value.history.rows > 0
    kept, _ = load(tmp_path / "c")
    assert torch.equal(kept.x, caught.value.state.x)
    X[3, 2] = float("nan")
    broken = ADMM(Problem(Squared(X, X[:, 0]), L1(0.01)), SGD(200), rho=1.0, eta=50.0)
    with pytest.raises(Diverged, match="look for NaN or infinity in the data"):
        run(broken, START, Stop(iterations=100), objective=False)


def test_ctrl_c_raises_with_the_state_saved(problem, tmp_path):
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt, match=r"after \d+ iterations") as caught:
        run(solver(problem), START, Stop(iterations=10**9), every=10**9, checkpoint=tmp_path / "c")
    result, (kept, _) = caught.value.result, load(tmp_path / "c")
    assert result.interrupted and kept.k == result.state.k > 0 and torch.equal(kept.x, result.state.x)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_handler_that_returns_ends_the_run_with_what_it_has(problem, tmp_path):
    heard = []
    usual = signal.signal(signal.SIGTERM, lambda number, frame: heard.append((number, (tmp_path / "c").exists())))
    try:
        threading.Timer(0.3, signal.raise_signal, (signal.SIGTERM,)).start()
        result = run(solver(problem), START, Stop(iterations=10**9), every=10**9, checkpoint=tmp_path / "c")
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert result.interrupted and heard == [(signal.SIGTERM, True)]


TERMINATED = """
import os, signal, sys, torch
from smadmm import ADMM, SGD, Problem, Stop, losses, proxes, run
solver = ADMM(Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1)), SGD(3), rho=1.0, eta=2.0)
end = lambda s: s.k == 7 and signal.raise_signal(signal.SIGTERM)
try:
    run(solver, torch.zeros(3), Stop(iterations=99), callback=end, checkpoint=sys.argv[1])
except Exception:
    pass
print("goes on")
"""


@pytest.mark.command
def test_sigterm_ends_the_program_with_the_state_saved(tmp_path):
    done = subprocess.run([sys.executable, "-c", TERMINATED, tmp_path / "c"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM and done.stdout == "" and load(tmp_path / "c")[0].k == 7


def test_a_checkpoint_that_exists_is_not_overwritten(problem, tmp_path):
    run(solver(problem), START, Stop(iterations=5), checkpoint=tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(ValueError, match="exists; go on with it by resume=True, remove it, or choose another"):
        run(solver(problem), START, Stop(iterations=9), checkpoint=tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before


def test_two_runs_do_not_share_a_checkpoint(problem, tmp_path):
    def second(s):
        with pytest.raises(ValueError, match="is being written by another run"):
            run(solver(problem), START, Stop(iterations=5), checkpoint=tmp_path / "c", resume=True)

    run(solver(problem), START, Stop(iterations=2), callback=second, checkpoint=tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_loader_that_shuffles_is_refused_where_a_run_is_to_be_resumed(tmp_path):
    rows = torch.utils.data.TensorDataset(torch.randn(40, 6, dtype=torch.float64))
    for shuffle in (True, False):
        loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=shuffle)
        f = Stream(lambda x, batch: (x - batch[0]).square().mean(), loader)
        going = ADMM(Problem(f, L1(0.01)), SGD(4), rho=0.1, eta=1.0)
        assert run(going, START, Stop(iterations=3)).state.k == 3
        if shuffle:
            with pytest.raises(ValueError, match=r"DataLoader\(shuffle=True\) gives another order each time"):
                run(going, START, Stop(iterations=3), checkpoint=tmp_path / "c")
        else:
            run(going, START, Stop(iterations=3), checkpoint=tmp_path / "c")


def test_what_is_not_finite_is_named_within_an_iteration(problem, g):
    X = torch.randn(200, 6, generator=g, dtype=torch.float64)
    y = X[:, 0].clone()
    y[[17, 120]] = float("inf")
    with pytest.raises(Diverged, match="at the start; look for NaN or infinity in the data of sample 17, 120"):
        run(ADMM(Problem(Squared(X, y), L1(0.01)), SGD(200), rho=1.0, eta=50.0), START, Stop(iterations=9))
    calls = []

    def denoiser(v):
        calls.append(1)
        return v * (float("nan") if len(calls) > 5 else 1.0)

    with pytest.raises(Diverged, match="the prox of Denoised gave values that are not finite in iteration") as caught:
        run(ADMM(Problem(problem.f, Denoised(denoiser)), SGD(4), rho=0.1, eta=1.0), START, Stop(iterations=99))
    assert len(calls) == 6 and torch.isfinite(caught.value.state.x).all()
    with pytest.raises(ValueError, match="the first x holds NaN or infinity"):
        run(solver(problem), START * float("nan"), Stop(iterations=9))


def test_a_bad_sample_is_named_in_the_iteration_that_draws_it(g, tmp_path):
    X = torch.randn(200, 6, generator=g, dtype=torch.float64)
    X[33, 2] = float("nan")
    drawn = []

    class Watched(Squared):
        def draw(self, rng, size):
            batch = super().draw(rng, size)
            drawn.append(33 in batch.tolist())
            return batch

    diverging = ADMM(Problem(Watched(X, torch.ones(200)), L1(0.01)), SGD(4), rho=1.0, eta=50.0)
    with pytest.raises(Diverged, match="in the data of sample 33, or in the loss there") as caught:
        run(diverging, START, Stop(iterations=999), objective=False, checkpoint=tmp_path / "kept")
    assert sum(drawn) == 1 and drawn[-1]
    assert caught.value.state.k == len(drawn) - 2 and torch.isfinite(caught.value.state.x).all()
    kept = load(tmp_path / "kept")[0]
    assert kept.k == caught.value.state.k and torch.isfinite(kept.est.v).all()


def test_a_prox_and_a_loss_that_give_infinity_are_named(problem, g):
    class Infinite(L1):
        def prox(self, v, t):
            return v / 0

    with pytest.raises(Diverged, match="the prox of Infinite gave values that are not finite in iteration 1"):
        run(ADMM(Problem(problem.f, Infinite(0.1)), SGD(4), rho=0.1, eta=1.0), START + 1, Stop(iterations=9))
    loss = Autograd(lambda x, batch: (x.sum() * 1e300) ** 3, n=5)
    with pytest.raises(Diverged, match="the gradient is not finite"):
        run(ADMM(Problem(loss, L1(0.1)), SGD(4), rho=0.1, eta=1.0), START + 1, Stop(iterations=9), objective=False)


def test_quiet_without_a_terminal(problem, capfd):
    run(solver(problem), START, Stop(iterations=20), every=5)
    assert capfd.readouterr() == ("", "")


def test_run_works_off_the_main_thread(problem):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(solver(problem), START, Stop(iterations=5))))
    thread.start()
    thread.join()
    assert results[0].state.k == 5


def test_history_pads_missing_values():
    h = History()
    h.append({"a": 1.0})
    h.append({"a": 2.0, "b": 3.0})
    assert h["b"][0] != h["b"][0] and h["b"][1] == 3.0 and h.rows == 2
