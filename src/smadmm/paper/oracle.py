"""A classification task over all samples, as the experiment looks at it: on arrays and outside every count."""

from __future__ import annotations

import numpy as np
import torch

from smadmm.certificate import certify_at, certify_means
from smadmm.learn.fitting import form
from smadmm.learn.loops import problem_of
from smadmm.learn.tasks import Array, Task
from smadmm.records import Certificate


class Oracle:
    """F, its gradient, the objective and the certificate."""

    def __init__(self, task: Task, compiled: bool | None = None):
        self.task = task
        self.problem = problem_of(task, form(compiled).loss(task))
        self.f = self.problem.f

    def value(self, x: Array) -> float:
        return float(self.f.value(torch.from_numpy(x), self.f.full()))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.f.gradient((torch.from_numpy(x),), (1.0,), self.f.full()).numpy())

    def objective(self, x: Array) -> float:
        return self.value(x) + self.task.lam1 * float(np.abs(self.task.A @ x).sum())

    def certificate(self, x: Array, lam: Array, y: Array | None = None) -> Certificate:
        """At (x, y, lam); without y it is prox_h(A x - lam), which makes the second part at most the third."""
        point, multiplier = torch.from_numpy(x), torch.from_numpy(lam)
        if y is None:
            return certify_means(self.problem, point, multiplier)
        return certify_at(self.problem, point, (torch.from_numpy(y),), multiplier)
