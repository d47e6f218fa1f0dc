"""Compiled loops of the ridge potential: spline and columns-to-image, serial, in place.

A profile derivative phi_c is piecewise linear on 2J + 2 pieces: piece p holds the arguments with
p = floor(clip(t / spacing + J + 1, 0, 2J + 1)), and there phi_c(t) = offset[c, p] + slope[c, p] t.
The index is found in a pass of its own over a short block: that pass vectorises, a fused loop does not.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.floating]
BLOCK = 512


@njit(cache=True, fastmath=True)
def gather_patches(image: Array, row: int, rows: int, size: int, dilation: int, columns: Array) -> None:
    """columns[i size + j, (r, s)] = image[row + r + i dilation, s + j dilation]."""
    width = image.shape[1] - (size - 1) * dilation
    for i in range(size):
        for j in range(size):
            for r in range(rows):
                source = image[row + r + i * dilation, j * dilation : j * dilation + width]
                target = columns[i * size + j, r * width : (r + 1) * width]
                for s in range(width):
                    target[s] = source[s]


@njit(cache=True, fastmath=True)
def scatter_patches(columns: Array, row: int, rows: int, size: int, dilation: int, image: Array) -> None:
    """image[row + r + i dilation, s + j dilation] += columns[i size + j, (r, s)]."""
    width = image.shape[1] - (size - 1) * dilation
    for r in range(rows):
        for i in range(size):
            for j in range(size):
                target = image[row + r + i * dilation, j * dilation : j * dilation + width]
                source = columns[i * size + j, r * width : (r + 1) * width]
                for s in range(width):
                    target[s] += source[s]


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
def spline_slope(t: Array, slope: Array, inverse_spacing: float, factor: Array) -> None:
    """factor := factor phi'(t)."""
    piece = np.empty(BLOCK, np.int32)
    for c in range(t.shape[0]):
        b = slope[c]
        for start in range(0, t.shape[1], BLOCK):
            block, out = t[c, start : start + BLOCK], factor[c, start : start + BLOCK]
            _pieces(block, inverse_spacing, b.size, piece)
            for n in range(block.size):
                out[n] *= b[np.uint64(piece[n])]


@njit(cache=True, fastmath=True)
def piece_sums(t: Array, weight: Array, inverse_spacing: float, zeroth: Array, first: Array) -> None:
    """zeroth[c, p] += sum of weight, first[c, p] += sum of weight t, over the arguments t in piece p."""
    piece = np.empty(BLOCK, np.int32)
    for c in range(t.shape[0]):
        for start in range(0, t.shape[1], BLOCK):
            block, w = t[c, start : start + BLOCK], weight[c, start : start + BLOCK]
            _pieces(block, inverse_spacing, zeroth.shape[1], piece)
            for n in range(block.size):
                p = np.uint64(piece[n])
                zeroth[c, p] += w[n]
                first[c, p] += w[n] * block[n]
