"""The command line: results as promised, errors as one sentence with exit code 2."""

import json
import os
import subprocess
import sys

import pytest

import smadmm
from smadmm.experiments import complexity


def smadmm_command(*arguments, **options):
    command = [sys.executable, "-m", "smadmm.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_version_and_help():
    assert smadmm_command("--version").stdout.strip() == f"smadmm {smadmm.__version__}"
    assert "reproduce" in smadmm_command("--help").stdout


def test_unwritable_output_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = smadmm_command("reproduce", "complexity", "--out", tmp_path / "file" / "out", "--quick")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the output folder") and "choose another --out" in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    loud = smadmm_command("--debug", "reproduce", "complexity", "--out", tmp_path / "file" / "out", "--quick")
    assert "Traceback" in loud.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """`smadmm reproduce complexity --quick`, once."""
    out = tmp_path_factory.mktemp("complexity")
    done = smadmm_command("reproduce", "complexity", "--out", out, "--quick", env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return out, json.loads((out / "results.json").read_text())


def test_complexity_results_have_the_promised_form(measured):
    out, results = measured
    assert set(results) == {"experiment", "command", "version", "seconds", "rows"}
    assert results["experiment"] == "complexity" and results["version"] == smadmm.__version__
    for row in results["rows"]:
        assert set(row) >= {"method", "variant", "slope", "slope_low", "slope_high", "sfo_to_1e-3", "level"}
        assert row["slope_low"] <= row["slope"] <= row["slope_high"]
    assert (out / "complexity.png").stat().st_size > 10_000
    assert (out / "table.md").read_text() == complexity.table(results["rows"]) + "\n"


def test_complexity_of_the_paper_holds(measured):
    """The slopes and levels that the theorems promise."""
    rows = {(row["method"], row["variant"]): row for row in measured[1]["rows"]}
    dynamic, constant = rows["smadmm", "dynamic"], rows["smadmm", "constant"]
    assert -0.72 <= dynamic["slope"] <= -0.60 and -0.72 <= constant["slope"] <= -0.60
    assert -0.65 <= rows["sadmm", "sqrt"]["slope"] <= -0.48
    assert -0.05 <= rows["sadmm", "one"]["slope"] <= 0.05 and rows["sadmm", "one"]["sfo_to_1e-3"] is None
    for row in (dynamic, constant):
        assert row["level"] < 0.7 * rows["spider", "constant"]["level"]
        assert row["level"] < 0.45 * rows["sadmm", "sqrt"]["level"]
        assert row["sfo_to_1e-3"] < 0.7 * rows["spider", "constant"]["sfo_to_1e-3"]
