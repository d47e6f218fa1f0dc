"""smadmm train-denoiser: what it writes, what it refuses, and Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.run import get_args_parser

from smadmm import __main__ as cli
from smadmm.denoisers import load
from smadmm.denoisers.training.state import Run
from smadmm.denoisers.weights import sha256

SMALL = ["--filters", "5", "--size", "3", "--batch", "2", "--patch", "20", "--steps", "6", "--quiet"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for n in range(10):
        smooth = np.kron(rng.integers(0, 255, (5, 6)), np.ones((8, 8)))
        Image.fromarray(smooth.astype(np.uint8)).save(folder / f"{n}.png")
    return folder


def command(*words: object) -> int:
    """The exit code of smadmm train-denoiser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["smadmm", "train-denoiser", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return int(stopped.value.code or 0)


@pytest.mark.slow
def test_weights_card_and_curves_are_written(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "w"
    assert command(pictures, "--sigma", 15, "--out", out, "--seed", 3, *SMALL) == 0
    text = capsys.readouterr().out
    assert "Lip(I - D) = 0.990 (proved)" in text and f"load('{out}.safetensors')" in text
    assert sorted(path.name for path in out.parent.iterdir()) == ["w.csv", "w.json", "w.png", "w.safetensors"]
    assert load(f"{out}.safetensors").sigma == pytest.approx(15 / 255)
    card = json.loads((out.parent / "w.json").read_text())
    assert card["sha256"] == sha256(out.parent / "w.safetensors") and card["licence"].startswith("BSD-3-Clause")
    words = card["command"].split()
    assert words[:3] == ["smadmm", "train-denoiser", "pictures"]
    repeated = [str(pictures), *words[3:-1], str(tmp_path / "again.safetensors")]
    assert command(*repeated, "--quiet") == 0  # the card's command gives the same weights
    assert (tmp_path / "again.safetensors").read_bytes() == (out.parent / "w.safetensors").read_bytes()


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on_and_is_exact(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert command(pictures, "--out", whole, *SMALL) == 0
    advance = Run.advance

    def interrupted(run: Run) -> float:
        if run.step == 3:
            signal.raise_signal(signal.SIGINT)
        return advance(run)

    monkeypatch.setattr(Run, "advance", interrupted)
    assert command(pictures, "--out", parts, *SMALL) == 130
    assert "go on with the same command and --resume" in capsys.readouterr().out
    assert not parts.exists() and parts.with_suffix(".checkpoint").exists()
    monkeypatch.setattr(Run, "advance", advance)
    assert command(pictures, "--out", parts, *SMALL) == 2
    assert "holds an unfinished run" in capsys.readouterr().err
    assert command(pictures, "--out", parts, "--resume", *SMALL) == 0
    assert parts.read_bytes() == whole.read_bytes() and not parts.with_suffix(".checkpoint").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{folder}/nowhere"], "there is no file or folder"),
        (["{pictures}", "--arch", "unet"], "--arch is one of ridge, unshuffled, dncnn, got 'unet'"),
        (["{pictures}", "--preset", "gpu"], "--preset is one of cpu, paper, got 'gpu'"),
        (["{pictures}", "--sigma", "0"], "sigma must be positive, got 0.0"),
        (["{pictures}", "--minutes", "-1"], "--minutes must be positive, got -1"),
        (["{pictures}", "--preset", "paper", "--minutes", "3"], "runs 50 epochs, not 3 minutes"),
        (["{pictures}", "--patch", "100"], "is 40 x 48, smaller than a patch of 100"),
        (["{pictures}", "--start-from", "ridge-mri"], "there are no weights 'ridge-mri' to start from"),
        (["{pictures}", "--resume"], "to resume from"),
        (["{pictures}/broken.png", "{pictures}"], "broken.png cannot be read"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(
    words: list[str], message: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "broken.png").write_bytes(b"no picture") if "broken" in words[0] else None
    words = [word.format(pictures=pictures, folder=tmp_path) for word in words]
    assert command(*words, "--out", tmp_path / "out" / "w", "--quiet") == 2
    text = capsys.readouterr().err
    assert text.startswith("Error: ") and message in text and "Traceback" not in text
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.slow
def test_unreadable_files_can_be_skipped(pictures: Path, tmp_path: Path) -> None:
    (pictures / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"skipped: .*broken.png"):
        assert command(pictures, "--out", tmp_path / "w", "--skip-unreadable", *SMALL) == 0


@pytest.mark.slow
@pytest.mark.command
def test_under_torchrun_two_processes_train_together(pictures: Path, tmp_path: Path) -> None:
    words = ["train-denoiser", str(pictures), *SMALL]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "smadmm"]
    done = subprocess.run([*run, *words, "--out", str(tmp_path / "two")], capture_output=True, text=True, check=True)
    assert done.stdout.count("Lip(I - D)") == 1
    assert command(*words[1:], "--out", tmp_path / "one") == 0
    one, two = (load(tmp_path / f"{name}.safetensors").state_dict() for name in ("one", "two"))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-4, atol=1e-5)


def test_torchrun_takes_none_of_the_options_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    options = sorted(set(re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out)) - {"--help"})
    assert "--start-from" in options and "--resume" in options
    words = ["smadmm", "train-denoiser", "PICTURES", *options]
    told = get_args_parser().parse_args(["--nproc-per-node=2", "-m", *words])
    assert [told.training_script, *told.training_script_args] == words


def test_options_that_mean_nothing_and_files_that_would_be_lost_are_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (["--penalty", "3"], "--penalty means nothing for --arch ridge"),
        (["--also", str(pictures)], "--also means nothing for --arch ridge"),
        (["--arch", "dncnn"], "--filters means nothing for --arch dncnn"),
        (["--minutes", "1"], "--minutes 1 and --steps 6 are two answers"),
    ):
        assert command(pictures, "--out", tmp_path / "w", *SMALL, *words) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    (tmp_path / "cat.png").write_bytes(b"mine")
    assert command(pictures, "--out", tmp_path / "cat", *SMALL) == 2
    assert "cat.png is there already" in "".join(capsys.readouterr().err.split("\n"))
    assert (tmp_path / "cat.png").read_bytes() == b"mine"


def test_without_matplotlib_the_curves_are_a_table(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command(pictures, "--out", tmp_path / "w", *SMALL) == 0
    assert (tmp_path / "w.csv").exists() and not (tmp_path / "w.png").exists()
    *_, written, missing = capsys.readouterr().out.splitlines()
    assert written.endswith("its card and .csv are beside it")
    assert missing == "the figure of the learning curves needs matplotlib: pip install 'smadmm[plot]'"


def test_the_command_of_a_card_names_shipped_weights_to_start_from(pictures: Path, tmp_path: Path) -> None:
    words = ["--filters", 88, "--batch", 1, "--patch", 24, "--steps", 1, "--quiet"]
    assert command(pictures, "--out", tmp_path / "w", "--start-from", "ridge-natural", *words) == 0
    assert " --start-from ridge-natural --out" in json.loads((tmp_path / "w.json").read_text())["command"]
