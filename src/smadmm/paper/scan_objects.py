"""Objects that are no slices of patients, by code: values in [0, 1], inside the circle that all views see.

Each is painted at four times the size and averaged, so that edges are as wide as a pixel; a seed is an object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.sampling import Rng

Array = NDArray[Any]
FINER = 4
Painter = Callable[[Array, Array, Rng], Array]


def _foam(x: Array, y: Array, rng: Rng) -> Array:
    """A disc full of bubbles."""
    image = 0.7 * (np.hypot(x, y) < 0.8)
    for _ in range(250):
        place, radius = rng.uniform(-0.75, 0.75, 2), 0.02 + 0.08 * rng.random() ** 2
        image[np.hypot(x - place[0], y - place[1]) < radius] *= 0.02
    return image


def _gear(x: Array, y: Array, rng: Rng) -> Array:
    """One material, straight edges: a toothed wheel with spokes and an axle."""
    r, turn = np.hypot(x, y), np.arctan2(y, x) + rng.uniform(0, 1)
    teeth = int(rng.integers(16, 30))
    image = 0.9 * (r < 0.72 + 0.08 * (np.sin(teeth * turn) > 0))
    spokes = int(rng.integers(4, 7))
    image[(r > 0.25) & (r < 0.58) & (np.sin(spokes * turn) > -0.5)] = 0.0
    image[r < 0.12] = 0.0
    image[(np.abs(x) < 0.03) & (y > 0) & (y < 0.18)] = 0.0
    return image


def _stones(x: Array, y: Array, rng: Rng) -> Array:
    """Grains of several minerals, each with its own texture, in a tube."""
    r = np.hypot(x, y)
    image = 0.25 * ((r < 0.9) & (r > 0.86))
    for _ in range(160):
        (a, b), turn = rng.uniform(0.03, 0.16, 2), rng.uniform(0, np.pi)
        u, v = rng.uniform(-0.75, 0.75, 2)
        along, across = (x - u) * np.cos(turn) + (y - v) * np.sin(turn), (y - v) * np.cos(turn) - (x - u) * np.sin(turn)
        inside = (np.abs(along / a) ** 3 + np.abs(across / b) ** 3 < 1) & (r < 0.86)
        wave = 0.04 * np.sin(rng.uniform(20, 80) * along + rng.uniform(0, 6))
        image[inside] = rng.choice([0.35, 0.5, 0.55, 0.9]) + wave[inside]
    return image


def _wood(x: Array, y: Array, rng: Rng) -> Array:
    """A block with growth rings about a point outside it, and pores."""
    turn = rng.uniform(0, np.pi)
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    far = np.hypot(u - 0.9, v - 0.4 + 0.03 * np.sin(7 * u))
    image: Array = (0.45 + 0.2 * (far * 14 % 1) ** 2) * ((np.abs(u) < 0.62) & (np.abs(v) < 0.5))
    for _ in range(200):
        place = rng.uniform(-0.6, 0.6, 2)
        image[np.hypot(x - place[0], y - place[1]) < rng.uniform(0.008, 0.02)] *= 0.3
    return image


def _pins(x: Array, y: Array, rng: Rng) -> Array:
    """Metal in plastic, of a twentieth of its attenuation."""
    image: Array = 0.05 * (np.hypot(x / 0.8, y / 0.7) < 1)
    for _ in range(12):
        place = rng.uniform(-0.5, 0.5, 2)
        image[np.hypot(x - place[0], y - place[1]) < rng.uniform(0.04, 0.12)] = 0.0
    for _ in range(9):
        place = rng.uniform(-0.5, 0.5, 2)
        image[np.hypot(x - place[0], y - place[1]) < rng.uniform(0.015, 0.05)] = 1.0
    return image


def _off_centre(x: Array, y: Array, rng: Rng) -> Array:
    """A small thing far from the axis, with fine detail."""
    way = rng.uniform(0, 2 * np.pi)
    u, v = x - 0.5 * np.cos(way), y - 0.5 * np.sin(way)
    image: Array = 0.6 * (np.hypot(u / 0.3, v / 0.24) < 1)
    for _ in range(30):
        a, b = rng.uniform(-0.2, 0.2, 2)
        image[np.hypot(u - a, v - b) < rng.uniform(0.01, 0.04)] = rng.uniform(0.0, 1.0)
    image[np.hypot(u / 0.3, v / 0.24) >= 1] = 0.0
    return image


PAINTERS: dict[str, Painter] = {
    "foam": _foam,
    "gear": _gear,
    "stones": _stones,
    "wood": _wood,
    "metal pins": _pins,
    "off centre": _off_centre,
}


def painted(name: str, size: int, seed: int) -> Tensor:
    """An object by name, size x size.

    >>> painted("gear", 32, seed=0).shape
    torch.Size([32, 32])
    """
    axis = (np.arange(FINER * size) + 0.5) * (2 / (FINER * size)) - 1
    fine = PAINTERS[name](axis[None] + 0 * axis[:, None], axis[:, None] + 0 * axis, Rng(seed, 2**55))
    return torch.from_numpy(fine.reshape(size, FINER, size, FINER).mean((1, 3)).astype(np.float32))
