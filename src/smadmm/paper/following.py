"""A run whose quality and processor time are kept after every iteration."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from smadmm.running import Diverged, Result, Solver, Stop, run
from smadmm.solver import State


def follow(solver: Solver, start: Tensor, iterations: int, quality: Callable[[Tensor], float]) -> Result | None:
    """The history has columns `quality` of the answer and `cpu`, seconds of this process; None if it diverged."""
    begin = time.process_time()

    def of_answer(s: State) -> float:
        return quality(s.answer)

    def seconds(s: State) -> float:
        return time.process_time() - begin

    metrics = {"quality": of_answer, "cpu": seconds}
    try:
        stop = Stop(iterations=iterations)
        result = run(solver, start, stop, every=1, metrics=metrics, objective=False, progress=False)
    except Diverged:
        return None
    if result.interrupted:
        raise KeyboardInterrupt(result.reason.value)  # a part of a curve is no result
    return result
