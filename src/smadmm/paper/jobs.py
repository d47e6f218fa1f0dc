"""An experiment cut into jobs: done by some processes, each result kept in a file, none done twice.

A job is a frozen dataclass with a `name` for its file; its result is not made again while settings and version stay.
From a script, call experiments below `if __name__ == "__main__":`, as processes are started anew.
"""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

import smadmm
from smadmm.io.files import atomic_write

J = TypeVar("J", bound=Any)
Work = Callable[[J, "str | None"], dict[str, Any]]  # a job and the folder of the data -> its result, for JSON


def run_all(
    jobs: Sequence[J], work: Work[J], data: str | None, parts: Path, processes: int, progress: bool
) -> dict[str, Any]:
    """Results by the name of the job, new or from files in `parts`; 0 processes: in this one."""
    if len({job.name for job in jobs}) < len(set(jobs)):
        raise ValueError("two different jobs have one name; put what differs into it")
    results = {job.name: result for job in jobs if (result := _finished(job, parts)) is not None}
    left = [job for job in jobs if job.name not in results]
    new = _in_processes(left, work, data, parts, processes) if processes else _here(left, work, data, parts)
    hidden = None if progress else True
    with closing(new), tqdm(total=len(jobs), initial=len(results), unit="job", disable=hidden) as bar:
        for job, result in new:
            results[job.name] = result
            bar.set_description(job.name)
            bar.update()
    return results


def _settings(job: Any) -> Any:
    return json.loads(json.dumps({"version": smadmm.__version__, **asdict(job)}))


def _finished(job: Any, parts: Path) -> Any:
    """The stored result of a job, if it was made with the same settings."""
    try:
        stored = json.loads((parts / f"{job.name}.json").read_text(encoding="utf-8"))
        return stored["result"] if stored["settings"] == _settings(job) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _do(job: Any, work: Work[Any], data: str | None, parts: Path) -> Any:
    """Run a job on one thread and keep its result, with the seconds it took."""
    import torch

    torch.set_num_threads(1)
    begin = time.perf_counter()
    result = _cleaned(work(job, data))
    result["work"] = round(time.perf_counter() - begin, 2)
    content = {"settings": _settings(job), "result": result}
    atomic_write(parts / f"{job.name}.json", json.dumps(content).encode())
    return result


def _cleaned(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {name: _cleaned(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _here(jobs: Sequence[J], work: Work[J], data: str | None, parts: Path) -> Generator[tuple[J, Any]]:
    for job in jobs:
        yield job, _do(job, work, data, parts)


def _in_processes(
    jobs: Sequence[J], work: Work[J], data: str | None, parts: Path, processes: int
) -> Generator[tuple[J, Any]]:
    if not jobs:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes inherit it
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _deaf_to_ctrl_c():
            futures = {pool.submit(_do, job, work, data, parts): job for job in jobs}
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


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as CSV; columns in the order of their first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
