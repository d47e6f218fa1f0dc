"""Proxes of others: functions prox(v, t), and PyProximal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.problem import Prox, Step


class FunctionProx(Prox):
    """prox(v, t) = function(v, t), and h's value where it is given."""

    def __init__(self, prox: Callable[[Tensor, Any], Tensor], value: Callable[[Tensor], Any] | None = None):
        self.function, self.h = prox, value

    def prox(self, v: Tensor, t: Step) -> Tensor:
        y = self.function(v, t)
        if not isinstance(y, Tensor) or y.shape != v.shape:
            found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"the prox must give a tensor of shape {tuple(v.shape)}, it gives {found}")
        return y

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        return None if self.h is None else float(self.h(y))


def from_function(prox: Callable[[Tensor, Any], Tensor], value: Callable[[Tensor], Any] | None = None) -> Prox:
    """A prox from a function (v, t) -> argmin_y h(y) + 1/(2t) |y - v|^2 of tensors, and h where you know it.

    With h the objective is recorded.

    >>> interop.from_function(lambda v, t: v / (1 + t)).prox(torch.ones(2), 1.0)
    tensor([0.5000, 0.5000])
    """
    if not callable(prox):
        raise TypeError(f"a prox is a function of v and t, got {prox!r}")
    return FunctionProx(prox, value)


def from_pyproximal(operator: Any) -> Prox:
    """A prox from an operator of PyProximal; its value is recorded.

    >>> class Halved:  # what PyProximal's operators look like
    ...     def prox(self, x, tau):
    ...         return x / (1 + tau)
    ...     def __call__(self, x):
    ...         return 0.5 * (x**2).sum()
    >>> interop.from_pyproximal(Halved()).prox(torch.ones(2, 2), 1.0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    if not callable(getattr(operator, "prox", None)):
        raise TypeError(f"an operator of PyProximal has prox(x, tau), got {operator!r}")

    def prox(v: Tensor, t: Step) -> Tensor:
        found = np.asarray(operator.prox(v.detach().cpu().numpy().ravel(), float(t)))
        return torch.from_numpy(found).reshape(v.shape).to(v)

    return FunctionProx(prox, lambda y: operator(y.detach().cpu().numpy().ravel()))
