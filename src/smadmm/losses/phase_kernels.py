"""The amplitude gradient of phase.py between its FFTs, for images in float32 or complex64, compiled with numba.

The FFTs between the kernels are not normalised, so fields are `size` = sqrt(pixels) times the unitary ones. Each kernel
is one pass over contiguous memory. Complex arrays are read as pairs of floats: that vectorises. A negative amplitude
marks a pixel without data, which has no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smadmm.compilation import compiled

SMALLEST = np.float32(1e-30)  # a power |z|^2 of zero then has the gradient zero


@compiled()
def mask_image(x: Any, mask: Any, out: Any) -> None:
    """out := mask x."""
    x, mask, out = x.reshape(x.size), mask.reshape(mask.size), out.reshape(out.size)
    for p in range(x.size):
        out[p] = mask[p] * x[p]


@compiled()
def mask_complex(x: Any, mask: Any, out: Any) -> None:
    """out := mask x for a complex image."""
    x, mask = x.reshape(x.size).view(np.float32), mask.reshape(mask.size).view(np.float32)
    out = out.reshape(out.size).view(np.float32)
    for p in range(x.size // 2):
        a, b, c, d = x[2 * p], x[2 * p + 1], mask[2 * p], mask[2 * p + 1]
        out[2 * p] = a * c - b * d
        out[2 * p + 1] = a * d + b * c


@compiled()
def residual(z: Any, y: Any, size: Any, weight: Any) -> None:
    """z := weight (1 - size y/|z|) z."""
    z, y = z.reshape(z.size).view(np.float32), y.reshape(y.size)
    for p in range(y.size):
        a, b = z[2 * p], z[2 * p + 1]
        factor = weight - weight * size * y[p] / np.sqrt(a * a + b * b + SMALLEST)
        factor = factor if y[p] >= 0 else np.float32(0)
        z[2 * p] = factor * a
        z[2 * p + 1] = factor * b


@compiled()
def residual_of_two(z: Any, weight: Any, other: Any, other_weight: Any, y: Any, size: Any) -> None:
    """z := weight (1 - size y/|z|) z + other_weight (1 - size y/|other|) other."""
    z, other, y = z.reshape(z.size).view(np.float32), other.reshape(other.size).view(np.float32), y.reshape(y.size)
    for p in range(y.size):
        a, b, c, d = z[2 * p], z[2 * p + 1], other[2 * p], other[2 * p + 1]
        s, t = np.sqrt(a * a + b * b + SMALLEST), np.sqrt(c * c + d * d + SMALLEST)
        q = size * y[p] / (s * t)  # one division for two
        f, g = weight - weight * q * t, other_weight - other_weight * q * s
        f, g = (f, g) if y[p] >= 0 else (np.float32(0), np.float32(0))
        z[2 * p] = f * a + g * c
        z[2 * p + 1] = f * b + g * d


@compiled()
def unmask(r: Any, mask: Any, scale: Any, first: bool, out: Any) -> None:
    """out := scale Re(conj(mask) r) if it is the first, out += that otherwise."""
    r, mask, out = r.reshape(r.size).view(np.float32), mask.reshape(mask.size).view(np.float32), out.reshape(out.size)
    if first:
        for p in range(out.size):
            out[p] = scale * (mask[2 * p] * r[2 * p] + mask[2 * p + 1] * r[2 * p + 1])
    else:
        for p in range(out.size):
            out[p] += scale * (mask[2 * p] * r[2 * p] + mask[2 * p + 1] * r[2 * p + 1])


@compiled()
def unmask_complex(r: Any, mask: Any, scale: Any, first: bool, out: Any) -> None:
    """The same without taking the real part."""
    r, mask = r.reshape(r.size).view(np.float32), mask.reshape(mask.size).view(np.float32)
    out = out.reshape(out.size).view(np.float32)
    if first:
        out[:] = 0
    for p in range(out.size // 2):
        a, b, c, d = r[2 * p], r[2 * p + 1], mask[2 * p], mask[2 * p + 1]
        out[2 * p] += scale * (a * c + b * d)
        out[2 * p + 1] += scale * (b * c - a * d)
