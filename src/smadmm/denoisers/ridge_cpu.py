"""The gradient of a ridge potential on the CPU: strips of the image, patches as columns, two matrix products.

A strip holds some rows of places p of the sum g, so few that patches and responses stay in the second-level cache; the
strips' gradients add up. The responses t = W patches(x) become psi'(t) in a compiled loop of `ridge_kernels`, and
W' psi'(t) is taken back to the image.

Patches are split into four parts: even or odd, upside down and left to right. Of a single only the part of its own
parity is not 0, and the parts of mirror images differ in signs only: each part of the patches is multiplied by its
singles and one filter of each four, a quarter of the products. The responses follow by sums of the parts with the
signs ++++, +-+-, ++--, +--+.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.denoisers import ridge_kernels as kernels
from smadmm.denoisers.ridge import of_parity
from smadmm.denoisers.ridge_kernels import Array

STRIP = 300_000  # numbers in the patches and responses of a strip: half of a second-level cache of 2 MiB
NOT_TWICE = "a ridge potential can be differentiated twice in the image, but not in its weights"
SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))  # of the parts, upside down and left to right: even 1, odd -1


@dataclass(frozen=True)
class _Buffer:
    """A matrix with a column for each place of a strip; its parts share the memory and are multiplied one by one."""

    whole: Array
    parts: tuple[Tensor, ...]


class _Strips:
    """The strips of a batch of images, and the matrix products of each."""

    def __init__(self, x: Tensor, filters: Tensor, singles: int) -> None:
        self.count, self.size, self.singles = len(x), filters.shape[-1], singles
        self.rows, self.cols = x.shape[1] - self.size + 1, x.shape[2] - self.size + 1  # of responses
        parts = [self._corner(of_parity(filters, *signs), *signs).flatten(1) for signs in SIGNS]
        fours = torch.arange(singles, len(filters))
        self.rows_of_parts = [torch.cat([part[:singles].any(1).nonzero()[:, 0], fours]) for part in parts]
        self.order = torch.cat(self.rows_of_parts)  # to which filter each row of the responses belongs
        self.matrices = [part[rows] for part, rows in zip(parts, self.rows_of_parts, strict=True)]
        self.transposed = [matrix.t().contiguous() for matrix in self.matrices]
        self.heights, self.widths = [len(m) for m in self.matrices], [len(m) for m in self.transposed]
        self.fours, self.starts = len(fours), np.cumsum(self.heights) - len(fours)
        self.piece, self.lines = np.empty(kernels.BLOCK, np.int32), x.new_empty(4, x.shape[2]).numpy()
        self._kept: dict[tuple[str, int], _Buffer] = {}

    def _corner(self, filters: Tensor, upside_down: int, left_to_right: int) -> Tensor:
        """The values that determine such a part of filters."""
        half = self.size // 2
        return filters[:, half + (upside_down < 0) :, half + (left_to_right < 0) :]

    def filters(self, matrices: list[Tensor]) -> Tensor:
        """From derivatives in the matrices to those in the filters."""
        filters = matrices[0].new_zeros(self.singles + self.fours, self.size, self.size)
        for matrix, rows, signs in zip(matrices, self.rows_of_parts, SIGNS, strict=True):
            part = matrix.new_zeros(len(rows), self.size, self.size)
            corner = self._corner(part, *signs)
            corner.copy_(matrix.view_as(corner))
            filters[rows] += of_parity(part, *signs)
        return filters

    def mix(self, t: Array) -> None:
        """From the parts of responses to the responses, or of their factors from these to the parts."""
        kernels.butterfly(t, self.starts, self.fours)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Image, first row and number of rows of responses of every strip."""
        step = max(1, STRIP // (self.cols * sum(self.heights + self.widths)))
        for image in range(self.count):
            for row in range(0, self.rows, step):
                yield image, row, min(step, self.rows - row)

    def _buffer(self, name: str, heights: list[int], rows: int) -> _Buffer:
        """For so many rows of the image, the same one at every call."""
        if (name, rows) not in self._kept:
            matrix = self.matrices[0].new_empty(sum(heights), rows * self.cols)
            self._kept[name, rows] = _Buffer(matrix.numpy(), matrix.split(heights))
        return self._kept[name, rows]

    def responses(self, name: str, image: Array, row: int, rows: int) -> _Buffer:
        """A strip's responses in parts, C x (rows cols); they and its patches are kept until the next of that name."""
        t, columns = self._buffer(f"of {name}", self.heights, rows), self._buffer(name, self.widths, rows)
        kernels.gather_folded(image, row, rows, self.size // 2, columns.whole, self.lines)
        for matrix, part, out in zip(self.matrices, columns.parts, t.parts, strict=True):
            torch.mm(matrix, part, out=out)
        return t

    def take_back(self, u: _Buffer, row: int, rows: int, z: Array) -> None:
        """z += W' u on the patches of a strip, u in parts; those of x are no longer needed and give their memory."""
        columns = self._buffer("x", self.widths, rows)
        for matrix, part, out in zip(self.transposed, u.parts, columns.parts, strict=True):
            torch.mm(matrix, part, out=out)
        kernels.scatter_folded(columns.whole, row, rows, self.size // 2, z, self.lines)

    def add_products(self, u: _Buffer, name: str, rows: int, sums: list[Tensor]) -> None:
        """sums += u patches' over the strip of that name, u in parts."""
        columns = self._buffer(name, self.widths, rows)
        for total, part, column in zip(sums, u.parts, columns.parts, strict=True):
            total.addmm_(part, column.t())


def valid_values(x: Tensor, filters: Tensor, tables: tuple[Tensor, ...], spacing: float, singles: int) -> Tensor:
    """g of every image of N x H x W without padding, from `smadmm.denoisers.ridge.value_pieces`."""
    strips, of_x = _Strips(x, filters, singles), list(x.contiguous().numpy())
    start, offset, slope = (table[strips.order].double().numpy() for table in tables)
    values = [0.0] * len(x)
    for image, row, rows in strips:
        t = strips.responses("x", of_x[image], row, rows)
        strips.mix(t.whole)
        values[image] += kernels.spline_sum(t.whole, start, offset, slope, 1 / spacing, strips.piece)
    return x.new_tensor(values)


class ValidGradient(torch.autograd.Function):
    """`smadmm.denoisers.ridge.valid_gradient`, and its derivatives: of singles those within their parity."""

    @staticmethod
    def forward(x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, singles: int) -> Tensor:
        x = x.contiguous()
        strips, z = _Strips(x, filters, singles), torch.zeros_like(x)
        a, b = offset[strips.order].numpy(), slope[strips.order].numpy()
        of_x, of_z = list(x.numpy()), list(z.numpy())
        for image, row, rows in strips:
            t = strips.responses("x", of_x[image], row, rows)
            kernels.mixed_spline(t.whole, strips.starts, strips.fours, (a, b), 1 / spacing, strips.piece)
            strips.take_back(t, row, rows, of_z[image])
        return z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.spacing, ctx.singles = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> Any:
        if v is None:
            return (None,) * 6
        x, filters, offset, slope = ctx.saved_tensors
        fixed = (ctx.spacing, ctx.singles)
        d_x, weights = None, (None, None, None)
        if ctx.needs_input_grad[0]:
            d_x = _HessianProduct.apply(v, x, filters, offset, slope, *fixed)  # type: ignore[no-untyped-call]
        if any(ctx.needs_input_grad[1:]):
            if v.requires_grad:
                raise RuntimeError(NOT_TWICE)
            weights = _derivatives(v, x, filters, offset, slope, *fixed, in_image=False)
        return d_x, *weights, None, None

    @staticmethod
    def jvp(ctx: Any, d_x: Tensor | None, *weights: Tensor | None) -> Tensor | None:
        _refuse_tangents(weights)
        if d_x is None:
            return None
        product: Tensor = _HessianProduct.apply(d_x, *ctx.saved_tensors, ctx.spacing, ctx.singles)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, *weights: Any) -> tuple[Tensor, int]:
        (images,) = _all_images(info.batch_size, in_dims, x)
        z: Tensor = ValidGradient.apply(images, *weights)  # type: ignore[no-untyped-call]
        return z.unflatten(0, (info.batch_size, -1)), 0


class _HessianProduct(torch.autograd.Function):
    """v -> H v, H = Hess g at x: symmetric, and where it is defined constant about x."""

    @staticmethod
    def forward(
        v: Tensor, x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, singles: int
    ) -> Tensor:
        d_x: Tensor = _derivatives(v, x.contiguous(), filters, offset, slope, spacing, singles, in_image=True)
        return d_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *tensors, spacing, singles = inputs
        ctx.fixed = (spacing, singles)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, q: Tensor | None) -> Any:
        if q is None:
            return (None,) * 7
        if any(ctx.needs_input_grad[2:]):
            raise RuntimeError(NOT_TWICE)
        d_v = _HessianProduct.apply(q, *ctx.saved_tensors, *ctx.fixed)  # type: ignore[no-untyped-call]
        return d_v, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, d_v: Tensor | None, d_x: Tensor | None, *weights: Tensor | None) -> Tensor | None:
        _refuse_tangents(weights)
        if d_v is None:
            return None
        product: Tensor = _HessianProduct.apply(d_v, *ctx.saved_tensors, *ctx.fixed)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def vmap(info: Any, in_dims: Any, v: Tensor, x: Tensor, *weights: Any) -> tuple[Tensor, int]:
        products, images = _all_images(info.batch_size, in_dims, v, x)
        z: Tensor = _HessianProduct.apply(products, images, *weights)  # type: ignore[no-untyped-call]
        return z.unflatten(0, (info.batch_size, -1)), 0


def _all_images(count: int, in_dims: Any, *stacks: Tensor) -> list[Tensor]:
    """The batches of torch.func.vmap as more images; weights that differ within a batch are refused."""
    if any(dim is not None for dim in in_dims[len(stacks) :]):
        raise RuntimeError("torch.func.vmap over images is served, over the weights of a ridge potential it is not")
    dims = in_dims[: len(stacks)]
    moved = [s.expand(count, *s.shape) if d is None else s.movedim(d, 0) for s, d in zip(stacks, dims, strict=True)]
    return [s.flatten(0, 1) for s in moved]


def _refuse_tangents(weights: tuple[Tensor | None, ...]) -> None:
    if any(isinstance(tangent, Tensor) for tangent in weights):
        raise RuntimeError("forward derivatives of a ridge potential are those in the image, not in its weights")


def _derivatives(
    v: Tensor, x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, singles: int, in_image: bool
) -> Any:
    """Of <v, gradient at x> in the image x, or else in filters, offset and slope."""
    strips = _Strips(x, filters, singles)
    a, b, inverse = offset[strips.order].numpy(), slope[strips.order].numpy(), 1 / spacing
    d_x, d_matrices = torch.zeros_like(x), [torch.zeros_like(matrix) for matrix in strips.matrices]
    sums = np.zeros(a.shape), np.zeros(a.shape)
    of_x, of_v, of_d = list(x.numpy()), list(v.contiguous().numpy()), list(d_x.numpy())
    for image, row, rows in strips:
        t, q = strips.responses("x", of_x[image], row, rows), strips.responses("v", of_v[image], row, rows)
        strips.mix(t.whole)
        strips.mix(q.whole)
        kernels.spline_backward(t.whole, q.whole, a, b, inverse, strips.piece, sums)
        strips.mix(q.whole)
        if in_image:
            strips.take_back(q, row, rows, of_d[image])
        else:
            strips.mix(t.whole)
            strips.add_products(q, "x", rows, d_matrices)
            strips.add_products(t, "v", rows, d_matrices)
    if in_image:
        return d_x
    d_offset, d_slope = (
        torch.zeros_like(offset).index_add(0, strips.order, torch.from_numpy(total).to(offset)) for total in sums
    )
    return strips.filters(d_matrices), d_offset, d_slope
