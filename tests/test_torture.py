"""A slice of tests/torture: some faults, and some damaged files for every reader."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "torture"))
readers = pytest.importorskip("readers", reason="needs processes that fork")  # resource is not there on Windows

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
FAULTS = Path(__file__).parent / "torture" / "faults.py"


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("name", readers.TARGETS)
def test_damaged_files_are_refused_in_one_sentence(name):
    if not readers.available(name):
        pytest.skip(f"{readers.TARGETS[name][2]} is not installed")
    done, failures = readers.fuzz(name, 0, 500)
    assert done and not failures


@LINUX
@pytest.mark.slow
@pytest.mark.command
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_run_that_is_disturbed_goes_on_to_the_same_answer(tmp_path):
    cases = ["--case", "run", "--case", "reconstruct", "--case", "reproduce"]
    command = [sys.executable, FAULTS, *cases, "--most", "30", "--log", tmp_path / "log", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | all | 30 | 0 |" in (tmp_path / "faults.md").read_text(encoding="utf-8")
