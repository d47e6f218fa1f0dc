"""An anatomical phantom by code: an axial slice of the upper abdomen in Hounsfield units, at any size.

Every tissue is a region painted over what lies beneath. A region is a radial one, r(p) <= R(angle) with a wavy R, or a
tube; its edge is as wide as a pixel. Textures are sums of random plane waves in body coordinates, each damped by the
pixel's own blur: the same seed is the same body at every size, with the detail that the size can show.

Coordinates run over [-1, 1] x [-1, 1]; the front is up, the patient's right is on the left, as radiologists look at it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from smadmm.io.images import window

Array = NDArray[np.float64]
Point = tuple[float, float]
Window = tuple[slice, slice]

AIR, LUNG, FAT, WATER, GUT, SKIN, MUSCLE, LIVER, VESSEL = -1000, -860, -105, 5, 35, 30, 60, 108, 175
CORTEX, MARROW, DISC = 780, 210, 90


class _Canvas:
    """The image, its coordinates, and the brushes."""

    def __init__(self, size: int, seed: int):
        self.rng = np.random.default_rng(seed)
        self.pixel = 2 / size
        self.axis: Array = np.linspace(-1 + self.pixel / 2, 1 - self.pixel / 2, size)
        self.hu = np.full((size, size), float(AIR))

    def _window(self, centre: Point, reach: float) -> Window:
        """The pixels within `reach` of the centre in both coordinates."""
        bounds = [np.searchsorted(self.axis, (c - reach, c + reach)) for c in (centre[1], centre[0])]
        rows, columns = (slice(int(low), int(high)) for low, high in bounds)
        return rows, columns

    def _offsets(self, centre: Point, where: Window) -> tuple[Array, Array]:
        return self.axis[where[1]][None] - centre[0], self.axis[where[0]][:, None] - centre[1]

    def _edge(self, distance: Array) -> Array:
        """1 inside, 0 outside, and a ramp one pixel wide between."""
        return np.clip(0.5 - distance / self.pixel, 0, 1)

    def region(self, centre: Point, radii: Point, turn: float = 0.0, wave: float = 0.0, power: float = 2.0) -> Array:
        """Share of each pixel in |x/a|^p + |y/b|^p <= R(angle)^p, turned, R = 1 + wave * (a few random cosines)."""
        order = np.arange(2, 7)
        phases, shares = self.rng.uniform(0, 2 * np.pi, 5), self.rng.uniform(-1, 1, 5) / order
        mask = np.zeros_like(self.hu)
        where = self._window(centre, max(radii) * (1.1 + abs(wave)) + 2 * self.pixel)
        dx, dy = self._offsets(centre, where)
        c, s = math.cos(turn), math.sin(turn)
        along, across = dx * c + dy * s, dy * c - dx * s
        f = (np.abs(along / radii[0]) ** power + np.abs(across / radii[1]) ** power) ** (1 / power)
        if wave:
            angle = np.arctan2(across / radii[1], along / radii[0])
            f /= 1 + wave * sum(a * np.cos(k * angle + p) for a, k, p in zip(shares, order, phases, strict=True))
        # the distance to the edge along the ray from the centre
        mask[where] = self._edge(np.hypot(dx, dy) * (1 - 1 / np.maximum(f, 1e-9)))
        return mask

    def tube(self, start: Point, end: Point, radii: tuple[float, float]) -> tuple[Window, Array]:
        """Share of each pixel within a segment that narrows from one radius to the other."""
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        reach = math.dist(start, end) / 2 + max(radii) + 2 * self.pixel
        where = self._window(middle, reach)
        dx, dy = self._offsets(start, where)
        ux, uy = end[0] - start[0], end[1] - start[1]
        t = np.clip((dx * ux + dy * uy) / max(ux * ux + uy * uy, 1e-12), 0, 1)
        radius = radii[0] + t * (radii[1] - radii[0])
        share = self._edge(np.hypot(dx - t * ux, dy - t * uy) - radius)
        return where, share * np.minimum(1, 2 * radius / self.pixel)  # thinner than a pixel: fainter

    def texture(self, low: float, high: float, waves: int = 96) -> Array:
        """A random field of unit variance with frequencies in [low, high] cycles per unit."""
        frequency = np.exp(self.rng.uniform(math.log(low), math.log(high), waves))
        direction, phase = self.rng.uniform(0, np.pi, waves), self.rng.uniform(0, 2 * np.pi, waves)
        fx, fy = frequency * np.cos(direction), frequency * np.sin(direction)
        blur = np.sinc(fx * self.pixel) * np.sinc(fy * self.pixel) * (frequency * self.pixel < 0.5)
        x = 2 * np.pi * np.outer(fx, self.axis)
        y = 2 * np.pi * np.outer(fy, self.axis) + phase[:, None]
        waves_sum: Array = (np.cos(y) * blur[:, None]).T @ np.cos(x) - (np.sin(y) * blur[:, None]).T @ np.sin(x)
        return waves_sum * math.sqrt(2 / waves)

    def paint(self, mask: Array, value: float | Array, where: Window = np.s_[:, :]) -> None:
        target = self.hu[where]
        target += mask * (value - target)

    def vessels(self, root: Point, heading: float, length: float, radius: float, depth: int, inside: Array) -> None:
        """A tree of tubes, seen only inside a region."""
        bend = heading + self.rng.normal(0, 0.15)
        end = (root[0] + length * math.cos(bend), root[1] + length * math.sin(bend))
        where, share = self.tube(root, end, (radius, 0.8 * radius))
        self.paint(share * inside[where], VESSEL, where)
        if depth:
            for angle in self.rng.uniform(0.3, 0.75, 2) * (1, -1):
                shorter = length * self.rng.uniform(0.68, 0.9)
                self.vessels(end, bend + angle, shorter, radius * 0.72, depth - 1, inside)


def _jitter(c: _Canvas, value: Point, share: float = 0.04) -> Point:
    dx, dy = c.rng.normal(0, share, 2) * 0.3
    return value[0] + dx, value[1] + dy


def _trunk(c: _Canvas) -> Array:
    """Couch, skin, fat, muscle; returns the cavity."""
    top, bottom = c.region((0, -1.62), (2.4, 2.4)), c.region((0, -1.64), (2.4, 2.4))
    c.paint(np.clip(top - bottom, 0, 1), -120)
    a, b = 0.90 * c.rng.uniform(0.97, 1.02), 0.66 * c.rng.uniform(0.96, 1.02)
    state = c.rng.bit_generator.state

    def shell(inset: float) -> Array:
        c.rng.bit_generator.state = state  # the same waves at every depth
        return c.region((0, 0), (a - inset, b - inset), 0, 0.035, 2.3)

    c.paint(shell(0), SKIN)
    c.paint(shell(0.014), FAT + 9 * c.texture(4, 45))
    muscle = shell(0.085)
    c.paint(muscle, MUSCLE + 8 * c.texture(10, 60))
    c.paint(shell(0.103) * (1 - shell(0.107)), FAT)  # a layer of fat between muscles
    cavity = shell(0.145)
    c.paint(cavity, FAT + 14 * c.texture(4, 70))
    for number in range(14):
        angle = -0.62 + number * (np.pi + 1.24) / 13 + c.rng.normal(0, 0.03)
        place = ((a - 0.125) * math.cos(angle) * 1.02, (b - 0.125) * math.sin(angle) * 1.02)
        slant = math.atan2((b - 0.125) * math.cos(angle), -(a - 0.125) * math.sin(angle))
        _bone(c, place, (c.rng.uniform(0.05, 0.075), 0.021), slant + c.rng.normal(0, 0.05), 0.008)
    return cavity


def _bone(c: _Canvas, centre: Point, radii: Point, turn: float, wall: float, wave: float = 0.1) -> None:
    state = c.rng.bit_generator.state
    c.paint(c.region(centre, radii, turn, wave), CORTEX)
    c.rng.bit_generator.state = state
    inner = c.region(centre, (radii[0] - wall, radii[1] - wall), turn, wave)
    c.paint(inner, MARROW + 75 * c.texture(30, 110))


def _spine(c: _Canvas) -> None:
    for side in (-1, 1):
        c.paint(c.region((0.17 * side, 0.475), (0.14, 0.085), 0.25 * side, 0.15), MUSCLE + 14 * c.texture(8, 70))
        c.paint(c.region((0.15 * side, 0.28), (0.055, 0.075), 0, 0.15), MUSCLE + 8 * c.texture(8, 60))
        _bone(c, (0.125 * side, 0.405), (0.075, 0.02), -0.35 * side, 0.008)
        _bone(c, (0.05 * side, 0.375), (0.024, 0.055), 0.25 * side, 0.009)
        _bone(c, (0.034 * side, 0.455), (0.05, 0.017), 0.7 * side, 0.007)
    _bone(c, (0, 0.525), (0.018, 0.065), 0, 0.007)
    c.paint(c.region((0, 0.405), (0.042, 0.036)), WATER)
    c.paint(c.region((0, 0.405), (0.024, 0.017)), 42)
    _bone(c, (0, 0.285), (0.125, 0.092), 0, 0.012, 0.08)


def _liver(c: _Canvas, cavity: Array) -> None:
    lobes = (c.region((-0.36, -0.03), (0.37, 0.345), -0.3, 0.2), c.region((-0.06, -0.2), (0.3, 0.155), 0.1, 0.2))
    liver = np.maximum(*lobes) * cavity
    c.paint(liver, LIVER + 7 * c.texture(6, 90))
    for root, heading in (((-0.14, 0.06), 3.3), ((-0.16, 0.03), 4.0), ((-0.12, -0.02), 4.9), ((-0.17, 0.1), 2.6)):
        c.vessels(root, heading, 0.13, 0.017, 5, liver)
    c.paint(c.region((-0.13, 0.05), (0.05, 0.028), 0.2, 0.2), VESSEL)
    for radius, value in ((0.034, 68.0), (0.019, 60.0), (0.026, float(WATER)), (0.009, 55.0), (0.006, 60.0)):
        place = (c.rng.uniform(-0.58, -0.25), c.rng.uniform(-0.2, 0.16))
        c.paint(c.region(place, (radius, radius * 0.9), 0, 0.2) * liver, value)
    c.paint(c.region(_jitter(c, (-0.2, -0.26)), (0.075, 0.045), 0.9, 0.1), GUT)
    c.paint(c.region((-0.2, -0.26), (0.06, 0.035), 0.9, 0.1), WATER)


def _hollow(c: _Canvas, centre: Point, radii: Point, level: float, content: float | Array, turn: float = 0.0) -> None:
    """A hollow organ: wall, content, and gas in front of (above) the level."""
    state = c.rng.bit_generator.state
    c.paint(c.region(centre, radii, turn, 0.22), GUT + 15)
    c.rng.bit_generator.state = state
    inner = c.region(centre, (radii[0] - 0.016, radii[1] - 0.016), turn, 0.22)
    c.paint(inner, content)
    c.paint(inner * c._edge(c.axis[:, None] - (centre[1] + level * radii[1])), -960)


def _kidney(c: _Canvas, centre: Point, side: int) -> None:
    c.paint(c.region(centre, (0.105, 0.145), 0.3 * side, 0.1), 205)
    c.paint(c.region((centre[0] - 0.02 * side, centre[1]), (0.05, 0.08), 0.3 * side, 0.1), -70 + 12 * c.texture(5, 60))
    for angle in np.linspace(0.4, 5.9, 9):
        place = (centre[0] + 0.06 * math.cos(angle), centre[1] + 0.095 * math.sin(angle))
        c.paint(c.region(place, (0.022, 0.013), angle, 0.15), 135)
    c.paint(c.region((centre[0] - 0.03 * side, centre[1]), (0.03, 0.017), 0.4 * side, 0.2), 12)


def _organs(c: _Canvas, cavity: Array) -> None:
    _lungs(c, cavity)
    _liver(c, cavity)
    spleen = c.region(_jitter(c, (0.56, 0.06)), (0.115, 0.24), -0.25, 0.2) * cavity
    c.paint(spleen, 122 + 6 * c.texture(6, 80))
    stool = -120 + 260 * np.tanh(c.texture(12, 60))
    _hollow(c, _jitter(c, (0.36, -0.17)), (0.23, 0.165), -0.25, 22 + 18 * c.texture(8, 60), -0.3)
    _hollow(c, _jitter(c, (0.585, -0.25)), (0.085, 0.1), -0.1, stool)
    _hollow(c, _jitter(c, (0.12, -0.33)), (0.12, 0.06), 0.1, GUT)
    for centre in ((0.24, 0.12), (0.36, 0.06), (0.15, 0.04)):
        _hollow(c, _jitter(c, centre), (0.055, 0.045), -1.2, 28 + 20 * c.texture(10, 60))
    c.paint(c.region(_jitter(c, (0.1, 0.01)), (0.21, 0.042), -0.25, 0.5), 88 + 20 * c.texture(15, 80))
    for side in (-1, 1):
        _kidney(c, _jitter(c, (0.34 * side, 0.26)), side)


def _lungs(c: _Canvas, cavity: Array) -> None:
    """The lowest parts of the lungs, behind the organs, with vessels and airways."""
    for side in (-1, 1):
        outer = c.region((0.43 * side, 0.17), (0.3, 0.36), 0.15 * side, 0.06) * cavity
        lung = outer * (1 - c.region((0.30 * side, 0.08), (0.32, 0.34), 0.1 * side, 0.1))
        lung *= c._edge(-0.1 - c.axis[:, None])  # none in front
        c.paint(lung, LUNG + 28 * c.texture(15, 110))
        for _ in range(9):
            root = (side * c.rng.uniform(0.45, 0.62), c.rng.uniform(0.12, 0.42))
            c.vessels(root, c.rng.uniform(0, 2 * np.pi), 0.045, 0.006, 3, lung)


def _great_vessels(c: _Canvas) -> None:
    aorta = _jitter(c, (0.045, 0.155))
    c.paint(c.region(aorta, (0.05, 0.047), 0, 0.05), 55)
    c.paint(c.region(aorta, (0.045, 0.042), 0, 0.05), 265)
    for angle in c.rng.uniform(0, 2 * np.pi, 3):
        place = (aorta[0] + 0.045 * math.cos(angle), aorta[1] + 0.042 * math.sin(angle))
        c.paint(c.region(place, (0.012, 0.004), angle + np.pi / 2), 850)
    c.paint(c.region(_jitter(c, (-0.09, 0.15)), (0.06, 0.042), 0.2, 0.12), 165)
    for _ in range(60):  # small vessels and nodes in the fat
        place = (c.rng.uniform(-0.1, 0.62), c.rng.uniform(-0.42, 0.34))
        free = np.clip((-60 - c.hu) / 30, 0, 1) * (c.hu > -300)
        radius = c.rng.uniform(0.003, 0.011)
        c.paint(c.region(place, (radius, radius * c.rng.uniform(0.6, 1))) * free, c.rng.uniform(60, 200))


def abdomen(size: int = 512, seed: int = 0) -> NDArray[np.float32]:
    """The phantom in Hounsfield units, size x size; the seed moves organs, vessels and texture."""
    if size < 16:
        raise ValueError(f"the phantom needs at least 16 pixels a side, got {size}")
    c = _Canvas(size, seed)
    cavity = _trunk(c)
    _organs(c, cavity)
    _great_vessels(c)
    _spine(c)
    return c.hu.astype(np.float32)


def abdomen_image(size: int = 512, seed: int = 0) -> Tensor:
    """The phantom as an image in [0, 1], (HU + 1000) / 2500."""
    return window(abdomen(size, seed))
