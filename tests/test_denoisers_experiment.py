"""The comparison runs from data to table on a small synthetic set."""

import json
from pathlib import Path

import numpy as np
import pytest

from smadmm.denoisers import DnCNN
from smadmm.paper import denoisers, denoisers_runs, jobs
from smadmm.paper.denoisers import DENOISERS, add_to_cards, chapter
from smadmm.paper.experiment import Findings, Request
from smadmm.paper.reproducing import reproduce
from smadmm.report import Verdict


@pytest.mark.slow
def test_quick_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "images" / "Set12").mkdir(parents=True)
    (tmp_path / "ct").mkdir()
    rng = np.random.default_rng(0)
    for n in range(2):
        picture = np.kron(rng.integers(0, 255, (8, 8)), np.ones((32, 32))).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / "images" / "Set12" / f"{n}.png")
    np.savez(tmp_path / "ct" / "test_one.npz", hu=np.zeros((1, 512, 512), np.int16))
    monkeypatch.setattr(denoisers_runs, "DnCNN", lambda: DnCNN(2, 2))
    monkeypatch.setattr(denoisers, "shipped", lambda: ["ridge-natural"])
    request = Request(tmp_path / "out", str(tmp_path), quick=True, progress=False)
    rows = {row["denoiser"]: row for row in reproduce(DENOISERS, request)}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["experiment"] == "denoisers" and results["quick"] and len(results["rows"]) == len(rows)
    assert rows["noisy"]["psnr_set12_small"] == pytest.approx(20 * np.log10(255 / 5), abs=0.1)
    assert set(rows["noisy"]) == {"denoiser", "sigma", "psnr_set12_small", "psnr_ct", "seconds"}
    assert rows["ridge-natural"]["measured"] <= rows["ridge-natural"]["proved"] < 1
    assert rows["ridge-natural"]["ms"] > 0 and rows["ridge-natural"]["dncnn_ms"] > 0
    assert "| ridge-natural | 5 |" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "denoisers.png").stat().st_size > 1000
    (verdict,) = [part for part in results["report"] if isinstance(part, dict) and part["kind"] == "verdict"]
    assert f"{rows['ridge-natural']['proved']:.3f} (ridge-natural)" in verdict["because"]
    monkeypatch.setattr(jobs, "write_json", None)  # finished parts are not made again
    assert reproduce(DENOISERS, request) == list(rows.values())
    np.savez(tmp_path / "ct" / "test_one.npz", hu=np.ones((1, 512, 512), np.int16))
    with pytest.raises(TypeError):  # other images: they are
        reproduce(DENOISERS, request)


def test_without_bm3d_the_comparison_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoisers, "find_spec", lambda name: None)
    monkeypatch.setattr(denoisers, "shipped", lambda: [])
    monkeypatch.setattr(denoisers, "load_images", lambda data, quick: {})
    names = [job.denoiser for job in denoisers.denoiser_jobs(Request("out"))]
    assert names == ["noisy", denoisers_runs.PAPER, denoisers_runs.SMALL, "TV"]


def test_rows_go_into_the_cards(tmp_path: Path) -> None:
    (tmp_path / "ridge-ct.json").write_text('{"seed": 0}')
    add_to_cards([{"denoiser": "TV", "ms": 1}, {"denoiser": "ridge-ct", "ms": 2}], tmp_path)
    card = json.loads((tmp_path / "ridge-ct.json").read_text())
    assert card == {"seed": 0, "test": {"denoiser": "ridge-ct", "ms": 2}} and len(list(tmp_path.iterdir())) == 1


def test_verdicts_can_fail() -> None:
    bm3d = {"denoiser": "BM3D", "sigma": 5, "psnr_set12_small": 38.0, "psnr_ct": 44.0}
    natural = {"denoiser": "ridge-natural", "sigma": 5, "psnr_set12_small": 37.99, "psnr_ct": 40.0, "proved": 0.99}
    slices = {"denoiser": "ridge-ct", "sigma": 5, "psnr_set12_small": 37.0, "psnr_ct": 43.95, "measured": 1.2}
    large = slices | {"denoiser": "ridge-ct-large", "psnr_ct": 43.89, "measured": 0.9}
    found = Findings((), {}, [bm3d, natural, slices, large])
    outcomes = [part.outcome for part in chapter(found) if isinstance(part, Verdict)]
    assert outcomes == ["does not hold here", "holds", "does not hold here", "does not hold here"]


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --data DIR, or set SMADMM_DATA"):
        denoisers_runs.load_images(None, quick=True)
    with pytest.raises(ValueError, match="there is no folder .*Set12"):
        denoisers_runs.load_images(str(tmp_path), quick=True)
