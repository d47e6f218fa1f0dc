"""A loss from its value alone: gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid


class Autograd(FiniteSum):
    """value(x, batch) -> scalar, the mean of f over the batch; a batch is a tensor of sample numbers in 0..n-1.

    >>> data = torch.arange(4.0)
    >>> f = losses.Autograd(lambda x, batch: 0.5 * (x - data[batch]).square().mean(), n=4)
    >>> f.gradient((torch.tensor(1.0),), (1.0,), f.full())
    tensor(-0.5000)
    """

    def __init__(self, value: Callable[[Tensor, Any], Tensor], n: int, sampling: Sampling = iid):
        super().__init__(n, sampling)
        self.function = value

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        return self.function(x, batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        return autograd_gradient(self.function, points, weights, batch)


def _scalar(value: Tensor) -> Tensor:
    if value.ndim:
        raise ValueError(f"a loss is one number, got shape {tuple(value.shape)}; return the mean over the batch")
    return value


def autograd_gradient(
    value: Callable[[Tensor, Any], Tensor], points: Sequence[Tensor], weights: Sequence[float], batch: Batch
) -> Tensor:
    """sum_j w_j grad value(x_j, batch)."""
    leaves = [x.detach().requires_grad_() for x in points]
    with torch.enable_grad():
        try:
            values = [_scalar(value(x, batch)) for x in leaves]
        except RuntimeError as error:
            if "dtype" not in str(error) and "scalar type" not in str(error):
                raise
            raise TypeError(
                f"your function fails at an x of {points[0].dtype} ({error}); start from an x with the dtype of your "
                "data, such as solve(problem, budget, x=torch.zeros(n, dtype=torch.float64))"
            ) from error
        total = torch.stack([weight * one for one, weight in zip(values, weights, strict=True)]).sum()
    first, *rest = torch.autograd.grad(total, leaves)
    return sum(rest, start=first)
