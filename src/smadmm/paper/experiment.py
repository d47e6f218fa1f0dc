"""An experiment of the paper: its jobs, the work of one, the rows made of their results, the chapter that shows them.

    jobs(request)   frozen dataclasses with a `name`; they hold all that decides a result, also fingerprints of data
    reported(..)    where methods are tuned, `jobs` are the tuning runs, and this makes of their results the runs that
                    are reported. A job says what it `sees`, data and seeds: tuning may not see what is reported
    work(job, data) the result of one job, for JSON; a function of a module, as it is called in other processes
    rows(jobs, ..)  flat dicts, every number measured
    chapter(found)  parts of a report: a sentence on what was done, a `Verdict` for every claim of the paper, its tables
                    with `Measured(ours, paper)`, `Curves`, and images by the names of `figures`

Only `work` costs time; the rest is made anew from the results of the jobs. `smadmm.paper.reproducing` runs any of them.
How methods are compared: smadmm.protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smadmm.report import Part

Row = dict[str, Any]
JobResult = Mapping[str, Any]
Work = Callable[[Any, "str | None"], dict[str, Any]]  # a job and the folder of the data -> its result


@dataclass(frozen=True)
class Request:
    """What is asked of an experiment; with 0 processes its jobs run in this one, an executor has its own."""

    out: str | Path
    data: str | None = None
    quick: bool = False
    seed: int = 0
    size: int | None = None
    processes: int | Executor = 2
    progress: bool = True


@dataclass(frozen=True)
class Findings:
    """The jobs, their results by name, and the rows made of them."""

    jobs: Sequence[Any]
    results: Mapping[str, JobResult]
    rows: Sequence[Row]

    @property
    def seconds(self) -> float:
        """The work of all processes, also of earlier calls."""
        return sum(float(result["work"]) for result in self.results.values())


def no_figures(found: Findings) -> dict[str, bytes]:
    return {}


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: what is run, and what is made of it."""

    name: str  # of its command and its folder
    title: str
    about: str
    jobs: Callable[[Request], Sequence[Any]]
    work: Work
    rows: Callable[[Sequence[Any], Mapping[str, JobResult]], list[Row]]
    chapter: Callable[[Findings], list[Part]]
    reported: Callable[[Request, Sequence[Any], Mapping[str, JobResult]], Sequence[Any]] | None = None
    table: Callable[[Findings], str] | None = None  # table.md; by default the chapter in Markdown
    figures: Callable[[Findings], dict[str, bytes]] = no_figures  # PNG files by name
    sized: bool = False  # the request may choose the size of the images
    alone: bool = False  # one job at a time, in this process: they are timed
