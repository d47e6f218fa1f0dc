"""Projectors as operations of autograd and torch.func: both are linear, so every derivative is one of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from smadmm.operators.radon.projector import Projector


class _Product(torch.autograd.Function):
    """What the two products share; a batch of torch.func.vmap becomes a leading axis."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.projector, ctx.numbers = inputs


class Forward(_Product):
    """A_S x; its derivative is A_S, the gradient A_S'."""

    @staticmethod
    def forward(x: Tensor, projector: Projector, numbers: NDArray[np.int64]) -> Tensor:
        return projector._forward(x, numbers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.projector.adjoint_views(grad, ctx.numbers), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        image: Tensor = ctx.projector.forward_views(tangent, ctx.numbers)
        return image

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, projector: Projector, numbers: Any) -> tuple[Tensor, int]:
        return projector.forward_views(x.movedim(in_dims[0], 0), numbers), 0


class Adjoint(_Product):
    """A_S' y; its derivative is A_S', the gradient A_S."""

    @staticmethod
    def forward(y: Tensor, projector: Projector, numbers: NDArray[np.int64]) -> Tensor:
        return projector._adjoint(y, numbers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.projector.forward_views(grad, ctx.numbers), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        image: Tensor = ctx.projector.adjoint_views(tangent, ctx.numbers)
        return image

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, projector: Projector, numbers: Any) -> tuple[Tensor, int]:
        return projector.adjoint_views(y.movedim(in_dims[0], 0), numbers), 0
