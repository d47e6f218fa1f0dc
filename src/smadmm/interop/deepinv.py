"""deepinv: its linear physics as operators, and operators as physics.

deepinv's tensors are B x C x H x W. An image H x W here is 1 x 1 x H x W there, and C x H x W is 1 x C x H x W.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smadmm.extras import needs
from smadmm.interop.operators import Functions
from smadmm.operators.linear import Operator, Shape


def from_deepinv(physics: Any, shape: Shape) -> Operator | list[Operator]:
    """An operator from a linear physics of deepinv for images of this shape; a list of them from a stacked one.

    The members of a stack are samples: give the list to losses.OperatorLeastSquares. A x has the shape of
    `physics.A(x)` without its first axis.

    >>> class Half:  # what physics look like
    ...     def A(self, x):
    ...         return 0.5 * x
    ...     A_adjoint = A
    >>> interop.from_deepinv(Half(), (2, 2))(torch.ones(2, 2)).shape
    torch.Size([1, 2, 2])
    """
    if not callable(getattr(physics, "A_adjoint", None)):
        raise TypeError(f"{type(physics).__name__} has no A_adjoint; only linear physics of deepinv are operators")
    members = getattr(physics, "physics_list", None)
    if members is not None:
        return [_one(member, shape) for member in members]
    return _one(physics, shape)


def _one(physics: Any, shape: Shape) -> Operator:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = physics.A(_single(x).reshape(1, -1, *x.shape[-2:]))
        return y[0]

    def adjoint(y: Tensor) -> Tensor:
        with torch.no_grad():
            x: Tensor = physics.A_adjoint(_single(y)[None])
        return x.reshape(shape)

    return Functions(forward, adjoint, shape, torch.float32)


def _single(values: Tensor) -> Tensor:
    """Most physics of deepinv take nothing but single precision."""
    return values.to(torch.complex64) if values.is_complex() else values.float()


def as_physics(operator: Operator) -> Any:
    """An operator on images H x W or C x H x W as a linear physics of deepinv: for its algorithms and losses.

    >>> interop.as_physics(operators.Identity())
    Traceback (most recent call last):
    ...
    ValueError: a physics needs to know its images, but Identity has no input shape; give the operator one
    """
    if operator.in_shape is None:
        name = type(operator).__name__
        raise ValueError(f"a physics needs to know its images, but {name} has no input shape; give the operator one")
    shape, out = operator.in_shape, operator.output_shape(operator.in_shape) or ()
    image = (1,) * (3 - len(shape)) + shape
    physics = needs("deepinv.physics", None, "physics of deepinv")

    def forward(x: Tensor, **ignored: Any) -> Tensor:
        return torch.stack([operator.forward(each.reshape(shape)) for each in x]).reshape(len(x), *data)

    def adjoint(y: Tensor, **ignored: Any) -> Tensor:
        return torch.stack([operator.adjoint(each.reshape(out)) for each in y]).reshape(len(y), *image)

    data = (1,) * (3 - len(out)) + out
    return physics.LinearPhysics(A=forward, A_adjoint=adjoint, img_size=image)
