"""An experiment cut into jobs: done by the workers of an executor, each result kept in a file, none done twice.

A job is a frozen dataclass with a `name` for its file. A stored result is used again if the settings of the job and the
code that it runs (smadmm.paper.provenance) are the same.
From a script, call experiments below `if __name__ == "__main__":`, as processes are started anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from smadmm.bars import tqdm
from smadmm.io.files import cleaned, output_folder, write_json
from smadmm.paper.experiment import Request, Work
from smadmm.paper.provenance import code_key
from smadmm.workers import executing, spread

J = TypeVar("J", bound=Any)


def run_all(jobs: Sequence[J], work: Work, request: Request) -> dict[str, Any]:
    """Results by the name of the job, new or from files in the folder `parts`."""
    if len({job.name for job in jobs}) < len(set(jobs)):
        raise ValueError("two different jobs have one name; put what differs into it")
    bench = _Workbench(work, request.data, output_folder(Path(request.out) / "parts"), code_key(work))
    results = {job.name: result for job in jobs if (result := bench.finished(job)) is not None}
    left = [job for job in jobs if job.name not in results]
    hidden = None if request.progress else True
    with tqdm(total=len(jobs), initial=len(results), unit="job", disable=hidden) as bar:
        for job, result in _done(left, bench, request):
            results[job.name] = bench.keep(job, result)
            bar.set_description(job.name)
            bar.update()
    return results


@dataclass(frozen=True)
class _Workbench:
    """Where jobs are done: the work, the folders of data and of finished parts, the key of the code."""

    work: Work
    data: str | None
    parts: Path
    code: str

    def finished(self, job: Any) -> Any:
        """The stored result of a job, if it was made by the same code with the same settings."""
        try:
            stored = json.loads((self.parts / f"{job.name}.json").read_text(encoding="utf-8"))
            return stored["result"] if (stored["settings"], stored["code"]) == (_settings(job), self.code) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def do(self, job: Any) -> Any:
        """The result of a job, run on one thread, with the seconds it took."""
        import torch

        torch.set_num_threads(1)
        begin = time.perf_counter()
        result = cleaned(self.work(job, self.data))
        result["work"] = round(time.perf_counter() - begin, 2)
        return result

    def keep(self, job: Any, result: Any) -> Any:
        """Write the result of a job."""
        write_json(self.parts / f"{job.name}.json", {"settings": _settings(job), "code": self.code, "result": result})
        return result


def _settings(job: Any) -> Any:
    return json.loads(json.dumps(asdict(job)))


def _done(jobs: Sequence[J], bench: _Workbench, request: Request) -> Iterator[tuple[J, Any]]:
    """Jobs with their results, as they come."""
    if not jobs or request.processes == 0:
        for job in jobs:
            yield job, bench.do(job)
        return
    with executing(request.processes) as executor:
        for index, result in spread(executor, bench.do, [partial(tuple, [job]) for job in jobs]):
            yield jobs[index], result
