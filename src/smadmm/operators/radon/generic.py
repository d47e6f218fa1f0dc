"""The discretisation of kernels.py in torch, view by view, for any device and dtype."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PHASES = 8
MARGIN = 4  # empty cells beside the shifted rows


class Geometry(NamedTuple):
    """Detector j lies at (j + origin) spacing from the projection of the image centre."""

    height: int
    width: int
    detectors: int
    origin: float
    spacing: float


class View(NamedTuple):
    """One view as two sparse maps: image rows <-> bins (flattened, PHASES x cells) <-> detectors."""

    steep: bool  # works on the transposed image
    size: int  # of the flattened bins
    low: Tensor  # rows x columns: where a pixel goes ...
    high: Tensor
    w: Tensor  # rows x 1: ... and its share of the second place
    places: Tensor  # PHASES x detectors: what a detector sees ...
    fraction: Tensor  # PHASES x detectors: ... its share of the next place
    weight: Tensor  # detectors: path length through a row, 0 off the image

    def project(self, images: Tensor) -> Tensor:
        """slices x height x width -> slices x detectors."""
        rows = images.mT if self.steep else images
        bins = images.new_zeros(len(images), self.size)
        bins.index_add_(1, self.low.flatten(), ((1 - self.w) * rows).flatten(1))
        bins.index_add_(1, self.high.flatten(), (self.w * rows).flatten(1))
        return self.weight * torch.lerp(bins[:, self.places], bins[:, self.places + 1], self.fraction).sum(1)

    def back_project(self, y: Tensor) -> Tensor:
        """The transpose: slices x detectors -> slices x height x width."""
        values = (self.weight * y)[:, None]
        bins = y.new_zeros(len(y), self.size)
        bins.index_add_(1, self.places.flatten(), ((1 - self.fraction) * values).flatten(1))
        bins.index_add_(1, self.places.flatten() + 1, (self.fraction * values).flatten(1))
        rows = torch.lerp(bins[:, self.low], bins[:, self.high], self.w)
        return rows.mT if self.steep else rows


def view_of(g: Geometry, cosine: float, sine: float, like: Tensor) -> View:
    """The tables, computed in double precision on the CPU and moved to the device and dtype of `like`."""
    steep = abs(cosine) < abs(sine)
    rows, columns = (g.width, g.height) if steep else (g.height, g.width)
    dominant, other = (sine, cosine) if steep else (cosine, sine)
    cells = rows + columns + 2 * MARGIN
    base = rows // 2 + MARGIN
    sigma = (np.arange(rows) - 0.5 * (rows - 1)) * (other / dominant) * PHASES
    whole = np.floor(sigma).astype(np.int64)
    m, p = np.divmod(whole, PHASES)
    low = p * cells + base + m
    high = np.where(p + 1 < PHASES, low + cells, base + m + 1)  # a shift by PHASES phases is one whole cell
    position = base + 0.5 * (columns - 1) + (np.arange(g.detectors) + g.origin) * g.spacing / dominant
    seen = (position >= 2) & (position <= cells - 3)
    shifted = np.where(seen, position, 2.0) - np.arange(PHASES)[:, None] / PHASES
    left = np.floor(shifted).astype(np.int64)

    def index(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(like.device)

    def real(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(like.dtype).to(like.device)

    along = torch.arange(columns, device=like.device)
    return View(
        steep=steep,
        size=PHASES * cells,
        low=index(low)[:, None] + along,
        high=index(high)[:, None] + along,
        w=real(sigma - whole)[:, None],
        places=index(left + cells * np.arange(PHASES)[:, None]),
        fraction=real(shifted - left),
        weight=real(seen / abs(dominant)),
    )
