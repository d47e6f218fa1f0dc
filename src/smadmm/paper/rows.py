"""What the chapters ask of rows: some of them, means, paired differences, and what becomes of a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from smadmm.paper.experiment import JobResult, Row
from smadmm.protocol import Interval, caption, paired
from smadmm.report import Column, Measured, Table, Verdict
from smadmm.report.parts import Outcome

FORMS = {"snr": ".2f", "ssim": ".4f"}
Printed = Mapping[Any, Mapping[int, Sequence[float]]]  # what the paper has, by line and batch size


def some(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a column, sorted."""
    return sorted({row[name] for row in rows})


def mean(rows: Iterable[Row], name: str) -> float | None:
    """The mean of a column; None if there is nothing, or something diverged."""
    found = [row.get(name) for row in rows]
    return fmean(value for value in found if value is not None) if found and None not in found else None


def best(means: Mapping[Any, float | None]) -> Any:
    """The key with the largest mean; what diverged comes last."""
    return max(means, key=lambda key: -math.inf if (value := means[key]) is None else value)


def difference(rows: Iterable[Row], methods: tuple[str, str], column: str, same: Sequence[str], unit: str) -> Interval:
    """Of a column, first method - second, on pairs of rows whose columns `same` are the same."""
    rows = [row for row in rows if row.get(column) is not None]
    first, second = (some(rows, method=method) for method in methods)
    other = {tuple(row[name] for name in same): row[column] for row in second}
    pairs = [(row, other.get(tuple(row[name] for name in same))) for row in first]
    kept = [(row[column], theirs, row[unit]) for row, theirs in pairs if theirs is not None]
    return paired([a for a, _, _ in kept], [b for _, b, _ in kept], [unit for _, _, unit in kept])


def signed(gap: Interval) -> str:
    """+0.12 +- 0.03, or a dash."""
    if math.isnan(gap.mean):
        return "-"
    return f"{gap.mean:+.2f}" + (f" +- {gap.half:.2f}" if math.isfinite(gap.half) else "")


def above(gap: Interval) -> bool:
    """Whether the whole interval is above zero; where there is none, the mean."""
    return gap.mean - (gap.half if math.isfinite(gap.half) else 0.0) > 0


def caption_of(rows: Sequence[Row], unit: str = "seed") -> str:
    """The note of a table: its unit and how many there are, and how many runs diverged."""
    lost = sum(row["snr"] is None for row in rows)
    diverged = f"{lost} of {len(rows)} runs diverged and are left out" if lost else "no run diverged"
    return f"{caption(unit, len(values(rows, unit)))}; {diverged}"


def highest(claim: str, rows: Sequence[Row], labels: Mapping[str, str]) -> Verdict:
    """Whether smadmm has the highest mean SNR of these methods at every batch size."""
    batches = values(rows, "batch")
    winners = [best({m: mean(some(rows, method=m, batch=batch), "snr") for m in labels}) for batch in batches]
    wins, names = winners.count("smadmm"), by_batch(batches, [labels[m] for m in winners], " ")
    because = f"at equal iterations it does at {wins} of {len(batches)}; the best: {names}"
    return Verdict(claim, outcome(wins, len(batches)), because)


def by_batch(batches: Sequence[int], texts: Iterable[str], between: str = ": ") -> str:
    """B=5: this, B=10: that."""
    return ", ".join(f"B={batch}{between}{text}" for batch, text in zip(batches, texts, strict=True))


def batch_table(
    title: str,
    rows: Sequence[Row],
    key: str,
    labels: Mapping[Any, str],
    shown: Sequence[str],
    paper: Printed,
    note: str = "",
) -> Table:
    """Means of the columns `shown` by batch size, beside the paper's; a line per label of the column `key`."""
    batches = values(rows, "batch")
    heads = [Column(f"{name.upper()} B={batch}", FORMS[name], "higher") for batch in batches for name in shown]
    lines: list[list[Any]] = []
    for value, label in labels.items():
        lines.append([label])
        for batch in batches:
            chosen, theirs = some(rows, **{key: value, "batch": batch}), paper.get(value, {}).get(batch)
            for i, name in enumerate(shown):
                lines[-1].append(Measured(mean(chosen, name), theirs[i] if theirs else None))
    said = "Means. " + "; ".join(text for text in (caption_of(rows), note) if text) + "."
    return Table(title, [key, *heads], lines, said)


def mean_curve(results: Iterable[JobResult]) -> list[float]:
    """The mean of the curves of those that did not diverge."""
    curves = [result["curve"] for result in results if result["curve"]]
    return [fmean(each) for each in zip(*curves, strict=True)]


def outcome(wins: int, of: int) -> Outcome:
    return "holds" if wins == of > 0 else "holds in part" if wins else "does not hold here"
