"""What every reader of scans hands over, and the one error of all of them.

A reader finds arrays (`Content`) and says which of them are the measurement (`Found`); smadmm.io.sinogram makes a
`Sinogram` of that: line integrals -log(I/I0), slice by slice, with angles in degrees.

A point source at the distance R from the detector, whose 2n elements have the spacing p, bends the rays of an object
that fills the view by up to n^2 p / R detectors against parallel ones. Below half a detector a written distance
(synchrotrons tell that of their source) changes nothing; above, the beam is a fan.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError, FileError
from smadmm.imaging.sinograms import Measured
from smadmm.operators.fan import FanGeometry

BLOCK = 2**28  # bytes of slices that are read together, where slices lie across what is stored
BENT = 0.5  # detectors
NUMBERS = "iufb"  # kinds of arrays
AXES = ("slices", "views", "detectors")
# how files begin, what they are then, and a part of the endings that say so
KINDS = ((b"\x89HDF", "HDF5", ".h5 .hdf5 .hdf .nxs .mat"), (b"II*\0", "TIFF", ".tif .tiff"),
         (b"MM\0*", "TIFF", ".tif .tiff"), (b"\x93NUMPY", "NPY", ".npy"), (b"PK\x03\x04", "NPZ", ".npz"),
         (b"MATLAB", "MATLAB", ".mat"), (b"\x89PNG", "PNG", ""), (b"\xd0\xcf\x11\xe0", "TXRM", ""))  # fmt: skip

Unit = Literal["auto", "degrees", "radians"]


class ScanError(FileError):
    """A scan that cannot be read."""


@contextmanager
def readable(path: Path, cure: str = "") -> Iterator[None]:
    """Turn what a library raises into one sentence; a file of another kind than its name says is called that."""
    try:
        yield
    except (ArgumentError, ImportError):
        raise
    except Exception as error:  # libraries raise what they like on files they do not understand
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        ours = reason.startswith(f"{path} ")  # a sentence on this file already
        reason = reason.removeprefix(f"{path} ") if ours else f"cannot be read: {reason}"
        raise ScanError(path, reason, cure or likely_cure(path)) from None


def likely_cure(path: Path) -> str:
    """What a file that cannot be read may be, by its first bytes."""
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError:
        begin = b""
    for start, name, endings in KINDS:
        if begin.startswith(start) and path.suffix.lower() not in endings.split():
            return f"it begins as {name} files do, so its ending may be wrong"
    return "it may be incomplete or not what its ending says"


def plain(text: str) -> str:
    """Text within a sentence of errors that is not taken for an argument."""
    return text.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True)
class Fan:
    """A point source and a row of detectors, their distances and the detectors' spacing in `unit`; None: not told."""

    source_to_axis: float | None = None
    source_to_detector: float | None = None
    spacing: float | None = None
    unit: str = ""

    def bend(self, detectors: int) -> float:
        """How many detectors the outer rays are off parallel ones."""
        if not self.source_to_detector or not self.spacing:
            return math.inf
        return (detectors / 2) ** 2 * self.spacing / abs(self.source_to_detector)

    def beam(self, path: Path, curved: bool = False) -> FanGeometry:
        """The geometry of a reconstruction; a length that is not told is asked for."""
        lengths = {"source_to_axis": self.source_to_axis, "source_to_detector": self.source_to_detector,
                   "pitch": self.spacing}  # fmt: skip
        for name, value in lengths.items():
            if not value:
                raise ArgumentError("{0} is a fan beam without a known {" + name + "}; give it, in mm", path)
        sizes = {name: abs(value) for name, value in lengths.items() if value}
        return FanGeometry(**sizes, curved=curved, unit=self.unit or "mm", rays=1)

    def __str__(self) -> str:
        told = {"source to axis": self.source_to_axis, "source to detector": self.source_to_detector}
        lengths = [f"{name} {value:g} {self.unit}".rstrip() for name, value in told.items() if value is not None]
        return f"fan beam ({', '.join(lengths) or 'distances not told'})"


def fan_of(values: Mapping[str, Any]) -> Fan | None:
    """The geometry among named values, such as distanceSourceOrigin; None: none is written, or it is parallel."""
    named = {re.sub(r"[^a-z]", "", name.rsplit("/", 1)[-1].lower()): value for name, value in values.items()}
    kind = " ".join(str(named.get(name, "")) for name in ("geometrytype", "geometry", "beam", "type"))
    numbers = {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}

    def length(pattern: str) -> float | None:
        return next((value for name, value in numbers.items() if re.search(pattern, name)), None)

    axis = length(r"source(to)?(origin|axis|object|rotation|isocent)|originsource|^(dso|sod)$")
    detector = length(r"source(to)?detector|^(dsd|sdd)$")
    behind = length(r"(origin|axis|object)(to)?detector|^(dod|odd)$")
    if detector is None and axis is not None and behind is not None:
        detector = axis + behind
    if "parallel" in kind.lower() or (axis is detector is None and not re.search("fan|cone", kind, re.IGNORECASE)):
        return None
    spacing = length("^pixelsizepost$") or length("^(detector)?(pixelsize|pixelspacing|spacing)|detectorspacing")
    return Fan(axis, detector, spacing, str(named.get("distanceunit", "")))


@dataclass
class Content:
    """The arrays of a file by name, what is written beside them, single values, links that lead nowhere or outside."""

    arrays: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def attribute(self, array: str, name: str) -> str:
        """An attribute of an array as text; empty where there is none."""
        value = self.attributes.get(array, {}).get(name, "")
        value = ":".join(map(_text, value)) if isinstance(value, (np.ndarray, list, tuple)) else _text(value)
        return str(value)

    def put(self, name: str, value: Any) -> None:
        """Sort a value in: an array, a number or a text."""
        if isinstance(value, (str, bytes, int, float, np.number)):
            self.values[name] = _text(value) if isinstance(value, (str, bytes)) else float(value)
        elif isinstance(value, np.ndarray) and value.size == 1 and isinstance(value.item(), (str, bytes, int, float)):
            self.put(name, value.item())
        elif isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
            self.arrays[name] = value


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class Found:
    """What a format says of a measurement; None: it does not say."""

    stored: Any  # an array, a memory map, or anything with shape and dtype that is read by indexing
    angles: NDArray[np.float64] | None = None
    unit: Unit = "auto"
    layout: tuple[str, ...] | None = None  # what the axes are, of AXES
    frames: NDArray[np.int64] | None = None  # which of the views are projections
    flat: Any = None  # frames of the beam without object, or one
    dark: Any = None
    counts: bool = False  # whether it says that its numbers are counts
    geometry: Fan | None = None
    center: float | None = None
    photons: float | None = None
    truth: NDArray[np.float32] | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of all arrays


@dataclass(frozen=True)
class Sinogram(Measured):
    """Slices of views x detectors, read by number; angles in degrees; truth: the image, where the file holds it."""

    stored: Any  # an array, a memory map or an HDF5 dataset
    axes: tuple[int | None, int, int]  # the axes of slices (None: one slice), views, detectors
    degrees: NDArray[np.float64]
    notes: tuple[str, ...] = ()
    truth: NDArray[np.float32] | None = None
    chosen: NDArray[np.int64] | None = None  # the views to use; None: all
    path: Path = Path()
    center: float | None = None  # axis of rotation in detectors off the middle, where the file tells
    geometry: Fan | None = None  # None: parallel
    span: tuple[float, float, int] | None = None  # start, stop and number of views, if the angles were told so
    end_point: bool | None = None  # whether the stop is the angle of the last view; None: not known, taken as not
    dead: NDArray[np.bool_] | None = None  # slices x detectors that never saw light: NaN
    photons: float | None = None  # per unattenuated ray, from the scatter of the flat fields
    raw: tuple[Any, Any, Any] | None = None  # counts, those of the beam above the dark field, the dark field
    opened: Mapping[str, Any] | None = None  # the arguments of read_sinogram: other processes open the file anew

    @property
    def reopens(self) -> bool:
        """Whether other processes can open the file, and need not read all of it for that."""
        stored = self.stored if self.raw is None else self.raw[0]
        return self.opened is not None and (isinstance(stored, np.memmap) or not isinstance(stored, np.ndarray))

    def __reduce__(self) -> Any:
        if not self.reopens:
            return super().__reduce__()
        from smadmm.io.sinogram import reopened

        changed = self.path.stat().st_mtime_ns  # a file that took its place is another one
        kept = {"chosen": self.chosen, "degrees": self.degrees, "end_point": self.end_point}
        return reopened, (tuple((self.opened or {}).items()), changed, kept)

    def __len__(self) -> int:
        return 1 if self.axes[0] is None else int(self.stored.shape[self.axes[0]])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slices x views x detectors."""
        return len(self), len(self.degrees), int(self.stored.shape[self.axes[2]])

    def __getitem__(self, number: int) -> Any:
        """One slice, views x detectors; not read yet where the file allows it."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self)} slices, got {number}")
        number %= len(self)
        values = self._slice(self.stored, number)
        if self.dead is None or not self.dead[number].any():
            return values
        values = np.array(values[:])
        values[:, self.dead[number]] = np.nan
        return values

    def counts(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Counts of a slice above the dark field, and those without object; None: line integrals were stored."""
        if self.raw is None:
            return None
        counted, full, dark = (np.asarray(self._slice(part, number)[:], np.float64) for part in self.raw)
        return counted - dark, full

    def _slice(self, stored: Any, number: int) -> Any:
        slices, views, detectors = self.axes
        if slices is not None:
            with readable(self.path):
                stored = stored[tuple(number if axis == slices else np.s_[:] for axis in range(3))]
        if views > detectors:
            stored = stored.T if isinstance(stored, np.ndarray) else np.asarray(stored).T
        return stored if self.chosen is None else stored[self.chosen]

    @property
    def beam(self) -> FanGeometry | None:
        """The fan that the file tells of; None: parallel rays."""
        if self.geometry is None:
            return None
        if len(self) > 1:
            cure = "give {geometry} fan to take every slice for a fan, which is right in the middle of the cone alone"
            raise ScanError(self.path, f"is a volume with a {self.geometry}: a cone beam", cure)
        return self.geometry.beam(self.path)

    @property
    def angles(self) -> Any:
        """A range whose end is open is left to the data."""
        open_end = self.span is not None and self.end_point is None and self.span[2] == len(self.degrees)
        return self.span[:2] if open_end and self.span is not None else self.degrees

    @property
    def array(self) -> Any:
        """One slice, or all of them by number."""
        return self[0] if len(self) == 1 else self

    def __repr__(self) -> str:
        slices, views, detectors = self.shape
        fan = "" if self.geometry is None else f", {self.geometry}"
        return f"Sinogram({slices} x {views} views x {detectors} detectors of {self.path.name or 'an array'}{fan})"

    def evenly(self, views: int) -> Sinogram:
        """The same with some of its views, evenly chosen."""
        total = len(self.degrees)
        if not 1 <= views <= total:
            raise ArgumentError("{views} must be between 1 and the {0} views there are, got {1}", total, views)
        some = np.arange(views) * total // views
        chosen, notes = some if self.chosen is None else self.chosen[some], self.notes
        notes += (f"{views} of the {total} views are used",) if views < total else ()
        return replace(self, degrees=self.degrees[some], chosen=chosen, notes=notes)

    def with_end_point(self, included: bool) -> Sinogram:
        """The same, if its angles were told as a range, with the stop as the last view's angle or as the next one's."""
        if self.span is None or bool(self.end_point) == included:
            return replace(self, end_point=included)
        start, _, total = self.span
        stretch = total / (total - 1) if included else (total - 1) / total
        return replace(self, degrees=start + (self.degrees - start) * stretch, end_point=included)


class Frames:
    """Views in files of their own, frames x rows x columns, each read by its number when it is asked for."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Callable[[int], Any]):
        self.shape, self.dtype, self.read, self.chunks = shape, np.dtype(dtype), read, (1, *shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        frames, *rest = key if isinstance(key, tuple) else (key,)
        if not isinstance(frames, slice):
            return self.read(int(frames))[tuple(rest)]
        return np.stack([self.read(number)[tuple(rest)] for number in range(*frames.indices(len(self)))])


class Blocks:
    """A volume on disk whose slices lie across what is stored together: a block of slices is read at a time."""

    def __init__(self, stored: Any, axis: int):
        self.stored, self.axis, self.shape, self.dtype = stored, axis, tuple(stored.shape), stored.dtype
        chunks = stored.chunks or (1,) * len(self.shape)
        one = math.prod(self.shape) // self.shape[axis] * self.dtype.itemsize
        self.length = max(1, BLOCK // one) if axis else chunks[0]
        if self.length > chunks[axis]:
            self.length -= self.length % chunks[axis]
        self.first, self.block, self.lock = 0, np.empty(0), threading.Lock()

    def __getitem__(self, key: Any) -> Any:
        with self.lock:  # of threads that read one block, the other's slice would be taken
            return self._read(key)

    def _read(self, key: Any) -> Any:
        number = key[self.axis] if isinstance(key, tuple) and len(key) == len(self.shape) else None
        if number is None or isinstance(number, slice):
            return np.asarray(self.stored[key])
        if not (self.block.size and self.first <= number < self.first + self.block.shape[self.axis]):
            first = int(number) - int(number) % self.length
            some = list(key)
            some[self.axis] = slice(first, min(first + self.length, self.shape[self.axis]))
            self.block = np.empty(0)  # two blocks would be twice the memory
            self.first, self.block = first, np.asarray(self.stored[tuple(some)])
        return self.block.take(int(number) - self.first, self.axis)


class Squeezed:
    """An array without its axes of length 1."""

    def __init__(self, array: Any):
        self.array, self.dtype = array, array.dtype
        self.axes = [axis for axis, n in enumerate(array.shape) if n > 1]
        self.shape = tuple(array.shape[axis] for axis in self.axes)
        chunks = getattr(array, "chunks", None)
        self.chunks = chunks and tuple(chunks[axis] for axis in self.axes)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        parts = () if parts == (Ellipsis,) else parts
        whole: list[Any] = [0] * len(self.array.shape)
        for axis in self.axes:
            whole[axis] = np.s_[:]
        for axis, part in zip(self.axes, parts, strict=False):
            whole[axis] = part
        return self.array[tuple(whole)]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self[...], dtype=dtype)


class Grown:
    """The first `length` views of an array that may be longer."""

    def __init__(self, array: Any, length: int):
        self.array, self.length, self.dtype = array, length, array.dtype
        self.shape = (length, *array.shape[1:])
        self.chunks = getattr(array, "chunks", None)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> Any:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if first is Ellipsis:
            first, rest = slice(None), [...]
        if isinstance(first, slice):
            first = slice(*first.indices(self.length))
        whole = (first, *rest)
        return self.array[whole]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self[...], dtype=dtype)
