"""The gradient of a ridge potential on the CPU: bands of the image, patches as columns, two matrix products.

A band holds some rows of places p of the sum g; the bands' gradients add up. Within it the responses t = W patches(x)
are formed and taken back strip by strip, so that patches and responses stay in the second-level cache; the compiled
loops of `ridge_kernels` turn t into its factor of the gradient in between. Without pools a band is one strip.

For symmetric filters patches are split into four parts: even or odd, upside down and left to right. Of a single only
the part of its own parity is not 0, and the parts of mirror images differ in signs only: each part of the patches is
multiplied by its singles and one filter of each four, a quarter of the products. The responses follow by sums of the
parts with the signs ++++, +-+-, ++--, +--+.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.denoisers import ridge_kernels as kernels
from smadmm.denoisers.ridge import of_parity

STRIP = 1024  # columns of a matrix product
BAND = 64  # rows of pooled responses


class _Bands:
    """The bands of a batch of images, and the matrix products of each."""

    def __init__(self, x: Tensor, filters: Tensor, pool: int) -> None:
        self.count, self.size, self.halo = len(x), filters.shape[-1], pool - 1
        self.rows, self.cols = x.shape[1] - self.size + 1, x.shape[2] - self.size + 1  # of responses
        self.strip = max(1, STRIP // self.cols)
        self.step = BAND if self.halo else self.strip
        self.order, self.matrices = self._split(filters)
        self.transposed = [matrix.t().contiguous() for matrix in self.matrices]
        self.heights, self.widths = [len(m) for m in self.matrices], [len(m) for m in self.transposed]
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._held: dict[str, tuple[Tensor, int, int]] = {}

    def _split(self, filters: Tensor) -> tuple[Tensor, list[Tensor]]:
        """To which filter each row of the responses belongs, and the matrices that multiply the parts of patches."""
        return torch.arange(len(filters)), [filters.flatten(1).contiguous()]

    def filters(self, matrices: list[Tensor]) -> Tensor:
        """The transpose of `_split`, for the derivatives."""
        return matrices[0].view(-1, self.size, self.size)

    def _gather(self, image: Tensor, row: int, rows: int, columns: Tensor) -> None:
        kernels.gather_patches(image.numpy(), row, rows, self.size, columns.numpy())

    def _scatter(self, columns: Tensor, row: int, rows: int, z: Tensor) -> None:
        kernels.scatter_patches(columns.numpy(), row, rows, self.size, z.numpy())

    def mix(self, t: Tensor) -> None:
        """From the parts of responses to the responses, or of their factors from these to the parts."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Image, first row and number of rows of responses of every band."""
        for image in range(self.count):
            for row in range(0, self.rows - self.halo, self.step):
                yield image, row, min(self.step + self.halo, self.rows - row)

    def _strips(self, row: int, rows: int) -> Iterator[tuple[int, int, slice]]:
        """First row and number of rows of the strips of a band, and where they lie in its responses."""
        for start in range(0, rows, self.strip):
            n = min(self.strip, rows - start)
            yield row + start, n, slice(start * self.cols, (start + n) * self.cols)

    def _buffer(self, name: str, height: int, rows: int) -> Tensor:
        """A matrix for so many rows of the image, the same one at every call."""
        if (name, rows) not in self._kept:
            self._kept[name, rows] = self.matrices[0].new_empty(height, rows * self.cols)
        return self._kept[name, rows]

    def _patches(self, name: str, image: Tensor, row: int, rows: int) -> Tensor:
        """The patches of a strip as columns; overwritten by the next strip of that name."""
        columns = self._buffer(name, self.size**2, rows)
        held = self._held.get(name)
        if held is None or held[0] is not image or held[1:] != (row, rows):
            self._gather(image, row, rows, columns)
            self._held[name] = (image, row, rows)
        return columns

    def responses(self, name: str, image: Tensor, row: int, rows: int) -> Tensor:
        """The responses of a band, C x (rows cols); overwritten by the next band of that name."""
        t = self._buffer(f"of {name}", len(self.order), rows)
        for start, n, where in self._strips(row, rows):
            columns = self._patches(name, image, start, n).split(self.widths)
            for matrix, part, out in zip(self.matrices, columns, t[:, where].split(self.heights), strict=True):
                torch.mm(matrix, part, out=out)
        self.mix(t)
        return t

    def take_back(self, u: Tensor, row: int, rows: int, z: Tensor) -> None:
        """z += W' u on the patches of a band, u in parts."""
        for start, n, where in self._strips(row, rows):
            columns = self._buffer("back", self.size**2, n)
            parts = zip(self.transposed, u[:, where].split(self.heights), columns.split(self.widths), strict=True)
            for matrix, part, out in parts:
                torch.mm(matrix, part, out=out)
            self._scatter(columns, start, n, z)

    def add_products(self, u: Tensor, name: str, image: Tensor, row: int, rows: int, sums: list[Tensor]) -> None:
        """sums += u patches' over a band, u in parts."""
        for start, n, where in self._strips(row, rows):
            columns = self._patches(name, image, start, n).split(self.widths)
            for total, part, column in zip(sums, u[:, where].split(self.heights), columns, strict=True):
                total.addmm_(part, column.t())


SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))  # of the parts, upside down and left to right: even 1, odd -1


class _Folded(_Bands):
    """Bands for symmetric filters, of which `singles` are singles."""

    def __init__(self, x: Tensor, filters: Tensor, pool: int, singles: int) -> None:
        self.singles, self.fours = singles, len(filters) - singles
        super().__init__(x, filters, pool)
        self.starts = np.cumsum(self.heights) - self.fours

    def _split(self, filters: Tensor) -> tuple[Tensor, list[Tensor]]:
        parts = [self._corner(of_parity(filters, *signs), *signs).flatten(1) for signs in SIGNS]
        fours = torch.arange(self.singles, len(filters))
        self.parts_rows = [torch.cat([part[: self.singles].any(1).nonzero()[:, 0], fours]) for part in parts]
        return torch.cat(self.parts_rows), [part[rows] for part, rows in zip(parts, self.parts_rows, strict=True)]

    def filters(self, matrices: list[Tensor]) -> Tensor:
        filters = matrices[0].new_zeros(self.singles + self.fours, self.size, self.size)
        for matrix, rows, signs in zip(matrices, self.parts_rows, SIGNS, strict=True):
            part = matrix.new_zeros(len(rows), self.size, self.size)
            corner = self._corner(part, *signs)
            corner.copy_(matrix.view_as(corner))
            filters[rows] += of_parity(part, *signs)
        return filters

    def _corner(self, filters: Tensor, upside_down: int, left_to_right: int) -> Tensor:
        """The values that determine such a part of filters."""
        half = self.size // 2
        return filters[:, half + (upside_down < 0) :, half + (left_to_right < 0) :]

    def _gather(self, image: Tensor, row: int, rows: int, columns: Tensor) -> None:
        kernels.gather_folded(image.numpy(), row, rows, self.size // 2, columns.numpy())

    def _scatter(self, columns: Tensor, row: int, rows: int, z: Tensor) -> None:
        kernels.scatter_folded(columns.numpy(), row, rows, self.size // 2, z.numpy())

    def mix(self, t: Tensor) -> None:
        kernels.butterfly(t.numpy(), self.starts, self.fours)


def _bands(x: Tensor, filters: Tensor, pools: Tensor | None, singles: int | None) -> _Bands:
    pool = 1 if pools is None else pools.shape[-1]
    return _Bands(x, filters, pool) if singles is None else _Folded(x, filters, pool, singles)


class ValidGradient(torch.autograd.Function):
    """`smadmm.denoisers.ridge.valid_gradient`, and its derivatives: of singles those within their parity."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        filters: Tensor,
        offset: Tensor,
        slope: Tensor,
        pools: Tensor | None,
        spacing: float,
        singles: int | None,
    ) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, filters, offset, slope, pools)
        ctx.spacing, ctx.singles = spacing, singles
        bands, z = _bands(x, filters, pools, singles), torch.zeros_like(x)
        a, b = offset[bands.order].numpy(), slope[bands.order].numpy()
        weights = None if pools is None else pools[bands.order].numpy()
        images = list(x)
        for image, row, rows in bands:
            t = bands.responses("x", images[image], row, rows)
            if weights is None:
                kernels.spline(t.numpy(), a, b, 1 / spacing)
            else:
                kernels.pooled(t.view(len(a), rows, -1).numpy(), weights, a, b, 1 / spacing)
            bands.mix(t)
            bands.take_back(t, row, rows, z[image])
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        x, filters, offset, slope, pools = ctx.saved_tensors
        wants_image, wants_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        bands = _bands(x, filters, pools, ctx.singles)
        a, b, inverse = offset[bands.order].numpy(), slope[bands.order].numpy(), 1 / ctx.spacing
        weights = None if pools is None else pools[bands.order].numpy()
        d_x, d_matrices = torch.zeros_like(x), [torch.zeros_like(matrix) for matrix in bands.matrices]
        sums = np.zeros(a.shape), np.zeros(a.shape)
        d_weights = np.zeros(0) if weights is None else np.zeros(weights.shape)
        of_x, of_v = list(x), list(v.contiguous())
        for image, row, rows in bands:
            t, q = bands.responses("x", of_x[image], row, rows), bands.responses("v", of_v[image], row, rows)
            if weights is None:
                kernels.spline_backward(t.numpy(), q.numpy(), a, b, inverse, sums)
            else:
                t_, q_ = (matrix.view(len(a), rows, -1).numpy() for matrix in (t, q))
                kernels.pooled_backward(t_, q_, weights, a, b, inverse, sums, d_weights)
            bands.mix(t)
            bands.mix(q)
            if wants_weights:
                bands.add_products(q, "x", of_x[image], row, rows, d_matrices)
                bands.add_products(t, "v", of_v[image], row, rows, d_matrices)
            if wants_image:
                bands.take_back(q, row, rows, d_x[image])
        d_offset, d_slope, d_pools = (
            None if like is None else torch.zeros_like(like).index_add(0, bands.order, torch.from_numpy(total).to(like))
            for like, total in ((offset, sums[0]), (slope, sums[1]), (pools, d_weights))
        )
        return d_x, bands.filters(d_matrices), d_offset, d_slope, d_pools, None, None
