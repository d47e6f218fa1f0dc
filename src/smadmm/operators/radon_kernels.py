"""The parallel-beam projector of radon.py in float32, compiled with numba. One thread; calls release the GIL.

A view whose rays are steep with respect to the rows works on the transposed image, so every view adds up image rows,
each shifted by sigma_r = m + (p + w)/PHASES. In `bins` row p gathers what is shifted by p/PHASES (the last, p = PHASES,
is the first shifted by one whole cell). All inner loops run over contiguous memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

PHASES = 8
PAD = 80  # empty cells beside a shifted row; also keeps the rows of `bins` off one cache set
PITCH = 16  # the same for the rows of the transposed image
BLOCK_VIEWS = 8  # worked on together, so that the image is read and written once for all of them
BLOCK_ROWS = 64  # of the image, worked on for all these views while in the cache

float32 = np.float32
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    kernel: Any = njit(fastmath=True, cache=True, nogil=True, error_model="numpy")(function)
    return cast(F, kernel)


def inlined(function: F) -> F:
    """For kernels inside kernels. Not functions of their own: the linker may take another compilation of one, with
    other roundings, in the process that compiles than in those that load from the cache."""
    kernel: Any = njit(fastmath=True, nogil=True, error_model="numpy", inline="always")(function)
    return cast(F, kernel)


class Scratch(NamedTuple):
    """Memory of one running call, kept for the next one."""

    bins: Any  # BLOCK_VIEWS x (PHASES + 1) x cells
    turned: Any  # the transposed image
    knots: Any  # (PHASES + 1) x cells
    slope: Any  # cells
    places: Any  # detectors
    fractions: Any  # detectors
    image: Any  # a combination of images, made by the caller


def _aligned(*shape: int, dtype: Any = np.float32) -> Any:
    """Zeros that begin with a cache line."""
    size = math.prod(shape)
    buffer = np.zeros(size + 16, dtype)
    start = -(buffer.ctypes.data // 4) % 16
    return buffer[start : start + size].reshape(shape)


def scratch(height: int, width: int, detectors: int) -> Scratch:
    cells = height + width + PAD
    return Scratch(
        bins=_aligned(BLOCK_VIEWS, PHASES + 1, cells),
        turned=_aligned(width, height + PITCH),
        knots=_aligned(PHASES + 1, cells),
        slope=_aligned(cells),
        places=_aligned(detectors, dtype=np.int32),
        fractions=_aligned(detectors),
        image=_aligned(height, width),
    )


@inlined
def transpose(source, target, rows, columns):
    """target[:columns, :rows] = source[:rows, :columns]', in 8 x 8 tiles: about the price of a plain copy."""
    whole_rows, whole_columns = rows - rows % 8, columns - columns % 8
    for r in range(0, whole_rows, 8):
        for c in range(0, whole_columns, 8):
            for k in range(c, c + 8):
                line = target[k, r : r + 8]
                line[0], line[1], line[2], line[3] = source[r, k], source[r + 1, k], source[r + 2, k], source[r + 3, k]
                line[4], line[5], line[6], line[7] = (
                    source[r + 4, k],
                    source[r + 5, k],
                    source[r + 6, k],
                    source[r + 7, k],
                )
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            target[c, r] = source[r, c]


@inlined
def shift_of(r, rows, tau):
    """m, p, 1 - w, w of row r: sigma_r = (r - centre) tau = m + (p + w)/PHASES."""
    sigma = (r - 0.5 * (rows - 1)) * tau * PHASES
    whole = int(np.floor(sigma))
    m = whole // PHASES
    w = float32(sigma - whole)
    return m, whole - m * PHASES, float32(1) - w, w


@inlined
def gather_rows(image, rows, columns, tau, bins, begin, end):
    """Add rows begin..end of the image into the two bins nearest to their shifts."""
    base = (bins.shape[1] - columns) // 2
    for r in range(begin, end):
        m, p, w0, w1 = shift_of(r, rows, tau)
        k = base + m
        row, low, high = image[r, :columns], bins[p, k : k + columns], bins[p + 1, k : k + columns]
        for c in range(columns):
            low[c] += w0 * row[c]
            high[c] += w1 * row[c]


@inlined
def scatter_rows(image, rows, columns, tau, bins, fresh, begin, end):
    """The transpose for rows begin..end: each takes from its two bins; `fresh` overwrites the image."""
    base = (bins.shape[1] - columns) // 2
    for r in range(begin, end):
        m, p, w0, w1 = shift_of(r, rows, tau)
        k = base + m
        row, low, high = image[r, :columns], bins[p, k : k + columns], bins[p + 1, k : k + columns]
        if fresh:
            for c in range(columns):
                row[c] = w0 * low[c] + w1 * high[c]
        else:
            for c in range(columns):
                row[c] += w0 * low[c] + w1 * high[c]


@inlined
def scatter_rows_of_two(image, rows, columns, tau, bins, tau2, bins2, fresh, begin, end):
    """scatter_rows for two views at once: half the traffic with the image."""
    base = (bins.shape[1] - columns) // 2
    for r in range(begin, end):
        m, p, w0, w1 = shift_of(r, rows, tau)
        k = base + m
        row, low, high = image[r, :columns], bins[p, k : k + columns], bins[p + 1, k : k + columns]
        m, p, u0, u1 = shift_of(r, rows, tau2)
        k = base + m
        low2, high2 = bins2[p, k : k + columns], bins2[p + 1, k : k + columns]
        if fresh:
            for c in range(columns):
                row[c] = w0 * low[c] + w1 * high[c] + u0 * low2[c] + u1 * high2[c]
        else:
            for c in range(columns):
                row[c] += w0 * low[c] + w1 * high[c] + u0 * low2[c] + u1 * high2[c]


@inlined
def refine(bins, slope, knots):
    """knots[q, u] = sum_p bins_p(u + (q - p)/PHASES), bins_p being interpolated linearly.

    The sum is linear between these points. Its slope after knot q differs from that before by the bend of bins_q at u:
        knots_{q+1} = knots_q + slope_q / PHASES,   slope_q = slope_{q-1} + bins_q(u-1) - 2 bins_q(u) + bins_q(u+1).
    """
    count = bins.shape[1]
    first, row, before, after = knots[0], bins[0, 1:], bins[0, : count - 2], bins[0, 2:]
    first[0] = first[count - 1] = slope[0] = slope[count - 1] = float32(0)
    inner, inner_slope = first[1:], slope[1:]
    for u in range(count - 2):
        inner[u] = row[u]
        inner_slope[u] = after[u] - row[u]
    for p in range(1, PHASES + 1):
        share = float32(p / PHASES)
        row, before = bins[p, 1:], bins[p, : count - 2]
        for u in range(count - 2):
            rise = row[u] - before[u]
            inner[u] += row[u] - share * rise
            inner_slope[u] += rise
    for q in range(PHASES):
        now, then = knots[q], knots[q + 1]
        for u in range(count):
            then[u] = now[u] + float32(1 / PHASES) * slope[u]
        if q + 1 < PHASES:
            row, before, after = bins[q + 1, 1:], bins[q + 1, : count - 2], bins[q + 1, 2:]
            for u in range(count - 2):
                inner_slope[u] += before[u] - row[u] + (after[u] - row[u])


@inlined
def refine_transposed(knots, slope, bins):
    """bins = refine' knots; knots is overwritten."""
    count = bins.shape[1]
    slope[:] = float32(0)
    total = knots[PHASES]
    for q in range(PHASES - 1, -1, -1):
        now = knots[q]
        for u in range(count):
            slope[u] += float32(1 / PHASES) * total[u]
            total[u] += now[u]
        if q > 0:
            row, before, here, after = bins[q, 1:], slope[: count - 2], slope[1:], slope[2:]
            for u in range(count - 2):
                row[u] = before[u] - here[u] + (after[u] - here[u])
    last = bins[PHASES, 1:]
    last[:] = float32(0)
    row, before, here, after, weight = bins[0, 1:], slope[: count - 2], slope[1:], slope[2:], total[1:]
    for u in range(count - 2):
        row[u] = weight[u] + before[u] - here[u]
    after_weight = total[2:]
    for p in range(1, PHASES + 1):
        row, share = bins[p, 1:], float32(p / PHASES)
        for u in range(count - 2):
            row[u] += weight[u] + share * (after_weight[u] - weight[u]) + (here[u] - after[u])


@inlined
def cells(detectors, columns, dominant, origin, spacing, memory):
    """The knot at or before each detector (its place in the flattened array) and the way to the next one.

    Returns the range of detectors that see cells. Positions are computed in double precision: in single, errors of 1e-4
    cells would come near the tolerance.
    """
    cell_count = len(memory.slope)
    step = spacing / dominant
    start = 0.5 * (columns - 1) + (cell_count - columns) // 2 + origin * step
    one, other = (2.0 - start) / step, (cell_count - 4.0 - start) / step
    begin = max(0, int(np.ceil(max(-1.0, min(one, other)))))
    end = min(detectors, int(np.floor(min(detectors + 1.0, max(one, other)))) + 1)
    for j in range(begin, end):
        position = PHASES * (start + j * step)
        knot = np.int32(position)
        memory.places[j] = (knot % PHASES) * cell_count + knot // PHASES
        memory.fractions[j] = float32(position - knot)
    return begin, max(begin, end)


@inlined
def sample(bins, columns, dominant, origin, spacing, memory, out):
    """out_j = 1/|dominant| sum_p bins_p(position_j - p/PHASES)."""
    refine(bins, memory.slope, memory.knots)
    begin, end = cells(len(out), columns, dominant, origin, spacing, memory)
    values, count, weight = memory.knots.ravel(), bins.shape[1], float32(1 / abs(dominant))
    places, fractions = memory.places, memory.fractions
    out[:] = float32(0)
    for j in range(begin, end):
        value = values[places[j]]
        out[j] = weight * (value + fractions[j] * (values[places[j] + count] - value))


@inlined
def spread(y, columns, dominant, origin, spacing, memory, bins):
    """The transpose of `sample`."""
    memory.knots[:] = float32(0)
    begin, end = cells(len(y), columns, dominant, origin, spacing, memory)
    values, count, weight = memory.knots.ravel(), bins.shape[1], float32(1 / abs(dominant))
    places, fractions = memory.places, memory.fractions
    for j in range(begin, end):
        value = weight * y[j]
        values[places[j]] += value - fractions[j] * value
        values[places[j] + count] += fractions[j] * value
    refine_transposed(memory.knots, memory.slope, bins)


@inlined
def gather_views(image, rows, columns, views, dominant, other, origin, spacing, memory, out):
    """out[v] = A_v image for views that run along the rows."""
    bins = memory.bins
    for start in range(0, len(views), BLOCK_VIEWS):
        block = views[start : start + BLOCK_VIEWS]
        bins[: len(block)] = float32(0)
        for top in range(0, rows, BLOCK_ROWS):
            for q, v in enumerate(block):
                gather_rows(image, rows, columns, other[v] / dominant[v], bins[q], top, min(rows, top + BLOCK_ROWS))
        for q, v in enumerate(block):
            sample(bins[q], columns, dominant[v], origin, spacing, memory, out[v])


@compiled
def project(image, cosines, sines, origin, spacing, memory, out):
    """out[v] = A_v image."""
    height, width = image.shape
    flat = np.flatnonzero(np.abs(cosines) >= np.abs(sines))
    steep = np.flatnonzero(np.abs(cosines) < np.abs(sines))
    gather_views(image, height, width, flat, cosines, sines, origin, spacing, memory, out)
    if len(steep):
        transpose(image, memory.turned, height, width)
        gather_views(memory.turned, width, height, steep, sines, cosines, origin, spacing, memory, out)


@inlined
def scatter_views(y, views, dominant, other, origin, spacing, memory, image, rows, columns, fresh):
    """image += sum of A_v' y_v over views that run along the rows (image = ... where fresh)."""
    bins = memory.bins
    for start in range(0, len(views), BLOCK_VIEWS):
        block = views[start : start + BLOCK_VIEWS]
        count = len(block)
        for q in range(count):
            spread(y[block[q]], columns, dominant[block[q]], origin, spacing, memory, bins[q])
        for top in range(0, rows, BLOCK_ROWS):
            bottom = min(rows, top + BLOCK_ROWS)
            for q in range(0, count - 1, 2):
                a, b = block[q], block[q + 1]
                tau, tau2, first = other[a] / dominant[a], other[b] / dominant[b], fresh and start + q == 0
                scatter_rows_of_two(image, rows, columns, tau, bins[q], tau2, bins[q + 1], first, top, bottom)
            if count % 2:
                tau, first = other[block[-1]] / dominant[block[-1]], fresh and start + count == 1
                scatter_rows(image, rows, columns, tau, bins[count - 1], first, top, bottom)


@compiled
def back_project(y, cosines, sines, origin, spacing, memory, out):
    """out = sum_v A_v' y[v]."""
    height, width = out.shape
    flat = np.flatnonzero(np.abs(cosines) >= np.abs(sines))
    steep = np.flatnonzero(np.abs(cosines) < np.abs(sines))
    if len(steep):
        scatter_views(y, steep, sines, cosines, origin, spacing, memory, memory.turned, width, height, True)
        transpose(memory.turned, out, width, height)
    if len(flat):
        scatter_views(y, flat, cosines, sines, origin, spacing, memory, out, height, width, len(steep) == 0)
    elif len(steep) == 0:
        out[:] = float32(0)


@compiled
def gradient(image, cosines, sines, origin, spacing, memory, data, data_scale, weights, scale, residual, out):
    """out = scale A_S' (weights * (A_S image - data_scale data)); no weights where the array is empty."""
    project(image, cosines, sines, origin, spacing, memory, residual)
    for v in range(residual.shape[0]):
        for j in range(residual.shape[1]):
            residual[v, j] = scale * (residual[v, j] - data_scale * data[v, j])
    if weights.size:
        for v in range(residual.shape[0]):
            for j in range(residual.shape[1]):
                residual[v, j] *= weights[v, j]
    back_project(residual, cosines, sines, origin, spacing, memory, out)
