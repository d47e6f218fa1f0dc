"""What is recorded of a run: the certificate of a point, and columns of numbers that grow row by row."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smadmm.extras import needs

PARTS = ("gradient", "subdifferential", "feasibility")  # of the certificate


@dataclass(frozen=True)
class Certificate:
    """The three parts, each squared.

    `low` and `high` bound the total with 95 % confidence where the first part was sampled. `subdifferential_low` and
    `subdifferential_high` bound the second part, which is exact where they are equal.

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> solver = ADMM(problem, Spider(batch=3, every=1), rho=1.0, eta=1.0)
    >>> result = run(solver, torch.zeros(3), Stop(iterations=300), progress=False)
    >>> c = certify(problem, result.state)
    >>> c.total == c.gradient + c.subdifferential + c.feasibility
    True
    """

    gradient: float
    subdifferential: float
    feasibility: float
    low: float
    high: float
    subdifferential_low: float
    subdifferential_high: float

    @property
    def total(self) -> float:
        """dist^2(0, dL)."""
        return self.gradient + self.subdifferential + self.feasibility


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
