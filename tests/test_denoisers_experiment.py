"""The comparison runs from data to table on a small synthetic set."""

import json
from pathlib import Path

import numpy as np
import pytest

from smadmm.denoisers import DnCNN
from smadmm.experiments import denoisers


def test_quick_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "images" / "Set12").mkdir(parents=True)
    (tmp_path / "ct").mkdir()
    rng = np.random.default_rng(0)
    for n in range(2):
        picture = np.kron(rng.integers(0, 255, (8, 8)), np.ones((32, 32))).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / "images" / "Set12" / f"{n}.png")
    np.savez(tmp_path / "ct" / "test_one.npz", hu=np.zeros((1, 512, 512), np.int16))
    monkeypatch.setattr(denoisers, "DnCNN", lambda: DnCNN(2, 2))
    monkeypatch.setattr(denoisers, "shipped", lambda: ["ridge-natural"])
    path = denoisers.reproduce(tmp_path / "out", tmp_path, quick=True)
    results = json.loads(path.read_text())
    assert set(results) == {"experiment", "command", "version", "seconds", "rows"}
    rows = {row["denoiser"]: row for row in results["rows"]}
    assert rows["noisy"]["psnr_set12_small"] == pytest.approx(34.15, abs=0.1)
    assert rows["ridge-natural"]["psnr_set12_small"] > rows["noisy"]["psnr_set12_small"] + 3
    assert rows["ridge-natural"]["measured"] <= rows["ridge-natural"]["certified"] < 1
    assert "| ridge-natural |" in (tmp_path / "out" / "denoisers.md").read_text()
    assert (tmp_path / "out" / "denoisers.png").stat().st_size > 1000
