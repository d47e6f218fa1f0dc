"""Compiled loops of the ridge potential: splines and columns-to-image, serial, in place.

A profile derivative phi_c is piecewise linear on 2J + 2 pieces: piece p holds the arguments with
p = floor(clip(t / spacing + J + 1, 0, 2J + 1)), and there phi_c(t) = offset[c, p] + slope[c, p] t.
The index is found in a pass of its own over a short block: that pass vectorises, a fused loop does not.
"""

import numpy as np
from numpy.typing import NDArray

from smadmm.compilation import compiled, inlined

Array = NDArray[np.floating]
BLOCK = 512


@inlined()
def _fold(line: Array, half: int, even: Array, odd: Array, begin: int) -> None:
    """even[j] and odd[j - 1], from column `begin` on, := the sum and the difference of line[s + j] and line[s - j]."""
    width = line.size - 2 * half
    out, middle = even[0, begin : begin + width], line[half:]
    for s in range(width):
        out[s] = middle[s]
    for j in range(1, half + 1):
        left, right = line[half - j :], line[half + j :]
        total, difference = even[j, begin : begin + width], odd[j - 1, begin : begin + width]
        for s in range(width):
            total[s], difference[s] = right[s] + left[s], right[s] - left[s]


@inlined()
def _unfold(even: Array, odd: Array, begin: int, half: int, lines: Array) -> None:
    """The transpose of `_fold`: its result is the sum of two lines, which keeps reads and writes apart."""
    width, size = lines.shape[1] - 2 * half, lines.shape[1]
    for s in range(size):
        lines[0, s] = lines[1, s] = 0
    out, middle = even[0, begin : begin + width], lines[0, half:]
    for s in range(width):
        middle[s] = out[s]
    for j in range(1, half + 1):
        left, right = lines[1, half - j :], lines[0, half + j :]
        total, difference = even[j, begin : begin + width], odd[j - 1, begin : begin + width]
        for s in range(width):
            right[s] += total[s] + difference[s]
            left[s] += total[s] - difference[s]


@compiled()
def gather_folded(image: Array, row: int, rows: int, half: int, columns: Array, lines: Array) -> None:
    """Patches of width 2 half + 1 as columns, split into parts (even, odd) upside down x (even, odd) left to right.

    Of the pixels (-i, -j), (-i, j), (i, -j), (i, j) about the centre, i, j >= 0, the parts hold the sums with the signs
    ++++, -+-+, --++, +--+ at the place (i, j); odd ones begin at 1. Where i or j is 0 pixels that coincide count once.
    Of rows i below and above the sum and the difference are taken first; `lines`, 4 x image width, is scratch memory.
    """
    width, whole = image.shape[1] - 2 * half, half + 1
    eo = whole * whole
    oe, oo = eo + whole * half, eo + 2 * whole * half
    for r in range(rows):
        middle = row + r + half
        _fold(image[middle], half, columns, columns[eo:], r * width)
        for i in range(1, whole):
            upper, lower, total, difference = image[middle - i], image[middle + i], lines[0], lines[1]
            for s in range(total.size):
                total[s], difference[s] = lower[s] + upper[s], lower[s] - upper[s]
            _fold(total, half, columns[i * whole :], columns[eo + i * half :], r * width)
            _fold(difference, half, columns[oe + (i - 1) * whole :], columns[oo + (i - 1) * half :], r * width)


@compiled()
def scatter_folded(columns: Array, row: int, rows: int, half: int, image: Array, lines: Array) -> None:
    """The transpose of `gather_folded`, added to the image."""
    width, whole = image.shape[1] - 2 * half, half + 1
    eo = whole * whole
    oe, oo = eo + whole * half, eo + 2 * whole * half
    for r in range(rows):
        middle = row + r + half
        here, sums, differences = image[middle], lines[:2], lines[2:]
        _unfold(columns, columns[eo:], r * width, half, sums)
        for s in range(here.size):
            here[s] += sums[0, s] + sums[1, s]
        for i in range(1, whole):
            _unfold(columns[i * whole :], columns[eo + i * half :], r * width, half, sums)
            _unfold(columns[oe + (i - 1) * whole :], columns[oo + (i - 1) * half :], r * width, half, differences)
            upper, lower, p, q, u, v = image[middle - i], image[middle + i], lines[0], lines[1], lines[2], lines[3]
            for s in range(upper.size):
                total, difference = p[s] + q[s], u[s] + v[s]
                upper[s], lower[s] = upper[s] + (total - difference), lower[s] + (total + difference)


@inlined()
def _pieces(t: Array, inverse_spacing: float, count: int, piece: NDArray[np.int32]) -> None:
    inverse, centre = t.dtype.type(inverse_spacing), t.dtype.type(count // 2)
    zero, last = t.dtype.type(0), t.dtype.type(count - 1)
    for n in range(t.size):
        u = t[n] * inverse + centre
        piece[n] = np.int32(min(last, max(zero, u)))


@inlined()
def _spline(t: Array, offset: Array, slope: Array, inverse_spacing: float, piece: NDArray[np.int32]) -> None:
    _pieces(t, inverse_spacing, offset.size, piece)
    for n in range(t.size):
        p = np.uint64(piece[n])
        t[n] = offset[p] + slope[p] * t[n]


@inlined()
def _butterfly(first: Array, second: Array, third: Array, fourth: Array) -> None:
    for s in range(first.size):
        p, q = first[s] + second[s], first[s] - second[s]
        u, v = third[s] + fourth[s], third[s] - fourth[s]
        first[s], second[s], third[s], fourth[s] = p + u, q + v, p - u, q - v


@compiled()
def spline_sum(
    t: Array, start: Array, offset: Array, slope: Array, inverse_spacing: float, piece: NDArray[np.int32]
) -> float:
    """The sum of psi(t) = start + (offset + slope t / 2) t, psi' = phi."""
    total = 0.0
    for c in range(t.shape[0]):
        base, a, b = start[c], offset[c], slope[c]
        for first in range(0, t.shape[1], BLOCK):
            block = t[c, first : first + BLOCK]
            _pieces(block, inverse_spacing, a.size, piece)
            for n in range(block.size):
                p, u = np.uint64(piece[n]), np.float64(block[n])
                total += base[p] + (a[p] + 0.5 * b[p] * u) * u
    return total


@compiled()
def butterfly(t: Array, starts: NDArray[np.int64], count: int) -> None:
    """Replace the rows starts + n of t, for each n < count, by their sums with the signs ++++, +-+-, ++--, +--+."""
    for n in range(count):
        _butterfly(t[starts[0] + n], t[starts[1] + n], t[starts[2] + n], t[starts[3] + n])


@compiled()
def mixed_spline(
    t: Array,
    starts: NDArray[np.int64],
    count: int,
    pieces: tuple[Array, Array],
    inverse_spacing: float,
    piece: NDArray[np.int32],
) -> None:
    """t := phi(t), the rows starts + n mixed by `butterfly` before and after; `piece` is scratch of BLOCK numbers."""
    offset, slope = pieces
    for start in range(0, t.shape[1], BLOCK):
        begin, stop = 0, min(start + BLOCK, t.shape[1])
        for k in range(4):
            for row in range(begin, starts[k]):
                _spline(t[row, start:stop], offset[row], slope[row], inverse_spacing, piece)
            begin = starts[k] + count
        for n in range(count):
            a, b = t[starts[0] + n, start:stop], t[starts[1] + n, start:stop]
            c, d = t[starts[2] + n, start:stop], t[starts[3] + n, start:stop]
            _butterfly(a, b, c, d)
            for k in range(4):
                row = starts[k] + n
                _spline(t[row, start:stop], offset[row], slope[row], inverse_spacing, piece)
            _butterfly(a, b, c, d)


@compiled()
def spline_backward(
    t: Array,
    q: Array,
    offset: Array,
    slope: Array,
    inverse_spacing: float,
    piece: NDArray[np.int32],
    sums: tuple[Array, Array],
) -> None:
    """q := q phi'(t), t := phi(t); to the sums of a piece of phi those of q and of q t are added."""
    d_offset, d_slope = sums
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
