"""Cone beams by RTK, the reconstruction toolkit of ITK (the extra `cone`): Joseph's projector, its adjoint, and FDK.

Volumes are slices x rows x columns, the axis of rotation pointing along the slices, and data views x detector rows x
detector columns. Those are RTK's own images with the first two axes of the volume exchanged: RTK turns about y, which
is the second axis of its arrays. Both lie in the middle: the axis of rotation goes through the centre of every slice,
and the central ray hits the centre of the detector where the geometry has no offsets. Lengths are in one unit.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.extras import needs
from smadmm.operators.linear import Operator

SLAB = 64  # slices of a first image that are made together


@lru_cache(maxsize=1)
def _itk() -> Any:
    with warnings.catch_warnings():  # ITK loads its parts when they are named, and dies of warnings that are errors
        warnings.simplefilter("ignore")
        itk = needs("itk", "cone", "cone beams")
        try:
            itk.RTK.FDKConeBeamReconstructionFilter, itk.Image, itk.image_from_array  # noqa: B018
        except AttributeError as error:
            raise ImportError("cone beams need itk-rtk; install it with: pip install 'smadmm[cone]'") from error
    return itk


def cone(angles: ArrayLike, source_to_axis: float, source_to_detector: float) -> Any:
    """RTK's geometry of a circular scan, angles in radians.

    >>> interop.cone([0.0], source_to_axis=600, source_to_detector=400)
    Traceback (most recent call last):
    ...
    ValueError: the detector stands behind the axis, but source_to_detector = 400 is not above source_to_axis = 600
    """
    if not 0 < source_to_axis < source_to_detector:
        raise ValueError(
            f"the detector stands behind the axis, but source_to_detector = {source_to_detector:g} is not above "
            f"source_to_axis = {source_to_axis:g}"
        )
    geometry = _itk().RTK.ThreeDCircularProjectionGeometry.New()
    for angle in np.degrees(np.asarray(angles, np.float64).ravel()):
        geometry.AddProjection(float(source_to_axis), float(source_to_detector), float(angle))
    return geometry


def from_rtk(
    geometry: Any,
    shape: tuple[int, int, int],
    detector: tuple[int, int],
    *,
    voxel: float = 1.0,
    pitch: float = 1.0,
    threads: int = 1,
) -> ConeBeam:
    """An operator from a geometry of RTK (`ThreeDCircularProjectionGeometry`, or interop.cone).

    shape: slices, rows and columns of the volume; detector: its rows and columns; voxel and pitch: their widths.

    >>> interop.from_rtk(None, (8, 8), (8, 8))
    Traceback (most recent call last):
    ...
    ValueError: a volume is slices x rows x columns, and a detector rows x columns, got (8, 8) and (8, 8)
    """
    if len(shape) != 3 or len(detector) != 2 or min(*shape, *detector) < 1:
        raise ValueError(
            f"a volume is slices x rows x columns, and a detector rows x columns, got {shape} and {detector}"
        )
    if not (voxel > 0 and pitch > 0):
        raise ValueError(f"voxel and pitch are widths and must be positive, got {voxel} and {pitch}")
    return ConeBeam(geometry, shape, detector, voxel, pitch, threads)


class ConeBeam(Operator):
    """Line integrals of volumes from a source that turns around them; made by interop.from_rtk.

    slices x rows x columns -> views x detector rows x detector columns
    """

    dtype = torch.float32

    def __init__(
        self,
        geometry: Any,
        shape: tuple[int, int, int],
        detector: tuple[int, int],
        voxel: float,
        pitch: float,
        threads: int,
    ):
        self._geometry, self.voxel, self.pitch, self.threads = geometry, float(voxel), float(pitch), threads
        # what a checkpoint compares: the geometry itself is an object of C++
        views = range(len(geometry.GetGantryAngles()))
        self.matrices = np.stack([_itk().array_from_matrix(geometry.GetMatrix(i)) for i in views])
        self.in_shape, self.out_shape = tuple(shape), (len(self.matrices), *detector)

    def _image(
        self, array: NDArray[np.float32], spacing: tuple[float, float, float], first: float | None = None
    ) -> Any:
        """An image of ITK, its centre at 0; `first`: where its second axis begins instead."""
        itk = _itk()
        image = itk.image_from_array(np.ascontiguousarray(array))
        origin = [-0.5 * (n - 1) * step for n, step in zip(array.shape[::-1], spacing, strict=True)]
        origin[1] = origin[1] if first is None else first
        image.SetSpacing(spacing)
        image.SetOrigin(origin)
        return image

    def _volume(self, array: NDArray[np.float32], first: float | None = None) -> Any:
        return self._image(array.transpose(1, 0, 2), (self.voxel,) * 3, first)

    def _views(self, array: NDArray[np.float32]) -> Any:
        return self._image(array, (self.pitch, self.pitch, 1.0))

    def _run(self, name: str, into: Any, of: Any) -> NDArray[np.float32]:
        itk = _itk()
        kind = itk.Image[itk.F, 3]
        made = getattr(itk.RTK, name)
        step = (made[kind] if name.startswith("FDK") else made[kind, kind]).New()
        step.SetInput(0, into)
        step.SetInput(1, of)
        step.SetGeometry(self._geometry)
        step.SetNumberOfWorkUnits(self.threads)
        step.Update()
        found: NDArray[np.float32] = itk.array_from_image(step.GetOutput())
        return found

    def forward(self, x: Tensor) -> Tensor:
        empty = self._views(np.zeros(self.out_shape or (), np.float32))
        found = self._run("JosephForwardProjectionImageFilter", empty, self._volume(_array(x)))
        return torch.from_numpy(found).to(x)

    def adjoint(self, y: Tensor) -> Tensor:
        empty = self._volume(np.zeros(self.in_shape or (), np.float32))
        found = self._run("JosephBackProjectionImageFilter", empty, self._views(_array(y)))
        return torch.from_numpy(found.transpose(1, 0, 2).copy()).to(y)

    def subset(self, views: ArrayLike) -> ConeBeam:
        """The operator of these views alone."""
        chosen, old = _itk().RTK.ThreeDCircularProjectionGeometry.New(), self._geometry
        for i in np.asarray(views, np.int64).ravel().tolist():
            chosen.AddProjectionInRadians(
                old.GetSourceToIsocenterDistances()[i], old.GetSourceToDetectorDistances()[i],
                old.GetGantryAngles()[i], old.GetProjectionOffsetsX()[i], old.GetProjectionOffsetsY()[i],
                old.GetOutOfPlaneAngles()[i], old.GetInPlaneAngles()[i], old.GetSourceOffsetsX()[i],
                old.GetSourceOffsetsY()[i],
            )  # fmt: skip
        shape, detector = self.in_shape or (0, 0, 0), self.out_shape or (0, 0, 0)
        return ConeBeam(chosen, (shape[0], shape[1], shape[2]), (detector[1], detector[2]),
                        self.voxel, self.pitch, self.threads)  # fmt: skip

    def fdk(self, data: Any, slab: int = SLAB) -> Tensor:
        """The filtered back-projection of Feldkamp, Davis and Kress, `slab` slices at a time."""
        y = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data, np.float32))
        if tuple(y.shape) != self.out_shape:
            raise ValueError(f"the data have the shape {tuple(y.shape)}, but {self!r} gives {self.out_shape}")
        slices, *plane = self.in_shape or (0,)
        views, volume = self._views(_array(y)), np.empty((slices, *plane), np.float32)
        for begin in range(0, slices, slab):
            part = volume[begin : begin + slab]
            into = self._volume(np.zeros_like(part), (begin - 0.5 * (slices - 1)) * self.voxel)
            part[:] = self._run("FDKConeBeamReconstructionFilter", into, views).transpose(1, 0, 2)
        return torch.from_numpy(volume).to(y)

    def __repr__(self) -> str:
        shape, out = ("x".join(map(str, s or ())) for s in (self.in_shape, self.out_shape))
        return f"ConeBeam({shape} -> {out})"


def _array(x: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = x.detach().cpu().float().numpy()
    return array
