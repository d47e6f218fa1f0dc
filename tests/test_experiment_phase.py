"""The phase experiment at a small size: what it leaves behind, that it resumes, and its arithmetic."""

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smadmm.io.phantoms import abdomen
from smadmm.paper import jobs, phase, phase_chapter, phase_runs
from smadmm.paper.experiment import Request
from smadmm.paper.following import at_sfo
from smadmm.paper.phase_runs import read_set
from smadmm.paper.reproducing import reproduce
from smadmm.paper.rows import outcome
from smadmm.protocol import Interval, interval


def planned(plan):
    """Tuning runs, and those that are reported if the last step is always the best."""
    tuning = [*phase._strengths(plan), *phase._own_steps(plan)]
    results = {run.name: {"snr": i, "curve": [i], "sfo": [0]} for i, run in enumerate(tuning)}
    return tuning, phase.reported_runs(plan, phase_chapter.choose_steps(tuning, results))


PLAN = phase.PhasePlan(
    size=24, images=(0, 1), more_images=(2, 3), seeds=2, batches=(1, 2), iterations=4, many=(9,), training=(0,), crop=24
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for kind in ("BSD400", "OnRED6"):
        (folder / "images" / kind).mkdir(parents=True)
        for seed in range(4):
            pixels = np.clip((abdomen(32, seed) + 1000) / 10, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / kind / f"{seed}.png")
    return str(folder)


def small(tmp_path, data, monkeypatch, plan=PLAN):
    monkeypatch.setattr(phase, "QUICK", plan)
    monkeypatch.setattr(phase, "STEPS", (1.0, 0.5))
    monkeypatch.setattr(phase, "STRENGTHS", {"unbiased": (0.3,), "sum": (0.5,)})
    return reproduce(phase.PHASE, Request(tmp_path, data, quick=True, processes=0, progress=False))


@pytest.mark.slow
def test_it_leaves_results_and_resumes(data, tmp_path, monkeypatch):
    rows = small(tmp_path, data, monkeypatch)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["experiment"] == "phase" and len(stored["rows"]) == len(rows)
    kinds = [part["kind"] for part in stored["report"] if isinstance(part, dict)]
    assert kinds.count("verdict") == 4 and "curves" in kinds and "table" in kinds
    tables = [part for part in stored["report"] if isinstance(part, dict) and part["kind"] == "table"]
    told = [table for table in tables if not table["title"].startswith("Tuning")]
    assert all("unit: seed, n = " in table["note"] for table in told) and len(told) >= 5
    assert any(table["columns"][-1] == "flags" for table in told)
    assert (tmp_path / "phase.png").exists() and (tmp_path / "results.csv").exists()
    text = (tmp_path / "table.md").read_text()
    assert "(31.56)" in text and "Many masks" in text and "Boat" in text

    monkeypatch.setattr(jobs, "write_json", None)  # of a job that is done
    assert small(tmp_path, data, monkeypatch) == rows


@pytest.mark.slow
def test_sfo_are_those_of_the_table(data, tmp_path, monkeypatch):
    """K = 4, B = 2, N = 6: SADMM (K + 1) B; SMADMM B + B (a_1 = 1) + 3 * 2 B; SPIDER 6 + 2 * 2 B + 6 + 2 B."""
    plan = replace(PLAN, images=(0,), more_images=(), seeds=1, batches=(1, 2), many=(), training=(0,))
    rows = small(tmp_path, data, monkeypatch, plan)
    sfo = {row["method"]: row["sfo"] for row in rows if row["purpose"] == "unbiased" and row["batch"] == 2}
    assert sfo["sadmm"] == sfo["sadmm-decay"] == sfo["on-red"] == 10
    assert sfo["smadmm"] == 16 and sfo["spider"] == sfo["asvrg"] == 24
    equal = {row["method"]: row for row in rows if row["purpose"] == "unbiased" and row["batch"] == 2}
    assert equal["sadmm"]["snr_equal_sfo"] == pytest.approx(equal["sadmm"]["snr"], abs=1e-3)
    assert equal["smadmm"]["snr_equal_sfo"] != pytest.approx(equal["smadmm"]["snr"], abs=1e-6)


def test_all_methods_see_the_same_masks_and_noise(data, monkeypatch):
    class Seen(Exception):
        pass

    def loss(operator, amplitudes):
        raise Seen(operator.masks(torch.arange(6)), amplitudes)

    def scan(method, seed):
        job = phase_runs.PhaseRun(
            "unbiased", phase_runs.PhaseScan("test", 0, 24, 6, seed), method, 2, 4, phase.UNBIASED
        )
        with pytest.raises(Seen) as caught:
            phase_runs.run_phase(job, data)
        return caught.value.args

    monkeypatch.setattr(phase_runs, "AmplitudeLoss", loss)
    first, other = scan("smadmm", 0), scan("smadmm", 1)
    assert not any(torch.equal(*pair) for pair in zip(first, other))
    for method in phase.METHODS:
        assert all(torch.equal(*pair) for pair in zip(first, scan(method, 0)))


def test_the_sum_convention_has_its_own_constants():
    runs = [run for run in planned(phase.FULL)[1] if (run.purpose, run.method) == ("sum", "smadmm")]
    weights = {run.batch: (run.weights.rho, run.weights.step) for run in runs}
    assert [weights[1], weights[3]] == [
        (1.3181, pytest.approx(1 / 8.6362)),
        (pytest.approx(1.3181 / 3), pytest.approx(3 / 8.6362)),
    ]


def test_full_and_quick_plans_name_every_job_once_and_tune_on_other_data():
    for plan in (phase.FULL, phase.QUICK):
        tuning, reported = planned(plan)
        names = [run.name for run in [*tuning, *reported]]
        assert len(set(names)) == len(names)
        assert not {seen for run in tuning for seen in run.sees} & {seen for run in reported for seen in run.sees}
        assert {run.scan.images for run in tuning} == {"train"} and {run.scan.images for run in reported} == {"test"}
        tries = {}
        for run in tuning:
            if run.batch != run.scan.masks:  # at the iterations that are reported, the same effort for every method
                assert run.iterations == plan.iterations
                tries.setdefault(run.method, []).append(run.weights.step)
        assert {len(steps) for steps in tries.values()} == {len(phase.STEPS) * ((len(plan.training) + 1) // 2)}
    tables = [run for run in planned(phase.FULL)[1] if run.purpose in ("sum", "unbiased", "own step", "own step SFO")]
    assert {(run.iterations, run.scan.size, run.scan.masks) for run in tables} == {(200, 256, 6)}
    for purpose in ("sum", "unbiased", "own step", "own step SFO"):
        assert {run.scan.seed for run in tables if run.purpose == purpose} == set(range(8))
    assert {run.sfo for run in tables if run.purpose == "own step SFO"} == {201}


def test_what_is_reached_and_affordable():
    result = {"curve": [1.0, 5.0, 3.0, 6.0, 7.0], "sfo": [1, 3, 5, 7, 9], "cpu": [0.0, 0.1, 0.2, 0.3, 0.4]}
    reached = phase_chapter.reached
    assert reached(result, 4.0) == {"iterations_to": 3, "sfo_to": 7, "seconds_to": 0.3}  # it fell below once more
    assert reached(result, 0.0)["iterations_to"] == 0
    assert reached(result, 8.0) == {"iterations_to": None, "sfo_to": None, "seconds_to": None}
    assert at_sfo(result, 6) == 3.0 and at_sfo(result, 0) is None


def test_paired_difference_and_verdicts():
    def row(method, image, seed, snr):
        scan = {"purpose": "sum", "images": "test", "image": image, "size": 8, "masks": 6, "seed": seed, "batch": 1}
        return scan | {"method": method, "snr": snr}

    # three seeds with gaps 0.1, 0.2, 0.3: the first from two images, which count as one
    found = [(0, 0, 0.0), (1, 0, 0.2), (0, 1, 0.2), (0, 2, 0.3)]
    rows = [row("a", image, seed, 10 + image + gap) for image, seed, gap in found]
    rows += [row("b", image, seed, 10 + image) for image, seed, _ in found] + [row("b", 7, 0, None)]
    gap, at_least = phase_chapter.gap(rows, "a", "b"), phase_chapter.at_least
    assert gap == pytest.approx(interval([0.1, 0.2, 0.3]))
    one = phase_chapter.gap(rows[:2] + rows[4:6], "a", "b")
    assert one.mean == pytest.approx(0.1) and math.isnan(one.half)
    assert phase_chapter.with_seeds(one) == "+0.10 (1 seed)" and phase_chapter.with_seeds(interval([])) == "-"
    assert outcome(0, 0) == "does not hold here" and outcome(1, 2) == "holds in part" and outcome(2, 2) == "holds"
    assert at_least(gap, 0.0) == "holds in part"  # 0.2 +- 0.25
    assert at_least(Interval(2.5, 0.3, 5), 2.0) == "holds"
    assert at_least(Interval(1.9, 0.3, 5), 2.0) == "does not hold here"
    assert at_least(Interval(2.5, math.nan, 1), 2.0) == "holds in part"


def test_many_masks_are_judged_by_means_over_images():
    def row(method, batch, image, sfo):
        done = {"iterations_to": sfo, "sfo_to": sfo, "seconds_to": None if sfo is None else sfo / 10}
        scan = {"purpose": "many masks", "masks": 9, "method": method, "batch": batch, "image": image}
        return scan | done | {"snr": 30.0 + image, "converged": 31.0}

    rows = [row("smadmm", 3, 0, 10), row("smadmm", 3, 1, 20), row("spider", 3, 0, 18), row("spider", 3, 1, 14)]
    rows += [row("smadmm", 1, 0, 5), row("smadmm", 1, 1, None)]
    first, *_, last = phase_chapter._many_means(rows)
    assert (first["sfo_to"], first["snr"], first["images"]) == (15, 30.5, 2) and last["sfo_to"] is None
    (verdict,) = phase_chapter._many_verdict(rows)
    assert (
        verdict.outcome == "holds" and "means of 2 images" in verdict.because and "15 SFO and 1.5 s" in verdict.because
    )


def test_missing_data_are_named(tmp_path):
    with pytest.raises(ValueError, match="give --data DIR"):
        read_set(None, "test", 8)
    with pytest.raises(ValueError, match="no PNG files"):
        read_set(str(tmp_path), "test", 8)


def test_images_that_are_too_small_are_refused(data):
    with pytest.raises(ValueError, match="at least 33 pixels"):
        read_set(data, "test", 33)
    assert {tuple(image.shape) for image in read_set(data, "test", 20)} == {(20, 20)}


@pytest.mark.slow
def test_an_interrupted_job_leaves_no_result(data, tmp_path, monkeypatch):
    """Ctrl-C ends a run early; what it had reached by then must not be taken for the result of the job."""
    real = phase_runs.snr
    calls = []

    def quality(truth, x):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(truth, x)

    monkeypatch.setattr(phase_runs, "snr", quality)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path, data, monkeypatch)
    assert not list((tmp_path / "parts").glob("*.json"))


@pytest.mark.slow
def test_robustness_leaves_verdicts_and_tables(data, tmp_path, monkeypatch):
    """On small images: one case, two variations and two wrong inputs."""
    from smadmm.paper import robustness, robustness_runs

    (Path(data) / "images" / "Set12").symlink_to(Path(data) / "images" / "OnRED6")
    for module in (robustness, robustness_runs):
        monkeypatch.setattr(module, "SMALL", 32)
    monkeypatch.setattr(robustness, "CASES", {"25 dB": robustness.CASES["25 dB"]})
    monkeypatch.setattr(robustness, "WRONG", ["fftshift", "intensities"])
    monkeypatch.setattr(robustness, "QUICK", (32, 2))
    request = Request(tmp_path, data, quick=True, processes=0, progress=False)
    rows = reproduce(robustness.ROBUSTNESS, request)
    assert [row["kind"] for row in rows] == ["case", "case", "variation", "variation", "wrong", "wrong"]
    for row in rows[:2]:
        assert row["default"] > max(row["fit"], row["one denoising"]) - 0.1 and row["default_cpu"] > 0
    assert all(row["default"] > row["fit"] for row in rows[2:4]) and all(row["told"] for row in rows[4:])
    stored = json.loads((tmp_path / "results.json").read_text())
    outcomes = [part["outcome"] for part in stored["report"] if isinstance(part, dict) and part["kind"] == "verdict"]
    assert len(outcomes) == 4 and outcomes[0] == outcomes[2] == outcomes[3] == "holds"
    assert "fit + one denoising" in (tmp_path / "table.md").read_text()
