"""Scans from the files that instruments write, as sinograms with the angles of their views.

One slice is views x detectors, a volume has a third axis. Which axis counts the views follows from the number of angles
or from the format, or is asked for; the other two are slices, then detectors. In two dimensions, where that leaves it
open, views are rows, unless the columns have one sum, as parallel views of an image have, and rows have not. Raw counts
are divided by the flat and dark fields of the file or of the caller (smadmm.io.counts). `notes` says what was
recognised. Files stay on disk and are read as slices are asked for; of volumes whose slices lie across what is stored
together (projections), a block of slices is read at a time.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.io import dicom
from smadmm.io.angles import in_degrees, read_angles, read_range
from smadmm.io.arrays import ANGLE_KEYS, SINOGRAM_KEYS, content_of, measurement
from smadmm.io.counts import air_level, are_counts, from_counts
from smadmm.io.hdf5 import HDF5
from smadmm.io.images import read_tiff
from smadmm.io.limits import load_npy
from smadmm.io.mrc import MRC, read_mrc
from smadmm.io.scan import AXES, BENT, Blocks, Found, ScanError, Sinogram, readable
from smadmm.io.scanners import SCANNERS
from smadmm.io.tiff_folder import read_tiff_folder

SINOGRAMS = (".npy", ".npz", *HDF5, ".tif", ".tiff", ".mat", *MRC)
NUMPY_CURE = "and save the projections by numpy.save"
# endings of formats that are not read, what they are, and what to do
FOREIGN = (
    ((".txrm", ".xrm"), "is a scan of an Xradia microscope",
     f"export it there as TIFF, or read it by dxchange {NUMPY_CURE}"),
    ((".edf",), "is an ESRF data file", f"read it by fabio {NUMPY_CURE}"),
    ((".his", ".raw", ".bin", ".dat", ".seq"), "holds numbers without their type and shape",
     f"read them by numpy.fromfile with both {NUMPY_CURE}"),
    ((".vgi", ".vol", ".rec"), "holds a volume that is reconstructed already", "give the projections"),
    ((".png", ".jpg", ".jpeg", ".bmp", ".gif"), "is a picture", "add {simulate} VIEWS to project it"),
    ((".zip", ".gz", ".tar", ".tgz", ".bz2", ".xz", ".7z"), "is an archive", "unpack it"),
    ((".nii", ".nrrd", ".mha", ".mhd", ".fits"), "is of a kind that is not read",
     f"read it by a library of that format {NUMPY_CURE}"),
)  # fmt: skip
NO_ANGLES = "give {angles} as a file (one number per view) or a range of degrees, such as 0:180"
AXES_CURE = "say what they are, in the file's order, such as {axes} slices,views,detectors"
COUNTS_CURE = (
    "give those of an unattenuated ray, such as {air} 47000, or a {flat} field (line integrals are no whole numbers)"
)


def read_sinogram(
    path: str | os.PathLike[str],
    angles: str | None = None,
    unit: str = "auto",
    *,
    array: str | None = None,
    axes: str | None = None,
    flat: str | None = None,
    dark: str | None = None,
    air: float | None = None,
    growing: bool = False,
) -> Sinogram:
    """A scan as line integrals.

    Parameters
    ----------
    path : of the file, or of a folder of images.
    angles : a file of numbers, or START:STOP[:end] in degrees, where the file of the scan has none.
    unit : of the angles: auto, degrees or radians.
    array : the name of the array, where the file holds several.
    axes : slices, views and detectors in the order of the array, where that is not clear.
    flat, dark : files of the counts without object and without beam, where the file of the scan has none.
    air : counts of an unattenuated ray, instead of a flat field.
    growing : another program appends views to the file, HDF5 in SWMR mode or Zarr; those that are whole are taken.
    """
    one_of("unit", unit, ("auto", "degrees", "radians"))
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    if dark is not None and flat is None:
        raise ArgumentError("{dark} needs the counts without object, too; add {flat} FILE")
    if air is not None and flat is not None:
        raise ArgumentError("{air} and {flat} both tell the counts without object; give one of them")
    positive(air=air)
    span = None if angles is None else read_range(angles)
    given = None if angles is None or span is not None else read_angles(angles, 0)
    with readable(path):
        found = _found(path, array, None if given is None or growing else len(given[0]), growing)
        if given is not None and growing:  # of all views that will come
            given = given[0][: found.stored.shape[0]], given[1]
        if given is not None:
            found = replace(found, angles=given[0], unit=given[1])
        elif span is not None:
            found = replace(found, angles=None)
        sinogram = _normalised(_sinogram(path, found, unit, axes, span), found, (flat, dark, air))
    files = {"path": path, "flat": flat, "dark": dark, "angles": None if span is not None else angles}
    told = {"angles": angles, "unit": unit, "array": array, "axes": axes, "air": air}
    absolute = {name: os.path.abspath(file) for name, file in files.items() if file is not None}
    return replace(sinogram, opened=told | absolute)


@lru_cache(maxsize=2)
def _open_once(arguments: tuple[tuple[str, Any], ...], changed: int) -> Sinogram:
    return read_sinogram(**dict(arguments))


def reopened(arguments: tuple[tuple[str, Any], ...], changed: int, kept: dict[str, Any]) -> Sinogram:
    """A scan that was sent here from another process: opened once, with what was chosen of it there."""
    return replace(_open_once(arguments, changed), **kept)


def _found(path: Path, array: str | None, views: int | None, growing: bool = False) -> Found:
    """What a file holds, by its ending; a folder by its content."""
    suffix = path.suffix.lower()
    content = content_of(path, growing)
    if content is not None:
        if array is None and "hu" in content.arrays and not set(SINOGRAM_KEYS) & set(content.arrays):
            raise ArgumentError("{0} holds slices in Hounsfield units; add {simulate} VIEWS to project them", path)
        return measurement(path, content, array, views)
    if array is not None:
        raise ScanError(path, "holds one array without a name", "leave {array} out")
    if suffix in MRC:
        return read_mrc(path)
    if path.is_dir():
        return dicom.read_projections(path) if dicom.in_folder(path) else read_tiff_folder(path)
    if dicom.is_dicom(path):
        return dicom.read_projections(path)
    if suffix == ".npy":
        return Found(load_npy(path, mapped=True))
    if suffix in (".tif", ".tiff"):
        return Found(read_tiff(path, mapped=True))
    if suffix in SCANNERS:
        return read_tiff_folder(path.parent)
    for endings, kind, cure in FOREIGN:
        if suffix in endings:
            raise ScanError(path, kind, cure)
    known = ", ".join(SINOGRAMS)
    raise ArgumentError("{0} is not a scan; give {1}, DICOM projections, Zarr or a folder of TIFF", path, known)


def _sinogram(
    path: Path, found: Found, unit: str, asked: str | None, span: tuple[float, float, bool | None] | None
) -> Sinogram:
    """The sinogram of what is stored, counts or not."""
    stored, shape = found.stored, tuple(found.stored.shape)
    given: Any = found.angles
    if len(shape) not in (2, 3) or 0 in shape or stored.dtype.kind not in "iuf":
        raise ScanError(
            path, f"holds {stored.dtype} {shape}", "a sinogram has real numbers and 2 axes, a volume of them 3"
        )
    if given is None and span is None:
        names = ", ".join(" ".join(name.split()) for name in found.names[:8])
        others = f", none of its arrays ({names}) is named {', '.join(ANGLE_KEYS)}" if len(found.names) > 1 else ""
        raise ScanError(path, f"has no angles{others}", NO_ANGLES)
    axes = _axes(path, found, None if given is None or found.frames is not None else len(given), asked)
    views = shape[axes[1]] if found.frames is None else len(found.frames)
    if span is not None:
        given, unit = np.linspace(span[0], span[1], views, endpoint=bool(span[2])), "degrees"
    elif found.frames is not None and len(given) == shape[axes[1]]:
        given = given[found.frames]
    if len(given) != views:
        raise ScanError(path, f"has {views} projections, but there are {len(given)} angles", NO_ANGLES)
    if span is None and views > 1 and np.ptp(given) == 0:
        raise ScanError(path, f"has {views} angles that are all {given[0]:g}", NO_ANGLES)
    degrees, said = in_degrees(given, found.unit if unit == "auto" else unit)
    fan, notes = found.geometry, (said, _orientation(shape, axes), *found.notes)
    if fan is not None:
        bend = fan.bend(shape[axes[2]])
        nearly = f": its rays are parallel within {bend:.2g} detectors" if bend < BENT else ", as the file says"
        notes, fan = (*notes, f"{fan}{nearly}"), None if bend < BENT else fan
    on_disk = len(shape) == 3 and not isinstance(stored, np.ndarray)
    return Sinogram(
        Blocks(stored, axes[0] or 0) if on_disk else stored, axes, degrees, notes,
        truth=found.truth, chosen=found.frames, path=path, center=found.center, photons=found.photons, geometry=fan,
        span=None if span is None else (span[0], span[1], views), end_point=None if span is None else span[2],
    )  # fmt: skip


def _normalised(sinogram: Sinogram, found: Found, told: tuple[str | None, str | None, float | None]) -> Sinogram:
    """Line integrals of counts, by what the caller tells or the file holds; counts without either are refused."""
    flat, dark, air = told
    no_light = found.dark if dark is None else dark
    if flat is not None or air is not None:
        return from_counts(sinogram, np.array(air) if flat is None else flat, no_light)
    if found.flat is not None:
        frames = [0 if f is None else f.shape[0] if len(f.shape) == 3 else 1 for f in (found.flat, found.dark)]
        note = f"{frames[0]} flat and {frames[1]} dark fields of the file are used"
        return from_counts(replace(sinogram, notes=(*sinogram.notes, note)), found.flat, no_light)
    if found.counts or are_counts(sinogram.stored):
        raise ScanError(sinogram.path, f"holds counts ({sinogram.stored.dtype}) without flat fields", COUNTS_CURE)
    level = air_level(sinogram.stored, sinogram.axes)
    if level is not None:
        note = (
            "values are near 1 beside the object and below behind it: transmission, of which -log is taken"
            if level == 1
            else f"values are near {level:.3g} beside the object and below behind it: intensities I, of which "
            f"-log(I / {level:.3g}) is taken"
        )
        return replace(from_counts(sinogram, np.array(level), None), notes=(*sinogram.notes, note))
    return sinogram


def _axes(path: Path, found: Found, views: int | None, asked: str | None) -> tuple[int | None, int, int]:
    """The axes of slices, views and detectors; views: their number, None if that is not told."""
    shape, layout = tuple(found.stored.shape), found.layout
    size = " x ".join(map(str, shape))
    if asked is not None:
        layout = tuple(word.strip() for word in asked.lower().split(","))
        names = AXES[-len(shape) :]
        if sorted(layout) != sorted(names):
            raise ArgumentError("{axes} {0!r} must be {1} in the order of {2}", asked, ",".join(names), size)
    matching = [axis for axis in range(len(shape)) if views in (None, shape[axis])]
    if not matching or (asked is not None and layout and layout.index("views") not in matching):
        raise ScanError(path, f"is {size}, but there are {views} angles", "no axis has that many views; " + NO_ANGLES)
    if layout is not None and len(layout) == len(shape) and layout.index("views") in matching:
        return (layout.index("slices") if len(shape) == 3 else None), layout.index("views"), layout.index("detectors")
    if len(shape) == 3 and len(matching) > 1:
        why = "a range of angles does not tell" if views is None else f"more than one is {views} long"
        raise ScanError(path, f"is {size}, and {why} which axis counts the views", AXES_CURE)
    axis = matching[-1] if len(matching) == 2 and _views_are_columns(found.stored) else matching[0]
    rest = [other for other in range(len(shape)) if other != axis]
    return (None, axis, rest[0]) if len(shape) == 2 else (rest[0], axis, rest[1])


def _views_are_columns(stored: Any) -> bool:
    """Whether the columns have one sum, as parallel views of an image have, and the rows have not."""
    values = np.asarray(stored)
    of_rows, of_columns = values.sum(1, dtype=np.float64), values.sum(0, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # what is not finite is refused later
        return _spread(of_rows) > 0.2 and _spread(of_columns) < 0.02


def _spread(values: NDArray[np.float64]) -> float:
    return float(values.std() / max(abs(values.mean()), 1e-300))


def _orientation(shape: tuple[int, ...], axes: tuple[int | None, int, int]) -> str:
    names = {axes[1]: "views", axes[2]: "detectors"} | ({} if axes[0] is None else {axes[0]: "slices"})
    return "the sinogram is " + " x ".join(
        f"{shape[axis]} {names[axis].removesuffix('s' * (shape[axis] == 1))}" for axis in range(len(shape))
    )
