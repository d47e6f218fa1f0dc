"""Ptychography beside ptychi at a small size: its scans, its arithmetic, and peers that are left out by name."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from smadmm.operators import Ptychography
from smadmm.paper import ptychography
from smadmm.paper.experiment import Request
from smadmm.paper.ptychography_runs import PASSES, PEERS, ScanRun, first_guess, make_scan, run_scan
from smadmm.paper.reproducing import reproduce

PHOTONS = (1e3, 1e5)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "images" / "Set12").mkdir(parents=True)
    for seed in range(2):
        pixels = np.kron(np.random.default_rng(seed).integers(0, 256, (10, 10)), np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "Set12" / f"{seed}.png")
    return str(folder)


def test_counts_have_the_mean_of_the_patterns():
    """So many photons as were asked for, at whole pixels, half of the object each way."""
    image = torch.linspace(0, 1, 32).expand(32, 32)
    made = make_scan(image, image.mT, 5, 1e6, seed=1)
    mean = Ptychography(torch.from_numpy(made.probe), made.positions, (32, 32))(made.truth).abs().square().numpy()
    assert np.abs(made.counts - mean).max() < 7 * mean.max() ** 0.5 and made.counts.shape == (25, 16, 16)
    assert float((np.abs(made.probe) ** 2).sum()) == pytest.approx(1e6, rel=1e-5)
    assert np.array_equal(made.positions, np.rint(made.positions)) and made.positions.max() == 16
    guess = first_guess(16, 1e6)
    agreement = np.abs(np.vdot(guess, made.probe)) / 1e6
    assert 0.5 < agreement < 0.97


@pytest.mark.slow
def test_without_ptychi_its_methods_are_left_out_by_name(data, tmp_path, monkeypatch):
    monkeypatch.setattr(ptychography, "SIZE", 64)
    monkeypatch.setattr(ptychography, "find_spec", lambda name: None)
    rows = reproduce(ptychography.PTYCHOGRAPHY, Request(tmp_path, data, quick=True, processes=0, progress=False))
    assert [(row["photons"], row["probe"]) for row in rows] == [(p, probe) for p in PHOTONS for probe in PASSES]
    for row in rows:  # random blocks are no natural images: with few photons the prior gains nothing on them
        assert row["snr"] > row["fit"] - 0.2 * (row["photons"] < 1e4) and row["passes"] <= PASSES[row["probe"]]
    text = (tmp_path / "table.md").read_text()
    assert "ptychi is not installed here" in text and "fit + one denoising" in text and "LSQML |" not in text


def test_verdicts_compare_with_the_best_peer():
    """One that diverged is no rival."""
    rows = [{"method": "default", "snr": 12.0}]
    rows += [{"method": name, "snr": 7.0 + i / 2} for i, name in enumerate(PEERS)]
    rows = [row | {"positions": 25, "photons": photons, "probe": "known"} for photons in PHOTONS for row in rows]

    def verdicts(lsqml):
        changed = [row | ({"snr": lsqml} if row["method"] == "lsqml tuned" else {}) for row in rows]
        return list(ptychography._verdicts(changed, list(PEERS)))

    assert [verdict.outcome for verdict in verdicts(9.5)] == ["holds", "holds"]
    assert "probe known: +2.50 dB (LSQML tuned)" in verdicts(9.5)[0].because
    assert [verdict.outcome for verdict in verdicts(10.5)] == ["does not hold here", "holds"]
    assert [verdict.outcome for verdict in verdicts(12.6)] == ["does not hold here", "does not hold here"]
    assert "+3.00 dB (rPIE tuned)" in verdicts(None)[0].because


def test_peers_are_tuned_on_another_object(data, monkeypatch):
    """Step, batch and passes are those of the best run there; all passes where the last ones were best."""
    monkeypatch.setattr(ptychography, "SIZE", 32)
    monkeypatch.setattr(ptychography, "TUNING", "Set12")
    monkeypatch.setattr(ptychography, "SCANS", [(5, 1e3, "Set12", "known")])
    monkeypatch.setattr(ptychography, "find_spec", lambda name: name)
    request = Request("", data)
    planned = ptychography.tuning_jobs(request)
    assert len({job.name for job in planned}) == len(planned) == 8 * 2
    wins = {"epie": (0.3, 5), "rpie": (1.0, 1), "lsqml": (0.9, 5)}
    results = {job.name: {"curve": [(10, 5.0 + (wins[job.method] == (job.step, job.batch))), (job.passes, None)]}
               for job in planned}  # fmt: skip
    (last,) = (job for job in planned if job.method == "lsqml" and (job.step, job.batch) == wins["lsqml"])
    results[last.name]["curve"].append((last.passes, 9.0))
    reported = {job.method: job for job in ptychography.scan_jobs(request, planned, results)}
    assert list(reported) == ["default", *PEERS]
    for name, best in wins.items():
        usual, tuned = reported[name], reported[f"{name} tuned"]
        assert (tuned.step, tuned.batch) == best and usual.batch == 100 and usual.passes == PASSES["known"]
        assert tuned.passes == (PASSES["known"] if name == "lsqml" else 10) and tuned.seed != planned[0].seed


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ptychi") is None, reason="ptychi is not installed")
@pytest.mark.parametrize(("method", "step"), [("epie", 1.0), ("rpie", 0.5), ("lsqml tuned", 0.9)])
def test_peers_find_the_object_of_many_photons(method, step, data):
    """The same description of a scan as ours: positions, Fourier transform, unit of the probe."""
    found = run_scan(ScanRun(method, "Set12", 0, 32, 5, 1e8, "known", 0, "", step, 1, 150), data)
    assert found["snr"] > 30 and [passes for passes, _ in found["curve"]] == [10, 25, 50, 100, 150]


def test_jobs_have_one_name_each(data, monkeypatch):
    monkeypatch.setattr(ptychography, "SIZE", 64)
    planned = ptychography.scan_jobs(Request("", data, quick=True), [], {})
    assert len({job.name for job in planned}) == len(planned) >= 4
