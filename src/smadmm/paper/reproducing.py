"""Run an experiment, or all of them, and leave behind what they found.

The folder of the request gets parts/ (a file per job: smadmm.paper.jobs), results.csv, table.md, figures, and
results.json = {
  "experiment", "command", "version",
  "code",                  a key of the code that made this file: smadmm.paper.provenance
  "quick", "seed", "size", of the request
  "seconds", "environment",
  "rows":   [flat dicts],  every number measured
  "report": [parts]        what a reader is shown of them, as `smadmm.paper.stored_parts` stores them
}
`report` alone makes the experiment's chapter of index.html.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import smadmm
from smadmm.bars import tqdm
from smadmm.io.files import atomic_write, output_folder, write_csv, write_json
from smadmm.paper.experiment import Experiment, Findings, Request, Row
from smadmm.paper.index import index
from smadmm.paper.jobs import run_all
from smadmm.paper.provenance import code_key
from smadmm.paper.stored_parts import as_json
from smadmm.paper.writing import markdown
from smadmm.protocol import refuse_seen
from smadmm.report import environment


def reproduce(experiment: Experiment, request: Request) -> Sequence[Row]:
    """Run or resume an experiment and write its files; the rows."""
    if request.size is not None and not experiment.sized:
        raise ValueError(f"{experiment.name} has no choice of sizes, got size {request.size}; leave it out")
    if experiment.alone:
        request = replace(request, processes=0)
    jobs = list(experiment.jobs(request))
    folder = output_folder(request.out)
    made = _made(experiment, request)  # now, as the code may be edited while it runs
    results = run_all(jobs, experiment.work, request)
    if experiment.reported is not None:  # the jobs so far were tuning
        reported = experiment.reported(request, jobs, results)
        refuse_seen(*({seen for job in some for seen in job.sees} for some in (jobs, reported)))
        results |= run_all(reported, experiment.work, request)
        jobs += reported
    found = Findings(jobs, results, experiment.rows(jobs, results))
    chapter = experiment.chapter(found)
    text = markdown(chapter) if experiment.table is None else experiment.table(found)
    for name, image in experiment.figures(found).items():
        atomic_write(folder / name, image)
    atomic_write(folder / "table.md", text.encode())
    write_csv(folder / "results.csv", found.rows)
    made |= {"seconds": round(found.seconds, 1), "environment": environment(), "rows": found.rows}
    write_json(folder / "results.json", made | {"report": [as_json(part) for part in chapter]})  # last: all is there
    return found.rows


def _made(experiment: Experiment, request: Request) -> dict[str, Any]:
    """By which code and for which request."""
    command = f"smadmm reproduce {experiment.name}" + (" --data DIR" if request.data else "") + " --out DIR"
    command += f" --size {request.size}" if request.size else ""
    return {
        "experiment": experiment.name,
        "command": f"{command} --seed {request.seed}" + (" --quick" if request.quick else ""),
        "version": smadmm.__version__,
        **_identity(experiment, request),
    }


def _identity(experiment: Experiment, request: Request) -> dict[str, Any]:
    """What must be the same for results to be used again."""
    functions = (experiment.jobs, experiment.work, experiment.rows, experiment.chapter, experiment.figures)
    code = code_key(*functions, *(function for function in (experiment.table, experiment.reported) if function))
    return {"code": code, "quick": request.quick, "seed": request.seed, "size": request.size}


def finished(experiment: Experiment, request: Request) -> bool:
    """Whether the folder holds the results that this code gives for this request."""
    try:
        content = json.loads((Path(request.out) / "results.json").read_text(encoding="utf-8"))
        return all(content[name] == value for name, value in _identity(experiment, request).items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def reproduce_all(request: Request, experiments: Sequence[Experiment]) -> dict[str, str]:
    """Run those that are not finished, each in its folder below `out`, and write index.html; the failures by name.

    One that fails is reported and the others go on. The page is written anew after each, so it can be read meanwhile.
    """
    folder = output_folder(request.out)
    failures: dict[str, str] = {}
    bar = tqdm(experiments, unit="experiment", disable=None if request.progress else True)
    for experiment in bar:
        bar.set_description(experiment.name)
        size = request.size if experiment.sized else None
        own = replace(request, out=folder / experiment.name, size=size)
        reason = None if finished(experiment, own) else _attempt(experiment, own)
        if reason:
            failures[experiment.name] = reason
        index(folder, failures).write(folder / "index.html")
    return failures


def _attempt(experiment: Experiment, request: Request) -> str | None:
    """Run one experiment; the reason if it failed, whose traceback is kept in its folder."""
    error_file = output_folder(request.out) / "error.txt"
    try:
        reproduce(experiment, request)
    except Exception as error:
        atomic_write(error_file, traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} (error.txt in its folder says where)"
    error_file.unlink(missing_ok=True)
    return None
