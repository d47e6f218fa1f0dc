"""Default classifiers on tables: what the experiment leaves behind, its ranks and its paired counts."""

import json

import numpy as np
import pytest

from smadmm.paper import tabular
from smadmm.paper.experiment import Request
from smadmm.paper.reproducing import reproduce
from smadmm.paper.tabular_runs import BUNDLED, GENERATED, installed, read_table

pytest.importorskip("sklearn")


@pytest.mark.slow
def test_it_leaves_verdicts_and_tables(tmp_path):
    rows = reproduce(tabular.TABULAR, Request(tmp_path, quick=True, progress=False))
    assert len(rows) == 2 * len(tabular.QUICK) * len(installed())
    assert all(0.6 < row["accuracy"] <= 1 and row["seconds"] > 0 for row in rows)
    svc = [row for row in rows if row["method"] == "LinearSVC"]
    assert all(row["log_loss"] is None and (row["auc"] is None) == (row["table"] != "groups") for row in svc)
    stored = json.loads((tmp_path / "results.json").read_text())
    verdicts = [part for part in stored["report"] if isinstance(part, dict) and part["kind"] == "verdict"]
    assert len(verdicts) == 6 and "no clean test" in stored["report"][0]
    assert "| mean rank |" in (tmp_path / "table.md").read_text()


def test_sets_are_many_and_functions_of_the_seed():
    assert len(BUNDLED) + len(GENERATED) >= 12
    for name in GENERATED:
        (X, y), (same, _), (other, _) = (read_table(name, None, seed) for seed in (0, 0, 1))
        assert abs(X - same).max() == 0 and abs(X - other).max() > 0 and len(np.unique(y)) >= 2


def test_ranks_share_ties_and_leave_out_the_incomplete():
    values = {"one": {"a": 0.9, "b": 0.9, "c": None}, "two": {"a": 0.8, "b": 0.7, "c": 1.0}}
    assert tabular._ranks(values, ["a", "b", "c"], "higher") == {"a": 1.25, "b": 1.75, "c": None}
    assert tabular._ranks(values, ["a", "b", "c"], "lower") == {"a": 1.75, "b": 1.25, "c": None}


def test_a_difference_counts_when_it_exceeds_its_standard_error():
    def rows(method, losses):
        return [{"table": table, "method": method, "log_loss": loss} for table in losses for loss in losses[table]]

    ours = rows("ours", {"win": [0.1, 0.2], "even": [0.1, 0.4], "lose": [0.6, 0.7]})
    theirs = rows("theirs", {"win": [0.3, 0.4], "even": [0.4, 0.1], "lose": [0.5, 0.6]})
    tables = ["win", "even", "lose"]
    assert tabular._compared([*ours, *theirs], tables, "ours", "theirs", "log_loss") == "1 / 1 / 1, +0.033"
    assert tabular._compared([*theirs, *ours], tables, "theirs", "ours", "log_loss") == "1 / 1 / 1, -0.033"
