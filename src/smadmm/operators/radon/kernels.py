"""The parallel-beam projector of parallel.py in float32, compiled with numba. One thread; calls release the GIL.

A view whose rays are steep with respect to the rows works on the transposed image, so every view adds up image rows,
each shifted by sigma_r = m + (p + w)/PHASES, into its bins (bins.py). The image is read and written in bands of
rows: a band, its transpose and the bins of a block of views stay in the cache while all these views pass over them. For
a steep view a band is a piece of every transposed row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit

from smadmm.operators.radon.bins import PHASES, F, float32, inlined, sample, spread
from smadmm.operators.radon.transpose import transpose

PAD = 80  # empty cells beside a shifted row; also keeps the rows of `bins` off one cache set
PITCH = 16  # the same for the rows of the transposed image
BLOCK = 8  # views worked on together, so that the image is read and written once for all of them
BAND = 128  # rows worked on together


def compiled(function: F) -> F:
    kernel: Any = njit(fastmath=True, cache=True, nogil=True, error_model="numpy")(function)
    return cast(F, kernel)


class Scratch(NamedTuple):
    """Memory of one running call, kept for the next one."""

    bins: Any  # BLOCK x (PHASES + 1) x cells
    image: Any  # the combined image, band after band
    turned: Any  # bands x width x (BAND + PITCH): the transpose of each band
    knots: Any  # (PHASES + 1) x cells
    slope: Any  # cells
    places: Any  # detectors
    fractions: Any  # detectors


def _aligned(*shape: int, dtype: Any = np.float32) -> Any:
    """Zeros that begin with a cache line."""
    size = math.prod(shape)
    buffer = np.zeros(size + 16, dtype)
    start = -(buffer.ctypes.data // 4) % 16
    return buffer[start : start + size].reshape(shape)


def scratch(height: int, width: int, detectors: int) -> Scratch:
    cells = height + width + PAD
    return Scratch(
        bins=_aligned(BLOCK, PHASES + 1, cells),
        image=_aligned(height, width),
        turned=_aligned(-(-height // BAND), width, BAND + PITCH),
        knots=_aligned(PHASES + 1, cells),
        slope=_aligned(cells),
        places=_aligned(detectors, dtype=np.int32),
        fractions=_aligned(detectors),
    )


@inlined
def combine(first, second, share, total):
    """total = first + share second."""
    for r in range(total.shape[0]):
        out, one, two = total[r], first[r], second[r]
        for c in range(len(out)):
            out[c] = one[c] + share * two[c]


@inlined
def shift_of(r, rows, tau):
    """m, p, 1 - w, w of row r: sigma_r = (r - centre) tau = m + (p + w)/PHASES."""
    sigma = (r - 0.5 * (rows - 1)) * tau * PHASES
    whole = int(np.floor(sigma))
    m = whole // PHASES
    w = float32(sigma - whole)
    return m, whole - m * PHASES, float32(1) - w, w


@inlined
def gather(lines, count, length, top, rows, base, tau, bins):
    """Add lines 0..count, which are the rows from `top` on, into the two bins nearest to their shifts."""
    for i in range(count):
        m, p, w0, w1 = shift_of(top + i, rows, tau)
        k = base + m
        row, low, high = lines[i, :length], bins[p, k : k + length], bins[p + 1, k : k + length]
        for c in range(length):
            low[c] += w0 * row[c]
            high[c] += w1 * row[c]


@inlined
def scatter(lines, count, length, top, rows, base, tau, bins, fresh):
    """The transpose: each line takes from its two bins; `fresh` overwrites the lines."""
    for i in range(count):
        m, p, w0, w1 = shift_of(top + i, rows, tau)
        k = base + m
        row, low, high = lines[i, :length], bins[p, k : k + length], bins[p + 1, k : k + length]
        if fresh:
            for c in range(length):
                row[c] = w0 * low[c] + w1 * high[c]
        else:
            for c in range(length):
                row[c] += w0 * low[c] + w1 * high[c]


@inlined
def scatter_two(lines, count, length, top, rows, base, tau, bins, tau2, bins2, fresh):
    """`scatter` for two views at once: half the traffic with the lines."""
    for i in range(count):
        m, p, w0, w1 = shift_of(top + i, rows, tau)
        k = base + m
        row, low, high = lines[i, :length], bins[p, k : k + length], bins[p + 1, k : k + length]
        m, p, u0, u1 = shift_of(top + i, rows, tau2)
        k = base + m
        low2, high2 = bins2[p, k : k + length], bins2[p + 1, k : k + length]
        if fresh:
            for c in range(length):
                row[c] = w0 * low[c] + w1 * high[c] + u0 * low2[c] + u1 * high2[c]
        else:
            for c in range(length):
                row[c] += w0 * low[c] + w1 * high[c] + u0 * low2[c] + u1 * high2[c]


@inlined
def scatter_views(lines, count, length, top, rows, base, taus, bins, fresh):
    """`scatter` for all views of a block, two at a time."""
    views = len(taus)
    for q in range(0, views - 1, 2):
        scatter_two(lines, count, length, top, rows, base, taus[q], bins[q], taus[q + 1], bins[q + 1], fresh and q == 0)
    if views % 2:
        scatter(lines, count, length, top, rows, base, taus[-1], bins[views - 1], fresh and views == 1)


@inlined
def steep_first(cosines, sines):
    """The views in the order of work, how many are steep, and of each the larger of cosine and sine in size, the other,
    and the shift from row to row."""
    is_steep = np.abs(cosines) < np.abs(sines)
    order = np.argsort(~is_steep, kind="mergesort")
    dominant, other = np.where(is_steep, sines, cosines)[order], np.where(is_steep, cosines, sines)[order]
    return order, int(is_steep.sum()), dominant, other, other / dominant


@compiled
def project(image, second, share, cosines, sines, origin, spacing, memory, out):
    """out[v] = A_v (image + share second)."""
    height, width = image.shape
    order, steep, dominant, other, taus = steep_first(cosines, sines)
    bins, cell_count = memory.bins, memory.bins.shape[2]
    flat_base, steep_base = (cell_count - width) // 2, (cell_count - height) // 2
    one_block = len(order) <= BLOCK  # then all bands share the memory of the first, and it stays in the cache
    for start in range(0, len(order), BLOCK):
        stop = min(len(order), start + BLOCK)
        bins[: stop - start] = float32(0)
        for top in range(0, height, BAND):
            count = min(height - top, BAND)
            slot = 0 if one_block else top // BAND
            band, turned = image[top : top + count], memory.turned[slot]
            if share != 0:
                band = memory.image[slot * BAND : slot * BAND + count]
                if start == 0:
                    combine(image[top : top + count], second[top : top + count], share, band)
            if steep and start == 0:
                transpose(band, turned, count, width)
            for q in range(start, stop):
                if q < steep:
                    gather(turned, width, count, 0, width, steep_base + top, taus[q], bins[q - start])
                else:
                    gather(band, count, width, top, height, flat_base, taus[q], bins[q - start])
        for q in range(start, stop):
            rows, columns = (width, height) if q < steep else (height, width)
            sample(bins[q - start], rows, columns, dominant[q], other[q], origin, spacing, memory, out[order[q]])


@compiled
def back_project(y, cosines, sines, origin, spacing, memory, out):
    """out = sum_v A_v' y[v]."""
    height, width = out.shape
    order, steep, dominant, other, taus = steep_first(cosines, sines)
    bins, cell_count = memory.bins, memory.bins.shape[2]
    flat_base, steep_base = (cell_count - width) // 2, (cell_count - height) // 2
    one_block = len(order) <= BLOCK
    if len(order) == 0:
        out[:] = float32(0)
    for start in range(0, len(order), BLOCK):
        stop = min(len(order), start + BLOCK)
        middle = max(start, min(stop, steep))  # steep views up to here, flat ones from here on
        for q in range(start, stop):
            rows, columns = (width, height) if q < steep else (height, width)
            spread(y[order[q]], rows, columns, dominant[q], other[q], origin, spacing, memory, bins[q - start])
        flat_bins = bins[middle - start :]
        for top in range(0, height, BAND):
            count = min(height - top, BAND)
            band, turned = out[top : top + count], memory.turned[0 if one_block else top // BAND]
            if start < steep:
                scatter_views(turned, width, count, 0, width, steep_base + top, taus[start:middle], bins, start == 0)
                if steep <= stop:
                    transpose(turned, band, width, count)
            if middle < stop:
                fresh = middle == 0
                scatter_views(band, count, width, top, height, flat_base, taus[middle:stop], flat_bins, fresh)


@compiled
def gradient(x, other, share, cosines, sines, origin, spacing, memory, data, data_share, weights, scale, residual, out):
    """out = scale A_S'(weights * (A_S (x + share other) - data_share data)); no weights where the array is empty."""
    project(x, other, share, cosines, sines, origin, spacing, memory, residual)
    for v in range(residual.shape[0]):
        for j in range(residual.shape[1]):
            residual[v, j] = scale * (residual[v, j] - data_share * data[v, j])
    if weights.size:
        for v in range(residual.shape[0]):
            for j in range(residual.shape[1]):
                residual[v, j] *= weights[v, j]
    back_project(residual, cosines, sines, origin, spacing, memory, out)
