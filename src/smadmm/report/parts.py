"""The parts of a page: plain data; how they look is in smadmm.report.page."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Outcome = Literal["holds", "holds in part", "does not hold here"]
OUTCOMES: tuple[Outcome, ...] = ("holds", "holds in part", "does not hold here")
Better = Literal["higher", "lower", ""]
Image = Any  # a file's path, the bytes of a PNG or JPEG, an array or a tensor; in JSON the name of a file
MOST_POINTS = 2000  # of one curve; more cannot be seen


@dataclass(frozen=True)
class Heading:
    """A heading; those of level 2 make the table of contents.

    >>> Heading("Quality").level
    2
    """

    text: str
    level: int = 2

    def __post_init__(self) -> None:
        if self.level not in (2, 3):
            raise ValueError(f"a heading has level 2 or 3, got {self.level}")


@dataclass(frozen=True)
class Facts:
    """Names and values, such as settings.

    >>> Facts({"views": 180, "prior": "ridge-ct"}).facts["views"]
    180
    """

    facts: Mapping[str, str | float | None]
    title: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table: the format of its numbers, and which direction is better (for the colour).

    >>> Column("SNR (dB)", ".2f", "higher").name
    'SNR (dB)'
    """

    name: str
    form: str = ""
    better: Better = ""


@dataclass(frozen=True)
class Measured:
    """A number of ours, its spread, and the paper's: shown side by side with the difference.

    >>> Measured(35.1, paper=35.36, spread=0.02).paper
    35.36
    """

    ours: float | None
    paper: float | None = None
    spread: float | None = None


Cell = str | float | Measured | None


@dataclass(frozen=True)
class Table:
    """Rows of cells: text, numbers, or `Measured` beside the paper's.

    >>> Table("180 views", ["method", Column("SNR", ".2f")], [["SMADMM", 35.1]]).rows[0][0]
    'SMADMM'
    """

    title: str
    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row has {len(row)} cells for {len(self.columns)} columns: {row}")


@dataclass(frozen=True)
class Series:
    """A curve with an optional band from low to high; points that are not finite leave a gap.

    >>> Series("error", [1, 2, 4], [1.0, 0.5, 0.25], dashed=True).name
    'error'
    """

    name: str
    x: Any
    y: Any
    low: Any = None
    high: Any = None
    dashed: bool = False

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"the curve {self.name} needs both low and high, or neither")
        lengths = [len(values) for values in (self.x, self.y, self.low, self.high) if values is not None]
        if len(set(lengths)) > 1:
            raise ValueError(f"the curve {self.name} has x, y (low, high) of different lengths: {lengths}")


@dataclass(frozen=True)
class Curves:
    """A plot: zoom by drag, wheel or pinch, read-out under the pointer, curves hidden by their legend.

    >>> Curves("Decrease", [Series("1/k", [1, 2, 4], [1.0, 0.5, 0.25])], log_y=True).title
    'Decrease'
    """

    title: str
    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """An image; `alt` says in words what it shows.

    >>> Picture(np.eye(4), alt="a diagonal").alt
    'a diagonal'
    """

    image: Image
    alt: str
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Levels:
    """What the values 0 and 1 of images stand for, and which values are black and white until the reader moves them.

    >>> Levels(-1000, 1500, black=-300, white=450, unit="HU").unit
    'HU'
    """

    low: float
    high: float
    black: float
    white: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.low <= self.black < self.white <= self.high:
            order = ", ".join(f"{value:g}" for value in (self.low, self.black, self.white, self.high))
            raise ValueError(f"low, black, white and high must be in this order, got {order}")


@dataclass(frozen=True)
class Compare:
    """Two or more images of one size under a slider; the first two are shown, the others can be chosen.

    With `levels` black and white of all of them have sliders, too.

    >>> part = Compare("Two images", {"one": np.zeros((4, 4)), "other": np.ones((4, 4))})
    >>> sorted(part.images)
    ['one', 'other']
    """

    title: str
    images: Mapping[str, Image]
    note: str = ""
    levels: Levels | None = None

    def __post_init__(self) -> None:
        if len(self.images) < 2:
            raise ValueError(f"{self.title}: two images are needed to compare, got {len(self.images)}")


@dataclass(frozen=True)
class Row:
    """Pictures beside each other where the screen is wide enough.

    >>> len(Row([Picture(np.eye(4), "a diagonal"), Picture(np.ones((4, 4)), "white")]).parts)
    2
    """

    parts: Sequence[Picture | Compare]


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, what became of it here, and the number that says so.

    >>> Verdict("It converges", "holds", "dist^2 falls").outcome
    'holds'
    """

    claim: str
    outcome: Outcome
    because: str

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"the outcome of a verdict is one of {', '.join(OUTCOMES)}; got {self.outcome!r}")


@dataclass(frozen=True)
class Run:
    """How the results were made.

    >>> Run("smadmm reconstruct scan.h5", seconds=3.0, seed=0).seconds
    3.0
    """

    command: str
    seconds: float | None = None
    seed: int | None = None
    version: str | None = None
    environment: Mapping[str, str | float | None] | None = None


Part = str | Heading | Facts | Table | Curves | Picture | Compare | Row | Verdict | Run  # a str is a paragraph


def environment() -> dict[str, str | float | None]:
    """The software and the kind of machine; no name of it, no path on it.

    >>> "python" in environment()
    True
    """
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def finite(values: Any, keep: Any) -> list[float | None]:
    """The numbers to keep, for JSON, to seven digits; None where one is not finite."""
    array = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=float)[keep]
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in array]


def thinned(series: Series, log_x: bool) -> dict[str, Any]:
    """A curve as JSON, with at most MOST_POINTS points, evenly placed on its axis."""
    count = len(series.x)
    keep: Any = np.arange(count)
    if count > MOST_POINTS:
        spread = np.geomspace(1, count, MOST_POINTS) - 1 if log_x else np.linspace(0, count - 1, MOST_POINTS)
        keep = np.unique(np.rint(spread).astype(int))
    points: dict[str, Any] = {}
    for name in ("x", "y", "low", "high"):
        values = getattr(series, name)
        points[name] = None if values is None else finite(values, keep)
    return {"name": series.name, **points, "dashed": series.dashed}
