"""The CT experiments at a small size: what they leave behind, that they resume, and their arithmetic."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from smadmm.comparing import interval
from smadmm.io.phantoms import abdomen
from smadmm.paper import ct, ct_chapter, jobs
from smadmm.paper.ct_runs import CTRun, CTScan, pack, read_slices, run_ct, simulate, unpack
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce
from smadmm.paper.rows import signed

PLAN = ct.CTPlan(size=32, slices=(0, 1), training=(0,), seeds=1, batches=(5, 20), iterations=2)
EXPERIMENTS = {experiment.name: experiment for experiment in ct.CT}
RUN = CTRun(CTScan("test", 0, 64, 120, 50.0, 0), "smadmm", 5, 9, 2.0, 1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "ct"
    folder.mkdir()
    for kind in ("train", "test"):
        slices = np.stack([abdomen(64, seed) for seed in range(2)])
        np.savez(folder / f"{kind}_phantom.npz", hu=slices.astype(np.int16))
    return str(folder.parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_results_and_resumes(name, data, tmp_path, monkeypatch):
    monkeypatch.setattr(ct, "KAPPAS", {50.0: (8.0,), 35.0: (8.0,)})
    monkeypatch.setattr(ct, "DEFAULT_KAPPAS", (2.0,))
    monkeypatch.setattr(ct, "QUICK", PLAN)
    request = Request(tmp_path, data, quick=True, processes=0, progress=False)
    rows = reproduce(EXPERIMENTS[name], request)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["experiment"] == name and len(stored["rows"]) == len(rows) and stored["report"]
    assert all(row["snr"] is None or math.isfinite(row["snr"]) for row in stored["rows"])
    assert (tmp_path / "results.csv").exists() and "|" in (tmp_path / "table.md").read_text()
    if name != "ct-tuning":
        assert any(part.get("kind") == "verdict" for part in stored["report"] if isinstance(part, dict))
    if name == "ct-visual":
        assert (tmp_path / "default.png").exists() and (tmp_path / "fbp.png").exists()

    monkeypatch.setattr(jobs, "write_json", None)  # of a job that is done
    assert reproduce(EXPERIMENTS[name], request) == rows


def test_paired_difference_and_its_interval():
    def row(method, slice_, snr):
        scan = {"images": "test", "slice": slice_, "size": 64, "views": 9, "decibel": 50, "seed": 0, "iterations": 3}
        return scan | {"method": method, "snr": snr}

    rows = [row("a", i, 10 + i + gap) for i, gap in enumerate((0.1, 0.2, 0.3))] + [
        row("b", i, 10 + i) for i in range(3)
    ]
    rows += [{**r, "seed": 1} for r in rows]  # the seeds of a slice count once
    gap = ct_chapter.gap(rows, "a", "b")
    assert gap == pytest.approx(interval([0.1, 0.2, 0.3])) and gap.n == 3
    assert signed(gap) == "+0.20 +- 0.25" and signed(interval([0.2])) == "+0.20" and signed(interval([])) == "-"


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
    ct_chapter.add_budgets(rows, results)
    assert rows[0]["snr_equal_sfo"] == rows[0]["snr_equal_seconds"] == 5.0
    assert rows[1]["snr_equal_sfo"] == 3.5 and rows[1]["snr_equal_seconds"] == 3.5


def test_the_simulated_noise_has_the_level_asked_for(data):
    truth = read_slices(data, "test", 64)[0]
    radon, noisy = simulate(truth, CTScan("test", 0, 64, 20, 35.0, 3))
    clean = radon(truth)
    assert 20 * math.log10(float(clean.norm() / (noisy - clean).norm())) == pytest.approx(35, abs=1e-3)
    assert np.allclose(unpack(pack(truth), 64), truth, atol=1e-3)


def test_tuning_never_sees_a_test_slice():
    for plan in (ct.FULL, ct.QUICK):
        assert {run.scan.images for run in ct.tuning_runs(plan)} == {"train"}
        others = [*ct.table_runs(plan, 120), *ct.table_runs(plan, 180), *ct.ablation_runs(plan)]
        others += [*ct.iterations_runs(plan), *ct.visual_runs(plan)]
        assert {run.scan.images for run in others} == {"test"}


def test_all_methods_see_the_same_noise(data):
    """FBP depends on nothing but the sinogram."""

    def fbp(method, seed):
        return run_ct(CTRun(CTScan("test", 0, 32, 12, 35.0, seed), method, 6, 1, 1.0, 1.0), data)["snr_fbp"]

    first = fbp("smadmm", 0)
    assert all(fbp(method, 0) == first for method in (*ct.METHODS, "untuned", "all-views"))
    assert fbp("smadmm", 1) != first


def test_bad_input_is_refused_before_any_work(data, tmp_path, monkeypatch):
    def refused(**changes):
        reproduce(EXPERIMENTS["ct-120"], Request(**{"out": tmp_path / "o", "data": data, "processes": 0, **changes}))

    with pytest.raises(ValueError, match="slices of 64 pixels cannot be averaged to 100"):
        refused(size=100)
    with pytest.raises(ValueError, match="give --data"):
        refused(data=None)
    with pytest.raises(ValueError, match=r"no files test_\*\.npz"):
        refused(data=str(tmp_path))
    monkeypatch.setattr(ct, "FULL", replace(PLAN, slices=(8,)))
    with pytest.raises(ValueError, match="9 test images are needed, but there are only 2"):
        refused()
    assert not (tmp_path / "o").exists()


def test_names_of_jobs_differ_with_their_settings():
    scans = {"images": "train", "image": 1, "size": 32, "views": 9, "decibel": 35.0, "seed": 1}
    changes = {"method": "sadmm", "batch": 2, "iterations": 8, "kappa": 3.0, "eta": 0.5, "alpha": 1.0}
    changed = [replace(RUN, scan=replace(RUN.scan, **{name: value})) for name, value in scans.items()]
    changed += [replace(RUN, **{name: value}) for name, value in changes.items()]
    assert len({RUN.name, *(run.name for run in changed)}) == 13


def test_two_jobs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one name"):
        jobs.run_all([RUN, replace(RUN, keep=True)], print, Request(tmp_path))


def test_the_tables_are_those_of_the_paper():
    """Six methods x four batch sizes x five slices at two levels of noise; two seeds for 180 views at 50 dB."""
    runs = ct.table_runs(ct.FULL, 120)
    assert len(runs) == len(set(runs)) == 2 * 6 * 4 * 5 and len(ct.table_runs(ct.FULL, 180)) == 3 * 6 * 4 * 5
    assert {run.scan.views for run in runs} == {120} and {run.scan.seed for run in runs} == {0}
    assert {run.batch for run in runs} == set(ct_chapter.PAPER[120]["smadmm"])
    assert {run.alpha for run in ct.ablation_runs(ct.FULL)} == set(ct_chapter.PAPER_ABLATION)
    tuning = ct.tuning_runs(ct.FULL)
    assert {run.scan.images for run in tuning} == {"train"}
    tries = {}
    for run in tuning:
        tries.setdefault((run.scan.decibel, run.batch, run.method), set()).add((run.kappa, run.eta))
    assert {len(points) for points in tries.values()} == {9}  # the same effort for every method
