"""The history of a run: columns of numbers that can be saved, tabulated and drawn."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smadmm.extras import needs
from smadmm.files import atomic_write


class History(Mapping[str, list[float]]):
    """Columns by name: history["objective"][-1]. Rows that lack a column hold NaN there."""

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
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*self.columns.values(), strict=True))

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """JSON has no NaN: missing values become null."""
        clean = {n: [v if math.isfinite(v) else None for v in values] for n, values in self.columns.items()}
        atomic_write(Path(path), json.dumps(clean).encode())

    def plot(self, y: str = "objective", x: str = "sfo", ax: Any = None, **line: Any) -> Any:
        """Draw one column against another; returns the matplotlib axes."""
        plt = needs("matplotlib.pyplot", "plot", "figures")
        ax = plt.figure().add_subplot() if ax is None else ax
        ax.plot(self[x], self[y], **line)
        ax.set(xlabel=x, ylabel=y)
        return ax
