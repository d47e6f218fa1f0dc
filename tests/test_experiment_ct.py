"""The CT experiments at a small size: what they leave behind, that they resume, and their arithmetic."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from smadmm.io.phantoms import abdomen
from smadmm.paper import ct, ct_report
from smadmm.paper.ct_runs import Job, pack, read_slices, run_job, simulate, unpack
from smadmm.paper.jobs import run_all

PLAN = ct.Plan(size=32, slices=(0, 1), training=(0,), seeds=1, batches=(5, 20), iterations=2, processes=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "ct"
    folder.mkdir()
    for kind in ("train", "test"):
        slices = np.stack([abdomen(64, seed) for seed in range(2)])
        np.savez(folder / f"{kind}_phantom.npz", hu=slices.astype(np.int16))
    return str(folder.parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", ct.EXPERIMENTS)
def test_every_experiment_leaves_results_and_resumes(name, data, tmp_path, monkeypatch):
    monkeypatch.setattr(ct, "KAPPAS", {50.0: (8.0,), 35.0: (8.0,)})
    monkeypatch.setattr(ct, "DEFAULT_KAPPAS", (2.0,))
    rows = ct.reproduce(name, str(tmp_path), data, progress=False, plan=PLAN)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["experiment"] == name and len(stored["rows"]) == len(rows) and stored["report"]
    assert all(row["snr"] is None or math.isfinite(row["snr"]) for row in stored["rows"])
    assert (tmp_path / "results.csv").exists() and "|" in (tmp_path / "table.md").read_text()
    if name != "ct-tuning":
        assert any(part.get("kind") == "verdict" for part in stored["report"] if isinstance(part, dict))
    if name == "ct-visual":
        assert (tmp_path / "default.png").exists() and (tmp_path / "fbp.png").exists()

    def not_again(job, data):
        raise AssertionError(f"{job.name} was done already")

    monkeypatch.setattr(ct, "run_job", not_again)
    again = ct.reproduce(name, str(tmp_path), data, progress=False, plan=PLAN)
    assert [row["snr"] for row in again] == [row["snr"] for row in rows]


def test_paired_difference_and_its_interval():
    def row(method, slice_, snr):
        scan = {"images": "test", "slice": slice_, "size": 64, "views": 9, "decibel": 50, "seed": 0, "iterations": 3}
        return scan | {"method": method, "snr": snr}

    rows = [row("a", i, 10 + i + gap) for i, gap in enumerate((0.1, 0.2, 0.3))] + [
        row("b", i, 10 + i) for i in range(3)
    ]
    gap, half, pairs = ct_report.paired(rows, "a", "b")
    assert pairs == 3 and gap == pytest.approx(0.2)
    assert half == pytest.approx(4.30 * 0.1 / math.sqrt(3))
    assert ct_report.signed((0.2, 0.03, 3)) == "+0.20 +- 0.03" and ct_report.signed((math.nan, math.nan, 0)) == "-"


def test_equal_budgets_are_those_of_sadmm():
    scan = {"images": "test", "slice": 0, "size": 64, "views": 9, "decibel": 50, "seed": 0, "iterations": 4, "batch": 5}
    rows = [
        scan | {"method": "sadmm", "sfo": 25, "seconds_per_iteration": 1.0},
        scan | {"method": "smadmm", "sfo": 45, "seconds_per_iteration": 2.0},
    ]
    results = [
        {"sfo": [5, 10, 15, 20, 25], "curve": [1.0, 2.0, 3.0, 4.0, 5.0]},
        {"sfo": [5, 10, 20, 30, 40], "curve": [1.0, 2.5, 3.5, 4.5, 5.5]},
    ]
    ct_report.add_budgets(rows, results)
    assert rows[0]["snr_equal_sfo"] == rows[0]["snr_equal_seconds"] == 5.0
    assert rows[1]["snr_equal_sfo"] == 3.5 and rows[1]["snr_equal_seconds"] == 3.5


def test_the_simulated_noise_has_the_level_asked_for(data):
    truth = read_slices(data, "test", 64)[0]
    radon, noisy = simulate(truth, 20, 35.0, seed=3)
    clean = radon(truth)
    assert 20 * math.log10(float(clean.norm() / (noisy - clean).norm())) == pytest.approx(35, abs=1e-3)
    assert np.allclose(unpack(pack(truth), 64), truth, atol=1e-3)


def test_tuning_never_sees_a_test_slice():
    for plan in (ct.FULL, ct.QUICK):
        kinds = {name: {job.images for job in ct._jobs(name, plan, 0)} for name in ct.EXPERIMENTS}
        assert kinds.pop("ct-tuning") == {"train"} and all(kind == {"test"} for kind in kinds.values())


def test_all_methods_see_the_same_noise(data):
    """FBP depends on nothing but the sinogram."""

    def fbp(method, seed):
        return run_job(Job("test", 0, 32, 12, 35.0, method, 6, seed, 1, 1.0, 1.0), data)["snr_fbp"]

    first = fbp("smadmm", 0)
    assert (
        all(fbp(method, 0) == first for method in (*ct.METHODS, "untuned", "all-views")) and fbp("smadmm", 1) != first
    )


def test_bad_input_is_refused_before_any_work(data, tmp_path):
    with pytest.raises(ValueError, match="no CT experiment 'ct-7'"):
        ct.reproduce("ct-7", str(tmp_path / "o"), data)
    with pytest.raises(ValueError, match="size must be 256 or 512, got 100"):
        ct.reproduce("ct-120", str(tmp_path / "o"), data, size=100)
    with pytest.raises(ValueError, match="give --data"):
        ct.reproduce("ct-120", str(tmp_path / "o"), None)
    with pytest.raises(ValueError, match=r"no files test_\*\.npz"):
        ct.reproduce("ct-120", str(tmp_path / "o"), str(tmp_path))
    with pytest.raises(ValueError, match="slice 8 is needed, but there are only 2"):
        ct.reproduce("ct-120", str(tmp_path / "o"), data, plan=ct.Plan(size=32, slices=(8,), processes=0))
    assert not (tmp_path / "o").exists()


def test_names_of_jobs_differ_with_their_settings():
    job = Job("test", 0, 64, 120, 50.0, "smadmm", 5, 0, 9, 2.0, 1.0)
    changes = {"images": "train", "slice": 1, "size": 32, "views": 9, "decibel": 35.0, "method": "sadmm", "batch": 2}
    changes |= {"seed": 1, "iterations": 8, "kappa": 3.0, "eta": 0.5, "alpha": 1.0}
    assert len({job.name, *(replace(job, **{name: value}).name for name, value in changes.items())}) == 13


def test_two_jobs_of_one_name_are_refused(tmp_path):
    jobs = [Job("test", 0, 64, 120, 50.0, "smadmm", 5, 0, 9, 2.0, 1.0, keep=keep) for keep in (False, True)]
    with pytest.raises(ValueError, match="one name"):
        run_all(jobs, None, None, tmp_path, 0, False)
