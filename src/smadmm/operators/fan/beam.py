"""Fan-beam tomography: line integrals from a point source, their exact adjoint, filtered back-projection.

Images, angles and their sense are those of Radon (smadmm.operators.radon.parallel), with lengths in one unit, mm by
habit: pixels are `pixel` wide, so images are attenuation per mm where line integrals are -log(I/I0). In view theta the
source stands at R (sin(theta), -cos(theta)), R = source_to_axis, and looks along (-sin, cos); y points down the rows.
Detector j of n lies `pitch` from its neighbours on a line at the distance source_to_detector, whose direction is
(cos, sin), or on an arc around the source (`curved`), at
    s_j = (j - (n - 1)/2 - centre) pitch,   tan(gamma_j)  or, on the arc,  gamma_j = s_j / source_to_detector:
the ray through the axis of rotation meets the detector `centre` detectors off its middle. As the source goes to
infinity, rays become those of Radon with the detectors' spacing at the axis, pitch source_to_axis/source_to_detector.

Joseph's method: ray j meets row r, or column where |dx| > |dy|, ray by ray, at x_j(r); with f_r the linear interpolant
of the row and m_j = dx/dy,
    (A x)_j = pixel sqrt(1 + m_j^2) sum_r f_r(x_j(r)).
In float32 on a CPU with numba the kernels are compiled (kernels.py); elsewhere the same sums are done by torch
(generic.py).

Filtered back-projection. The ray (theta, gamma) is also (theta + pi - 2 gamma, -gamma), backwards. A line that is seen
twice is shared by its two rays in the ratio of S at their angles (Noo et al. 2002), where S is 1 for a whole turn, and
for a part of one rises like sin^2 from 0 at the ends of the range: the short-scan weights w. With h the distance of a
pixel from the source along the central ray,
    f = sum_theta dtheta (R/h)^2 q(gamma),   q = the ramp filter of w cos(gamma) b
for a flat detector; on an arc the filter's response is multiplied by (gamma/sin(gamma))^2 and q by cos^2(gamma).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy import float32
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.extras import kernels
from smadmm.operators.fan import generic
from smadmm.operators.linear import Shape
from smadmm.operators.radon.filters import Window, angular_weights, filtered
from smadmm.operators.radon.projector import Projector

WHOLE = 1.5  # times the gap of a usual view, and more: a gap in a turn that is not whole
RISE = math.radians(10)  # of S at the ends of a range, at least
FINER = 2  # samples per detector of filtered rows that are carried from an arc to a line

_kernels = partial(kernels, "smadmm.operators.fan.kernels")


@dataclass(frozen=True)
class FanGeometry:
    """Where the source and the detectors stand, lengths in `unit`; `curved`: detectors on an arc around the source.

    >>> scanner = smadmm.fan(source_to_axis=400, source_to_detector=600, pitch=1.5)
    >>> scanner.projector(64, np.arange(12) * np.pi / 6, detectors=90).out_shape
    (12, 90)
    """

    source_to_axis: float
    source_to_detector: float
    pitch: float = 1.0  # distance between detectors
    curved: bool = False
    unit: str = "mm"
    rays: int = 1  # averaged for each detector

    def projector(
        self,
        size: int | tuple[int, int],
        angles: ArrayLike | Tensor,
        detectors: int,
        spacing: float = 1.0,
        centre: float = 0.0,
        threads: int = 1,
    ) -> FanBeam:
        """As Radon is made: `spacing` is that of the detectors at the axis, in pixels."""
        pixel = self.pitch * self.source_to_axis / self.source_to_detector / spacing
        return FanBeam(size, angles, detectors, self.source_to_axis, self.source_to_detector, pitch=self.pitch,
                       pixel=pixel, centre=centre, curved=self.curved, rays=self.rays, threads=threads)  # fmt: skip


class FanBeam(Projector):
    """Line integrals of images from a source that turns around them: (..., H, W) -> (..., views, detectors).

    Where views turn counterclockwise, as in ASTRA and HTC 2022, images come out upside down: turn their rows.

    size: H = W or (H, W); angles in radians, clockwise as images are shown; detectors: how many; pitch: their distance
    from each other, and pixel: the width of pixels (None: what a detector sees at the axis), in the unit of the
    distances; centre: offset of the central ray in detectors; curved: detectors on an arc around the source; rays,
    batch, threads, compiled: as for Radon.

    >>> A = operators.FanBeam(32, np.arange(8) * np.pi / 4, 48, source_to_axis=100, source_to_detector=150)
    >>> x, y = torch.ones(32, 32), torch.ones(8, 48)
    >>> abs(float((A(x) * y).sum() - (x * A.T(y)).sum())) < 1e-3 * float(A(x).sum())
    True
    """

    period = 2 * math.pi

    def __init__(
        self,
        size: int | tuple[int, int],
        angles: ArrayLike | Tensor,
        detectors: int,
        source_to_axis: float,
        source_to_detector: float,
        *,
        pitch: float = 1.0,
        pixel: float | None = None,
        centre: float = 0.0,
        curved: bool = False,
        rays: int = 1,
        batch: Shape = (),
        threads: int = 1,
        compiled: bool | None = None,
    ):
        for name, value in (("source_to_axis", source_to_axis), ("source_to_detector", source_to_detector),
                            ("pitch", pitch), ("pixel", 1.0 if pixel is None else pixel)):  # fmt: skip
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        super().__init__(size, angles, detectors, centre, rays=rays, batch=batch, threads=threads, compiled=compiled)
        self.source_to_axis, self.source_to_detector = float(source_to_axis), float(source_to_detector)
        self.pitch, self.curved = float(pitch), bool(curved)
        self.pixel = self.pitch * self.source_to_axis / self.source_to_detector if pixel is None else float(pixel)
        self.spacing = self.pitch * self.source_to_axis / self.source_to_detector / self.pixel
        self._distance, self._step = self.source_to_axis / self.pixel, self.pitch / self.source_to_detector
        self.gammas = self.gamma_of(np.arange(self.detectors) + self._origin)
        opening = math.degrees(self.gammas[-1] - self.gammas[0])
        if opening >= 90 or np.abs(self.gammas).max() >= math.pi / 2:
            raise ValueError(
                f"the fan opens by {opening:.0f} degrees, which must be less than 90; check pitch, "
                f"source_to_detector and their unit"
            )
        self._tangents = np.tan(self.gammas)
        rays_at = (np.arange(self.detectors * self.rays) + self._first_ray) / self.rays
        self._slopes = np.tan(self.gamma_of(rays_at))

    def subset(self, views: ArrayLike | Tensor) -> FanBeam:
        numbers = self._numbers(views)
        made = FanBeam(
            (self.height, self.width), self.angles[numbers], self.detectors, self.source_to_axis,
            self.source_to_detector, pitch=self.pitch, pixel=self.pixel, centre=self.centre, curved=self.curved,
            rays=self.rays, batch=self.batch, threads=self.threads, compiled=self.compiled,
        )  # fmt: skip
        return self._with_norms(made, numbers)

    def gamma_of(self, detectors: NDArray[Any]) -> NDArray[Any]:
        """The angle of the ray to a detector, counted from the central ray."""
        places: NDArray[Any] = detectors * self._step
        return places if self.curved else np.arctan(places)

    def has_kernels(self) -> bool:
        return _kernels() is not None

    def _new_scratch(self) -> Any:
        kernels = _kernels()
        return kernels.scratch(self.height, self.width, self._slopes, self._distance, kernels.LANES)

    def _beam(self, numbers: NDArray[np.int64]) -> Any:
        kernels = _kernels()
        return kernels.Beam(self._cosines[numbers], self._sines[numbers], self._slopes, distance=self._distance,
                            rate=self.rays / self._step, origin=self._first_ray, curved=self.curved, length=self.pixel,
                            lanes=kernels.LANES)  # fmt: skip

    def _project(self, image: Any, other: Any, share: float, numbers: Any, memory: Any, out: Any) -> None:
        _kernels().project(image, other, float32(share), self._beam(numbers), memory, out)

    def _back_project(self, y: Any, numbers: Any, memory: Any, out: Any) -> None:
        _kernels().back_project(y, self._beam(numbers), memory, out)

    def _torch_view(self, v: int, like: Tensor) -> generic.View:
        size, angle = (self.height, self.width), float(self.angles[v])
        return generic.view_of(size, angle, self._slopes, self._distance, self.pixel, like)

    # --- filtered back-projection -------------------------------------------------------------------------------------

    def fbp_weights(self) -> Tensor:
        shares = angular_weights(self.angles, self.period)
        shares = np.minimum(shares, 2 * np.median(shares))  # beside the gap of a range
        return torch.from_numpy(shares[:, None] * self._seen_once())

    def _seen_once(self) -> NDArray[np.float64]:
        """w: the part that each ray has in its line, views x detectors."""
        turn = np.sort(self.angles % self.period)
        gaps = np.diff(turn, append=turn[0] + self.period)
        widest = int(gaps.argmax())
        if gaps[widest] <= WHOLE * max(np.median(gaps), self.period / self.views):
            return np.full((self.views, self.detectors), 0.5)
        span, first = self.period - gaps[widest], turn[(widest + 1) % self.views]
        rise = min(max(RISE, (span - math.pi) / 2), span / 2) or 1.0

        def ramp(angles: NDArray[np.float64]) -> NDArray[np.float64]:
            after = (angles - first + 1e-9) % self.period
            near = np.clip(np.minimum(after, span + 2e-9 - after) / rise, 0, 1)
            return np.where(after <= span + 2e-9, np.sin(0.5 * math.pi * near) ** 2 + 1e-9, 0.0)

        here, opposite = self.angles[:, None], self.angles[:, None] + math.pi - 2 * self.gammas
        return ramp(here) / (ramp(here) + ramp(opposite))

    def filter_back(self, rows: Tensor, views: ArrayLike | Tensor, window: Window) -> Tensor:
        numbers = self._numbers(views)
        weights = self.fbp_weights()[numbers] * torch.from_numpy(np.cos(self.gammas))
        spacing = self._step if self.curved else self.spacing
        q, grid = filtered(rows * weights.to(rows), spacing, window, arc=self.curved), (self._tangents[0], self._step)
        q = q / self._distance if self.curved else q
        if self.curved:
            q, grid = self._on_a_line(q)
        q = q.reshape(math.prod(q.shape[:-2]), *q.shape[-2:])
        out = q.new_zeros(len(q), self.height, self.width)
        if self.runs_compiled(q.dtype, q.device):
            for one, image in zip(q.contiguous().numpy(), out.numpy(), strict=True):
                _kernels().back_filtered(one, self._beam(numbers), *grid, image)
        else:
            for one, image in zip(q, out, strict=True):
                generic.back_filtered(one, self.angles[numbers], grid, image, self._distance)
        return out.reshape(*rows.shape[:-2], self.height, self.width) * (self._distance**2 / self.pixel)

    def _on_a_line(self, q: Tensor) -> tuple[Tensor, tuple[float, float]]:
        """Filtered rows of an arc, times cos^2(gamma), at equal steps of the tangent: first and step."""
        t = np.linspace(self._tangents[0], self._tangents[-1], FINER * self.detectors)
        gamma = np.arctan(t)
        place = np.clip(gamma / self._step - self._origin, 0, self.detectors - 1)
        left = torch.from_numpy(np.minimum(place.astype(np.int64), self.detectors - 2)).to(q.device)
        f = torch.from_numpy(place).to(q) - left
        values = torch.lerp(q[..., left], q[..., left + 1], f) * torch.from_numpy(np.cos(gamma) ** 2).to(q)
        return values, (float(t[0]), float(t[1] - t[0]))
