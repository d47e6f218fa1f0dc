"""An experiment cut into jobs: done by some processes, each result kept in a file, none done twice.

A job is a frozen dataclass with a `name` for its file. A stored result is used again if the settings of the job and the
code that it runs (smadmm.paper.provenance) are the same.
From a script, call experiments below `if __name__ == "__main__":`, as processes are started anew.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from smadmm.io.files import cleaned, output_folder, write_json
from smadmm.paper.experiment import Request, Work
from smadmm.paper.provenance import code_key

J = TypeVar("J", bound=Any)


def run_all(jobs: Sequence[J], work: Work, request: Request) -> dict[str, Any]:
    """Results by the name of the job, new or from files in the folder `parts`."""
    if len({job.name for job in jobs}) < len(set(jobs)):
        raise ValueError("two different jobs have one name; put what differs into it")
    bench = _Workbench(work, request.data, output_folder(Path(request.out) / "parts"), code_key(work))
    results = {job.name: result for job in jobs if (result := bench.finished(job)) is not None}
    left = [job for job in jobs if job.name not in results]
    new = _in_processes(left, bench, request.processes) if request.processes else _here(left, bench)
    hidden = None if request.progress else True
    with closing(new), tqdm(total=len(jobs), initial=len(results), unit="job", disable=hidden) as bar:
        for job, result in new:
            results[job.name] = result
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
        """Run a job on one thread and keep its result, with the seconds it took."""
        import torch

        torch.set_num_threads(1)
        begin = time.perf_counter()
        result = cleaned(self.work(job, self.data))
        result["work"] = round(time.perf_counter() - begin, 2)
        write_json(self.parts / f"{job.name}.json", {"settings": _settings(job), "code": self.code, "result": result})
        return result


def _settings(job: Any) -> Any:
    return json.loads(json.dumps(asdict(job)))


def _here(jobs: Sequence[J], bench: _Workbench) -> Generator[tuple[J, Any]]:
    for job in jobs:
        yield job, bench.do(job)


def _in_processes(jobs: Sequence[J], bench: _Workbench, processes: int) -> Generator[tuple[J, Any]]:
    if not jobs:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes inherit it
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _deaf_to_ctrl_c():
            futures = {pool.submit(bench.do, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:  # results are written whole or not at all
                child.kill()
            raise


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started in here ignore SIGINT, which a terminal sends to all of them: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
