"""The detector side of the compiled projector: from the sums of shifted rows to the detectors, and back.

`bins` is (PHASES + 1) x cells: row p holds what is shifted by p/PHASES of a cell (the last, p = PHASES, is the first
shifted by one whole cell). Only the cells begin..end of a view hold anything. All loops but those over detectors run
over contiguous memory.
"""

from __future__ import annotations

import numpy as np

from smadmm.compilation import inlined

PHASES = 8

float32 = np.float32


@inlined()
def refine(bins, begin, end, slope, knots):
    """knots[q, u] = sum_p bins_p(u + (q - p)/PHASES), bins_p being interpolated linearly; bins are 0 at both ends.

    The sum is linear between these points. Its slope after knot q differs from that before by the bend of bins_q at u:
        knots_{q+1} = knots_q + slope_q / PHASES,   slope_q = slope_{q-1} + bins_q(u-1) - 2 bins_q(u) + bins_q(u+1).
    """
    count, phases = end - begin, bins.shape[0] - 1  # a constant would be unrolled, which only takes longer to compile
    first, rise = knots[0, begin:end], slope[begin:end]
    row, after = bins[0, begin:end], bins[0, begin + 1 : end + 1]
    for u in range(count):
        first[u] = row[u]
        rise[u] = after[u] - row[u]
    for p in range(1, phases + 1):
        share = float32(p / PHASES)
        row, before = bins[p, begin:end], bins[p, begin - 1 : end - 1]
        for u in range(count):
            step = row[u] - before[u]
            first[u] += row[u] - share * step
            rise[u] += step
    for q in range(phases):
        now, then = knots[q, begin:end], knots[q + 1, begin:end]
        row, before, after = bins[q + 1, begin:end], bins[q + 1, begin - 1 : end - 1], bins[q + 1, begin + 1 : end + 1]
        for u in range(count):
            then[u] = now[u] + float32(1 / PHASES) * rise[u]
            rise[u] += before[u] - row[u] + (after[u] - row[u])


@inlined()
def refine_transposed(knots, begin, end, slope, bins):
    """bins = refine' knots; knots is overwritten, and is 0 at both ends."""
    count, phases = end - begin, bins.shape[0] - 1
    bend, total = slope[begin:end], knots[phases, begin:end]
    before, here, after = slope[begin - 1 : end - 1], slope[begin:end], slope[begin + 1 : end + 1]
    slope[begin - 1 : end + 1] = float32(0)
    for q in range(phases - 1, -1, -1):
        now = knots[q, begin:end]
        for u in range(count):
            bend[u] += float32(1 / PHASES) * total[u]
            total[u] += now[u]
        if q > 0:
            row = bins[q, begin:end]
            for u in range(count):
                row[u] = before[u] - here[u] + (after[u] - here[u])
    bins[phases, begin:end] = float32(0)
    row, total_after = bins[0, begin:end], knots[phases, begin + 1 : end + 1]
    for u in range(count):
        row[u] = total[u] + before[u] - here[u]
    for p in range(1, phases + 1):
        row, share = bins[p, begin:end], float32(p / PHASES)
        for u in range(count):
            row[u] += total[u] + share * (total_after[u] - total[u]) + (here[u] - after[u])


@inlined()
def window(rows, columns, tau, cell_count):
    """The cells that the rows of a view reach, their neighbours included."""
    base, reach = (cell_count - columns) // 2, int(0.5 * (rows - 1) * abs(tau)) + 1
    return base - reach - 4, base + columns + reach + 4


@inlined()
def cells(detectors, columns, step, origin, begin, end, memory):
    """The knot at or before each detector (its place in the flattened array) and the way to the next one.

    Returns the range of detectors that see the cells begin..end. Positions are computed in double precision: in single,
    errors of 1e-4 cells would come near the tolerance.
    """
    cell_count = len(memory.slope)
    start = 0.5 * (columns - 1) + (cell_count - columns) // 2 + origin * step
    one, other = (begin + 1.0 - start) / step, (end - 2.0 - start) / step
    first = max(0, int(np.ceil(max(-1.0, min(one, other)))))
    last = min(detectors, int(np.floor(min(detectors + 1.0, max(one, other)))) + 1)
    for j in range(first, last):
        position = PHASES * (start + j * step)
        knot = np.int32(position)
        memory.places[j] = (knot % PHASES) * cell_count + knot // PHASES
        memory.fractions[j] = float32(position - knot)
    return first, max(first, last)


@inlined()
def sample(bins, rows, columns, dominant, other, origin, spacing, memory, out):
    """out_j = 1/|dominant| sum_p bins_p(position_j - p/PHASES)."""
    count = bins.shape[1]
    begin, end = window(rows, columns, other / dominant, count)
    refine(bins, begin, end, memory.slope, memory.knots)
    first, last = cells(len(out), columns, spacing / dominant, origin, begin, end, memory)
    values, weight = memory.knots.reshape(memory.knots.size), float32(1 / abs(dominant))
    places, fractions = memory.places, memory.fractions
    out[:] = float32(0)
    for j in range(first, last):
        value = values[places[j]]
        out[j] = weight * (value + fractions[j] * (values[places[j] + count] - value))


@inlined()
def spread(y, rows, columns, dominant, other, origin, spacing, memory, bins):
    """The transpose of `sample`."""
    count = bins.shape[1]
    begin, end = window(rows, columns, other / dominant, count)
    for q in range(memory.knots.shape[0]):
        memory.knots[q, begin : end + 1] = float32(0)
    first, last = cells(len(y), columns, spacing / dominant, origin, begin, end, memory)
    values, weight = memory.knots.reshape(memory.knots.size), float32(1 / abs(dominant))
    places, fractions = memory.places, memory.fractions
    for j in range(first, last):
        value = weight * y[j]
        values[places[j]] += value - fractions[j] * value
        values[places[j] + count] += fractions[j] * value
    refine_transposed(memory.knots, begin, end, memory.slope, bins)
