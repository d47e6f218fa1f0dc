"""One problem and one method of the classification experiment as a job, and the halves of a set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.io.libsvm import as_signs, half_split, load_libsvm

Array = NDArray[np.float64]

TUNED = ("sadmm", "svrg", "spider", "asvrg", "saga", "smadmm")
PAPER_INVERSE, PAPER_STEP = "paper, eta = inverse step", "paper, eta = step"
DENSE_ABOVE = 0.5  # density


@dataclass(frozen=True)
class Grid:
    """Steps in units of 1/L, penalties in units of eta/|A|^2, batch sizes (at most a quarter of the samples)."""

    steps: tuple[float, ...]
    rhos: tuple[float, ...]
    batches: tuple[int, ...]


@dataclass(frozen=True)
class ClassificationRun:
    """One method on one problem; `method` is a published one, or "untuned": auto, the paper's recipe and L-BFGS."""

    set: str
    intercept: bool
    lam1: float
    method: str
    seed: int
    marks: tuple[int, ...]
    grid: Grid
    tuning: int  # how many seeds
    shown: int
    fingerprint: str  # of the data

    @property
    def name(self) -> str:
        return f"{self.set}-{'intercept' if self.intercept else 'plain'}-{self.lam1:g}-{self.method}"

    @property
    def tuning_seeds(self) -> range:
        return range(10_000 * self.seed + 5_001, 10_000 * self.seed + 5_001 + self.tuning)

    @property
    def shown_seeds(self) -> range:
        return range(10_000 * self.seed + 1, 10_000 * self.seed + 1 + self.shown)


@dataclass(frozen=True)
class Halves:
    """A set, split into a training and a test half; the shares of positive labels and of values that are not zero."""

    X: Any
    y: Array
    test_rows: Any
    test_y: Array
    positive: float
    density: float


@lru_cache(maxsize=4)
def load_halves(name: str, data: str | None, seed: int) -> Halves:
    """The random halves of the LIBSVM training file."""
    found = load_libsvm(name, data)
    train, test = half_split(len(found.y), seed)
    X, y = found.X, as_signs(found.y)
    if len(np.unique(y[train])) < 2:
        raise ValueError(f"the training half of {name} has one class only; take more samples or another seed")
    density = X.nnz / (X.shape[0] * X.shape[1])
    if density > DENSE_ABOVE:
        X = np.ascontiguousarray(X.toarray())
    return Halves(X[train], y[train], X[test], y[test], positive=float(np.mean(y > 0)), density=density)


def run_classification(job: ClassificationRun, data: str | None) -> dict[str, Any]:
    """Everything of one job, on one thread."""
    import torch
    from threadpoolctl import threadpool_limits

    from smadmm.paper.classification_methods import Setting, run_tuned, run_untuned  # scikit-learn and numba

    torch.set_num_threads(1)
    with threadpool_limits(1), np.errstate(all="ignore"):  # a diverging point of the grid is a result, not a warning
        setting = Setting(job, data)
        return run_untuned(setting) if job.method == "untuned" else run_tuned(setting, job.method)
