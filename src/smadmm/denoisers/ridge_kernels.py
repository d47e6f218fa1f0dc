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
def _add(source: Array, target: Array) -> None:
    for s in range(target.size):
        target[s] += source[s]


@compiled()
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
                    for s in range(width):
                        even[s] = a[s]


@compiled()
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
                    _add(right, b)
                    _add(even, d)
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
                    _add(even, a)


@inlined()
def _pieces(t: Array, inverse_spacing: float, count: int, piece: NDArray[np.int32]) -> None:
    inverse, centre = t.dtype.type(inverse_spacing), t.dtype.type(count // 2)
    zero, last = t.dtype.type(0), t.dtype.type(count - 1)
    for n in range(t.size):
        u = t[n] * inverse + centre
        piece[n] = np.int32(min(last, max(zero, u)))


@compiled()
def spline(t: Array, offset: Array, slope: Array, inverse_spacing: float, piece: NDArray[np.int32]) -> None:
    """t := phi(t); `piece` is scratch memory of BLOCK numbers."""
    for c in range(t.shape[0]):
        a, b = offset[c], slope[c]
        for start in range(0, t.shape[1], BLOCK):
            block = t[c, start : start + BLOCK]
            _pieces(block, inverse_spacing, a.size, piece)
            for n in range(block.size):
                p = np.uint64(piece[n])
                block[n] = a[p] + b[p] * block[n]


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
        first, second, third, fourth = t[starts[0] + n], t[starts[1] + n], t[starts[2] + n], t[starts[3] + n]
        for s in range(t.shape[1]):
            p, q = first[s] + second[s], first[s] - second[s]
            u, v = third[s] + fourth[s], third[s] - fourth[s]
            first[s], second[s], third[s], fourth[s] = p + u, q + v, p - u, q - v


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
