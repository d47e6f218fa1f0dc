"""The classification experiment on small generated sets: row form, tuning, resuming, verdict, errors."""

import csv
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from smadmm.paper import classification, classification_chapter, classification_methods, jobs
from smadmm.paper.classification import CLASSIFICATION, FULL, QUICK, ClassificationPlan
from smadmm.paper.classification_claims import ClassificationRows, claim_auto, verdicts
from smadmm.paper.classification_methods import Setting
from smadmm.paper.classification_runs import PAPER_INVERSE, PAPER_STEP, TUNED, ClassificationRun, Grid
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce

COLUMNS = {"set", "intercept", "lam1", "method", "variant", "epochs", "objective", "objective_std", "test_loss"}
COLUMNS |= {
    "test_accuracy",
    "seconds",
    "certificate",
    "certificate_free_y",
    "objective_median",
    "step",
    "rho",
    "batch",
    "flags",
    "seeds",
    "epochs_spent",
}

TINY = ClassificationPlan(
    sets=("dense", "sparse"),
    intercepts=(False, True),
    lams=(1e-3,),
    marks=(1, 3),
    grid=Grid((1e-6, 1.0, 10.0), (1.0,), (4,)),
    tuning=1,
    shown=2,
)
RUN = ClassificationRun("dense", True, 1e-3, "sadmm", 0, (1, 3), TINY.grid, 1, 2, "")


def write_set(path, n, share, seed, one_class=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)) * (rng.random((n, 6)) < share)
    y = np.where(X @ [2, 2, -1, 1, 0, 0] + 0.3 * rng.standard_normal(n) > 0, 1, -1)
    rows = [" ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row) if v) for row in X]
    path.write_text("".join(f"{1 if one_class else b:+d} {row}\n" for b, row in zip(y, rows)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_set(folder / "dense", 161, 1.0, 0)
    write_set(folder / "sparse", 120, 0.3, 1)
    write_set(folder / "one_class", 120, 1.0, 2, one_class=True)
    return folder


def run(out, data, plan=TINY, processes=0):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "QUICK", plan)
        return reproduce(CLASSIFICATION, Request(out, str(data), quick=True, processes=processes, progress=False))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return out, run(out, data)


def find(rows, **wanted):
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@pytest.mark.slow
def test_rows_have_the_promised_form(done):
    rows = done[1]
    assert all(set(row) == COLUMNS for row in rows)
    keys = [tuple(row[name] for name in ("set", "intercept", "lam1", "method", "variant", "epochs")) for row in rows]
    assert len(set(keys)) == len(keys) == 4 * (len(TUNED) * 2 * 2 + 3 * 2 + 1)
    shown = {(row["method"], row["variant"]) for row in rows}
    assert shown == {(m, v) for m in TUNED for v in ("tuned", "tuned per mark")} | {
        ("smadmm", PAPER_INVERSE),
        ("smadmm", PAPER_STEP),
        ("auto", "untuned"),
        ("lbfgs", "reference"),
    }
    for row in rows:
        assert row["objective"] > 0 and 0 <= row["test_accuracy"] <= 1 and row["seconds"] > 0
        if row["method"] != "lbfgs":
            assert row["certificate"] >= 0 and row["objective_std"] >= 0
            n = 80 if row["set"] == "dense" else 60
            assert row["epochs"] <= row["epochs_spent"] <= row["epochs"] + 1 + 8 / n  # a restart, or two gradients
        if row["method"] in TUNED:
            assert row["step"] > 0 and row["rho"] > 0 and row["batch"] >= 1


@pytest.mark.slow
def test_files_are_written(done):
    out, rows = done
    stored = json.loads((out / "results.json").read_text())
    assert stored["experiment"] == "classification" and len(stored["rows"]) == len(rows) and stored["seconds"] > 0
    assert "NaN" not in (out / "results.json").read_text()
    with open(out / "results.csv") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    text = (out / "table.md").read_text()
    claims = verdicts(ClassificationRows(rows))
    assert all(f"**{claim.claim}**: {claim.outcome}. {claim.because}." in text for claim in claims)
    assert "| dense | 80 | 80 | 6 |" in text and "tuned on each problem with 6 runs" in text
    assert verdicts(ClassificationRows(stored["rows"])) == claims
    for name in TINY.sets:
        assert 10_000 < (out / f"{name}_lam1_0.001.png").stat().st_size < 200_000


@pytest.mark.slow
def test_tuning_refuses_the_useless_step(done):
    """A step of 1e-6/L stays at the start, where the loss is 1/2: no method may choose it once it moves."""
    for method in ("sadmm", "saga", "svrg", "smadmm"):
        for row in find(done[1], method=method, variant="tuned", epochs=3):
            assert row["objective"] < 0.45, row


@pytest.mark.slow
def test_tuned_for_the_last_mark_is_tuned_per_mark_there(done):
    for method in TUNED:
        last, each = (find(done[1], method=method, variant=v, epochs=3) for v in ("tuned", "tuned per mark"))
        assert [{**row, "variant": ""} for row in last] == [{**row, "variant": ""} for row in each]


def test_the_reference_is_a_stationary_point(data):
    """The gradient of the smoothed objective vanishes at its end, up to the tolerance of L-BFGS."""
    setting = Setting(RUN, str(data))
    x, spent = classification_methods._minimise(setting.oracle, np.zeros(setting.train.size), (1e-3,))
    Ax = setting.train.A @ x
    gradient = setting.oracle.gradient(x) + RUN.lam1 * (setting.train.A.T @ (Ax / np.sqrt(Ax**2 + 1e-6)))
    assert np.abs(gradient).max() < 1e-5 and spent > 1


@pytest.mark.slow
def test_second_call_does_no_new_work(done, data, monkeypatch):
    out, rows = done
    before = (out / "results.json").read_text()
    monkeypatch.setattr(jobs, "write_json", None)  # of a job that is done
    np.testing.assert_equal(run(out, data), rows)
    assert (out / "results.json").read_text() == before


@pytest.mark.slow
def test_only_what_is_missing_damaged_or_outdated_is_done_again(done, data, monkeypatch):
    out, rows = done
    parts = out / "parts"
    (parts / "dense-plain-0.001-saga.json").unlink()
    (parts / "dense-plain-0.001-svrg.json").write_text("{broken")
    outdated = parts / "sparse-intercept-0.001-untuned.json"
    content = json.loads(outdated.read_text())
    content["settings"]["fingerprint"] = "other data"
    outdated.write_text(json.dumps(content))
    other_code = parts / "sparse-plain-0.001-smadmm.json"
    content = json.loads(other_code.read_text())
    other_code.write_text(json.dumps(content | {"code": "other"}))
    ran, write = [], jobs.write_json
    monkeypatch.setattr(jobs, "write_json", lambda path, content: ran.append(path.stem) or write(path, content))
    again = run(out, data)
    assert sorted(ran) == sorted(["dense-plain-0.001-saga", "dense-plain-0.001-svrg", outdated.stem, other_code.stem])
    same = [[{**row, "seconds": 0} for row in some] for some in (again, rows)]
    np.testing.assert_equal(*same)


@pytest.mark.slow
@pytest.mark.command
def test_two_processes_give_the_same_numbers(done, data, tmp_path):
    rows = run(tmp_path, data, replace(TINY, sets=("sparse",), intercepts=(True,)), processes=2)
    expected = find(done[1], set="sparse", intercept=True)
    same = [[{**row, "seconds": 0} for row in some] for some in (rows, expected)]
    np.testing.assert_equal(*same)


def test_unusable_sets_are_all_named_before_any_work(data, tmp_path):
    plan = replace(TINY, sets=("dense", "not_there", "one_class"))
    with pytest.raises(ValueError, match="(?s)cannot be used: not_there .*; one_class .*one class only") as error:
        run(tmp_path, data, plan)
    assert "dense (" not in str(error.value)
    assert not list(tmp_path.glob("parts/*"))


def test_tuning_does_not_look_at_the_test_half(data, monkeypatch):
    setting = Setting(RUN, str(data))
    del setting.test, setting.test_oracle
    monkeypatch.setattr(classification_methods, "show", lambda setting, method: [])
    tuned = classification_methods.run_tuned(setting, "sadmm")
    assert tuned["runs"] == 6 and sorted(m for c in tuned["configurations"] for m in c["chosen"]) == [1, 3]


def test_seeds_of_tuning_and_showing_differ():
    for plan in (FULL, QUICK):
        for seed in (0, 1):
            job = replace(RUN, seed=seed, tuning=plan.tuning, shown=plan.shown)
            assert not set(job.tuning_seeds) & set(job.shown_seeds) and len(job.shown_seeds) >= 2


def test_the_papers_recipe_is_the_papers(data):
    setting = Setting(replace(RUN, intercept=False, method="untuned"), str(data))
    inverse, step = (classification_methods.paper_method(setting, reading) for reading in (True, False))
    for k in (1, 8, 124, 1000, 10**6):
        assert math.isclose(inverse.eta(k), min(0.1 * k ** (1 / 3), 0.5))
        assert math.isclose(1 / step.eta(k), min(0.1 * k ** (1 / 3), 0.5))
        for method in (inverse, step):
            assert math.isclose(method.a(k), max(0.5 * k ** (-2 / 3), 0.01))
            assert math.isclose(method.rho(k) / method.eta(k), 0.5 / setting.square)


def made_rows(smadmm, auto):
    """One problem, one mark; all rivals at .2."""
    base = {"set": "s", "intercept": False, "lam1": 1.0, "epochs": 2, "test_loss": 0.2, "certificate": 1.0}
    base |= {"certificate_free_y": 1.0, "objective": 0.2, "objective_std": 0.0, "flags": "", "seeds": 8}
    own = {"objective": smadmm, "certificate": smadmm, "certificate_free_y": smadmm, "test_loss": smadmm}
    base["objective_median"], own["objective_median"] = 0.2, smadmm
    rows = [
        {**base, "method": m, "variant": v, **(own if m == "smadmm" else {})}
        for m in TUNED
        for v in ("tuned", "tuned per mark")
    ]
    rows += [{**base, "method": "smadmm", "variant": v} for v in (PAPER_INVERSE, PAPER_STEP)]
    rows.append({**base, "method": "auto", "variant": "untuned", "objective": auto, "certificate": 1e-6})
    rows[-1]["objective_median"] = auto
    return [*rows, {**base, "method": "lbfgs", "variant": "reference", "epochs": 99, "epochs_spent": 99.0}]


def test_the_verdicts_follow_the_numbers():
    good, bad = (ClassificationRows(made_rows(*values)) for values in ((0.1, 0.05), (1.5, 0.4)))
    assert [claim.outcome for claim in verdicts(good)] == ["holds"] * 4
    assert [claim.outcome for claim in verdicts(bad)] == [*["does not hold here"] * 2, "holds", "does not hold here"]
    objective, test_loss, *_ = verdicts(good)
    assert "1 of 1 cells (won: SMADMM 1;" in objective.because and "-50.0 %" in objective.because
    objective, test_loss, *_ = verdicts(bad)
    assert "+650.0 %" in objective.because and "lowest of the six in 0 of 1 cells" in test_loss.because
    assert "above, set at epochs: none" in claim_auto(good) and "s at 2 (1)" in claim_auto(bad)


def test_the_papers_sizes_are_beside_ours():
    found = {"set": "a8a", "training": 11348, "test": 11348, "features": 123, "edges": 9, "positive": 0.2}
    (line,) = classification_chapter.table_2([found | {"density": 0.1}]).rows
    assert [(cell.ours, cell.paper) for cell in line[1:4]] == [(11348, 11348), (11348, 11348), (123, 300)]


@pytest.mark.command
def test_a_missing_data_folder_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "smadmm", "reproduce", "classification", "--out", str(tmp_path), "--quick"]
    environment = os.environ | {"SMADMM_DATA": str(tmp_path / "nowhere")}
    failed = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1
    assert "splice_scale" in failed.stderr and "a8a" in failed.stderr and "does not exist" in failed.stderr
