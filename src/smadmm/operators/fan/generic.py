"""The sums of kernels.py in torch, view by view, for any device and dtype."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Rays(NamedTuple):
    """The rays of a view that work on the image, or on its transpose; rows have one empty pixel on both sides."""

    steep: bool
    detectors: Tensor  # rays
    left: Tensor  # rows x rays: the pixel left of a ray, in the flattened image
    low: Tensor  # rows x rays: its weight
    high: Tensor  # rows x rays: that of the pixel right of the ray


class View(NamedTuple):
    """One view as sparse maps."""

    detectors: int
    height: int
    width: int
    parts: tuple[Rays, ...]

    def project(self, images: Tensor) -> Tensor:
        """slices x height x width -> slices x detectors."""
        out = images.new_zeros(len(images), self.detectors)
        for part in self.parts:
            rows = torch.nn.functional.pad(images.mT if part.steep else images, (1, 1)).flatten(1)
            values = part.low * rows[:, part.left] + part.high * rows[:, part.left + 1]
            out[:, part.detectors] = values.sum(1)
        return out

    def back_project(self, y: Tensor) -> Tensor:
        """The transpose: slices x detectors -> slices x height x width."""
        out = y.new_zeros(len(y), self.height, self.width)
        for part in self.parts:
            rows, columns = (self.width, self.height) if part.steep else (self.height, self.width)
            values, padded = y[:, None, part.detectors], y.new_zeros(len(y), rows * (columns + 2))
            padded.index_add_(1, part.left.flatten(), (part.low * values).flatten(1))
            padded.index_add_(1, part.left.flatten() + 1, (part.high * values).flatten(1))
            image = padded.reshape(len(y), rows, columns + 2)[..., 1:-1]
            out += image.mT if part.steep else image
        return out


def view_of(
    size: tuple[int, int], angle: float, tangents: NDArray[np.float64], distance: float, length: float, like: Tensor
) -> View:
    """The tables, computed in double precision on the CPU and moved to the device and dtype of `like`."""
    parts = []
    for steep in (False, True):
        rows, columns = size[::-1] if steep else size
        p, q, t = (-np.sin(angle), -np.cos(angle), -tangents) if steep else (np.cos(angle), np.sin(angle), tangents)
        dx, dy = t * p - q, p + t * q
        mine = np.flatnonzero(np.abs(dx) < np.abs(dy) if steep else np.abs(dx) <= np.abs(dy))
        m = dx[mine] / dy[mine]
        y = (np.arange(rows) - 0.5 * (rows - 1))[:, None]
        x = 0.5 * (columns - 1) + distance * (q + p * m) + y * m
        met = (x > -1) & (x < columns) & ((y + distance * p) * dy[mine] > 0)
        x = np.where(met, x, 0.0)
        left, weight = np.floor(x), np.where(met, length * np.sqrt(1 + m * m), 0.0)
        place = torch.from_numpy((np.arange(rows)[:, None] * (columns + 2) + 1 + left).astype(np.int64))
        low, high = (torch.from_numpy(w).to(like) for w in (weight * (1 - x + left), weight * (x - left)))
        parts.append(Rays(steep, torch.from_numpy(mine).to(like.device), place.to(like.device), low, high))
    return View(len(tangents), *size, tuple(part for part in parts if len(part.detectors)))


def back_filtered(
    rows: Tensor, angles: NDArray[np.float64], grid: tuple[float, float], image: Tensor, distance: float
) -> None:
    """image += sum_v (D/h)^2 rows[..., v, :] at each pixel, h its distance along the central ray; /D^2 as kernels do.

    rows[..., v, i] is at the tangent first + i step, grid = (first, step).
    """
    height, width = image.shape[-2:]
    last = rows.shape[-1] - 1
    y = (torch.arange(height) - 0.5 * (height - 1)).to(image)[:, None]
    x = (torch.arange(width) - 0.5 * (width - 1)).to(image)
    for v, angle in enumerate(angles):
        p, q = float(np.cos(angle)), float(np.sin(angle))
        scale = 1 / (distance - x * q + y * p)
        place = ((x * p + y * q) * scale - grid[0]) / grid[1]
        inside = (place >= 0) & (place < last)
        i = torch.where(inside, place, 0.0).long()
        value = torch.lerp(rows[..., v, i], rows[..., v, i + 1], (place - i).to(rows))
        image += torch.where(inside, scale * scale * value, 0.0)
