"""The parallel-beam projector of parallel.py in float32, compiled with numba. One thread; calls release the GIL.

A view whose rays are steep with respect to the rows works on the transposed image, so every view adds up image rows,
each shifted by sigma_r = m + (p + w)/PHASES, into its bins (bins.py). The image is read and written in bands of
rows: a band, its transpose and the bins of a block of views stay in the cache while all these views pass over them. For
a steep view a band is a piece of every transposed row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from smadmm.compilation import compiled, inlined
from smadmm.operators.radon.bins import PHASES, float32, sample, spread
from smadmm.operators.radon.transpose import transpose

PAD = 80  # empty cells beside a shifted row; also keeps the rows of `bins` off one cache set
PITCH = 16  # the same for the rows of the transposed image
BLOCK = 8  # views worked on together, so that the image is read and written once for all of them
BAND = 128  # rows worked on together

ONE = np.uint64(1)
STEEP, DOMINANT, OTHER = range(3)  # of a view: 1 or 0; the larger of cosine and sine in size; the other


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


@inlined()
def combine(first, second, share, total):
    """total = first + share second."""
    for r in range(total.shape[0]):
        out, one, two = total[r], first[r], second[r]
        for c in range(len(out)):
            out[c] = one[c] + share * two[c]


@inlined()
def shift_of(r, rows, tau, base):
    """base + m, p, 1 - w, w of row r: sigma_r = (r - centre) tau = m + (p + w)/PHASES.

    The first two are unsigned: as indices they are not tested for being negative.
    """
    sigma = (r - 0.5 * (rows - 1)) * tau * PHASES
    whole = int(np.floor(sigma))
    m, w = whole // PHASES, float32(sigma - whole)
    return np.uint64(base + m), np.uint64(whole - m * PHASES), float32(1) - w, w


@inlined()
def gather(lines, count, length, top, rows, base, tau, bins):
    """Add lines 0..count, which are the rows from `top` on, into the two bins nearest to their shifts."""
    for i in range(count):
        k, p, w0, w1 = shift_of(top + i, rows, tau, base)
        row, low, high = lines[i], bins[p], bins[p + ONE]
        for c in range(np.uint64(length)):
            low[k + c] += w0 * row[c]
            high[k + c] += w1 * row[c]


@inlined()
def scatter(lines, count, length, top, rows, base, tau, bins, fresh):
    """The transpose: each line takes from its two bins; `fresh` overwrites the lines."""
    for i in range(count):
        k, p, w0, w1 = shift_of(top + i, rows, tau, base)
        row, low, high = lines[i], bins[p], bins[p + ONE]
        if fresh:
            for c in range(np.uint64(length)):
                row[c] = w0 * low[k + c] + w1 * high[k + c]
        else:
            for c in range(np.uint64(length)):
                row[c] += w0 * low[k + c] + w1 * high[k + c]


@inlined()
def scatter_two(lines, count, length, top, rows, base, tau, bins, tau2, bins2, fresh):
    """`scatter` for two views at once: half the traffic with the lines."""
    for i in range(count):
        k, p, w0, w1 = shift_of(top + i, rows, tau, base)
        m, q, u0, u1 = shift_of(top + i, rows, tau2, base)
        row, low, high, low2, high2 = lines[i], bins[p], bins[p + ONE], bins2[q], bins2[q + ONE]
        if fresh:
            for c in range(np.uint64(length)):
                row[c] = w0 * low[k + c] + w1 * high[k + c] + u0 * low2[m + c] + u1 * high2[m + c]
        else:
            for c in range(np.uint64(length)):
                row[c] += w0 * low[k + c] + w1 * high[k + c] + u0 * low2[m + c] + u1 * high2[m + c]


@inlined()
def steep_first(rays, order):
    """order := the views, steep ones first; returns how many these are."""
    steep = 0
    for v in range(len(order)):
        if rays[v, STEEP]:
            order[steep] = v
            steep += 1
    place = steep
    for v in range(len(order)):
        if not rays[v, STEEP]:
            order[place] = v
            place += 1
    return steep


@compiled()
def project(image, second, share, rays, order, origin, spacing, memory, out):
    """out[v] = A_v (image + share second). `order` is scratch memory, a number for each view."""
    height, width = image.shape
    steep = steep_first(rays, order)
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
                tau = rays[order[q], OTHER] / rays[order[q], DOMINANT]
                if q < steep:
                    gather(turned, width, count, 0, width, steep_base + top, tau, bins[q - start])
                else:
                    gather(band, count, width, top, height, flat_base, tau, bins[q - start])
        for q in range(start, stop):
            v = order[q]
            rows, columns = (width, height) if q < steep else (height, width)
            sample(bins[q - start], rows, columns, rays[v, DOMINANT], rays[v, OTHER], origin, spacing, memory, out[v])


@compiled()
def back_project(y, rays, order, origin, spacing, memory, out):
    """out = sum_v A_v' y[v]."""
    height, width = out.shape
    steep = steep_first(rays, order)
    bins, cell_count = memory.bins, memory.bins.shape[2]
    flat_base, steep_base = (cell_count - width) // 2, (cell_count - height) // 2
    one_block = len(order) <= BLOCK
    if len(order) == 0:
        out[:] = float32(0)
    for start in range(0, len(order), BLOCK):
        stop = min(len(order), start + BLOCK)
        middle = max(start, min(stop, steep))  # steep views up to here, flat ones from here on
        for q in range(start, stop):
            v = order[q]
            rows, columns = (width, height) if q < steep else (height, width)
            spread(y[v], rows, columns, rays[v, DOMINANT], rays[v, OTHER], origin, spacing, memory, bins[q - start])
        for top in range(0, height, BAND):
            count = min(height - top, BAND)
            band, turned = out[top : top + count], memory.turned[0 if one_block else top // BAND]
            for flat in range(2):
                if flat:
                    lines, number, length, first, rows, base = band, count, width, top, height, flat_base
                    begin, end = middle, stop
                else:
                    lines, number, length, first, rows, base = turned, width, count, 0, width, steep_base + top
                    begin, end = start, middle
                for q in range(begin, end - 1, 2):
                    v, v2 = order[q], order[q + 1]
                    tau, tau2 = rays[v, OTHER] / rays[v, DOMINANT], rays[v2, OTHER] / rays[v2, DOMINANT]
                    one, two = bins[q - start], bins[q - start + 1]
                    scatter_two(lines, number, length, first, rows, base, tau, one, tau2, two, q == 0)
                if (end - begin) % 2:
                    v, one = order[end - 1], bins[end - 1 - start]
                    tau = rays[v, OTHER] / rays[v, DOMINANT]
                    scatter(lines, number, length, first, rows, base, tau, one, end == 1)
                if not flat and start < steep <= stop:
                    transpose(turned, band, width, count)


@compiled()
def weigh(residual, data, data_share, weights, scale):
    """residual := scale weights * (residual - data_share data); no weights where the array is empty."""
    for v in range(residual.shape[0]):
        one, b = residual[v], data[v]
        for j in range(len(one)):
            one[j] = scale * (one[j] - data_share * b[j])
        if weights.size:
            w = weights[v]
            for j in range(len(one)):
                one[j] *= w[j]
