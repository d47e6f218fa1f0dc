"""Work for the workers of any concurrent.futures.Executor: a process pool, Dask, MPI.

`spread` hands tasks to an executor and yields results as they come. A task computes with as many torch threads as this
process: sums of floats depend on how they are split, and results shall not depend on where they were computed.

`Processes(n)` are processes of this machine, each a pool of its own: one that dies, of a signal or for want of memory,
takes no other with it; it is started anew, and its task done once more. From a script, use it below
`if __name__ == "__main__":`, as processes are started anew.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar
from uuid import uuid4

import torch

from smadmm.arguments import ArgumentError
from smadmm.bars import bars_of_this_process

HERE = uuid4().hex  # of this process
ATTEMPTS = 2  # of a task whose worker died
R = TypeVar("R")


@contextmanager
def executing(executor: Executor | int) -> Iterator[Executor]:
    """The executor, or that many processes of this machine, which end with the block."""
    if isinstance(executor, Executor):
        yield executor
        return
    if isinstance(executor, bool) or not isinstance(executor, int):
        raise ArgumentError("{executor} is an Executor or a number of processes, got {0!r}", executor)
    if executor < 1:
        raise ArgumentError("{executor} must be at least 1 process, got {0}", executor)
    with Processes(executor) as own:
        yield own


def spread(
    executor: Executor, function: Callable[..., R], tasks: Sequence[Callable[[], tuple[Any, ...]]], ahead: int = 2**31
) -> Iterator[tuple[int, R]]:
    """Results of function(*task()) with the number of the task, as they come.

    The arguments of a task are made when it is handed over; at most `ahead` tasks are under way. If one fails, or the
    caller leaves, those that did not begin are cancelled.
    """
    waiting, threads = iter(enumerate(tasks)), torch.get_num_threads()
    under_way: dict[Future[R], int] = {}
    try:
        while True:
            while len(under_way) < ahead and (task := next(waiting, None)) is not None:
                future = executor.submit(_do, HERE, threads, function, *task[1]())
                under_way[future] = task[0]
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future.result()
    except BrokenExecutor as error:
        raise BrokenExecutor(
            f"a worker died, and {type(executor).__name__} with it ({error}); what is finished is kept where a "
            "checkpoint was asked for; a number as executor replaces workers that die"
        ) from error
    finally:
        for future in under_way:
            future.cancel()


def _do(sender: str, threads: int, function: Callable[..., R], *task: Any) -> R:
    if sender == HERE:  # a pool of threads: solvers and denoisers have scratch memory, which is not for two at once
        function, task = copy.deepcopy((function, task))
    elif torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return function(*task)


class Processes(Executor):
    """That many processes of this machine; a worker that dies costs its task only, which is done once more.

    >>> with smadmm.workers.Processes(1) as processes:
    ...     processes.submit(pow, 2, 10).result()
    1024
    """

    def __init__(self, count: int):
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._others = set(multiprocessing.active_children())
        self._closed = self._ended = False
        with _deaf_to_ctrl_c():
            pools = [_process() for _ in range(count)]
        self._feeders = [threading.Thread(target=self._feed, args=(pool,), daemon=True) for pool in pools]
        for feeder in self._feeders:
            feeder.start()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        if self._closed:
            raise RuntimeError("these processes were shut down; make new ones")
        future: Future[R] = Future()
        self._tasks.put((future, fn, args, kwargs))
        return future

    def _feed(self, pool: ProcessPoolExecutor) -> None:
        """Do tasks one after the other in one process."""
        while (task := self._tasks.get()) is not None:
            future, function, arguments, named = task
            if not future.set_running_or_notify_cancel():
                continue
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    future.set_result(pool.submit(function, *arguments, **named).result())
                except BrokenExecutor:
                    pool.shutdown()  # lets go of its semaphores
                    if self._ended:
                        future.set_exception(BrokenExecutor("the processes were ended"))
                        return
                    pool = _process()
                    if attempt < ATTEMPTS:
                        continue
                    future.set_exception(BrokenExecutor(f"{ATTEMPTS} processes died of one task: too little memory?"))
                except BaseException as error:
                    future.set_exception(error)
                break
            del task, future, function, arguments, named  # results may be large
        pool.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more tasks; with `cancel_futures` those that wait are cancelled, too."""
        if cancel_futures:
            while not self._tasks.empty():
                with suppress(Exception):
                    task = self._tasks.get_nowait()
                    if task is not None:
                        task[0].cancel()
        if not self._closed:
            self._closed = True
            for _ in self._feeders:
                self._tasks.put(None)
        if wait:
            for feeder in self._feeders:
                feeder.join()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Wait for the tasks; after an error end the processes at once."""
        if kind is not None:
            self._ended = True
            self.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - self._others:
                child.kill()
        self.shutdown()


def _process() -> ProcessPoolExecutor:
    """A pool of one process, started."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # it inherits that: libraries read it when they are imported
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
    pool.submit(int)
    return pool


def _begin() -> None:
    """A terminal sends SIGINT to all processes, and the parent ends them; if it was killed itself, they end, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bars_of_this_process()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started in here ignore SIGINT from the beginning."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
