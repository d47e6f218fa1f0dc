"""What a run ends with: the reason why it stopped, its result, and the errors that carry them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from smadmm.records import PARTS, History
from smadmm.solver import State


class Reason(Enum):
    """Why a run ended.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solve(problem, budget=60).reason is Reason.GRADIENTS
    True
    """

    ITERATIONS = "all iterations done"
    GRADIENTS = "budget of sample gradients used"
    SECONDS = "time used"
    CERTIFICATE = "certificate reached"
    PATIENCE = "no more progress in the objective"
    CALLBACK = "stopped by the callback"
    STREAM_ENDED = "the stream has ended"
    SOURCE_FAILED = "the source of the stream failed"
    INTERRUPTED = "interrupted by a signal"
    OTHER_RANK = "stopped with another rank"


class Diverged(FloatingPointError):
    """The iterates are no longer finite or explode; `state` is the last good one, `history` what was recorded.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> try:
    ...     run(ADMM(problem, SGD(3), rho=1e-9, eta=1e-9), torch.zeros(3), Stop(iterations=99), progress=False)
    ... except Diverged as error:
    ...     print(error.state.k < 99)
    True
    """

    def __init__(self, message: str, state: State, history: History):
        super().__init__(message)
        self.state, self.history = state, history


@dataclass(frozen=True, repr=False)
class Result:
    """Where a run ended, what it recorded, and why it stopped; `x` is the answer of the method.

    `best` is the state with the smallest recorded certificate, where it was recorded. `random` is that of an iteration
    drawn uniformly from all of the run, the output of which the theorems speak, where it was asked for. Both go without
    what an estimator carries beside v.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> result = solve(problem, budget=600)
    >>> result.x.shape, result.interrupted
    (torch.Size([3]), False)
    """

    state: State
    history: History
    reason: Reason
    best: State | None = None
    random: State | None = None
    notes: tuple[str, ...] = ()  # what a person should know of the data that came

    @property
    def x(self) -> Tensor:
        """The answer: the average where the method averages, the coupled point of ASVRG, else the last iterate."""
        return self.state.answer

    @property
    def interrupted(self) -> bool:
        return self.reason is Reason.INTERRUPTED

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before using the answer."""
        cut = (f"the run was interrupted after {self.state.k} iterations",) if self.interrupted else ()
        return (*cut, *self.notes)

    def __repr__(self) -> str:
        parts = [f"x {' x '.join(map(str, self.x.shape)) or 'scalar'}"]
        for column, name in (("objective", "objective"), ("certificate", "dist^2")):
            if column in self.history:
                parts.append(f"{name} {self.history[column][-1]:.6g}")
        parts.append(f"{self.state.k} iterations, {self.state.sfo} sample gradients")
        parts.append(f"{self.history['seconds'][-1]:.3g} s, {self.reason.value}")
        return f"Result({', '.join(parts)})"

    def plot(self, y: str | None = None, x: str = "sfo", ax: Any = None, **line: Any) -> Any:
        """Draw a column of the history (the objective, or what else was recorded); returns the matplotlib axes."""
        recorded = [name for name in self.history if name not in ("k", "sfo", "seconds", *PARTS)]
        if y is None and not recorded:
            raise ValueError("this run recorded nothing to draw; run it with certify=True or with metrics")
        y = y or ("objective" if "objective" in recorded else recorded[0])
        return self.history.plot(y, x, ax, **line)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """x.npy, history.csv and run.json in a folder, made if need be."""
        from smadmm.io.files import output_folder, write_array, write_json

        target = output_folder(folder)
        write_array(target / "x.npy", self.x.detach().cpu().resolve_conj().numpy())
        self.history.to_csv(target / "history.csv")
        last = {name: column[-1] for name, column in self.history.items()}
        write_json(target / "run.json", {**last, "stopped": self.reason.value, "warnings": list(self.warnings)})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run: `result` is what it had reached, which the checkpoint holds, too, where there is one.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> error = smadmm.running.Interrupted(solve(problem, budget=60))
    >>> str(error)
    'after 30 iterations'
    """

    def __init__(self, result: Result):
        super().__init__(f"after {result.state.k} iterations")
        self.result = result
