"""A run whose quality and processor time are kept after every iteration, and what it had reached at a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from smadmm.results import Diverged, Result
from smadmm.running import Solver, Stop, run
from smadmm.solver import State


def follow(
    solver: Solver, start: Tensor, iterations: int, quality: Callable[[Tensor], float], sfo: int | None = None
) -> Result | None:
    """The history has columns `quality` of the answer and `cpu`, seconds of this process; None if it diverged.

    It ends after so many iterations, or with the iteration in which `sfo` sample gradients are reached.
    """
    begin = time.process_time()

    def of_answer(s: State) -> float:
        return quality(s.answer)

    def seconds(s: State) -> float:
        return time.process_time() - begin

    metrics = {"quality": of_answer, "cpu": seconds}
    try:
        stop = Stop(iterations=iterations, sfo=sfo)
        result = run(solver, start, stop, every=1, metrics=metrics, objective=False, progress=False)
    except Diverged:
        return None
    if result.interrupted:
        raise KeyboardInterrupt(result.reason.value)  # a part of a curve is no result
    return result


def at_sfo(result: Mapping[str, Any], budget: float) -> float | None:
    """The last value of a curve when no more than `budget` sample gradients were computed."""
    affordable = [value for n, value in zip(result["sfo"], result["curve"], strict=True) if n <= budget]
    return affordable[-1] if affordable else None
