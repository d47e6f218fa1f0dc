"""Tuning of the CT methods: kappa and eta on training slices, sixteen points per method, views, noise and batch size.

The curve of a tuning run serves two budgets: all iterations, and the sample gradients that PnP-SADMM computes in them.
A method whose iterations cost more is tuned for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

from smadmm.paper.ct_runs import CT_METHODS, CTRun, CTScan
from smadmm.paper.experiment import JobResult
from smadmm.paper.following import at_sfo
from smadmm.protocol import Tried, Tuned, minus_mean, same_effort
from smadmm.report import Column, Table

Budget = Literal["iterations", "sfo"]
KAPPAS = {50.0: (1.0, 3.0, 9.0, 27.0), 35.0: (0.3, 1.0, 3.0, 9.0)}
ETAS = {50.0: (0.1, 0.2, 0.4, 0.8), 35.0: (0.1, 0.3, 1.0, 3.0)}
DEFAULT_KAPPAS = tuple(round(0.1 * 1.4**i, 3) for i in range(16))
COSTLY = ("spider", "asvrg", "smadmm", "default")  # more sample gradients per iteration than PnP-SADMM
TUNING_SEED = 1000  # added to the seed of the request


class Cell(NamedTuple):
    """What is tuned for itself."""

    views: int
    decibel: float
    batch: int
    iterations: int
    method: str
    alpha: float = 2 / 3

    @property
    def sfo(self) -> int:
        """Of PnP-SADMM."""
        return (self.iterations + 1) * self.batch


Chosen = Mapping[tuple[Cell, Budget], Tuned]


def cell_of(job: CTRun) -> Cell:
    scan = job.scan
    return Cell(scan.views, scan.decibel, job.batch, job.iterations, job.method, job.alpha)


def points(cell: Cell) -> list[tuple[float, float]]:
    """kappa and eta."""
    if cell.method == "default":
        return [(kappa, 1.0) for kappa in DEFAULT_KAPPAS]
    return list(product(KAPPAS[cell.decibel], ETAS[cell.decibel]))


def tuning_runs(cells: Iterable[Cell], slices: Sequence[int], size: int, seed: int) -> list[CTRun]:
    """Every point on every training slice, each slice with a seed of its own."""
    runs = []
    for cell, (number, image) in product(cells, enumerate(slices)):
        scan = CTScan("train", image, size, cell.views, cell.decibel, seed + TUNING_SEED + number)
        for kappa, eta in points(cell):
            runs.append(CTRun(scan, cell.method, cell.batch, cell.iterations, kappa, eta, cell.alpha))
    return runs


def choose(jobs: Sequence[CTRun], results: Mapping[str, JobResult]) -> dict[tuple[Cell, Budget], Tuned]:
    """The best point of every cell for every budget, by the mean SNR; refused if methods were given other numbers."""
    chosen: dict[tuple[Cell, Budget], Tuned] = {}
    runs: dict[Cell, list[CTRun]] = {}
    for job in jobs:
        runs.setdefault(cell_of(job), []).append(job)
    for cell, own in runs.items():
        for budget in ("iterations", "sfo") if cell.method in COSTLY else ("iterations",):
            tuned = _tuned(own, results, cell.sfo if budget == "sfo" else None)
            if budget == "iterations" or math.isfinite(tuned.winner.score):  # else its first gradient costs more
                chosen[cell, budget] = tuned
    for setting in dict.fromkeys(cell[:4] for cell in runs):
        same_effort({str(key): tuned for key, tuned in chosen.items() if key[0][:4] == setting})
    return chosen


def _tuned(jobs: Sequence[CTRun], results: Mapping[str, JobResult], sfo: int | None) -> Tuned:
    found: dict[tuple[float, float], list[float | None]] = {}
    for job in jobs:
        result = results[job.name]
        found.setdefault((job.kappa, job.eta), []).append(result["snr"] if sfo is None else at_sfo(result, sfo))
    tried = [Tried({"kappa": kappa, "eta": eta}, minus_mean(values)) for (kappa, eta), values in found.items()]
    return Tuned(tuple(tried), len(jobs))


def _label(cell: Cell) -> str:
    return CT_METHODS[cell.method] + ("" if cell.alpha == 2 / 3 else f", alpha = {cell.alpha:.3g}")


def tuning_table(chosen: Chosen) -> Table:
    """The best point of every grid, with its flags."""
    lines: list[list[Any]] = []
    for (cell, budget), tuned in chosen.items():
        where = [cell.views, f"{cell.decibel:g} dB", cell.batch, cell.iterations]
        best = [tuned.best["kappa"], tuned.best["eta"], -tuned.winner.score, tuned.runs, tuned.flags]
        lines.append([*where, _label(cell), budget, *best])
    columns: list[str | Column] = ["views", "input", "B", "K", "method", "tuned at equal", "kappa", "eta"]
    columns += [Column("SNR", ".2f"), "runs", "flags"]
    note = "Means of training slices, each with a seed of its own."
    return Table("Tuning: the best point of each grid", columns, lines, note)


def ends(chosen: Chosen, decibel: float) -> str:
    """A sentence on the methods whose best point was at the end of its grid, for the note of a table."""
    named = [
        f"{_label(cell)} B={cell.batch} ({', '.join(tuned.at_end)})"
        for (cell, budget), tuned in chosen.items()
        if tuned.at_end and budget == "iterations" and cell.decibel == decibel
    ]
    return "tuned to the end of a grid: " + ("; ".join(named) or "none")
