"""Parallel-beam tomography: line integrals of an image, their exact adjoint, filtered back-projection.

Pixel (r, c) of a height x width image is the unit square around (c - (width - 1)/2, r - (height - 1)/2); the y-axis
points down the rows. View theta measures along the lines x cos(theta) + y sin(theta) = t, detector j of D at
    t_j = (j - (D - 1)/2 - centre) spacing:   the axis of rotation meets the detector `centre` detectors off its middle.

Joseph's method sums over rows r the linear interpolant f_r of row r. With a the larger of cos, sin in size (where it is
sin, rows and columns change roles) and b the other one,
    (A x)_j = 1/|a| sum_r f_r(t_j/a + (width - 1)/2 - sigma_r),   sigma_r = (r - (height - 1)/2) b/a,
so only the SHIFT sigma_r depends on the row. Write sigma_r = m + (p + w)/8, m and 0 <= p < 8 integers, 0 <= w < 1; take
    f_r(. - sigma_r)  ->  (1 - w) f_r(. - m - p/8) + w f_r(. - m - (p + 1)/8):
rows with the same p are added up by whole cells, and the 8 sums are interpolated once at the detectors. This is a
discretisation of its own (it differs from Joseph's by 1e-5 on smooth images and 1.4 % on white noise), as accurate, and
the adjoint is its exact transpose. Nothing is stored for a view, so a subset of views costs its own work alone.

In float32 on a CPU with numba the kernels are compiled (kernels.py); elsewhere the same sums are done by torch
(generic.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy import float32
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.extras import kernels
from smadmm.operators.linear import Shape
from smadmm.operators.radon import generic
from smadmm.operators.radon.filters import Window, angular_weights, filtered
from smadmm.operators.radon.projector import Projector

_kernels = partial(kernels, "smadmm.operators.radon.kernels")


class Radon(Projector):
    """Line integrals of images at `angles` (radians): (..., H, W) -> (..., views, detectors).

    Views turn from the columns' axis towards the rows', which count downwards: clockwise as images are shown. Where
    they turn the other way, as in scikit-image's radon, take -angles, else images come out upside down.

    size: H = W or (H, W); detectors: by default as many as span the diagonal; spacing: of the detectors, in pixels;
    centre: offset of the axis of rotation in detectors; batch: the leading axes of in_shape, for a stack of slices;
    rays: averaged for each detector, 2 where `spacing` is 2; threads: for many views or slices; compiled: None uses
    numba where it can, False never.

    >>> radon = operators.Radon(16, np.arange(8) * np.pi / 8)
    >>> radon(torch.ones(16, 16)).shape
    torch.Size([8, 22])
    """

    period = math.pi

    def __init__(
        self,
        size: int | tuple[int, int],
        angles: ArrayLike | Tensor,
        detectors: int | None = None,
        spacing: float = 1.0,
        centre: float = 0.0,
        batch: Shape = (),
        threads: int = 1,
        compiled: bool | None = None,
        rays: int = 1,
    ):
        self.spacing = float(spacing)
        if not (math.isfinite(self.spacing) and self.spacing > 0):
            raise ValueError(f"spacing must be positive, got {spacing}")
        if detectors is None:
            sides = np.atleast_1d(size)
            detectors = int(math.hypot(sides[0], sides[-1]) / spacing)
        super().__init__(size, angles, detectors, centre, rays=rays, batch=batch, threads=threads, compiled=compiled)
        pair = np.stack([self._cosines, self._sines])
        steep = np.abs(pair[0]) < np.abs(pair[1])
        self._directions = np.stack([steep, *np.where(steep, pair[::-1], pair)], axis=1)  # as the kernels read it

    def subset(self, views: ArrayLike | Tensor) -> Radon:
        numbers = self._numbers(views)
        size = (self.height, self.width)
        angles, where = self.angles[numbers], (self.detectors, self.spacing, self.centre)
        made = Radon(size, angles, *where, self.batch, self.threads, self.compiled, self.rays)
        return self._with_norms(made, numbers)

    def has_kernels(self) -> bool:
        return _kernels() is not None

    def _new_scratch(self) -> Any:
        return _kernels().scratch(self.height, self.width, self.detectors * self.rays)

    def _project(self, image: Any, other: Any, share: float, numbers: Any, memory: Any, out: Any) -> None:
        _kernels().project(image, other, float32(share), *self._geometry(numbers), memory, out)

    def _back_project(self, y: Any, numbers: Any, memory: Any, out: Any) -> None:
        _kernels().back_project(y, *self._geometry(numbers), memory, out)

    def _geometry(self, numbers: NDArray[np.int64]) -> tuple[Any, ...]:
        return self._directions[numbers], np.empty(len(numbers), np.int64), self._first_ray, self.spacing / self.rays

    def _torch_view(self, v: int, like: Tensor) -> generic.View:
        count, spacing = self.detectors * self.rays, self.spacing / self.rays
        geometry = generic.Geometry(self.height, self.width, count, self._first_ray, spacing)
        return generic.view_of(geometry, float(self._cosines[v]), float(self._sines[v]), like)

    def fbp_weights(self) -> Tensor:
        return torch.from_numpy(angular_weights(self.angles, self.period))[:, None]

    def filter_back(self, rows: Tensor, views: ArrayLike | Tensor, window: Window) -> Tensor:
        shares = self.fbp_weights()[self._numbers(views)].to(rows)
        return self.adjoint_views(shares * filtered(rows, self.spacing, window), views) * self.spacing
