"""The parallel-beam projector of radon.py in float32, compiled with numba. One thread; calls release the GIL.

A view whose rays are steep with respect to the rows works on the transposed image, so every view adds up image rows,
each shifted by sigma_r = m + (p + w)/PHASES. In `bins` row p gathers what is shifted by p/PHASES (the last, p = PHASES,
is the first shifted by one whole cell). All inner loops run over contiguous memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit

PHASES = 8
PAD = 80  # empty cells beside a shifted row; also keeps the rows of `bins` off one cache set
PITCH = 16  # the same for the rows of the transposed image
BLOCK_VIEWS = 8  # back-projected together, so that the image is read and written once for all of them
BLOCK_ROWS = 16

float32 = np.float32
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    return njit(fastmath=True, cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


class Scratch(NamedTuple):
    """Memory of one running call. Allocated once: inside the kernels it would make the inner loops a third slower."""

    bins: Any  # BLOCK_VIEWS x (PHASES + 1) x cells
    turned: Any  # the transposed image
    knots: Any  # (PHASES + 1) x cells
    slope: Any  # cells
    places: Any  # detectors
    fractions: Any  # detectors


def scratch(height: int, width: int, detectors: int) -> Scratch:
    cells = height + width + PAD
    return Scratch(
        np.zeros((BLOCK_VIEWS, PHASES + 1, cells), np.float32),
        np.zeros((width, height + PITCH), np.float32),
        np.zeros((PHASES + 1, cells), np.float32),
        np.zeros(cells, np.float32),
        np.zeros(detectors, np.int32),
        np.zeros(detectors, np.float32),
    )


@compiled
def transpose(source, target, rows, columns):  # type: ignore[no-untyped-def]
    """target[:columns, :rows] = source[:rows, :columns]', in 4 x 4 tiles that stay in registers."""
    whole_rows, whole_columns = rows - rows % 4, columns - columns % 4
    for r in range(0, whole_rows, 4):
        for c in range(0, whole_columns, 4):
            a, b, d, e = source[r], source[r + 1], source[r + 2], source[r + 3]
            for k in range(c, c + 4):
                line = target[k]
                line[r], line[r + 1], line[r + 2], line[r + 3] = a[k], b[k], d[k], e[k]
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            target[c, r] = source[r, c]


@compiled
def shift_of(r, rows, tau):  # type: ignore[no-untyped-def]
    """m, p, 1 - w, w of row r: sigma_r = (r - centre) tau = m + (p + w)/PHASES."""
    sigma = (r - 0.5 * (rows - 1)) * tau * PHASES
    whole = int(np.floor(sigma))
    m = whole // PHASES
    w = float32(sigma - whole)
    return m, whole - m * PHASES, float32(1) - w, w


@compiled
def gather_rows(image, rows, columns, tau, bins):  # type: ignore[no-untyped-def]
    """Add every image row into the two bins nearest to its shift."""
    bins[:] = float32(0)
    base = (bins.shape[1] - columns) // 2
    for r in range(rows):
        m, p, w0, w1 = shift_of(r, rows, tau)
        k = base + m
        row, low, high = image[r, :columns], bins[p, k : k + columns], bins[p + 1, k : k + columns]
        for c in range(columns):
            low[c] += w0 * row[c]
            high[c] += w1 * row[c]


@compiled
def scatter_rows(image, rows, columns, tau, bins, fresh, begin, end):  # type: ignore[no-untyped-def]
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


@compiled
def scatter_rows_of_two(image, rows, columns, tau, bins, tau2, bins2, fresh, begin, end):  # type: ignore[no-untyped-def]
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


@compiled
def refine(bins, slope, knots):  # type: ignore[no-untyped-def]
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


@compiled
def refine_transposed(knots, slope, bins):  # type: ignore[no-untyped-def]
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


@compiled
def cells(detectors, columns, dominant, origin, spacing, memory):  # type: ignore[no-untyped-def]
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


@compiled
def sample(bins, columns, dominant, origin, spacing, memory, out):  # type: ignore[no-untyped-def]
    """out_j = 1/|dominant| sum_p bins_p(position_j - p/PHASES)."""
    refine(bins, memory.slope, memory.knots)
    begin, end = cells(len(out), columns, dominant, origin, spacing, memory)
    values, count, weight = memory.knots.ravel(), bins.shape[1], float32(1 / abs(dominant))
    places, fractions = memory.places, memory.fractions
    out[:] = float32(0)
    for j in range(begin, end):
        value = values[places[j]]
        out[j] = weight * (value + fractions[j] * (values[places[j] + count] - value))


@compiled
def spread(y, columns, dominant, origin, spacing, memory, bins):  # type: ignore[no-untyped-def]
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


@compiled
def project(image, cosines, sines, origin, spacing, memory, out):  # type: ignore[no-untyped-def]
    """out[v] = A_v image."""
    height, width = image.shape
    bins, turned = memory.bins[0], memory.turned
    is_turned = False
    for v in range(len(cosines)):
        c, s = cosines[v], sines[v]
        if abs(c) >= abs(s):
            gather_rows(image, height, width, s / c, bins)
            sample(bins, width, c, origin, spacing, memory, out[v])
        else:
            if not is_turned:
                transpose(image, turned, height, width)
                is_turned = True
            gather_rows(turned, width, height, c / s, bins)
            sample(bins, height, s, origin, spacing, memory, out[v])


@compiled
def scatter_views(y, views, dominant, other, origin, spacing, memory, image, rows, columns, fresh):  # type: ignore[no-untyped-def]
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
def back_project(y, cosines, sines, origin, spacing, memory, out):  # type: ignore[no-untyped-def]
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
def gradient(  # type: ignore[no-untyped-def]
    image, cosines, sines, origin, spacing, memory, data, data_scale, weights, scale, residual, out
):
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
