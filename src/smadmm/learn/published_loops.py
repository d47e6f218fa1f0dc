"""The published methods behind the classifier: the engine with an estimator of the paper's comparison.

twins.py has their twin in numba: the same numbers on the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smadmm.arguments import one_of, positive
from smadmm.estimators import ASVRG, SAGA, SGD, SVRG, Estimator, Spider, Storm
from smadmm.learn.loops import glm_of, problem_of
from smadmm.learn.tasks import PUBLISHED, Array, Task
from smadmm.operators.linear import Matrix
from smadmm.schedules import Power
from smadmm.solver import ADMM, State
from smadmm.xsteps import Exact, linearised

DENSE_X_STEP = 2000  # unknowns: up to here the x-step has an inverse
FIRST = 1000  # samples of SMADMM's first estimate


@dataclass(frozen=True)
class Published:
    """A method as published, with inverse step eta_k, penalty rho_k and momentum a_k; numbers are constant schedules.

    `period` is the number of iterations between full gradients, by default a pass; `first` the size of SMADMM's first
    batch, by default at most 1000; `exact` asks for the exact x-step, the default up to 2000 unknowns. The other one is
    linearised and needs eta >= rho |A|^2.

    >>> Published("sadmm", batch=32, eta=Power(1.0), rho=Power(0.1)).method
    'sadmm'
    """

    method: str
    batch: int
    eta: Power
    rho: Power
    a: Power = Power(0.5, -2 / 3, lo=0.01, hi=1.0)  # noqa: RUF009
    period: int | None = None
    theta: float = 0.9
    first: int | None = None
    exact: bool | None = None

    def __post_init__(self) -> None:
        one_of("method", self.method, PUBLISHED)
        for name in ("eta", "rho", "a"):
            value: Any = getattr(self, name)
            if not isinstance(value, Power):
                object.__setattr__(self, name, Power(float(value)))
        if not 0 < self.theta <= 1:
            raise ValueError(f"theta must be in (0, 1], got {self.theta}")
        positive(batch=self.batch, eta=self.eta(1), rho=self.rho(1), a=self.a(1), period=self.period, first=self.first)

    @classmethod
    def from_data(cls, method: str, task: Task) -> Published:
        """The method with its settings from L and |A|; SMADMM with Theorem 3.2's exponents."""
        eta, growth = smoothness(task), 1 / 3 if method == "smadmm" else 0.0
        rho = 0.5 * eta / Matrix(task.A).norm().upper ** 2
        return cls(method, min(task.n, 32), Power(eta, growth), Power(rho, growth))

    def details(self, task: Task) -> tuple[int, int, bool]:
        """period, first and exact, with their defaults from the task."""
        period = max(1, task.n // self.batch) if self.period is None else self.period
        first = min(task.n, FIRST) if self.first is None else self.first
        return period, first, task.size <= DENSE_X_STEP if self.exact is None else self.exact

    def estimator(self, task: Task) -> Estimator:
        period, first, _ = self.details(task)
        made: dict[str, Callable[[], Estimator]] = {
            "sadmm": lambda: SGD(self.batch),
            "smadmm": lambda: Storm(self.batch, self.a, first),
            "spider": lambda: Spider(self.batch, period),
            "svrg": lambda: SVRG(self.batch, period),
            "asvrg": lambda: ASVRG(self.batch, period, self.theta),
            "saga": lambda: SAGA(self.batch),
        }
        return made[self.method]()


def smoothness(task: Task) -> float:
    """L of grad F for the published methods."""
    return glm_of(task).lipschitz()


class PublishedLoop(ABC):
    """A published method under way."""

    @abstractmethod
    def advance(self, limit: int) -> None:
        """Iterate until `limit` sample gradients were computed."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The engine's state, which later iterations leave alone."""

    @property
    def sfo(self) -> int:
        return self.state.sfo

    @property
    def last(self) -> tuple[Array, Array, Array]:
        """The answer (ASVRG's is its coupled point), y and lam."""
        state = self.state
        return state.answer.numpy(), state.y.numpy(), state.lam.numpy()


class GenericPublished(PublishedLoop):
    """A published method on the engine."""

    def __init__(self, task: Task, method: Published, seed: int = 0):
        problem = problem_of(task, glm_of(task))
        x_step = Exact(problem.A) if method.details(task)[2] else linearised
        self.solver = ADMM(problem, method.estimator(task), method.rho, method.eta, x_step=x_step, seed=seed)
        self._state = self.solver.init(torch.zeros(task.size, dtype=torch.float64))

    def advance(self, limit: int) -> None:
        while self._state.sfo < limit:
            self._state = self.solver.step(self._state)

    @property
    def state(self) -> State:
        return self._state
