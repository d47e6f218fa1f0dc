"""Linear operators of others: pairs of functions, SciPy's LinearOperator, PyLops, ASTRA.

All are a pair x -> A x, y -> A'y of someone else. A pair that is no pair makes every method fail in silence, so the
first thing that happens to one is a dot test, <A x, y> = <x, A'y> at a random x and y = A x + noise as large as A x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.extras import needs
from smadmm.operators.linear import Operator, Shape

TOLERANCE = 1e-4  # of the dot test, relative: single precision passes, an approximate back-projection does not


class Functions(Operator):
    """x -> forward(x) with the adjoint y -> adjoint(y), both of tensors; of real images its real part."""

    def __init__(
        self,
        forward: Callable[[Any], Any],
        adjoint: Callable[[Any], Any],
        shape: Shape,
        dtype: torch.dtype,
        tolerance: float = TOLERANCE,
    ):
        self.functions, self.in_shape, self.real = (forward, adjoint), tuple(shape), not dtype.is_complex
        seed = 0
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.in_shape, generator=generator, dtype=dtype)
        Ax = forward(x)
        if not isinstance(Ax, Tensor):
            raise TypeError(f"forward made {type(Ax).__name__} of a tensor; for functions of NumPy set numpy=True")
        self.out_shape, size = tuple(Ax.shape), float(torch.linalg.vector_norm(Ax))
        noise = torch.randn(Ax.shape, generator=generator.manual_seed(seed + 1), dtype=Ax.dtype)
        y = Ax + noise * (size / max(float(torch.linalg.vector_norm(noise)), 1e-30))
        back = adjoint(y)
        if not isinstance(back, Tensor) or tuple(back.shape) != self.in_shape:
            found = tuple(back.shape) if isinstance(back, Tensor) else type(back).__name__
            raise ValueError(f"adjoint must give a tensor of shape {self.in_shape}, it gives {found}")
        back = (back.real if self.real else back).to(x)
        one, two = (float(torch.vdot(a.flatten(), b.flatten()).real) for a, b in ((Ax, y), (x, back)))
        error = abs(one - two) / max(size * float(torch.linalg.vector_norm(y)), 1e-30)
        if not error <= tolerance:
            raise ValueError(
                f"adjoint is not the adjoint of forward: <A x, y> = {one:.6g}, but <x, A'y> = {two:.6g} "
                f"(relative difference {error:.1e}, allowed {tolerance:.1e}); correct the pair, or raise tolerance"
            )

    def forward(self, x: Tensor) -> Tensor:
        return _like(self.functions[0](x), x)

    def adjoint(self, y: Tensor) -> Tensor:
        x = _like(self.functions[1](y), y)
        return x.real if self.real else x


def _like(found: Any, given: Tensor) -> Tensor:
    """In the precision of what was given; a complex result stays complex."""
    result: Tensor = found
    double = given.dtype in (torch.float64, torch.complex128)
    if result.is_complex():
        return result.to(torch.complex128 if double else torch.complex64)
    return result.to(torch.float64 if double else torch.float32)


def _of_arrays(function: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    """A function of NumPy arrays as one of tensors."""
    return lambda x: torch.from_numpy(np.ascontiguousarray(function(x.detach().cpu().numpy()))).to(x.device)


def from_functions(
    forward: Callable[[Any], Any],
    adjoint: Callable[[Any], Any],
    shape: Shape,
    *,
    numpy: bool = False,
    dtype: torch.dtype = torch.float32,
    tolerance: float = TOLERANCE,
) -> Operator:
    """An operator from a pair of functions of tensors, or of arrays with numpy=True; shape is that of x.

    A dot test in `dtype` refuses a pair that does not belong together. With torch.complex64 images are complex, else
    they are real and the real part of the adjoint counts.

    >>> blur = interop.from_functions(lambda x: 0.5 * (x + x.roll(1)), lambda y: 0.5 * (y + y.roll(-1)), shape=(4,))
    >>> blur(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    if numpy:
        forward, adjoint = _of_arrays(forward), _of_arrays(adjoint)
    return Functions(forward, adjoint, shape, dtype, tolerance)


def from_scipy(operator: Any, in_shape: Shape | None = None, out_shape: Shape | None = None) -> Operator:
    """An operator from SciPy's LinearOperator, a matrix, or PyLops.

    The shapes of x and A x are those that PyLops tells (`dims`, `dimsd`), else flat.

    >>> from scipy.sparse.linalg import aslinearoperator
    >>> interop.from_scipy(aslinearoperator(np.eye(4)), in_shape=(2, 2))(torch.ones(2, 2))
    tensor([1., 1., 1., 1.])
    """
    linear = needs("scipy.sparse.linalg", None, "linear operators of SciPy")
    rows, columns = operator.shape
    shapes = []
    for name, given, size in (("dims", in_shape, columns), ("dimsd", out_shape, rows)):
        shape = tuple(int(n) for n in (getattr(operator, name, (size,)) if given is None else given))
        if math.prod(shape) != size:
            raise ValueError(f"the shape {shape} has {math.prod(shape)} entries, but {operator!r} needs {size}")
        shapes.append(shape)
    flat = operator if hasattr(operator, "matvec") else linear.aslinearoperator(operator)
    kind = np.dtype(flat.dtype or np.float64)
    inside, outside = shapes
    return Functions(
        _of_arrays(lambda x: np.asarray(flat.matvec(x.ravel().astype(kind, copy=False))).reshape(outside)),
        _of_arrays(lambda y: np.asarray(flat.rmatvec(y.ravel().astype(kind, copy=False))).reshape(inside)),
        inside,
        torch.complex128 if kind.kind == "c" else torch.float64,
    )


def from_astra(projections: Mapping[str, Any], volume: Mapping[str, Any], projector: str) -> list[Operator]:
    """One operator per view from ASTRA's geometries and the name of a CPU projector ("line_fanflat", "strip", ...).

    The list is what losses.OperatorLeastSquares and reconstruct(operator=...) take; operators.Stack(list) is all views
    at once. Cone beams and other geometries that ASTRA computes on a GPU alone are refused.

    >>> interop.from_astra({"type": "cone"}, {}, "cuda3d")
    Traceback (most recent call last):
    ...
    ValueError: ASTRA computes 'cone' on a GPU alone; give 'parallel' or 'fanflat' and a CPU projector
    """
    kind = projections.get("type")
    if kind not in ("parallel", "fanflat") or "cuda" in projector:
        raise ValueError(f"ASTRA computes {kind!r} on a GPU alone; give 'parallel' or 'fanflat' and a CPU projector")
    astra = needs("astra", None, "geometries of ASTRA")
    return [
        _astra_view(astra, {**projections, "ProjectionAngles": np.array([angle])}, dict(volume), projector)
        for angle in np.atleast_1d(projections["ProjectionAngles"])
    ]


def _astra_view(astra: Any, projections: dict[str, Any], volume: dict[str, Any], projector: str) -> Operator:
    W = astra.OpTomo(astra.create_projector(projector, projections, volume))
    return Functions(
        _of_arrays(lambda x: W.FP(x.astype(np.float32, copy=False)).ravel()),
        _of_arrays(lambda y: W.BP(y.astype(np.float32, copy=False).reshape(W.sshape))),
        tuple(int(n) for n in W.vshape),
        torch.float32,
    )
