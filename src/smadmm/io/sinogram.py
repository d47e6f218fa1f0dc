"""Sinograms from NPY, NPZ, HDF5 and TIFF files, with the angles of their views.

One slice is views x detectors, a volume has a third axis; which axis counts the views is recognised by the number of
angles. Where two match, or a range of angles says nothing of their number: in two dimensions views are rows, unless the
columns have one sum, as parallel views of an image have, and rows have not; in three slices x views x detectors, except
in HDF5 files of the Data Exchange layout, whose views come first. Angles above 2 pi must be degrees; others are radians
unless the file or the caller says degrees. `notes` says what was recognised. Files stay on disk: NPY,
uncompressed TIFF and HDF5 are read as views or slices are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError, one_of
from smadmm.extras import needs
from smadmm.io.images import read_tiff

SINOGRAMS = (".npy", ".npz", ".h5", ".hdf5", ".hdf", ".nxs", ".tif", ".tiff")
SINOGRAM_KEYS = ("sinogram", "sino", "sinograms", "projections", "data")
ANGLE_KEYS = ("angles", "theta", "angle", "thetas")
UNITS = {"deg": "degrees", "rad": "radians", "°": "degrees"}

Unit = Literal["auto", "degrees", "radians"]


@dataclass(frozen=True)
class Sinogram:
    """Slices of views x detectors, read by number; angles in degrees; truth: the image, where the file holds it."""

    stored: Any  # an array, a memory map or an HDF5 dataset
    axes: tuple[int | None, int, int]  # the axes of slices (None: one slice), views, detectors
    degrees: NDArray[np.float64]
    notes: tuple[str, ...] = ()
    truth: NDArray[np.float32] | None = None
    chosen: NDArray[np.int64] | None = None  # the views to use; None: all

    def __len__(self) -> int:
        return 1 if self.axes[0] is None else int(self.stored.shape[self.axes[0]])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slices x views x detectors."""
        return len(self), len(self.degrees), int(self.stored.shape[self.axes[2]])

    def __getitem__(self, number: int) -> Any:
        """One slice, views x detectors; not read yet where the file allows it."""
        slices, views, detectors = self.axes
        if slices is None:
            stored = self.stored
        else:
            stored = self.stored[tuple(number if axis == slices else np.s_[:] for axis in range(3))]
        if views > detectors:
            stored = stored.T if isinstance(stored, np.ndarray) else np.asarray(stored).T
        return stored if self.chosen is None else stored[self.chosen]

    def evenly(self, views: int) -> Sinogram:
        """The same with some of its views, evenly chosen."""
        total = len(self.degrees)
        if not 1 <= views <= total:
            raise ArgumentError("{views} must be between 1 and the {0} views there are, got {1}", total, views)
        chosen = np.arange(views) * total // views
        return replace(self, degrees=self.degrees[chosen], chosen=chosen)


def read_sinogram(path: Path, angles: str | None = None, unit: str = "auto") -> Sinogram:
    """A sinogram; `angles` is a file of numbers or START:STOP in degrees (STOP left out), if not in the file itself."""
    one_of("unit", unit, ("auto", "degrees", "radians"))
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        stored, found = _stored(path)
    except ImportError:
        raise
    except Exception as error:
        ours = isinstance(error, ValueError) and str(path) in str(error)
        raise ValueError(str(error) if ours else f"{path} cannot be read: {error}") from None
    if len(stored.shape) not in (2, 3) or 0 in stored.shape or stored.dtype.kind not in "iuf":
        raise ValueError(
            f"{path} holds {stored.dtype} {stored.shape}; a sinogram has real numbers and 2 axes, a volume of them 3"
        )
    flat = len(stored.shape) == 2
    unsure = flat and (stored.shape[0] == stored.shape[1] or (angles is not None and ":" in angles))
    views_first = found.data_exchange or (flat and not (unsure and _views_are_columns(stored)))
    given, named = found.angles, found.unit
    if angles is not None:
        views = stored.shape[0 if views_first else 1]
        given, named = read_angles(angles, views)
    if given is None:
        others = f", none of its arrays ({', '.join(found.names)}) is named {', '.join(ANGLE_KEYS)}"
        raise ArgumentError(
            "{0} has no angles{1}; give {angles} as a file (one number per view) or a range of degrees, such as 0:180",
            path,
            others if found.names else "",
        )
    degrees, said = in_degrees(given, named if unit == "auto" else unit)
    axes = _axes(path, stored.shape, len(degrees), views_first)
    return Sinogram(stored, axes, degrees, (said, _orientation(stored.shape, axes)), found.truth)


def _views_are_columns(stored: Any) -> bool:
    """Whether the columns have one sum, as parallel views of an image have, and the rows have not."""
    values = np.asarray(stored)
    of_rows, of_columns = values.sum(1, dtype=np.float64), values.sum(0, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # what is not finite is refused later
        return _spread(of_rows) > 0.2 and _spread(of_columns) < 0.02


def _spread(values: NDArray[np.float64]) -> float:
    return float(values.std() / max(abs(values.mean()), 1e-300))


def arrays_of(path: Path, names: tuple[str, ...]) -> Any:
    """The array of a file, or the one with one of these names where it holds several."""
    suffix = path.suffix.lower()
    try:
        if suffix in (".npz", ".h5", ".hdf5", ".hdf", ".nxs"):
            arrays = dict(np.load(path, allow_pickle=False)) if suffix == ".npz" else _hdf5_arrays(path)
            found = [key for key in arrays if len(arrays) == 1 or key.rsplit("/", 1)[-1].lower() in names]
            if not found:
                raise ValueError(f"{path} has no array named {', '.join(names)}; it has {', '.join(sorted(arrays))}")
            return arrays[found[0]]
        return _stored(path)[0]
    except ImportError:
        raise
    except Exception as error:
        ours = isinstance(error, ValueError) and str(path) in str(error)
        raise ValueError(str(error) if ours else f"{path} cannot be read: {error}") from None


@dataclass(frozen=True)
class _Found:
    """What else the file holds."""

    angles: NDArray[np.float64] | None = None
    unit: Unit = "auto"
    truth: NDArray[np.float32] | None = None
    data_exchange: bool = False
    names: tuple[str, ...] = ()  # of all arrays


def _stored(path: Path) -> tuple[Any, _Found]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False), _Found()
    if suffix in (".tif", ".tiff"):
        return read_tiff(path, mapped=True), _Found()
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            if "hu" in archive and not set(SINOGRAM_KEYS) & set(archive):
                raise ArgumentError("{0} holds slices in Hounsfield units; add {simulate} VIEWS to project them", path)
            return _choose(path, dict(archive), lambda key: "")
    if suffix in (".h5", ".hdf5", ".hdf", ".nxs"):
        return _hdf5(path)
    known = ", ".join(SINOGRAMS)
    raise ArgumentError("{0} is not a sinogram; give {1}, or add {simulate} VIEWS to an image or DICOM", path, known)


def _hdf5_arrays(path: Path) -> dict[str, Any]:
    h5py = needs("h5py", "imaging", "HDF5 files")
    file = h5py.File(path, "r")  # stays open: its datasets are read later
    arrays: dict[str, Any] = {}
    file.visititems(lambda name, item: arrays.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return arrays


def _hdf5(path: Path) -> tuple[Any, _Found]:
    arrays = _hdf5_arrays(path)

    def unit(key: str) -> str:
        value = arrays[key].attrs.get("units", "")
        return value.decode() if isinstance(value, bytes) else str(value)

    return _choose(path, arrays, unit)


def _choose(path: Path, arrays: Mapping[str, Any], unit: Callable[[str], str]) -> tuple[Any, _Found]:
    """The sinogram, its angles and the truth among named arrays; a name counts by its last part."""
    by_name = {key.rsplit("/", 1)[-1].lower(): key for key in arrays}
    numbers = [key for key, array in arrays.items() if len(array.shape) in (2, 3) and array.dtype.kind in "iuf"]
    chosen = next((by_name[name] for name in SINOGRAM_KEYS if name in by_name), None)
    if chosen is None and len(numbers) == 1:
        chosen = numbers[0]
    if chosen is None:
        raise ValueError(
            f"{path} has no array named {', '.join(SINOGRAM_KEYS)}; it has {', '.join(sorted(arrays)) or 'none'}"
        )
    angle_key = next((by_name[name] for name in _angle_names(by_name)), None)
    truth = np.asarray(arrays[by_name["truth"]], dtype=np.float32) if "truth" in by_name else None
    angles = None if angle_key is None else np.asarray(arrays[angle_key], dtype=np.float64).ravel()
    named: Unit = "auto" if angle_key is None else _named_unit(f"{unit(angle_key)} {angle_key}")
    return arrays[chosen], _Found(angles, named, truth, chosen.endswith("exchange/data"), tuple(arrays))


def _angle_names(names: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name in ANGLE_KEYS if name in names)
    yield from (name for name in names if name.startswith(ANGLE_KEYS))  # angles_deg, theta_rad


def _named_unit(text: str) -> Unit:
    for start, name in UNITS.items():
        if start in text.lower():
            return "degrees" if name == "degrees" else "radians"
    return "auto"


def read_angles(text: str, views: int) -> tuple[NDArray[np.float64], Unit]:
    """Angles from a file (NPY, or numbers in a text), or `views` of them in START:STOP degrees without STOP."""
    start, colon, stop = text.partition(":")
    if colon and not Path(text).exists():
        try:
            return np.linspace(float(start), float(stop), views, endpoint=False), "degrees"
        except ValueError:
            raise ArgumentError("{angles} {0!r} is neither a file nor a range such as 0:180", text) from None
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"there is no file of angles {text!r}; give one number per view, or a range such as 0:180")
    try:
        if path.suffix.lower() == ".npy":
            values = np.load(path, allow_pickle=False)
        else:
            text = path.read_text(encoding="utf-8-sig")  # Windows' editors mark their files
            values = np.array(text.replace(",", " ").replace(";", " ").split(), dtype=np.float64)
        return np.asarray(values, dtype=np.float64).ravel(), _named_unit(path.stem)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"the angles in {path} cannot be read: {error}") from None


def in_degrees(angles: NDArray[np.float64], unit: str) -> tuple[NDArray[np.float64], str]:
    """The angles in degrees, and what was recognised."""
    if not len(angles) or not np.isfinite(angles).all():
        raise ValueError(f"{int((~np.isfinite(angles)).sum())} of {len(angles)} angles are not finite numbers")
    low, high = float(angles.min()), float(angles.max())
    how = "as said"
    if unit == "auto":
        unit = "degrees" if max(abs(low), abs(high)) > 2 * math.pi * 1.001 else "radians"
        how = "by their size"
    said = f"{len(angles)} angles from {low:.4g} to {high:.4g}, taken as {unit} ({how})"
    return (np.rad2deg(angles) if unit == "radians" else angles), said


def _axes(path: Path, shape: tuple[int, ...], views: int, views_first: bool) -> tuple[int | None, int, int]:
    """The axes of slices, views and detectors."""
    order = (0, 1, 2) if views_first else (1, 0, 2)
    matching = [axis for axis in order[: len(shape)] if shape[axis] == views]
    if not matching:
        size = " x ".join(map(str, shape))
        raise ValueError(f"{path} is {size}, but there are {views} angles; no axis has that many views")
    axis = matching[0]
    rest = [other for other in range(len(shape)) if other != axis]
    return (None, axis, rest[0]) if len(shape) == 2 else (rest[0], axis, rest[1])


def _orientation(shape: tuple[int, ...], axes: tuple[int | None, int, int]) -> str:
    names = {axes[1]: "views", axes[2]: "detectors"} | ({} if axes[0] is None else {axes[0]: "slices"})
    return "the sinogram is " + " x ".join(f"{shape[axis]} {names[axis]}" for axis in range(len(shape)))
