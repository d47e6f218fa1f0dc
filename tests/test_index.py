"""All experiments and their page: resumed, one failure does not stop the rest, the committed results tell the truth."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import smadmm
from smadmm.cli import app, reproduce
from smadmm.experiments import classification_chapter, complexity_report, everything
from smadmm.experiments.classification_report import PAPER_TABLE_2
from smadmm.experiments.index import TITLES, index
from smadmm.experiments.results import renew_report, write_results
from smadmm.report import Compare, Curves, Heading, Picture, Run, Series, Table, Verdict, as_json, png

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def small(name, calls, outcome="holds"):
    """An experiment that takes no time."""

    def run(out, data, quick, seed, progress, processes):
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        calls.append((name, data, quick, seed, progress))
        (folder / "picture.png").write_bytes(png(np.eye(4)))
        report = [
            f"About {name}.",
            Verdict(f"claim of {name}", outcome, "1 of 1"),
            Curves("c", [Series("s", [1, 2], [1, np.nan])]),
            Picture("picture.png", "four dots"),
            Compare("both", {"a": "picture.png", "b": "picture.png"}),
        ]
        rows = [{"value": float("nan")}]
        write_results(folder, name, f"smadmm {name}", 1.0, rows, quick=quick, seed=seed, report=report)

    return run


def broken(out, data, quick, seed, progress, processes):
    raise ValueError("the <disk> is full")


def test_finished_experiments_are_not_run_again(tmp_path):
    calls = []
    experiments = {"phase": small("phase", calls), "ct-120": small("ct-120", calls)}
    assert everything.reproduce(str(tmp_path), "DATA", True, 3, False, 0, experiments) == {}
    assert calls == [("phase", "DATA", True, 3, False), ("ct-120", "DATA", True, 3, False)]
    everything.reproduce(str(tmp_path), "DATA", True, 3, False, 0, experiments)
    assert len(calls) == 2
    (tmp_path / "phase" / "results.json").write_text("{")
    everything.reproduce(str(tmp_path), "DATA", True, 3, False, 0, experiments)
    assert len(calls) == 3 and calls[-1][0] == "phase"
    everything.reproduce(str(tmp_path), "DATA", False, 3, False, 0, experiments)
    everything.reproduce(str(tmp_path), "DATA", False, 4, False, 0, experiments)
    assert len(calls) == 7


def test_results_of_another_version_or_without_a_seed(tmp_path, monkeypatch):
    everything.reproduce(str(tmp_path), None, False, 0, False, 0, {"phase": small("phase", [])})
    assert everything.finished(tmp_path / "phase", False, 0) and not everything.finished(tmp_path / "phase", False, 1)
    content = json.loads((tmp_path / "phase" / "results.json").read_text()) | {"seed": None}
    (tmp_path / "phase" / "results.json").write_text(json.dumps(content))
    assert everything.finished(tmp_path / "phase", False, 1)
    monkeypatch.setattr(smadmm, "__version__", "99")
    assert not everything.finished(tmp_path / "phase", False, 1)


def test_a_failure_is_reported_and_the_others_go_on(tmp_path):
    calls = []
    failures = everything.reproduce(
        str(tmp_path), None, False, 0, False, 0, {"ct-120": broken, "phase": small("phase", calls)}
    )
    assert set(failures) == {"ct-120"} and len(calls) == 1
    html = (tmp_path / "index.html").read_text()
    assert "ValueError: the &lt;disk&gt; is full" in html and "claim of phase" in html
    assert "Traceback" in (tmp_path / "ct-120" / "error.txt").read_text()
    repaired = {"ct-120": small("ct-120", calls), "phase": small("phase", calls)}
    assert everything.reproduce(str(tmp_path), None, False, 0, False, 0, repaired) == {}
    assert len(calls) == 2 and not (tmp_path / "ct-120" / "error.txt").exists()
    assert "disk" not in (tmp_path / "index.html").read_text()


def test_an_interrupt_stops_everything_and_keeps_what_was_done(tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        everything.reproduce(
            str(tmp_path), None, False, 0, False, 0, {"complexity": small("complexity", []), "phase": interrupted}
        )
    assert "claim of complexity" in (tmp_path / "index.html").read_text()


def test_the_command_ends_with_1_if_one_failed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(everything, "EXPERIMENTS", {"ct-120": broken, "phase": small("phase", calls)})
    arguments = ["reproduce", "all", "--out", str(tmp_path), "--data", "D", "--seed", "2", "--quick", "--quiet"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and calls == [("phase", "D", True, 2, False)]
    assert "ct-120 failed: ValueError: the <disk> is full" in done.output and (tmp_path / "index.html").exists()
    monkeypatch.setattr(everything, "EXPERIMENTS", {"phase": small("phase", calls)})
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and len(calls) == 1


def test_every_experiment_has_a_title_and_a_command():
    commands = {command.name or command.callback.__name__ for command in reproduce.registered_commands}
    assert set(everything.EXPERIMENTS) == commands - {"all"}
    assert set(everything.EXPERIMENTS) <= set(TITLES)


def test_chapters_follow_the_paper_and_every_claim_is_listed(tmp_path):
    for name, outcome in (("phase", "holds"), ("own-idea", "holds in part"), ("complexity", "does not hold here")):
        small(name, [], outcome)(tmp_path / name, None, name == "phase", 0, False, 0)
    page = index(tmp_path)
    headings = [part.text for part in page.parts if isinstance(part, Heading)]
    assert headings == ["Verdicts", "Oracle complexity (Table 1)", "Phase retrieval (Table 6)", "own-idea"]
    claims = next(part for part in page.parts if isinstance(part, Table))
    assert [row[2] for row in claims.rows] == ["✗ does not hold here", "✓ holds", "◐ holds in part"]
    assert "(holds 1, holds in part 1, does not hold here 1)" in page.intro
    assert sum("--quick" in part for part in page.parts if isinstance(part, str)) == 1
    assert [part.command for part in page.parts if isinstance(part, Run)] == [
        "smadmm complexity",
        "smadmm phase",
        "smadmm own-idea",
    ]


def test_what_is_missing_or_damaged_is_said(tmp_path):
    small("phase", [])(tmp_path / "phase", None, False, 0, False, 0)
    (tmp_path / "phase" / "picture.png").unlink()
    assert index(tmp_path).html().count("The figure picture.png is missing") == 2  # alone, and to compare
    for content, said in (
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"report": [{"kind": "chart"}]}', "no part of a page of the kind"),
        ('{"report": [{"kind": "picture", "image": "../../secret.png", "alt": ""}]}', "not in"),
        ('{"rows": []}', "cannot be read"),
        ('{"command": "x", "rows": [{}, {}]}', "2 rows, but no report"),
    ):
        (tmp_path / "phase" / "results.json").write_text(content)
        assert said in index(tmp_path).html()


def stored(name):
    return json.loads((RESULTS / name / "results.json").read_text())


def test_the_committed_reports_follow_from_the_committed_rows():
    content = stored("complexity")
    assert content["report"] == [as_json(part) for part in complexity_report.chapter(content["rows"])]
    content = stored("classification")
    table = next(
        part for part in content["report"] if isinstance(part, dict) and part.get("title", "").startswith("Table 2")
    )
    names = ("set", "training", "test", "features", "edges", "positive", "density")
    sets = [
        dict(zip(names, [c["ours"] if isinstance(c, dict) else c for c in row])) for row in table["rows"]
    ]  # the sets themselves are not committed
    again = [as_json(part) for part in classification_chapter.chapter(content["rows"], sets)]
    assert content["report"] == json.loads(json.dumps(again))
    markdown = (RESULTS / "classification" / "table.md").read_text()
    for found in sets:
        assert "| {set} | {training} | {test} | {features} | 2 | {edges} |".format(**found) in markdown
        assert found["training"] == PAPER_TABLE_2[found["set"]][0]


def test_the_committed_complexity_report_shows_the_committed_table():
    """The table in Markdown and the one in the report have the same slopes."""
    table = next(p for p in stored("complexity")["report"] if isinstance(p, dict) and p["kind"] == "table")
    markdown = (RESULTS / "complexity" / "table.md").read_text().splitlines()[2:]
    assert [f"{row[2]['ours']:.3f}" for row in table["rows"]] == [line.split(" | ")[2] for line in markdown]


def test_complexity_rows_give_curves():
    rows = stored("complexity")["rows"]
    parts = complexity_report.chapter(rows)
    curves = next(part for part in parts if isinstance(part, Curves))
    assert len(curves.series) == 7 and not any(isinstance(part, Picture) for part in parts)
    assert curves.series[0].x == [10_000, 31_623, 100_000, 316_228, 1_000_000]
    assert curves.series[0].y[0] == rows[0]["level_at_10000"] and curves.series[0].y[-1] == rows[0]["level"]


def test_complexity_verdicts_follow_the_slopes():
    rows = stored("complexity")["rows"]
    flat = [row | {"slope": 0.0} if row["method"] == "smadmm" else row for row in rows]
    outcomes = [part.outcome for part in complexity_report.chapter(flat) if isinstance(part, Verdict)]
    assert outcomes == ["does not hold here"] * 5
    middle = [row | {"slope": -0.55} if row["method"] == "smadmm" else row for row in rows]
    outcomes = [part.outcome for part in complexity_report.chapter(middle) if isinstance(part, Verdict)]
    assert outcomes[:4] == ["holds in part"] * 4


def test_a_report_is_renewed_and_the_numbers_stay(tmp_path):
    shutil.copytree(RESULTS / "complexity", tmp_path / "complexity")
    before = stored("complexity")
    renew_report(tmp_path / "complexity", ["Other words."])
    after = json.loads((tmp_path / "complexity" / "results.json").read_text())
    assert after.pop("report") == ["Other words."] and before.pop("report") and after == before
