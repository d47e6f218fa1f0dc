"""Compiled loops of the dual of total variation: several steps in one pass over images N x H x W, and the duality gap.

The dual field p is N x H x 2 x W, of each row the components down and right. In the last row and the last column those
that lead out of the image stay 0, so the last row also stands for the one above the first. A step reads rows i and
i + 1 and writes row i; step s + 1 follows one row behind step s, while the rows are still in the cache, and writes over
the point before the last. What a step needs of two rows is kept in `rows`, steps x 2 x 3 x W: the two components of q,
and y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smadmm.compilation import compiled, inlined


@inlined()
def _extrapolate(p: Any, before: Any, pull: float, q: Any) -> None:
    """A row of q = p + pull (p - before)."""
    for axis in range(2):
        last, previous, out, share = p[axis], before[axis], q[axis], p.dtype.type(pull)
        for j in range(out.size):
            out[j] = last[j] + share * (last[j] - previous[j])


@inlined()
def _image(v: Any, above: Any, p: Any, weight: float, y: Any) -> None:
    """A row of y = v - weight D'p; `above` is the row above of the component down."""
    down, right, w = p[0], p[1], y.dtype.type(weight)
    y[0] = v[0] - w * (above[0] - down[0] - right[0])
    v, above, down, left, right, y = v[1:], above[1:], down[1:], right[:-1], right[1:], y[1:]
    for j in range(y.size):
        y[j] = v[j] - w * (above[j] - down[j] + left[j] - right[j])


@inlined()
def _project(row: Any, below: Any, step: float, new: Any) -> None:
    """A row of new = q + step D y cut to |new| <= 1."""
    down, right, y, beside, last = row[0], row[1], row[2], row[2, 1:], row.shape[1] - 1
    new_down, new_right, h, one = new[0], new[1], y.dtype.type(step), y.dtype.type(1)
    for j in range(last):
        a, b = down[j] + h * (below[j] - y[j]), right[j] + h * (beside[j] - y[j])
        inverse = one / np.sqrt(max(one, a * a + b * b))
        new_down[j], new_right[j] = a * inverse, b * inverse
    new_down[last] = min(one, max(-one, down[last] + h * (below[last] - y[last])))


@inlined()
def _uphill(q: Any, new: Any, p: Any) -> Any:
    """The share of a row in <q - new, new - p>."""
    total = p.dtype.type(0)
    for axis in range(2):
        a, b, c = q[axis], new[axis], p[axis]
        for j in range(c.size):
            total += (a[j] - b[j]) * (b[j] - c[j])
    return total


@compiled()
def advance(v: Any, p: Any, before: Any, pulls: Any, weight: float, rows: Any) -> float:
    """An even number of steps from p, with the point before it and these pulls; <q - new, new - p> of the last step."""
    height, steps, uphill = v.shape[1], pulls.size, 0.0
    for n in range(v.shape[0]):
        for first in range(height + steps - 1):
            for s in range(max(0, first - height + 1), min(steps, first + 1)):
                i, even = first - s, s % 2 == 0
                last, other = (p[n], before[n]) if even else (before[n], p[n])
                here, below = rows[s, i % 2], rows[s, (i + 1) % 2]
                if i == 0:
                    _extrapolate(last[0], other[0], pulls[s], here)
                    _image(v[n, 0], last[height - 1, 0], here, weight, here[2])
                if i + 1 < height:
                    _extrapolate(last[i + 1], other[i + 1], pulls[s], below)
                    _image(v[n, i + 1], here[0], below, weight, below[2])
                else:
                    below = here
                _project(here, below[2], 1 / (8 * weight), other[i])
                if s == steps - 1:
                    uphill += _uphill(here, other[i], last[i])
    return uphill


@compiled()
def image_and_gap(v: Any, p: Any, weight: float, y: Any) -> float:
    """y := v - weight D'p, and the duality gap weight (|D y|_1 - <D y, p>)."""
    height, last, total = v.shape[1], v.shape[2] - 1, 0.0
    for n in range(v.shape[0]):
        _image(v[n, 0], p[n, height - 1, 0], p[n, 0], weight, y[n, 0])
        for i in range(height):
            here, beside, below = y[n, i], y[n, i, 1:], y[n, min(i + 1, height - 1)]
            if i + 1 < height:
                _image(v[n, i + 1], p[n, i, 0], p[n, i + 1], weight, below)
            down, right, share = p[n, i, 0], p[n, i, 1], y.dtype.type(0)
            for j in range(last):
                a, b = below[j] - here[j], beside[j] - here[j]
                share += np.sqrt(a * a + b * b) - a * down[j] - b * right[j]
            a = below[last] - here[last]
            total += share + abs(a) - a * down[last]
    return weight * total
