"""What a run ends with: its history, the reason why it stopped, its result, and the errors that carry them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from smadmm.extras import needs
from smadmm.solver import State

PARTS = ("gradient", "subdifferential", "feasibility")  # of the certificate


class History(Mapping[str, list[float]]):
    """Columns by name: history["objective"][-1]. Rows that lack a column hold NaN there.

    >>> history = History({"k": [0, 100], "objective": [1.0, 0.5]})
    >>> history
    History(2 rows: k, objective)
    >>> history["objective"][-1]
    0.5
    """

    def __init__(self, columns: Mapping[str, list[float]] | None = None):
        self.columns: dict[str, list[float]] = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, row: Mapping[str, float]) -> None:
        length = self.rows
        for name in row:
            self.columns.setdefault(name, [math.nan] * length)
        for name, values in self.columns.items():
            values.append(row.get(name, math.nan))

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"History({self.rows} rows: {', '.join(self.columns)})"

    def to_dataframe(self) -> Any:
        """A pandas DataFrame."""
        return needs("pandas", None, "data frames").DataFrame(self.columns)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """A CSV file with a row per record."""
        from smadmm.io.files import write_csv

        write_csv(path, [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)])

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """A JSON file of columns; it has no NaN: missing values become null."""
        from smadmm.io.files import write_json

        write_json(path, self.columns)

    def plot(self, y: str = "objective", x: str = "sfo", ax: Any = None, **line: Any) -> Any:
        """Draw one column against another; returns the matplotlib axes."""
        plt = needs("matplotlib.pyplot", "plot", "figures")
        ax = plt.figure().add_subplot() if ax is None else ax
        ax.plot(self[x], self[y], **line)
        ax.set(xlabel=x, ylabel=y)
        return ax


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
