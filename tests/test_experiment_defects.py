"""Scans with defects at a small size: what the experiment leaves behind, and how it spoils and judges."""

import json

import numpy as np
import pytest
import torch

from smadmm.io.phantoms import abdomen
from smadmm.paper import scan_defects, scan_defects_runs
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce
from smadmm.paper.scan_defects_runs import CASES, OBJECT_CASES, OBJECTS, measured, read_slices
from smadmm.paper.scan_objects import PAINTERS, painted


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "ct"
    folder.mkdir()
    slices = np.stack([abdomen(128, seed) for seed in range(2)])
    np.savez(folder / "train_phantom.npz", hu=slices.astype(np.int16))  # no test slices: they are not looked at
    return str(folder.parent)


@pytest.mark.slow
def test_it_leaves_verdicts_and_tables(data, tmp_path, monkeypatch):
    pytest.importorskip("skimage")
    chosen = ("clean", "photons 1e4", "together")
    monkeypatch.setattr(scan_defects, "CASES", {name: CASES[name] for name in chosen})
    monkeypatch.setattr(scan_defects_runs, "VIEWS", 60)
    monkeypatch.setattr(scan_defects_runs, "_compile", lambda: None)
    monkeypatch.setattr(scan_defects, "QUICK", ({64: 1}, 3))
    monkeypatch.setattr(scan_defects, "OBJECT_SIZE", 48)
    monkeypatch.setattr(scan_defects, "QUICK_OBJECTS", ("gear",))
    others = {name: OBJECT_CASES[name] for name in ("turn", "missing", "truncated")}
    monkeypatch.setattr(scan_defects, "OBJECT_CASES", others)
    request = Request(tmp_path, data, quick=True, progress=False)
    rows = reproduce(scan_defects.SCAN_DEFECTS, request)
    assert [row["case"] for row in rows] == [*chosen, *(f"gear: {name}" for name in others), *OBJECTS]
    assert all(row["default"] > row["hann"] or row["warned"] for row in rows if row["kind"] == "object")
    clean, photons, together = rows[:3]
    assert clean["default"] > max(clean["fbp"], clean["hann"]) and clean["raw_cpu"] > 0
    assert "told" in photons and "told" not in clean
    assert together["default"] > together["hann"] and any("detectors" in note for note in together["notes"])
    stored = json.loads((tmp_path / "results.json").read_text())
    verdicts = [part for part in stored["report"] if isinstance(part, dict) and part["kind"] == "verdict"]
    assert len(verdicts) == 6 and "of 1 cases" in verdicts[0]["because"] and "of 3 sinograms" in verdicts[5]["because"]
    assert "| all together, of moderate size |" in (tmp_path / "table.md").read_text()


def test_defects_are_what_their_names_say(data):
    (truth, _) = read_slices(data, "train", 64)
    clean, degrees = measured(truth, CASES["clean"], 0)
    assert np.array_equal(clean, measured(truth, CASES["clean"], 0)[0]) and degrees[-1] == 179
    changed = {name: measured(truth, case, 0)[0] != clean for name, case in CASES.items()}
    assert changed["dead"].any(0).sum() == 3 and changed["noisy"].any(0).sum() == 2
    assert changed["lost view"].any(1).sum() == 1 and 0 < changed["zingers"].sum() < 40
    assert all(changed[name].mean() > 0.5 for name in CASES if name.startswith("axis"))  # where the object is
    assert all(
        changed[name].all() for name in CASES if name.startswith(("gains", "scaled", "offsets", "photons", "together"))
    )
    assert np.allclose(measured(truth, CASES["air"], 0)[0] - clean, 0.05 * clean.max(), rtol=1e-3)


def test_objects_are_what_their_names_say():
    for name in PAINTERS:
        image = painted(name, 64, seed=1)
        assert torch.equal(image, painted(name, 64, seed=1)) and not torch.equal(image, painted(name, 64, seed=2))
        assert image.min() >= 0 and 0.5 < image.max() <= 1 and not image[0].any() and not image[:, -1].any()
    truth, cases = painted("stones", 64, 0), OBJECT_CASES
    clean = measured(truth, cases["clean"], 0)[0]
    changed = {name: measured(truth, cases[name], 0)[0] != clean for name in ("drift", "block", "missing", "half way")}
    assert changed["block"].any(0).sum() == 10 and changed["drift"].all() and 0.005 < changed["missing"].mean() < 0.02
    assert not changed["half way"][:90].any() and changed["half way"][90:].all()
    degrees = {name: measured(truth, cases[name], 0)[1] for name in ("turn", "order", "uneven", "few")}
    assert degrees["turn"].max() == 358 and sorted(degrees["order"]) == list(range(180)) and len(degrees["few"]) == 30
    assert measured(truth, cases["truncated"], 0)[0].shape == (180, 46)


def test_what_is_worse_in_silence_is_named():
    rows = [
        {"case": "gear: clean", "default": d, "hann": 10.0, "warned": w} for d, w in ((11, []), (9, []), (9, ["!"]))
    ]
    verdict = scan_defects._never_worse(rows)
    assert (verdict.outcome, verdict.because) == ("holds in part", "in 2 of 3 scans; not: gear: clean 9.0 dB")


def test_a_missed_aim_is_named():
    missed = scan_defects._aim("claim", {"this": -4.0, "that": -1.0}, -3.0, "cases", "dB")
    assert (missed.outcome, missed.because) == ("holds in part", "in 1 of 2 cases; not: this -4.00 dB")
    met = scan_defects._aim("claim", {"this": -2.0, "that": -1.0}, -3.0, "cases", "dB")
    assert (met.outcome, met.because) == ("holds", "in 2 of 2 cases; the least: this -2.00 dB")
    alarm = {"repairs": ["axis"]}
    assert scan_defects._false_alarms([alarm] + 99 * [{"repairs": []}]).outcome == "holds"
    assert scan_defects._false_alarms([alarm] + 98 * [{"repairs": []}]).outcome == "does not hold here"
