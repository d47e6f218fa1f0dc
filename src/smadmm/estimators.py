"""Gradient estimators: how v, the estimate of grad F at the current point, is made from samples.

With g_S(x) the mean gradient over a batch S of b samples, N samples in all:

    SGD      v = g_S(x)                                                                    b per iteration
    SVRG     v = g_S(x) - g_S(anchor) + grad F(anchor), a new anchor every q               2b + N/q
    SAGA     v = g_S(x) - mean of table over S + mean of table; table_S := grad f_S(x)     b, and N once
    Spider   v = v + g_S(x) - g_S(x_old), restarted every q (SARAH)                        2b + N/q, or 2b + restart/q
    ASVRG    SVRG at theta x + (1 - theta) anchor                                          2b + N/q
    Storm    v = g_S(x) + (1 - a)(v - g_S(x_old)): the paper's, SMADMM                     2b; b where a = 1
    Measured SAGA with the correction times a measured factor in [0, 1], table empty at first   b

Each is a pair of pure functions: `init` makes the first estimate, `update` the next one. To add one, write these two
and put the class into the list of tests/test_estimators.py.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from smadmm.problem import FiniteSum, Loss
from smadmm.sampling import Rng
from smadmm.schedules import Schedule, ScheduleLike, as_schedule
from smadmm.xsteps import Metric


@dataclass(frozen=True, eq=False)
class Estimate:
    """v estimates grad F(at); sfo sample gradients were computed so far.

    >>> e = Estimate(v=torch.ones(2), at=torch.zeros(2), sfo=8)
    >>> e.sfo
    8
    """

    v: Tensor
    at: Tensor
    sfo: int


@dataclass(frozen=True, eq=False)
class Anchored(Estimate):
    """An estimate with an anchor and the full gradient there."""

    anchor: Tensor
    full: Tensor


@dataclass(frozen=True, eq=False)
class Tabled(Estimate):
    """An estimate with a table of components, one row per sample, and the gradient of their mean."""

    table: Tensor
    mean: Tensor


class Estimator(ABC):
    """init(f, x, rng) -> Estimate; update(f, estimate, x, k, rng) -> Estimate.

    >>> isinstance(SAGA(batch=32), Estimator)
    True
    """

    @abstractmethod
    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        """The estimate at the starting point."""

    @abstractmethod
    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        """The estimate at the new point x, after iteration k."""


def _full(f: Loss, x: Tensor) -> tuple[Tensor, int]:
    """grad F(x) and its price."""
    batch = f.full()  # refuses a stream
    assert f.n is not None
    return f.gradient((x,), (1.0,), batch), f.n


def _whole_numbers(estimator: Estimator, *names: str) -> None:
    """Turn these fields into whole numbers of at least one."""
    for name in names:
        value = getattr(estimator, name)
        if value is None and name == "restart":
            continue
        try:
            size = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} must be a whole number, got {value!r}") from None
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
        object.__setattr__(estimator, name, size)


def _of_kind(e: Estimate, kind: type) -> None:
    if not isinstance(e, kind):
        raise TypeError(f"the state is of another estimator ({type(e).__name__}, not {kind.__name__}); start with init")


def _product(x: Tensor, y: Tensor) -> float:
    """Re <x, y>."""
    return float((x.conj() * y).real.sum())


@dataclass(frozen=True)
class SGD(Estimator):
    """v = g_S(x): plain stochastic ADMM (SADMM).

    >>> problem = Problem(losses.Squared(torch.eye(3), torch.ones(3)), proxes.L1(0.1))
    >>> ADMM(problem, SGD(batch=8), rho=1.0, eta=2.0).init(torch.zeros(3)).sfo
    8
    """

    batch: int

    def __post_init__(self) -> None:
        _whole_numbers(self, "batch")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        return Estimate(f.gradient((x,), (1.0,), f.draw(rng, self.batch)), x, self.batch)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        return replace(self.init(f, x, rng), sfo=e.sfo + self.batch)


@dataclass(frozen=True)
class Storm(Estimator):
    """v = g_S(x) + (1 - a_k)(v - g_S(x_old)), both gradients on one batch; v_0 = mean of `first` gradients.

    >>> estimator = Storm(batch=8, a=Power(1.0, -2 / 3), first=100)
    >>> round(estimator.a(8), 3)
    0.25
    """

    batch: int
    a: Schedule
    first: int

    def __init__(self, batch: int, a: ScheduleLike, first: int | None = None):
        object.__setattr__(self, "batch", batch)
        object.__setattr__(self, "a", as_schedule(a))
        object.__setattr__(self, "first", batch if first is None else first)
        _whole_numbers(self, "batch", "first")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        return Estimate(f.gradient((x,), (1.0,), f.draw(rng, self.first)), x, self.first)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        a = min(self.a(k), 1.0)
        if not a > 0:
            raise ValueError(f"the momentum a must be positive, got {a} at k = {k}; use Spider for a = 0")
        batch = f.draw(rng, self.batch)
        if a == 1:
            return Estimate(f.gradient((x,), (1.0,), batch), x, e.sfo + self.batch)
        change = f.gradient((x, e.at), (1.0, a - 1.0), batch)
        return Estimate(torch.add(change, e.v, alpha=1 - a), x, e.sfo + 2 * self.batch)


@dataclass(frozen=True)
class Spider(Estimator):
    """v = v + g_S(x) - g_S(x_old); every `every` iterations the full gradient, or `restart` samples online.

    Huang, Chen and Huang (ICML 2019) publish SPIDER-ADMM with batch = every = sqrt N, online sqrt restart.

    >>> Spider(batch=32, every=32)
    Spider(batch=32, every=32, restart=None)
    """

    batch: int
    every: int
    restart: int | None = None

    def __post_init__(self) -> None:
        _whole_numbers(self, "batch", "every", "restart")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        if self.restart is None:
            v, price = _full(f, x)
            return Estimate(v, x, price)
        return Estimate(f.gradient((x,), (1.0,), f.draw(rng, self.restart)), x, self.restart)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        if k % self.every == 0:
            fresh = self.init(f, x, rng)
            return replace(fresh, sfo=e.sfo + fresh.sfo)
        change = f.gradient((x, e.at), (1.0, -1.0), f.draw(rng, self.batch))
        return Estimate(e.v + change, x, e.sfo + 2 * self.batch)


@dataclass(frozen=True)
class SVRG(Estimator):
    """v = g_S(x) - g_S(anchor) + grad F(anchor); the anchor moves to the current point every `every` iterations.

    >>> SVRG(batch=32, every=60)
    SVRG(batch=32, every=60, theta=1.0)
    """

    batch: int
    every: int
    theta: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        _whole_numbers(self, "batch", "every")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        full, price = _full(f, x)
        return Anchored(full, x, price, anchor=x, full=full)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        _of_kind(e, Anchored)
        assert isinstance(e, Anchored)
        at = x if self.theta == 1 else torch.lerp(e.anchor, x, self.theta)
        if k % self.every == 0:
            fresh = self.init(f, at, rng)
            return replace(fresh, sfo=e.sfo + fresh.sfo)
        change = f.gradient((at, e.anchor), (1.0, -1.0), f.draw(rng, self.batch))
        return replace(e, v=change + e.full, at=at, sfo=e.sfo + 2 * self.batch)


@dataclass(frozen=True)
class ASVRG(SVRG):
    """SVRG at the coupled point theta x + (1 - theta) anchor: the point `Estimate.at` is the method's answer.

    The coupling with fixed theta is that of Liu, Shang and Cheng (AAAI 2017) for strongly convex f, whose anchor is the
    mean of a period; here it is the last coupled point, as in SVRG-ADMM for nonconvex f.

    >>> ASVRG(batch=32, every=60)
    ASVRG(batch=32, every=60, theta=0.9)
    """

    theta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.theta <= 1:
            raise ValueError(f"theta must be in (0, 1], got {self.theta}")


@dataclass(frozen=True)
class SAGA(Estimator):
    """v = g_S(x) - mean of table over S + mean of table. The table is copied at every step (steps are pure).

    >>> SAGA(batch=32)
    SAGA(batch=32)
    """

    batch: int

    def __post_init__(self) -> None:
        _whole_numbers(self, "batch")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        everything = f.full()  # refuses a stream
        if not isinstance(f, FiniteSum):
            raise TypeError(f"SAGA keeps a table of samples and needs a FiniteSum loss, got {type(f).__name__}")
        table = f.components(x, everything)
        mean = f.assemble(table, everything)
        return Tabled(mean, x, f.n, table=table, mean=mean)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        assert isinstance(e, Tabled) and isinstance(f, FiniteSum)
        batch = f.draw(rng, self.batch)
        new = f.components(x, batch)
        change = f.assemble(new - e.table[batch], batch)
        table, mean = _refresh(f, e, batch, new)
        return Tabled(change + e.mean, x, e.sfo + self.batch, table=table, mean=mean)


def _refresh(f: FiniteSum, e: Tabled, batch: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Table and mean with the batch's new components; a sample enters once, however often it was drawn."""
    samples, first = batch.cpu().unique(return_inverse=True)
    where = torch.empty(len(samples), dtype=torch.long).scatter_(0, first, torch.arange(len(batch)))
    samples, fresh = samples.to(batch.device), new[where.to(batch.device)]
    moved = f.assemble(fresh - e.table[samples], samples) * (len(samples) / f.n)
    table = e.table.clone()
    table[samples] = fresh
    return table, e.mean + moved


@dataclass(frozen=True, eq=False)
class Correlated(Tabled):
    """A tabled estimate with moving averages of <g, w> and |w|^2 for the correction w."""

    along: float
    across: float


@dataclass(frozen=True, eq=False)
class Measured(Estimator):
    """v = g_S(x) - gamma w, w = mean of table over S - mean of table, gamma = <g, w> / |w|^2 as measured so far.

    The table starts empty, so there is no full pass; gamma = 0 is SGD, gamma = 1 is SAGA. The products are those of
    1/Q for a `metric` Q; gamma is known before the batch is drawn, so v is unbiased.
    """

    batch: int
    metric: Metric | None = None
    memory: float = 0.95

    def __post_init__(self) -> None:
        _whole_numbers(self, "batch")

    def init(self, f: Loss, x: Tensor, rng: Rng) -> Estimate:
        f.full()  # refuses a stream
        if not isinstance(f, FiniteSum):
            raise TypeError(f"Measured keeps a table of samples and needs a FiniteSum loss, got {type(f).__name__}")
        table = x.new_zeros((f.n, *f.component_shape(x)))
        nothing = torch.zeros_like(x)
        empty = Correlated(nothing, x, 0, table=table, mean=nothing, along=0.0, across=0.0)
        return self.update(f, empty, x, 0, rng)

    def update(self, f: Loss, e: Estimate, x: Tensor, k: int, rng: Rng) -> Estimate:
        _of_kind(e, Correlated)
        assert isinstance(e, Correlated)
        assert isinstance(f, FiniteSum)
        batch = f.draw(rng, self.batch)
        new = f.components(x, batch)
        g, w = f.assemble(new, batch), f.assemble(e.table[batch], batch) - e.mean
        gamma = min(max(e.along / e.across, 0.0), 1.0) if e.across > 0 else 0.0
        scaled = w if self.metric is None else self.metric.inverse(w)
        along = e.along + (1 - self.memory) * (_product(g, scaled) - e.along)
        across = e.across + (1 - self.memory) * (_product(w, scaled) - e.across)
        table, mean = _refresh(f, e, batch, new)
        v = torch.sub(g, w, alpha=gamma)
        return Correlated(v, x, e.sfo + self.batch, table=table, mean=mean, along=along, across=across)
