"""What is fitted, a task, and what comes of it, a fit; without torch, which the exact solver does not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from smadmm.records import PARTS, Certificate, History
from smadmm.sampling import pass_batches, run_batches

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Report = Callable[[], object]  # called after every pass

AT_ZERO = {"sigmoid": 0.5, "logistic": float(np.log(2)), "squared_hinge": 1.0}  # the loss of x = 0
PUBLISHED = ("smadmm", "sadmm", "svrg", "saga", "spider", "asvrg")  # methods
PASSES, MOST_PASSES = 20, 1000
WORK = 50_000_000  # entries of X that passes may look at, if these are more than 20


@dataclass(frozen=True)
class Auto:
    """The solver that needs no tuning; it answers with the minimiser itself, its exact zeros and ties.

    With exact=False the answer is the average of stochastic iterates; with `momentum` they end with STORM, and the
    answer is the last one, which has a smaller certificate than the average.

    >>> Auto(momentum=True)
    Auto(momentum=True, exact=True)
    """

    momentum: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Task:
    """1/n sum_i w_i l(a_i'x + x_last, b_i) + lam1 |A x|_1 for one pair of classes, or a target; weights of mean 1."""

    X: Any  # dense, C-contiguous, or CSR
    target: Array
    weight: Array
    A: Any  # CSR, one column per unknown
    lam1: float
    loss: str
    intercept: bool
    ridge: float = 0.0  # ridge * lam1 |x|^2 / 2 is a part of F for the exact solver
    shuffled: bool = False  # the rows are in random order: batches are runs of them, read in sequence

    def batches(self, seed: int, size: int, first: int, count: int) -> Indices:
        """What a solver with this seed draws, one batch per row."""
        return (run_batches if self.shuffled else pass_batches)(seed, self.n, size, first, count)

    def part(self, rows: Any) -> Task:
        """The same problem on some of the rows."""
        weight = self.weight[rows]
        return replace(self, X=self.X[rows], target=self.target[rows], weight=weight / weight.mean())

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def size(self) -> int:
        """The number of unknowns."""
        return int(self.A.shape[1])


@dataclass(frozen=True)
class Fit:
    """The answer and how it was found."""

    x: Array
    passes: int
    sfo: int
    history: History
    lam: Array  # multipliers of A x: grad F = A'lam

    @property
    def certificate(self) -> Certificate:
        """Of the answer."""
        gradient, subdifferential, feasibility = (self.history[name][-1] for name in PARTS)
        total = gradient + subdifferential + feasibility
        parts = (gradient, subdifferential, feasibility)
        return Certificate(*parts, total, total, subdifferential, subdifferential)


def default_passes(X: Any) -> int:
    """As many passes as the work allows, so that few rows are not fitted worse than many."""
    entries = max(1, int(X.nnz if issparse(X) else X.size))
    return min(max(PASSES, WORK // entries), MOST_PASSES)
