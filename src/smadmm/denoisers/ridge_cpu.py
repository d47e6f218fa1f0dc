"""The gradient of a ridge potential on the CPU: bands of the image, patches as columns, two matrix products.

A band holds some rows of places p of the sum g; the bands' gradients add up. Within it the responses t = W patches(x)
are formed and taken back strip by strip, so that patches and responses stay in the second-level cache; the compiled
loops of `ridge_kernels` turn t into its factor of the gradient in between. Without pools a band is one strip.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.denoisers import ridge_kernels as kernels

STRIP = 1024  # columns of a matrix product
BAND = 64  # rows of pooled responses


class _Bands:
    """The bands of a batch of images, and the matrix products of each."""

    def __init__(self, x: Tensor, filters: Tensor, pool: int) -> None:
        self.count, self.size, self.halo = len(x), filters.shape[-1], pool - 1
        self.rows, self.cols = x.shape[1] - self.size + 1, x.shape[2] - self.size + 1  # of responses
        self.flat = filters.reshape(len(filters), -1).contiguous()
        self.transposed = self.flat.t().contiguous()
        self.strip = max(1, STRIP // self.cols)
        self.step = BAND if self.halo else self.strip
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._held: dict[str, tuple[Tensor, int, int]] = {}

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Image, first row and number of rows of responses of every band."""
        for image in range(self.count):
            for row in range(0, self.rows - self.halo, self.step):
                yield image, row, min(self.step + self.halo, self.rows - row)

    def strips(self, row: int, rows: int) -> Iterator[tuple[int, int, slice]]:
        """First row and number of rows of the strips of a band, and where they lie in its responses."""
        for start in range(0, rows, self.strip):
            n = min(self.strip, rows - start)
            yield row + start, n, slice(start * self.cols, (start + n) * self.cols)

    def _buffer(self, name: str, height: int, rows: int) -> Tensor:
        """A matrix for so many rows of the image, the same one at every call."""
        if (name, rows) not in self._kept:
            self._kept[name, rows] = self.flat.new_empty(height, rows * self.cols)
        return self._kept[name, rows]

    def patches(self, name: str, image: Tensor, row: int, rows: int) -> Tensor:
        """The patches of a strip as columns; overwritten by the next strip of that name."""
        columns = self._buffer(name, self.size**2, rows)
        held = self._held.get(name)
        if held is None or held[0] is not image or held[1:] != (row, rows):
            kernels.gather_patches(image.numpy(), row, rows, self.size, columns.numpy())
            self._held[name] = (image, row, rows)
        return columns

    def responses(self, name: str, image: Tensor, row: int, rows: int) -> Tensor:
        """The responses of a band, C x (rows cols); overwritten by the next band of that name."""
        t = self._buffer(f"of {name}", len(self.flat), rows)
        for start, n, where in self.strips(row, rows):
            torch.mm(self.flat, self.patches(name, image, start, n), out=t[:, where])
        return t

    def take_back(self, u: Tensor, row: int, rows: int, z: Tensor) -> None:
        """z += W' u on the patches of a band."""
        for start, n, where in self.strips(row, rows):
            columns = torch.mm(self.transposed, u[:, where], out=self._buffer("back", self.size**2, n))
            kernels.scatter_patches(columns.numpy(), start, n, self.size, z.numpy())


def _parts(filters: Tensor) -> list[Tensor]:
    """Filters (C x k x k) split by parity, as `gather_folded` splits patches: four matrices, C x about k^2 / 4."""
    half = filters.shape[-1] // 2
    parts = []
    for upside_down in (1, -1):
        for left_to_right in (1, -1):
            part = (filters + upside_down * filters.flip(-2)) / 2
            part = (part + left_to_right * part.flip(-1)) / 2
            row, col = half + (upside_down < 0), half + (left_to_right < 0)
            parts.append(part[:, row:, col:].flatten(1).contiguous())
    return parts


def folded_gradient(x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, singles: int) -> Tensor:
    """The gradient for symmetric filters: of singles one part is not 0, those of fours differ in signs only.

    So each part of the patches is multiplied by the singles of its parity and the first of each four: a quarter of
    the products.
    """
    x, half = x.contiguous(), filters.shape[-1] // 2
    rows, cols = x.shape[1] - 2 * half, x.shape[2] - 2 * half
    alone, fours = _parts(filters[:singles].detach()), _parts(filters[singles::4].detach())
    own = [torch.nonzero((part != 0).any(1)).flatten() for part in alone]
    matrices = [torch.cat([part[here], four]) for part, here, four in zip(alone, own, fours, strict=True)]
    transposed = [matrix.t().contiguous() for matrix in matrices]
    heights, widths = [len(matrix) for matrix in matrices], [len(matrix) for matrix in transposed]
    starts = np.cumsum([0, *heights[:3]]) + [len(here) for here in own]  # of the fours' rows
    a, b = offset[singles::4].contiguous().numpy(), slope[singles::4].contiguous().numpy()
    z, strip = torch.zeros_like(x), max(1, STRIP // cols)
    for row in range(0, rows, strip):
        n = min(strip, rows - row)
        if row == 0 or n < strip:
            columns, t = x.new_empty(sum(widths), n * cols), x.new_empty(sum(heights), n * cols)
            pairs = list(zip(columns.split(widths), t.split(heights), strict=True))
        for image, out in zip(x, z, strict=True):
            kernels.gather_folded(image.numpy(), row, n, half, columns.numpy())
            for matrix, (part, response) in zip(matrices, pairs, strict=True):
                torch.mm(matrix, part, out=response)
            for (_, response), here in zip(pairs, own, strict=True):
                kernels.spline(response[: len(here)].numpy(), offset[here].numpy(), slope[here].numpy(), 1 / spacing)
            kernels.folded_spline(t.numpy(), starts, a, b, 1 / spacing)
            for matrix, (part, response) in zip(transposed, pairs, strict=True):
                torch.mm(matrix, response, out=part)
            kernels.scatter_folded(columns.numpy(), row, n, half, out.numpy())
    return z


class ValidGradient(torch.autograd.Function):
    """`smadmm.denoisers.ridge.valid_gradient_torch`, and its derivatives."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, pools: Tensor | None, spacing: float
    ) -> Tensor:
        x, offset, slope = x.contiguous(), offset.contiguous(), slope.contiguous()
        ctx.save_for_backward(x, filters, offset, slope, pools)
        ctx.spacing = spacing
        bands, z = _Bands(x, filters, 1 if pools is None else pools.shape[-1]), torch.zeros_like(x)
        a, b = offset.numpy(), slope.numpy()
        images = list(x)
        for image, row, rows in bands:
            t = bands.responses("x", images[image], row, rows)
            if pools is None:
                kernels.spline(t.numpy(), a, b, 1 / spacing)
            else:
                kernels.pooled(t.view(len(a), rows, -1).numpy(), pools.numpy(), a, b, 1 / spacing)
            bands.take_back(t, row, rows, z[image])
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        x, filters, offset, slope, pools = ctx.saved_tensors
        wants_image, wants_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        bands = _Bands(x, filters, 1 if pools is None else pools.shape[-1])
        d_x, d_filters = torch.zeros_like(x), torch.zeros_like(bands.flat)
        d_offset, d_slope = (torch.zeros_like(table, dtype=torch.float64) for table in (offset, slope))
        d_pools = None if pools is None else torch.zeros_like(pools, dtype=torch.float64)
        sums = d_offset.numpy(), d_slope.numpy()
        a, b, inverse = offset.numpy(), slope.numpy(), 1 / ctx.spacing
        of_x, of_v = list(x), list(v.contiguous())
        for image, row, rows in bands:
            t, q = bands.responses("x", of_x[image], row, rows), bands.responses("v", of_v[image], row, rows)
            if d_pools is None:
                kernels.spline_backward(t.numpy(), q.numpy(), a, b, inverse, sums)
            else:
                t_, q_ = (matrix.view(len(a), rows, -1).numpy() for matrix in (t, q))
                kernels.pooled_backward(t_, q_, pools.numpy(), a, b, inverse, sums, d_pools.numpy())
            if wants_weights:
                for start, n, where in bands.strips(row, rows):
                    d_filters.addmm_(q[:, where], bands.patches("x", of_x[image], start, n).t())
                    d_filters.addmm_(t[:, where], bands.patches("v", of_v[image], start, n).t())
            if wants_image:
                bands.take_back(q, row, rows, d_x[image])
        if d_pools is not None:
            d_pools = d_pools.to(pools)
        return d_x, d_filters.view_as(filters), d_offset.to(offset), d_slope.to(slope), d_pools, None
