"""Compiled loops of the ridge potential: splines, pools and columns-to-image, serial, in place.

A profile derivative phi_c is piecewise linear on 2J + 2 pieces: piece p holds the arguments with
p = floor(clip(t / spacing + J + 1, 0, 2J + 1)), and there phi_c(t) = offset[c, p] + slope[c, p] t.
The index is found in a pass of its own over a short block: that pass vectorises, a fused loop does not.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smadmm.denoisers.ridge import TINY

Array = NDArray[np.floating]
BLOCK = 512


@njit(cache=True, fastmath=True)
def _add(factor: float, source: Array, target: Array) -> None:
    for s in range(target.size):
        target[s] += factor * source[s]


@njit(cache=True, fastmath=True)
def gather_patches(image: Array, row: int, rows: int, size: int, columns: Array) -> None:
    """columns[i size + j, (r, s)] = image[row + r + i, s + j]."""
    width = image.shape[1] - size + 1
    for i in range(size):
        for j in range(size):
            for r in range(rows):
                source = image[row + r + i, j : j + width]
                target = columns[i * size + j, r * width : (r + 1) * width]
                for s in range(width):
                    target[s] = source[s]


@njit(cache=True, fastmath=True)
def scatter_patches(columns: Array, row: int, rows: int, size: int, image: Array) -> None:
    """image[row + r + i, s + j] += columns[i size + j, (r, s)]."""
    width = image.shape[1] - size + 1
    for r in range(rows):
        for i in range(size):
            for j in range(size):
                target = image[row + r + i, j : j + width]
                source = columns[i * size + j, r * width : (r + 1) * width]
                for s in range(width):
                    target[s] += source[s]


@njit(cache=True, fastmath=True)
def gather_folded(image: Array, row: int, rows: int, half: int, columns: Array) -> None:
    """Patches of width 2 half + 1 as columns, split into parts (even, odd) upside down x (even, odd) left to right.

    Of the pixels (-i, -j), (-i, j), (i, -j), (i, j) about the centre, i, j >= 0, the parts hold the sums with the signs
    ++++, -+-+, --++, +--+ at the place (i, j); odd ones begin at 1. Where i or j is 0 pixels that coincide count once.
    """
    width, whole = image.shape[1] - 2 * half, half + 1
    eo = whole * whole
    oe, oo = eo + whole * half, eo + 2 * whole * half
    for r in range(rows):
        here, middle = slice(r * width, (r + 1) * width), row + r + half
        for i in range(whole):
            upper, lower = image[middle - i], image[middle + i]
            for j in range(whole):
                a, b = upper[half - j : half - j + width], upper[half + j : half + j + width]
                c, d = lower[half - j : half - j + width], lower[half + j : half + j + width]
                even = columns[i * whole + j, here]
                if i > 0 and j > 0:
                    right, down = columns[eo + i * half + j - 1, here], columns[oe + (i - 1) * whole + j, here]
                    corner = columns[oo + (i - 1) * half + j - 1, here]
                    for s in range(width):
                        p, q, u, v = b[s] + a[s], b[s] - a[s], d[s] + c[s], d[s] - c[s]
                        even[s], right[s], down[s], corner[s] = u + p, v + q, u - p, v - q
                elif i > 0:
                    down = columns[oe + (i - 1) * whole, here]
                    for s in range(width):
                        even[s], down[s] = c[s] + a[s], c[s] - a[s]
                elif j > 0:
                    right = columns[eo + j - 1, here]
                    for s in range(width):
                        even[s], right[s] = b[s] + a[s], b[s] - a[s]
                else:
                    even[:] = a


@njit(cache=True, fastmath=True)
def scatter_folded(columns: Array, row: int, rows: int, half: int, image: Array) -> None:
    """The transpose of `gather_folded`, added to the image."""
    width, whole = image.shape[1] - 2 * half, half + 1
    eo = whole * whole
    oe, oo = eo + whole * half, eo + 2 * whole * half
    for r in range(rows):
        here, middle = slice(r * width, (r + 1) * width), row + r + half
        for i in range(whole):
            upper, lower = image[middle - i], image[middle + i]
            for j in range(whole):
                a, b = upper[half - j : half - j + width], upper[half + j : half + j + width]
                c, d = lower[half - j : half - j + width], lower[half + j : half + j + width]
                even = columns[i * whole + j, here]
                if i > 0 and j > 0:
                    right, down = columns[eo + i * half + j - 1, here], columns[oe + (i - 1) * whole + j, here]
                    corner = columns[oo + (i - 1) * half + j - 1, here]
                    for s in range(width):
                        p, q, u, v = even[s] + down[s], right[s] + corner[s], even[s] - down[s], right[s] - corner[s]
                        c[s], a[s] = c[s] + (p - q), a[s] + (u - v)
                        even[s], right[s] = p + q, u + v
                    _add(1, right, b)
                    _add(1, even, d)
                elif i > 0:
                    down = columns[oe + (i - 1) * whole, here]
                    for s in range(width):
                        a[s], c[s] = a[s] + (even[s] - down[s]), c[s] + (even[s] + down[s])
                elif j > 0:
                    right = columns[eo + j - 1, here]
                    for s in range(width):
                        a[s] += even[s] - right[s]
                    for s in range(width):
                        b[s] += even[s] + right[s]
                else:
                    _add(1, even, a)


@njit(cache=True, fastmath=True)
def _pieces(t: Array, inverse_spacing: float, count: int, piece: NDArray[np.int32]) -> None:
    inverse, centre = t.dtype.type(inverse_spacing), t.dtype.type(count // 2)
    zero, last = t.dtype.type(0), t.dtype.type(count - 1)
    for n in range(t.size):
        u = t[n] * inverse + centre
        piece[n] = np.int32(min(last, max(zero, u)))


@njit(cache=True, fastmath=True)
def spline(t: Array, offset: Array, slope: Array, inverse_spacing: float) -> None:
    """t := phi(t)."""
    piece = np.empty(BLOCK, np.int32)
    for c in range(t.shape[0]):
        a, b = offset[c], slope[c]
        for start in range(0, t.shape[1], BLOCK):
            block = t[c, start : start + BLOCK]
            _pieces(block, inverse_spacing, a.size, piece)
            for n in range(block.size):
                p = np.uint64(piece[n])
                block[n] = a[p] + b[p] * block[n]


@njit(cache=True, fastmath=True)
def butterfly(t: Array, starts: NDArray[np.int64], count: int) -> None:
    """Replace the rows starts + n of t, for each n < count, by their sums with the signs ++++, +-+-, ++--, +--+."""
    for n in range(count):
        first, second, third, fourth = t[starts[0] + n], t[starts[1] + n], t[starts[2] + n], t[starts[3] + n]
        for s in range(t.shape[1]):
            p, q = first[s] + second[s], first[s] - second[s]
            u, v = third[s] + fourth[s], third[s] - fourth[s]
            first[s], second[s], third[s], fourth[s] = p + u, q + v, p - u, q - v


@njit(cache=True, fastmath=True)
def spline_backward(
    t: Array, q: Array, offset: Array, slope: Array, inverse_spacing: float, sums: tuple[Array, Array]
) -> None:
    """q := q phi'(t), t := phi(t); to the sums of a piece of phi those of q and of q t are added."""
    d_offset, d_slope = sums
    piece = np.empty(BLOCK, np.int32)
    for c in range(t.shape[0]):
        a, b = offset[c], slope[c]
        for start in range(0, t.shape[1], BLOCK):
            block, w = t[c, start : start + BLOCK], q[c, start : start + BLOCK]
            _pieces(block, inverse_spacing, a.size, piece)
            for n in range(block.size):
                p = np.uint64(piece[n])
                d_offset[c, p] += w[n]
                d_slope[c, p] += w[n] * block[n]
            for n in range(block.size):
                p = np.uint64(piece[n])
                w[n] *= b[p]
                block[n] = a[p] + b[p] * block[n]


@njit(cache=True, fastmath=True)
def _pool_column(t: Array, row: int, column: Array, line: Array) -> None:
    """line[s] = sum_i column[i] t[row + i, s]."""
    line[:] = 0
    for i in range(column.size):
        _add(column[i], t[row + i], line)


@njit(cache=True, fastmath=True)
def _pool_row(line: Array, row: Array, out: Array) -> None:
    """out[s] = sum_j row[j] line[s + j]."""
    out[:] = 0
    for j in range(row.size):
        _add(row[j], line[j : j + out.size], out)


@njit(cache=True, fastmath=True)
def _spread_row(m: Array, row: Array, line: Array) -> None:
    """The transpose of `_pool_row`."""
    line[:] = 0
    for j in range(row.size):
        _add(row[j], m, line[j : j + m.size])


@njit(cache=True, fastmath=True)
def _spread_column(line: Array, row: int, column: Array, t: Array) -> None:
    """The transpose of `_pool_column`, added to t."""
    for i in range(column.size):
        _add(column[i], line, t[row + i])


@njit(cache=True, fastmath=True)
def _roots(s: Array) -> None:
    tiny = s.dtype.type(TINY)
    for n in range(s.size):
        s[n] = np.sqrt(max(s[n], tiny))


@njit(cache=True, fastmath=True)
def pooled(t: Array, pools: Array, offset: Array, slope: Array, inverse_spacing: float) -> None:
    """t := t . spread(phi(r) / r), r^2 = pool(t^2), for C x H x W responses t."""
    q = pools.shape[2]
    rows, cols, width = t.shape[1] - q + 1, t.shape[2] - q + 1, t.shape[2]
    square, factor = np.empty(t.shape[1:], t.dtype), np.empty(t.shape[1:], t.dtype)
    line, r, piece = np.empty(width, t.dtype), np.empty(cols, t.dtype), np.empty(cols, np.int32)
    for c in range(t.shape[0]):
        a, b, column, row = offset[c], slope[c], pools[c, 0], pools[c, 1]
        for i in range(t.shape[1]):
            for s in range(width):
                square[i, s] = t[c, i, s] * t[c, i, s]
        factor[:] = 0
        for i in range(rows):
            _pool_column(square, i, column, line)
            _pool_row(line, row, r)
            _roots(r)
            _pieces(r, inverse_spacing, a.size, piece)
            for s in range(cols):
                p = np.uint64(piece[s])
                r[s] = a[p] / r[s] + b[p]
            _spread_row(r, row, line)
            _spread_column(line, i, column, factor)
        for i in range(t.shape[1]):
            for s in range(width):
                t[c, i, s] *= factor[i, s]


@njit(cache=True, fastmath=True)
def _dot(x: Array, y: Array) -> float:
    total = 0.0
    for s in range(x.size):
        total += x[s] * y[s]
    return total


@njit(cache=True, fastmath=True)
def pooled_backward(
    t: Array,
    q: Array,
    pools: Array,
    offset: Array,
    slope: Array,
    inverse_spacing: float,
    sums: tuple[Array, Array],
    d_pools: Array,
) -> None:
    """q := derivative of <q, u>, u = `pooled` of t, in t, and t := u; adds those in the tables and pools.

    With m = phi(r) / r, n = spread(m): dm = pool(q t), ds = dm dm/d(r^2), dt = q n + 2 t spread(ds).
    """
    (d_offset, d_slope), size = sums, pools.shape[2]
    rows, cols, width = t.shape[1] - size + 1, t.shape[2] - size + 1, t.shape[2]
    shape = t.shape[1:]
    square, product = np.empty(shape, t.dtype), np.empty(shape, t.dtype)
    n, back = np.empty(shape, t.dtype), np.empty(shape, t.dtype)
    of_square, of_product, line = np.empty(width, t.dtype), np.empty(width, t.dtype), np.empty(width, t.dtype)
    r, dm, ds, piece = (
        np.empty(cols, t.dtype),
        np.empty(cols, t.dtype),
        np.empty(cols, t.dtype),
        np.empty(cols, np.int32),
    )
    for c in range(t.shape[0]):
        a, b, column, row = offset[c], slope[c], pools[c, 0], pools[c, 1]
        for i in range(t.shape[1]):
            for s in range(width):
                square[i, s] = t[c, i, s] * t[c, i, s]
                product[i, s] = t[c, i, s] * q[c, i, s]
        n[:] = 0
        back[:] = 0
        for i in range(rows):
            _pool_column(square, i, column, of_square)
            _pool_row(of_square, row, r)
            _roots(r)
            _pool_column(product, i, column, of_product)
            _pool_row(of_product, row, dm)
            _pieces(r, inverse_spacing, a.size, piece)
            for s in range(cols):
                p, inverse = np.uint64(piece[s]), 1 / r[s]
                d_offset[c, p] += dm[s] * inverse
                d_slope[c, p] += dm[s]
                ds[s] = -a[p] * dm[s] * inverse * inverse * inverse / 2
                r[s] = a[p] * inverse + b[p]
            for j in range(size):
                d_pools[c, 1, j] += _dot(ds, of_square[j : j + cols]) + _dot(r, of_product[j : j + cols])
            _spread_row(r, row, line)
            _spread_column(line, i, column, n)
            for j in range(size):
                d_pools[c, 0, j] += _dot(line, product[i + j])
            _spread_row(ds, row, line)
            _spread_column(line, i, column, back)
            for j in range(size):
                d_pools[c, 0, j] += _dot(line, square[i + j])
        for i in range(t.shape[1]):
            for s in range(width):
                q[c, i, s] = q[c, i, s] * n[i, s] + 2 * t[c, i, s] * back[i, s]
                t[c, i, s] *= n[i, s]
