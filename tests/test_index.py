"""All experiments and their page: resumed, one failure does not stop the rest, the committed results tell the truth."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import smadmm
from smadmm.__main__ import app
from smadmm.paper import catalogue, classification_chapter, complexity, reproducing
from smadmm.paper.catalogue import EXPERIMENTS
from smadmm.paper.command import commands
from smadmm.paper.experiment import Experiment, Findings, Request
from smadmm.paper.index import index
from smadmm.paper.reproducing import finished, reproduce_all
from smadmm.paper.stored_parts import as_json
from smadmm.report import Compare, Curves, Heading, Picture, Run, Series, Table, Verdict, png

RESULTS = Path(__file__).parent.parent / "docs" / "results"


@dataclass(frozen=True)
class Nothing:
    """A job that takes no time."""

    name: str
    seed: int


def do_nothing(job, data):
    return {"value": float("nan")}


def small(name, calls, outcome="holds"):
    """An experiment of one job; its calls are counted."""

    def jobs(request):
        calls.append((name, request.data, request.quick, request.seed, request.progress))
        return [Nothing("one", request.seed)]

    def chapter(found):
        return [
            f"About {name}.",
            Verdict(f"claim of {name}", outcome, "1 of 1"),
            Curves("c", [Series("s", [1, 2], [1, np.nan])]),
            Picture("picture.png", "four dots"),
            Compare("both", {"a": "picture.png", "b": "picture.png"}),
        ]

    return Experiment(
        name,
        name,
        "A small one.",
        jobs=jobs,
        work=do_nothing,
        rows=lambda jobs, results: [dict(results["one"])],
        chapter=chapter,
        figures=lambda found: {"picture.png": png(np.eye(4))},
    )


def failing(name, error):
    def jobs(request):
        raise error

    return replace(small(name, []), jobs=jobs)


BROKEN = failing("ct-120", ValueError("the <disk> is full"))


def asked(folder, **changes):
    return Request(folder, **{"processes": 0, "progress": False, **changes})


@pytest.mark.slow
def test_any_experiment_leaves_the_same_files(tmp_path):
    rows = reproducing.reproduce(small("phase", []), asked(tmp_path, data="D", seed=3, quick=True))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"parts", "results.json", "results.csv", "table.md", "picture.png"}
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["command"] == "smadmm reproduce phase --data DIR --out DIR --seed 3 --quick"
    assert (content["quick"], content["seed"], content["size"]) == (True, 3, None) and len(content["code"]) == 16
    assert rows[0]["value"] is None and content["rows"][0]["value"] is None
    assert "**claim of phase**: holds. 1 of 1." in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_a_size_is_refused_where_there_is_none_to_choose(tmp_path):
    with pytest.raises(ValueError, match="phase has no choice of sizes, got size 512; leave it out"):
        reproducing.reproduce(small("phase", []), asked(tmp_path / "out", size=512))
    sized = replace(small("ct-120", []), sized=True)
    assert reproduce_all(asked(tmp_path, size=512), [small("phase", []), sized]) == {}
    sizes = [json.loads((tmp_path / name / "results.json").read_text())["size"] for name in ("phase", "ct-120")]
    assert sizes == [None, 512]


@pytest.mark.slow
def test_finished_experiments_are_not_run_again(tmp_path):
    calls = []
    experiments = [small("phase", calls), small("ct-120", calls)]
    request = asked(tmp_path, data="DATA", quick=True, seed=3)
    assert reproduce_all(request, experiments) == {}
    assert calls == [("phase", "DATA", True, 3, False), ("ct-120", "DATA", True, 3, False)]
    reproduce_all(request, experiments)
    assert len(calls) == 2
    (tmp_path / "phase" / "results.json").write_text("{")
    reproduce_all(request, experiments)
    assert len(calls) == 3 and calls[-1][0] == "phase"
    reproduce_all(replace(request, quick=False), experiments)
    reproduce_all(replace(request, quick=False, seed=4), experiments)
    assert len(calls) == 7


@pytest.mark.slow
def test_results_of_other_code_are_made_again(tmp_path, monkeypatch):
    calls, request = [], asked(tmp_path / "phase")
    reproduce_all(asked(tmp_path), [small("phase", calls)])
    assert finished(small("phase", calls), request) and not finished(small("phase", calls), replace(request, seed=1))
    monkeypatch.setattr(smadmm, "__version__", "99")  # says nothing about the code
    assert finished(small("phase", calls), request)
    monkeypatch.setattr(reproducing, "code_key", lambda *functions: "other")
    assert not finished(small("phase", calls), request)
    reproduce_all(asked(tmp_path), [small("phase", calls)])
    assert len(calls) == 2 and finished(small("phase", calls), request)


@pytest.mark.slow
def test_a_failure_is_reported_and_the_others_go_on(tmp_path):
    calls = []
    failures = reproduce_all(asked(tmp_path), [BROKEN, small("phase", calls)])
    assert set(failures) == {"ct-120"} and len(calls) == 1
    html = (tmp_path / "index.html").read_text()
    assert "ValueError: the &lt;disk&gt; is full" in html and "claim of phase" in html
    assert "Traceback" in (tmp_path / "ct-120" / "error.txt").read_text()
    assert reproduce_all(asked(tmp_path), [small("ct-120", calls), small("phase", calls)]) == {}
    assert len(calls) == 2 and not (tmp_path / "ct-120" / "error.txt").exists()
    assert "disk" not in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_an_interrupt_stops_everything_and_keeps_what_was_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        reproduce_all(asked(tmp_path), [small("complexity", []), failing("phase", KeyboardInterrupt())])
    assert "claim of complexity" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_the_command_ends_with_1_if_one_failed(tmp_path, monkeypatch):
    calls = []
    assert "phase" in commands()  # of the real ones
    arguments = ["reproduce", "all", "--out", str(tmp_path), "--data", "D", "--seed", "2", "--quick", "--quiet"]
    for experiments, code in (((BROKEN, small("phase", calls)), 1), ((small("phase", calls),), 0)):
        monkeypatch.setattr(catalogue, "EXPERIMENTS", experiments)
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == code and calls == [("phase", "D", True, 2, False)]
        assert ("ct-120 failed: ValueError: the <disk> is full" in done.output) == (code == 1)
        assert (tmp_path / "index.html").exists()


def test_every_experiment_has_a_command_and_a_title():
    assert list(commands()) == [*(experiment.name for experiment in EXPERIMENTS), "all"]
    assert all(experiment.title and experiment.about.endswith(".") for experiment in EXPERIMENTS)


def loaded(imports, names):
    """Which of the modules an import loads."""
    code = f"import sys, {imports}; print([name for name in {names} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_importing_the_experiments_is_light():
    heavy = ["sklearn", "numba", "scipy", "matplotlib", "skimage", "safetensors", "PIL", "typer"]
    assert loaded("smadmm.paper.catalogue", heavy) == loaded("torch, tqdm", heavy)


@pytest.mark.slow
def test_other_commands_do_not_import_the_experiments():
    assert loaded("smadmm.__main__", ["smadmm.paper.command", "smadmm.paper.catalogue"]) == "['smadmm.paper.command']\n"


@pytest.mark.slow
def test_chapters_follow_the_paper_and_every_claim_is_listed(tmp_path):
    for name, outcome in (("phase", "holds"), ("own-idea", "holds in part"), ("complexity", "does not hold here")):
        reproducing.reproduce(small(name, [], outcome), asked(tmp_path / name, quick=name == "phase"))
    page = index(tmp_path)
    headings = [part.text for part in page.parts if isinstance(part, Heading)]
    assert headings == ["Verdicts", "Oracle complexity (Table 1)", "Phase retrieval (Table 6)", "own-idea"]
    claims = next(part for part in page.parts if isinstance(part, Table))
    assert [row[2] for row in claims.rows] == ["✗ does not hold here", "✓ holds", "◐ holds in part"]
    assert "(holds 1, holds in part 1, does not hold here 1)" in page.intro
    assert sum("--quick" in part for part in page.parts if isinstance(part, str)) == 1
    commands = [part.command.split()[2] for part in page.parts if isinstance(part, Run)]
    assert commands == ["complexity", "phase", "own-idea"]


@pytest.mark.slow
def test_what_is_missing_or_damaged_is_said(tmp_path):
    reproducing.reproduce(small("phase", []), asked(tmp_path / "phase"))
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
    content = stored("classification")
    table = next(
        part for part in content["report"] if isinstance(part, dict) and part.get("title", "").startswith("Table 2")
    )
    names = ("set", "training", "test", "features", "edges", "positive", "density")
    sets = [
        dict(zip(names, [c["ours"] if isinstance(c, dict) else c for c in row])) for row in table["rows"]
    ]  # the sets themselves are not committed
    again = [as_json(part) for part in classification_chapter.chapter_of_rows(content["rows"], sets)]
    assert content["report"][: len(again)] == json.loads(json.dumps(again))
    markdown = (RESULTS / "classification" / "table.md").read_text()
    for found in sets:
        assert "| {set} | {training} (".format(**found) in markdown
        assert found["training"] == classification_chapter.PAPER_TABLE_2[found["set"]][0]


def test_the_committed_complexity_report_follows_from_the_committed_rows():
    """Report and table.md; every problem has its verdicts and its curves, those of methods and those of exponents."""
    content = stored("complexity")
    found = Findings((), {}, content["rows"])
    parts = complexity.chapter(found)
    assert content["report"] == json.loads(json.dumps([as_json(part) for part in parts]))
    assert (RESULTS / "complexity" / "table.md").read_text() == complexity.table(found)
    assert sum(isinstance(part, Verdict) for part in parts) == 12 and sum(isinstance(p, Curves) for p in parts) == 6
    budgets = sorted({row["budget"] for row in content["rows"]})
    assert all(curve.x == budgets for part in parts if isinstance(part, Curves) for curve in part.series)
