"""The CT experiments at a small size: what they leave behind, that they resume, and their arithmetic."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from smadmm.io.phantoms import abdomen
from smadmm.paper import ct, ct_chapter, ct_tuning, jobs
from smadmm.paper.ct_runs import CTRun, CTScan, pack, read_slices, run_ct, simulate, unpack
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce
from smadmm.paper.rows import signed
from smadmm.protocol import interval

PLAN = ct.CTPlan(size=32, slices=(0, 1), each=1, training=(0,), seeds=2, decibels=(50.0,), batches=(5,), iterations=2)
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
    for grid in ("KAPPAS", "ETAS"):
        monkeypatch.setattr(ct_tuning, grid, {50.0: (0.5,), 35.0: (0.5,)})
    monkeypatch.setattr(ct_tuning, "DEFAULT_KAPPAS", (2.0,))
    monkeypatch.setattr(ct, "QUICK", PLAN)
    request = Request(tmp_path, data, quick=True, processes=0, progress=False)
    rows = reproduce(EXPERIMENTS[name], request)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["experiment"] == name and len(stored["rows"]) == len(rows) and stored["report"]
    assert all(row["snr"] is None or math.isfinite(row["snr"]) for row in stored["rows"])
    assert (tmp_path / "results.csv").exists() and "|" in (tmp_path / "table.md").read_text()
    parts = [part for part in stored["report"] if isinstance(part, dict)]
    assert any(part["kind"] == "verdict" for part in parts)
    tables = [part for part in parts if part["kind"] == "table"]
    assert tables[-1]["columns"][-1] == "flags" and all("unit: seed, n = " in part["note"] for part in tables[:-1])
    if name == "ct-visual":
        assert (tmp_path / "default.png").exists() and (tmp_path / "fbp.png").exists()

    monkeypatch.setattr(jobs, "write_json", None)  # of a job that is done
    assert reproduce(EXPERIMENTS[name], request) == rows


def row(method, seed, slice_, snr, **other):
    scan = {"slice": slice_, "size": 64, "views": 9, "decibel": 50, "seed": seed, "batch": 5, "iterations": 3}
    return scan | {"method": method, "snr": snr, "equal": "iterations"} | other


def test_seeds_are_the_units_and_their_slices_count_once():
    gaps = [(0, 0, 0.0), (0, 1, 0.2), (1, 0, 0.2), (2, 0, 0.3)]
    rows = [row("a", seed, i, 10 + i + gap) for seed, i, gap in gaps] + [
        row("b", seed, i, 10 + i) for seed, i, _ in gaps
    ]
    gap = ct_chapter.gap(rows, "a", "b")
    assert gap == pytest.approx(interval([0.1, 0.2, 0.3])) and gap.n == 3
    assert signed(gap) == "+0.20 +- 0.25" and signed(interval([0.2])) == "+0.20" and signed(interval([])) == "-"
    by_alpha = [{**r, "method": "smadmm", "alpha": 0.5 if r["method"] == "a" else 1.0} for r in rows]
    assert ct_chapter.gap(by_alpha, 0.5, 1.0, "alpha") == pytest.approx(gap)


def test_equal_budgets_are_those_of_sadmm():
    rows = [row("sadmm", 0, 0, 1.0), row("smadmm", 0, 0, 3.0), row("smadmm", 0, 0, 2.0, equal="sfo")]
    assert [r["snr"] for r in ct_chapter.at_equal(rows, "iterations")] == [1.0, 3.0]
    assert [r["snr"] for r in ct_chapter.at_equal(rows, "sfo")] == [1.0, 2.0]
    assert ct_tuning.Cell(180, 50.0, 5, 60, "smadmm").sfo == 61 * 5  # one more for the first estimate


def test_a_run_is_judged_where_its_budget_ends(data):
    job = CTRun(CTScan("test", 0, 32, 12, 50.0, 0), "smadmm", 2, 9, 1.0, 1.0)
    whole, part = (run_ct(one, data) for one in (job, replace(job, sfo=18)))
    assert whole["sfo"][:6] == part["sfo"] == [2, 4, 8, 12, 16, 20]
    assert part["snr"] == whole["curve"][4] and part["ssim"] is None


def test_every_budget_has_its_own_best_point():
    """kappa = 1 is ahead at first, kappa = 2 at the end; eta is the same everywhere, so it has no end."""
    scan = CTScan("train", 0, 32, 12, 50.0, 1000)
    runs = [CTRun(scan, "smadmm", 2, 4, kappa, 1.0) for kappa in (1.0, 2.0, 3.0)]
    curves = [[1.0, 3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 2.0, 2.0, 4.0], [1.0, 0.0, 0.0, 0.0, 0.0]]
    results = {
        run.name: {"snr": curve[-1], "curve": curve, "sfo": [2, 4, 8, 12, 16]}
        for run, curve in zip(runs, curves, strict=True)
    }
    chosen = {budget: tuned for (_, budget), tuned in ct_tuning.choose(runs, results).items()}
    assert chosen["iterations"].best["kappa"] == 2.0 and chosen["sfo"].best["kappa"] == 1.0
    assert chosen["iterations"].flags == "" and chosen["sfo"].flags == "kappa at the end of the grid"


def test_the_simulated_noise_has_the_level_asked_for(data):
    truth = read_slices(data, "test", 64)[0]
    radon, noisy = simulate(truth, CTScan("test", 0, 64, 20, 35.0, 3))
    clean = radon(truth)
    assert 20 * math.log10(float(clean.norm() / (noisy - clean).norm())) == pytest.approx(35, abs=1e-3)
    assert np.allclose(unpack(pack(truth), 64), truth, atol=1e-3)


CELLS = {
    "ct-120": (lambda plan: ct.table_cells(plan, 120), ct.table_runs),
    "ct-180": (lambda plan: ct.table_cells(plan, 180), ct.table_runs),
    "ct-ablation": (ct.ablation_cells, ct.at_equal_iterations),
    "ct-iterations": (ct.iterations_cells, ct.iterations_runs),
    "ct-visual": (ct.visual_cells, ct.visual_runs),
}


def planned(name, plan):
    """Tuning runs, and those that are reported if the last point is always the best."""
    cells, reported = CELLS[name]
    tuning = ct_tuning.tuning_runs(cells(plan), plan.training, plan.size, plan.seed)
    results = {run.name: {"snr": i, "curve": [i], "sfo": [0]} for i, run in enumerate(tuning)}
    return tuning, reported(plan, ct_tuning.choose(tuning, results))


@pytest.mark.parametrize("name", CELLS)
def test_tuning_sees_no_slice_and_no_seed_that_is_reported(name):
    for plan in (ct.FULL, ct.QUICK):
        tuning, reported = planned(name, plan)
        assert {run.scan.images for run in tuning} == {"train"} and {run.scan.images for run in reported} == {"test"}
        assert not {seen for run in tuning for seen in run.sees} & {seen for run in reported for seen in run.sees}
        budgets = {(run.scan.size, run.iterations) for run in tuning}
        assert {(run.scan.size, run.iterations) for run in reported} == budgets
        assert len({run.name for run in [*tuning, *reported]}) == len(tuning) + len(reported)


@pytest.mark.slow
def test_an_experiment_whose_tuning_saw_what_it_reports_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(ct_tuning, "TUNING_SEED", 0)
    for grid in ("KAPPAS", "ETAS"):
        monkeypatch.setattr(ct_tuning, grid, {50.0: (0.5,), 35.0: (0.5,)})
    monkeypatch.setattr(ct, "QUICK", replace(PLAN, batches=(5,), iterations=1))
    request = Request(tmp_path, data, quick=True, processes=0, progress=False)
    with pytest.raises(ValueError, match="tuning saw what is reported .seed 0"):
        reproduce(EXPERIMENTS["ct-ablation"], request)


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
    changes = {"method": "sadmm", "batch": 2, "iterations": 8, "kappa": 3.0, "eta": 0.5, "alpha": 1.0, "sfo": 9}
    changed = [replace(RUN, scan=replace(RUN.scan, **{name: value})) for name, value in scans.items()]
    changed += [replace(RUN, **{name: value}) for name, value in changes.items()]
    assert len({RUN.name, *(run.name for run in changed)}) == 14


def test_two_jobs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one name"):
        jobs.run_all([RUN, replace(RUN, keep=True)], print, Request(tmp_path))


def test_the_tables_are_those_of_the_paper():
    """Six methods x four batch sizes x eight seeds with a slice each, four of the methods also at equal SFO."""
    tuning, reported = planned("ct-120", ct.FULL)
    assert len(reported) == (6 + 4) * 4 * 8 and len(planned("ct-180", ct.FULL)[1]) == 2 * len(reported)
    assert {run.scan.views for run in reported} == {120} and {run.scan.seed for run in reported} == set(range(8))
    assert {run.batch for run in reported} == set(ct_chapter.PAPER[120]["smadmm"])
    assert {run.alpha for run in planned("ct-ablation", ct.FULL)[1]} == set(ct_chapter.PAPER_ABLATION)
    tries = {}
    for run in tuning:
        tries.setdefault((run.batch, run.method), []).append((run.kappa, run.eta))
    assert {len(points) for points in tries.values()} == {16 * 2}  # the same effort for every method
