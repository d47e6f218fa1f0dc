"""Rows in shards that are fitted on their own and averaged: sum_s (w_s / w) x_s, w_s the weight of the rows of shard s.

Rows are a million times cheaper to use than to send, so that a sum over all shards in every iteration would only wait
for the network: shards meet once, at the end. Row i belongs to shard i mod `shards`, whatever order the rows are in.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from smadmm.estimators import Estimate
from smadmm.learn.fitting import form
from smadmm.learn.loops import problem_of
from smadmm.learn.tasks import Fit, Task
from smadmm.records import History
from smadmm.running import Recorder
from smadmm.solver import Mean, State


def fit_shards(model: Any, tasks: list[Task], seed: int, executor: Any, shards: int) -> list[Fit]:
    """One fit per task: the average of those of its shards; more than two classes are fitted one against the rest."""
    n, alone = tasks[0].n, copy(model)
    alone.multi_class, model._softmax = "ovr", False
    fit_all = alone._fit_all
    parts = [np.arange(s, n, shards) for s in range(shards)]
    _refuse_rare(tasks, parts)
    weights = np.array([float(tasks[0].weight[rows].sum()) for rows in parts])
    jobs = [([task.part(rows) for task in tasks], seed) for rows in parts]
    if executor is None:
        found = [fit_all(*job) for job in jobs]
    else:
        found = [future.result() for future in [executor.submit(fit_all, *job) for job in jobs]]
    return [
        _mean(task, fits, weights / weights.sum()) for task, fits in zip(tasks, zip(*found, strict=True), strict=True)
    ]


def _refuse_rare(tasks: list[Task], parts: list[Any]) -> None:
    for task in tasks:
        fewest = min(min(int((task.target[rows] > 0).sum()), int((task.target[rows] < 0).sum())) for rows in parts)
        if fewest < 1:
            raise ValueError(f"one of {len(parts)} shards has rows of one class only; use fewer shards")


def _mean(task: Task, fits: tuple[Fit, ...], shares: Any) -> Fit:
    """The averaged point and multipliers, with the certificate that they have on all rows."""
    x = sum(share * fit.x for share, fit in zip(shares, fits, strict=True))
    lam = sum(share * fit.lam for share, fit in zip(shares, fits, strict=True))
    point, multiplier = torch.from_numpy(np.asarray(x)), torch.from_numpy(np.asarray(lam))
    problem, passes = problem_of(task, form().loss(task)), max(fit.passes for fit in fits)
    Ax, sfo = problem.A(point), sum(fit.sfo for fit in fits)
    state = State(passes, point, (Ax,), multiplier, Estimate(point, point, sfo), Ax, Bys=(-Ax,), drawn=0)
    state = replace(state, mean=Mean(point, multiplier, 1.0))
    row = Recorder(problem, {}, objective=True, certify=True, sample=None).row(state, 0.0)
    history = History({name: [value] for name, value in row.items()})
    return Fit(np.asarray(x), passes, sfo, history, np.asarray(lam))
