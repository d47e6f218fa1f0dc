"""Radon as an operation of autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from smadmm.operators.radon.parallel import Radon


class Forward(torch.autograd.Function):
    """A_S x with the gradient A_S'; both are linear, so every derivative is one of the two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, radon: Radon, numbers: NDArray[np.int64]) -> Tensor:
        ctx.radon, ctx.numbers = radon, numbers
        return radon._forward(x, numbers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.radon.adjoint_views(grad, ctx.numbers), None, None


class Adjoint(torch.autograd.Function):
    """A_S' y with the gradient A_S."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, radon: Radon, numbers: NDArray[np.int64]) -> Tensor:
        ctx.radon, ctx.numbers = radon, numbers
        return radon._adjoint(y, numbers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.radon.forward_views(grad, ctx.numbers), None, None
