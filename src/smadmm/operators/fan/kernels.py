"""The fan-beam projector of beam.py in float32, compiled with numba. One thread; calls release the GIL.

Rays that are steep with respect to the rows work on the transposed image, where the view of angle a is the view of
angle -pi/2 - a with the detectors in reverse order: so every ray adds up image rows. With p, q the cosine and sine,
D the distance of the source and t_j the tangent of detector j, ray j has the slope m_j = (t_j p - q)/(p + t_j q), and
meets the row at height y at
    x_j(y) = X_j + y m_j,   X_j = (width - 1)/2 + D (q + p m_j).

Forward: a block of at most L rays (the lanes of lanes.py), whose positions span at most L - 1 pixels in every row,
reads one window of L + 1 pixels per row; the sum over rows stays in a register. Rows are passed in bands that stay in
the cache while all views of a group pass over them.

Adjoint: pixel c of a row at the distance h from the source adds up hat(x_j - c) y_j over the rays with |x_j - c| < 1.
The place i(x) in the list of rays, as a real number, is known in closed form; rays are numbered by rising x. L pixels
at a time, i(c - 1) is computed for the first pixel and the one behind the last, and interpolated in between. K rays are
taken from floor(i - e) + 1 on, where e bounds the error. K = floor(2 d + 2 e) + 1 are enough, d being the largest
number of rays per pixel, d >= i':
    a ray j with c - 1 < x_j < c + 1 has i(c - 1) < j < i(c + 1) <= i(c - 1) + 2 d, so with a the computed value minus e
    it lies in the open interval (a, a + 2 e + 2 d), which holds at most floor(2 d + 2 e) + 1 integers, all of them
    from floor(a) + 1 on.
A line through two points of i errs by at most max|i''| L^2/8 in between, so e = max|i''| L^2/8 + .01; the .01 is more
than the rounding of positions moves a ray. In terms of the slope k of the line from the source to (x, y), the detector
is t = (q + k p)/(p - k q) in tangents, k rises by 1/h per pixel, and with r = 1/(tangent or angle per detector)
    flat detector    |i'| = r/(h (p - k q)^2),     |i''| = 2 r |q|/(h^2 |p - k q|^3):  largest at an end, p - k q linear
    curved           |i'| = r/(h (1 + k^2)),       |i''| <= .65 r/h^2,  the largest value of 2 k/(1 + k^2)^2.
Blocks of pixels may reach L + 1 pixels beyond the outer rays, so k is taken that far. Where K or the rays in a window
are more than registers serve, or p - k q has a zero, rays are added one by one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import float32

from smadmm.compilation import compiled, inlined
from smadmm.operators.fan.lanes import PAD, add_rows, host_lanes, place_rays, spread_five, spread_three, spread_two
from smadmm.operators.radon.transpose import transpose

LANES = host_lanes()
EDGE = 40  # empty rays beside those of a view: more than two windows and five rays
BAND = 128  # rows worked on together
GROUP = 32  # views worked on together
SPAN = 1.01  # pixels by which a block of rays is narrower than its window; the .01 for rounding
ROUNDING = 0.01  # rays
FAR = 1e6  # pixels: where empty rays are
SOURCE, SIDE, FIRST, STEP, COUNT, BLOCKS, BEGIN = range(7)  # of a run of rays


class Beam(NamedTuple):
    """The views and their rays; lengths in pixels."""

    cosines: Any
    sines: Any
    tangents: Any  # of the detectors, seen from the source
    distance: float  # of the source from the axis
    rate: float  # detectors per unit of the tangent or, on a curved detector, of the angle
    origin: float  # the detector before the central ray, counted from it
    curved: bool
    length: float  # of a pixel
    lanes: tuple[int, ...]


class Scratch(NamedTuple):
    """Memory of one running call, kept for the next one."""

    flat: Any  # the image, PAD empty pixels on both sides of each row
    turned: Any  # its transpose
    X: Any  # views x rays, in blocks or with EDGE empty rays on both sides
    m: Any
    y: Any
    counts: Any  # views x blocks: rays in each
    slopes: Any  # rays of one view
    runs: Any  # views x 7: height of the source, side of it that rays go to, first detector, step, rays, blocks, begin
    x: Any  # the rays of one view in one row


def scratch(height: int, width: int, tangents: Any, distance: float, lanes: tuple[int, ...]) -> Scratch:
    detectors, count = len(tangents), len(lanes)
    reach = distance + 0.5 * max(height, width)
    gap = 2 * reach * float(np.diff(np.arctan(tangents)).max(initial=0.0))  # slopes change by at most twice the angle
    least = max(1, min(count, int((count - SPAN) / gap))) if gap > 0 and count > 1 else 1  # rays in a block
    blocks = detectors // least + 2
    rays = max(blocks * count, detectors + 2 * EDGE)
    return Scratch(
        flat=np.zeros((height, width + 2 * PAD), float32),
        turned=np.zeros((width, height + 2 * PAD), float32),
        X=np.zeros((GROUP, rays), float32),
        m=np.zeros((GROUP, rays), float32),
        y=np.zeros((GROUP, rays), float32),
        counts=np.zeros((GROUP, blocks), np.int32),
        slopes=np.zeros(detectors),
        runs=np.zeros((GROUP, 7)),
        x=np.zeros(detectors + 2 * EDGE, float32),
    )


@inlined(False)
def run_of(beam, v, steep, run, slopes):
    """The rays of view v with this role, in the order of rising x: their slopes; `run` says which they are.

    Without fast-math flags: every ray has one role, whichever way it is asked for.
    """
    n, p, q = len(beam.tangents), beam.cosines[v], beam.sines[v]
    if steep:
        p, q = -q, -p
    begin = count = 0
    side = 1.0
    for j in range(n):
        t = -beam.tangents[n - 1 - j] if steep else beam.tangents[j]
        dx, dy = t * p - q, p + t * q
        if abs(dx) < abs(dy) or (abs(dx) == abs(dy) and not steep):
            if count == 0:
                begin, side = j, (1.0 if dy > 0 else -1.0)
            slopes[count] = dx / dy
            count += 1
    if side < 0:
        for i in range(count // 2):
            slopes[i], slopes[count - 1 - i] = slopes[count - 1 - i], slopes[i]
    first = begin if side > 0 else begin + count - 1
    run[SOURCE], run[SIDE], run[COUNT], run[BEGIN] = -beam.distance * p, side, count, begin
    run[FIRST], run[STEP] = (n - 1 - first, -side) if steep else (first, side)
    return p, q, count


@inlined()
def pad(image, second, share, padded):
    """padded = image + share second, zeros beside it."""
    width = image.shape[1]
    for r in range(image.shape[0]):
        out, one, two = padded[r], image[r], second[r]
        out[:PAD] = float32(0)
        out[PAD + width :] = float32(0)
        inside = out[PAD : PAD + width]
        if share == 0:
            for c in range(width):
                inside[c] = one[c]
        else:
            for c in range(width):
                inside[c] = one[c] + share * two[c]


@inlined()
def turn(padded, turned, height, width):
    """turned = the transpose, zeros beside it."""
    for r in range(width):
        turned[r, :PAD] = float32(0)
        turned[r, PAD + height :] = float32(0)
    transpose(padded[:, PAD : PAD + width], turned[:, PAD : PAD + height], height, width)


@inlined()
def cut_blocks(beam, v, steep, rows, width, k, memory):
    """The rays of view v in blocks, as the k-th view of the group; returns how many blocks."""
    run, slopes, lanes = memory.runs[k], memory.slopes, len(beam.lanes)
    X, m, total, counts = memory.X[k], memory.m[k], memory.y[k], memory.counts[k]
    p, q, count = run_of(beam, v, steep, run, slopes)
    reach, middle = abs(run[SOURCE]) + 0.5 * (rows - 1), 0.5 * (width - 1) + beam.distance * q
    blocks = start = 0
    while start < count:
        size = 1
        while (
            start + size < count and size < lanes and reach * abs(slopes[start + size] - slopes[start]) <= lanes - SPAN
        ):
            size += 1
        for lane in range(lanes):
            slope = slopes[start + min(lane, size - 1)]
            m[blocks * lanes + lane] = slope
            X[blocks * lanes + lane] = middle + beam.distance * p * slope
            total[blocks * lanes + lane] = float32(0)
        counts[blocks] = size
        start += size
        blocks += 1
    run[BLOCKS] = blocks
    return blocks


@inlined()
def within(a, b, least, lo, hi):
    """lo..hi cut to where a + b y > least."""
    if b > 0:
        return max(lo, (least - a) / b), hi
    if b < 0:
        return lo, min(hi, (least - a) / b)
    return (lo, hi) if a > least else (hi + 1.0, lo)


@inlined()
def add_band(padded, top, bottom, rows, width, k, memory, lanes):
    """Add rows top..bottom-1 to the sums of the k-th view."""
    run, X, m, total, half = memory.runs[k], memory.X[k], memory.m[k], memory.y[k], 0.5 * (rows - 1)
    for block in range(int(run[BLOCKS])):
        a, z = block * len(lanes), (block + 1) * len(lanes) - 1
        lo, hi = within(np.float64(X[z]), np.float64(m[z]), -1.0, top - half, bottom - 1 - half)
        lo, hi = within(-np.float64(X[a]), -np.float64(m[a]), -float(width), lo, hi)
        lo, hi = within(-run[SOURCE] * run[SIDE], run[SIDE], 0.0, lo, hi)
        first, last = int(np.ceil(lo + half)), int(np.floor(hi + half))
        if first <= last:
            add_rows(padded, first, last + 1, float32(half), X, m, a, total, lanes)


@compiled()
def project(image, second, share, beam, memory, out):
    """out[v] = A_v (image + share second)."""
    lanes = len(beam.lanes)
    pad(image, second, share, memory.flat)
    turned = False
    for role in range(2):
        steep = role == 1
        padded = memory.turned if steep else memory.flat
        rows, width = (image.shape[1], image.shape[0]) if steep else image.shape
        for start in range(0, out.shape[0], GROUP):
            views, blocks = min(GROUP, out.shape[0] - start), 0
            for k in range(views):
                blocks += cut_blocks(beam, start + k, steep, rows, width, k, memory)
            if steep and blocks and not turned:
                turn(memory.flat, memory.turned, image.shape[0], image.shape[1])
                turned = True
            for top in range(0, rows if blocks else 0, BAND):
                for k in range(views):
                    add_band(padded, top, min(rows, top + BAND), rows, width, k, memory, beam.lanes)
            for k in range(views):
                run, row, ray = memory.runs[k], out[start + k], 0
                for block in range(int(run[BLOCKS])):
                    for lane in range(memory.counts[k, block]):
                        slope, place = memory.m[k, block * lanes + lane], int(run[FIRST] + run[STEP] * ray)
                        length = float32(beam.length) * np.sqrt(float32(1) + slope * slope)
                        row[place] = length * memory.y[k, block * lanes + lane]
                        ray += 1


@inlined()
def list_rays(beam, v, steep, width, k, values, memory):
    """The rays of view v with their values, as the k-th view of the group, empty ones on both sides; how many."""
    run, slopes = memory.runs[k], memory.slopes
    X, m, y = memory.X[k], memory.m[k], memory.y[k]
    p, q, count = run_of(beam, v, steep, run, slopes)
    middle = 0.5 * (width - 1) + beam.distance * q
    y[:EDGE] = float32(0)
    y[EDGE + count : EDGE + count + EDGE] = float32(0)
    for i in range(count):
        slope = float32(slopes[i])
        m[EDGE + i], X[EDGE + i] = slope, middle + beam.distance * p * slopes[i]
        length = float32(beam.length) * np.sqrt(float32(1) + slope * slope)
        y[EDGE + i] = length * values[int(run[FIRST] + run[STEP] * i)]
    return count


@inlined()
def rays_of_a_pixel(p, q, k_low, k_high, h, beam):
    """d and e of the module's text, for slopes between two ends; d = inf where the formulas do not hold."""
    width, beyond = len(beam.lanes) / h, (len(beam.lanes) + 1.0) / h
    low, high = k_low - beyond, k_high + beyond
    one, two = p - low * q, p - high * q
    if one * two <= 0:
        return np.inf, 0.0
    if beam.curved:
        nearest = 0.0 if low * high <= 0 else min(abs(low), abs(high))
        density, bend = 1.0 / (1.0 + nearest * nearest), 0.65
    else:
        nearest = min(abs(one), abs(two))
        density = 1.0 / (nearest * nearest)
        bend = 2.0 * abs(q) * density / nearest
    return beam.rate * density / h, ROUNDING + 0.125 * beam.rate * bend * width * width


@inlined()
def place_of(x, p, q, y, beam, origin, begin, last, side):
    """i(x): the place of the ray through (x, y), relative to the source, in the list of rays, EDGE for the first."""
    t = (q * y + x * p) / (p * y - x * q)
    detector = (math.atan(t) if beam.curved else t) * beam.rate - origin
    return EDGE + (detector - begin if side > 0 else last - detector)


@inlined()
def add_one_by_one(x, y, count, width, row):
    """Each ray adds to its two pixels."""
    for i in range(EDGE, EDGE + count):
        left = int(np.floor(x[i]))
        f = x[i] - float32(left)
        if -1 <= left < width:
            row[PAD + left] += (float32(1) - f) * y[i]
            row[PAD + left + 1] += f * y[i]


@inlined()
def spread_row(beam, v, steep, y, k, width, row, memory):
    """Add the rays of the k-th view to the row at height y."""
    run, x, lanes = memory.runs[k], memory.x, len(beam.lanes)
    count, side, above = int(run[COUNT]), run[SIDE], y - run[SOURCE]
    if above * side <= 0:
        return
    place_rays(memory.X[k], memory.m[k], float32(y), EDGE, EDGE + count, x, beam.lanes)
    x[EDGE + count : EDGE + count + EDGE] = float32(FAR)
    last = EDGE + count - 1
    lo, hi = max(0, int(np.ceil(x[EDGE] - 1.0))), min(width - 1, int(np.floor(x[last] + 1.0)))
    p, q, origin = beam.cosines[v], beam.sines[v], beam.origin
    if steep:
        p, q, origin = -q, -p, 1.0 - len(beam.tangents) - beam.origin
    k_low, k_high = np.float64(memory.m[k, EDGE]), np.float64(memory.m[k, last])
    density, slack = rays_of_a_pixel(p, q, min(k_low, k_high), max(k_low, k_high), abs(above), beam)
    rays = 2.0 * (density + slack) + 1.0  # K is the integer below
    if lanes == 1 or rays >= 6.0 or (lanes - 1) * density + 1.0 > 2 * lanes - 1:
        add_one_by_one(x, memory.y[k], count, width, row)
        return
    begin, end, left = run[BEGIN], run[BEGIN] + count - 1, 0.5 * (width - 1) + beam.distance * q + 1.0
    there = place_of(lo - left, p, q, above, beam, origin, begin, end, side) - slack
    for c in range(lo, hi + 1, lanes):
        here = there
        there = place_of(c + lanes - left, p, q, above, beam, origin, begin, end, side) - slack
        whole = int(np.floor(here))
        into, rise = float32(here - whole), float32((there - here) / lanes)
        if rays < 3.0:  # then d + e < 1, and L pixels begin at less than L rays: one window
            spread_two(x, memory.y[k], whole + 1, into, rise, c, row, beam.lanes)
        elif rays < 4.0:
            spread_three(x, memory.y[k], whole + 1, into, rise, c, row, beam.lanes)
        else:
            spread_five(x, memory.y[k], whole + 1, into, rise, c, row, beam.lanes)


@compiled()
def back_project(y, beam, memory, out):
    """out = sum_v A_v' y[v]."""
    height, width = out.shape
    memory.flat[:] = float32(0)
    memory.turned[:] = float32(0)
    memory.x[:EDGE] = float32(-FAR)
    any_steep = 0
    for role in range(2):
        steep = role == 1
        padded = memory.turned if steep else memory.flat
        rows, columns = (width, height) if steep else (height, width)
        for start in range(0, y.shape[0], GROUP):
            views, rays = min(GROUP, y.shape[0] - start), 0
            for k in range(views):
                rays += list_rays(beam, start + k, steep, columns, k, y[start + k], memory)
            any_steep += role * rays
            for top in range(0, rows if rays else 0, BAND):
                for k in range(views):
                    for r in range(top, min(rows, top + BAND) if memory.runs[k, COUNT] else top):
                        spread_row(beam, start + k, steep, r - 0.5 * (rows - 1), k, columns, padded[r], memory)
    if any_steep:
        transpose(memory.turned[:, PAD : PAD + height], out, width, height)
    for r in range(height):
        target, one = out[r], memory.flat[r, PAD : PAD + width]
        for c in range(width):
            target[c] = target[c] + one[c] if any_steep else one[c]


@compiled()
def back_filtered(rows, beam, first, step, out):
    """out = sum_v (D/h)^2 rows[v] at each pixel, h its distance from the source along the central ray.

    rows[v, i] is at the tangent first + i step.
    """
    height, width = out.shape
    last, left, zero, one = float32(rows.shape[1] - 1), float32(-0.5 * (width - 1)), float32(0), float32(1)
    origin, rate = float32(-first / step), float32(1 / step)
    out[:] = zero
    for r in range(height):
        line, y = out[r], r - 0.5 * (height - 1)
        for v in range(rows.shape[0]):
            row, p, q = rows[v], float32(beam.cosines[v]), float32(beam.sines[v])
            ahead, aside = float32(beam.distance + y * beam.cosines[v]), float32(y * beam.sines[v])
            for c in range(width):
                x = left + float32(c)
                scale = one / (ahead - x * q)
                place = (aside + x * p) * scale * rate + origin
                inside = zero <= place < last
                i = np.int32(place if inside else zero)
                f = place - float32(i)
                value = row[i] + f * (row[i + 1] - row[i])
                line[c] += scale * scale * value if inside else zero
