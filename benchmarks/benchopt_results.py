"""Run both benchopt benchmarks, small, and write figures, tables and results.json into docs/results/benchopt.

A curve is the median, at every stop value, of the repetitions that got there (other data, other samples). "Gap" is the
objective above the least that any solver reached on the same data, relative to it. Times are wall-clock seconds without
evaluations.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from benchopt.results import read_results

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "results" / "benchopt"
REPETITIONS = 3
GAP = 1e-3  # its time is in the table
SECONDS = (0.5, 1.0, 5.0)  # SNRs after that time are in the table
OPTIONS = {
    "graph_guided": ["--max-runs", "12", "--timeout", "20"],
    "pnp_tomography": ["--max-runs", "17", "--timeout", "60", "--dataset", "phantom[size=128]"],
}
Rows = list[dict[str, Any]]


def measured(name: str) -> pd.DataFrame:
    """Run a benchmark; a row per problem, solver and stop value."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.parquet"
        command = ["benchopt", "run", str(HERE / f"benchopt_{name}"), *OPTIONS[name], "--output", str(result)]
        command += ["--n-repetitions", str(REPETITIONS), "--seed", "0", "--no-plot", "--no-html", "--no-cache"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        rows = read_results(result)
    chosen = [f"p_solver_{option}" for option in ("method", "prior") if f"p_solver_{option}" in rows]
    options = rows[chosen].astype(object).bfill(axis=1).iloc[:, 0].fillna("")
    rows["solver"] = (rows.solver_name.str.partition("[")[0] + " " + options).str.strip()
    rows["dataset"] = rows.dataset_name.str.partition("[")[0]
    rows["penalty"] = rows.objective_name.str.contains("graph=True").map({True: "graph", False: "plain l1"})
    problem = ["dataset", "penalty"]
    rows["gap"] = rows.groupby([*problem, "idx_rep"]).objective_value.transform(lambda value: value / value.min() - 1)
    columns = ["time", "gap", *(["objective_snr"] if "objective_snr" in rows else [])]
    return rows.groupby([*problem, "solver", "stop_val"])[columns].median().reset_index()


def draw(curves: pd.DataFrame, column: str, title: str, path: Path) -> None:
    """A panel per problem, a curve per solver."""
    problems, solvers = list(curves.groupby(["dataset", "penalty"])), sorted(curves.solver.unique())
    fig, axes = plt.subplots(1, len(problems), figsize=(4.5 + 2.7 * len(problems), 3.8), sharey=True, squeeze=False)
    fig.set_layout_engine("constrained")
    lines = {}
    for ax, (problem, part) in zip(axes[0], problems, strict=True):
        for solver, curve in part.groupby("solver"):
            values = curve[column].clip(lower=1e-8) if column == "gap" else curve[column]
            (lines[solver],) = ax.plot(curve.time, values, ".-", color=f"C{solvers.index(solver)}", label=solver)
        ax.set(title=", ".join(problem) if column == "gap" else problem[0], xlabel="seconds", xscale="log")
    axes[0, 0].set(ylabel="gap" if column == "gap" else "SNR (dB)", yscale="log" if column == "gap" else "linear")
    fig.legend(handles=[lines[solver] for solver in solvers], loc="outside right upper", fontsize=8)
    fig.suptitle(title)
    fig.savefig(path, dpi=90)


def gaps(curves: pd.DataFrame) -> Rows:
    """Per solver the least gap, and the seconds to GAP."""
    table = []
    for (dataset, penalty, solver), curve in curves.groupby(["dataset", "penalty", "solver"]):
        reached = curve.time[curve.gap <= GAP]
        seconds = round(float(reached.min()), 3) if len(reached) else None
        row = {"dataset": dataset, "penalty": penalty, "solver": solver, "least gap": float(f"{curve.gap.min():.1e}")}
        table.append(row | {f"seconds to a gap of {GAP:g}": seconds})
    return table


def snrs(curves: pd.DataFrame) -> Rows:
    """Per solver the SNR of the longest run within some seconds, the largest on the way, and that at the end."""
    table = []
    for solver, curve in curves.groupby("solver"):
        row: dict[str, Any] = {"solver": solver}
        for limit in SECONDS:
            within = curve.objective_snr[curve.time <= limit]
            row[f"SNR (dB) after {limit:g} s"] = round(float(within.iloc[-1]), 2) if len(within) else None
        last = curve.iloc[-1]
        row |= {
            "largest": round(float(curve.objective_snr.max()), 2),
            "at the end": round(float(last.objective_snr), 2),
        }
        table.append(row | {"seconds": round(float(last.time), 1), "iterations": int(last.stop_val)})
    return table


def markdown(rows: Rows) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [["-" if value is None else f"{value}" for value in row.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    first, second = measured("graph_guided"), measured("pnp_tomography")
    draw(first, "gap", "Objective above the least one reached, over time", OUT / "graph_guided.png")
    draw(second, "objective_snr", "SNR of images from 60 views, over time", OUT / "pnp_tomography.png")
    tables = {"graph_guided": gaps(first), "pnp_tomography": snrs(second)}
    versions = {name: version(name) for name in ("benchopt", "scikit-learn", "skglm", "torch", "numpy", "numba")}
    about = {
        "command": "make benchopt",
        "repetitions": REPETITIONS,
        "environment": versions | {"system": platform.system()},
    }
    (OUT / "results.json").write_text(json.dumps(about | tables, indent=1) + "\n", encoding="utf-8")
    for name, rows in tables.items():
        (OUT / f"{name}.md").write_text(markdown(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
