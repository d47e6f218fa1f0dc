"""Objects of one material in a fan beam: path lengths from attenuations, and the circle that the object fills.

Beam hardening: attenuation -log(I/I0) of one material grows slower than the path length L through it; on an object of
known shape L is fitted as a polynomial without constant, L = c_1 b + c_2 b^2 + ...

The circle: the outermost rays of a view that meet the object are its tangents. With n the normal of a ray through the
source S, centre c and radius R, each says n.c + sign R = n.S, which is linear in c and R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smadmm.operators.fan import FanBeam

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BeamHardening:
    """b -> c_1 b + c_2 b^2 + ...: path lengths in one material from attenuations; those below zero are none."""

    coefficients: tuple[float, ...]

    @classmethod
    def fit(cls, attenuation: ArrayLike, lengths: ArrayLike, degree: int = 3) -> BeamHardening:
        """By least squares, from rays whose path lengths are known.

        >>> from smadmm.imaging.limited import BeamHardening
        >>> b = np.array([0.5, 1.0, 2.0])
        >>> [round(c, 3) for c in BeamHardening.fit(b, 10 * b + b**2, degree=2).coefficients]
        [10.0, 1.0]
        """
        b = np.asarray(attenuation, np.float64).ravel()
        if len(b) < degree:
            raise ValueError(
                f"{len(b)} rays cannot fit a polynomial of degree {degree}; give more, or lower the degree"
            )
        powers = np.stack([b**n for n in range(1, degree + 1)], 1)
        found = np.linalg.lstsq(powers, np.asarray(lengths, np.float64).ravel(), rcond=None)[0]
        return cls(tuple(float(c) for c in found))

    def __call__(self, attenuation: ArrayLike) -> Array:
        b = np.clip(np.asarray(attenuation, np.float64), 0, None)
        lengths: Array = sum((c * b ** (n + 1) for n, c in enumerate(self.coefficients)), np.zeros_like(b))
        return lengths


class Circle(NamedTuple):
    """Centre, x along the rows and y down the columns from the axis of rotation, and radius, in the scanner's unit."""

    x: float
    y: float
    radius: float

    def mask(self, beam: FanBeam) -> NDArray[np.bool_]:
        """The pixels of the projector's image that lie inside."""
        rows, columns = np.mgrid[: beam.height, : beam.width]
        across = (columns - (beam.width - 1) / 2) * beam.pixel - self.x
        down = (rows - (beam.height - 1) / 2) * beam.pixel - self.y
        inside: NDArray[np.bool_] = np.hypot(across, down) <= self.radius
        return inside

    def chords(self, beam: FanBeam) -> Array:
        """The length of every ray inside the circle."""
        normals, offsets = _rays(beam, np.arange(beam.detectors, dtype=np.float64)[None].repeat(beam.views, 0))
        distance = normals[..., 0] * self.x + normals[..., 1] * self.y - offsets
        lengths: Array = 2 * np.sqrt(np.clip(self.radius**2 - distance**2, 0, None))
        return lengths


def _rays(beam: FanBeam, places: Any) -> tuple[Array, Array]:
    """The unit normal n of the ray of each view to a place on its detector, and n.S, S the source."""
    t = np.tan(beam.gamma_of(places - (beam.detectors - 1) / 2 - beam.centre))
    c, s = np.cos(beam.angles)[:, None], np.sin(beam.angles)[:, None]
    along = np.stack([t * c - s, t * s + c], -1)
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    normals = np.stack([along[..., 1], -along[..., 0]], -1)
    return normals, beam.source_to_axis * (normals[..., 0] * s - normals[..., 1] * c)


def fit_circle(lengths: ArrayLike, beam: FanBeam, least: float) -> Circle:
    """The circle whose tangents are, in each view, the first and last ray with a path length above `least`.

    >>> from smadmm.imaging.limited import Circle, fit_circle
    >>> beam = operators.FanBeam(64, np.arange(0, 1, 0.1), 600, source_to_axis=400, source_to_detector=600, pitch=0.3)
    >>> found = fit_circle(Circle(3.0, -2.0, 30.0).chords(beam), beam, least=1.0)
    >>> abs(found.radius - 30) < 0.1
    True
    """
    rows = np.asarray(lengths, np.float64)
    over = rows > least
    seen = over.any(1)
    if seen.sum() < 2:
        raise ValueError(f"{int(seen.sum())} views have rays longer than {least:g}; lower the least length")
    places, signs = np.zeros((len(rows), 2)), np.array([-1.0, 1.0])
    for view in np.flatnonzero(seen):
        ends = np.flatnonzero(over[view])[[0, -1]]
        for side, (end, sign) in enumerate(zip(ends, signs, strict=True)):
            other = min(max(int(end + sign), 0), rows.shape[1] - 1)
            drop = rows[view, end] - rows[view, other]
            places[view, side] = end + sign * min(1.0, (rows[view, end] - least) / max(drop, 1e-9))
    normals, offsets = _rays(beam, places)
    system = np.stack([normals[..., 0], normals[..., 1], np.broadcast_to(signs, offsets.shape)], -1)
    x, y, radius = np.linalg.lstsq(system[seen].reshape(-1, 3), offsets[seen].ravel(), rcond=None)[0]
    return Circle(float(x), float(y), math.fabs(radius))
