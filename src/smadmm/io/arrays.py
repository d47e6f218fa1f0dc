"""Which of the named arrays of a file (NPZ, HDF5, MATLAB, Zarr) is the measurement.

A name counts by its last part. An array with two or three axes is taken if as many angles as it has views are beside
it; of several the one with a usual name; else the caller names one. Flat and dark fields beside it are used. APS Data
Exchange files hold /exchange/data (views x rows x columns), data_white, data_dark and theta. NeXus NXtomo files hold
all frames in one array; image_key says which are projections (0), flat (1), dark (2) or invalid (3) and rotation_angle,
or what a beamline calls it, has the angle of each. Where only the start and the step of a rotation are written, angles
follow from these. What monitors the beam is no measurement of the object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.io.angles import named_unit
from smadmm.io.hdf5 import HDF5, check_readable, read_hdf5
from smadmm.io.images import Lazily
from smadmm.io.limits import load_npz
from smadmm.io.matlab import read_matlab
from smadmm.io.scan import AXES, Content, Fan, Found, Grown, ScanError, Squeezed, fan_of
from smadmm.io.zarr_store import is_zarr, read_zarr

SINOGRAM_KEYS = ("sinogram", "sino", "sinograms", "projections", "data")
ANGLE_KEYS = ("angles", "theta", "angle", "thetas", "rotation_angle")
FLAT_NAMES = ("flat", "flats", "white", "data_white", "flat_field", "flat_fields", "flatfield")
DARK_NAMES = ("dark", "darks", "data_dark", "dark_field", "dark_fields", "darkfield")
WHEN = r"_(pre|post|before|after|start|end|\d+)$"  # fields may be in several arrays
OTHER_NAMES = ("truth", "image_key", "image_key_control", *FLAT_NAMES, *DARK_NAMES)
LISTED = 10  # arrays in an error
PROJECTION, FLAT, DARK, INVALID = 0, 1, 2, 3  # of image_key
TURN = r"theta|angle|(^|_)rot"  # in the names that beamlines give to the rotation
AXIS_NAMES = {"theta": "views", "angle": "views", "rotation_angle": "views", "y": "slices", "x": "detectors"}
FAR = 5.0  # metres: no tube is that far away, but the source of a synchrotron
METRES = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "micron": 1e-6, "microns": 1e-6}


def content_of(path: Path, growing: bool = False) -> Content | None:
    """The named arrays of a file or store; None: it is of another kind. `growing`: cut to the views that all have."""
    suffix = path.suffix.lower()
    if growing:
        return _level(read_zarr(path) if path.is_dir() else read_hdf5(path, growing=True))
    if path.is_dir():
        return read_zarr(path) if is_zarr(path) else None
    if suffix == ".npz":
        content = Content()
        for name, value in load_npz(path).items():
            content.put(name, value)
        return content
    if suffix in HDF5:
        return read_hdf5(path)
    return read_matlab(path) if suffix == ".mat" else None


def _is_field(name: str, names: Sequence[str]) -> bool:
    return re.sub(WHEN, "", _last(name)) in names


def _level(content: Content) -> Content:
    """Arrays that grow with the scan, cut to the same number of views."""
    fields = ("truth", *FLAT_NAMES, *DARK_NAMES)
    grows = [name for name, array in content.arrays.items()
             if not _is_field(name, fields) and getattr(array, "maxshape", (None,))[0] is None]  # fmt: skip
    views = min((content.arrays[name].shape[0] for name in grows), default=0)
    content.arrays |= {name: Grown(content.arrays[name], views) for name in grows}
    return content


def only(path: Path, content: Content, names: tuple[str, ...]) -> str:
    """The array of a file, or the one with one of these names where it holds several."""
    found = [key for key in content.arrays if len(content.arrays) == 1 or _last(key) in names]
    if len(found) != 1:
        raise _refused(path, content, f"has {len(found) or 'no'} array named {', '.join(names)}")
    return found[0]


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()


def measurement(path: Path, content: Content, array: str | None, views: int | None) -> Found:
    """The array to reconstruct from, and what belongs to it; views: the number of angles that are given."""
    for key in (name for name in content.arrays if _last(name) == "image_key"):
        if found := _nxtomo(path, content, key, array):
            return found
    name = _chosen(path, content, array, views)
    stored, angle_name, layout = content.arrays[name], _angle_name(content, name), _layout(content, name)
    check_readable(path, name, stored) if path.is_file() else None
    stored = stored if len(stored.shape) < 4 else Squeezed(stored)
    angles, unit = None, named_unit("")
    if angle_name is not None:
        angles = np.asarray(content.arrays[angle_name][...], dtype=np.float64).ravel()
        unit = named_unit(f"{content.attribute(angle_name, 'units')} {_last(angle_name)}")
    elif layout is not None and len(layout) == len(stored.shape):
        angles, unit = _stepped(content, stored.shape[layout.index("views")]), "degrees"
    truth = next((key for key in content.arrays if _last(key) == "truth"), None)
    beside = content.attributes.get(name, {})
    center, photons = (float(beside[key]) if key in beside else None for key in ("center", "photons"))
    notes = (f"the array {name} is read",) if "/" in name or len(content.arrays) > 1 else ()
    return Found(
        stored, angles, unit, layout, None,
        flat=_beside(content, name, FLAT_NAMES), dark=_beside(content, name, DARK_NAMES),
        counts="count" in content.attribute(name, "units").lower(), geometry=fan_of(content.values),
        center=center, photons=photons,
        truth=None if truth is None else np.asarray(content.arrays[truth][...], dtype=np.float32),
        notes=notes, names=tuple(content.arrays),
    )  # fmt: skip


def _layout(content: Content, name: str) -> tuple[str, ...] | None:
    """What the axes are, as the attribute `axes` says, or the layout of Data Exchange."""
    words = re.split(r"[:,]", content.attribute(name, "axes").lower())
    said = tuple(AXIS_NAMES.get(word.strip(), word.strip()) for word in words)
    if sorted(said) == sorted(AXES):
        return said
    return ("views", "slices", "detectors") if name.endswith("exchange/data") else None


def _group(name: str) -> str:
    return name.rpartition("/")[0]


def _beside(content: Content, name: str, names: Sequence[str]) -> Any:
    """A field in the group of an array; one that was measured before and after in two arrays as one."""
    found = [key for key in content.arrays if _is_field(key, names) and _group(key) == _group(name)]
    usual = next((key for key in found if _last(key) in names), None)
    parts = [content.arrays[key] for key in ([usual] if usual else found)]
    if len(parts) < 2:
        return parts[0] if parts else None
    frames = [(part, n) for part in parts for n in (range(part.shape[0]) if len(part.shape) == 3 else (...,))]
    return Lazily((len(frames), *parts[0].shape[-2:]), lambda n: np.asarray(frames[n][0][frames[n][1]]))


def _stepped(content: Content, views: int) -> NDArray[np.float64] | None:
    """Angles by the start and the step of a rotation, as beamlines note them; None: these are not written."""
    told = {}
    for name, value in content.values.items():
        found = re.search(r"rotation[/_](start|step)$", name.lower())
        if found and isinstance(value, float):
            told[found[1]] = value
    if not told.get("step") or "start" not in told:
        return None
    return told["start"] + told["step"] * np.arange(views, dtype=np.float64)


def _angle_name(content: Content, name: str) -> str | None:
    """The array of angles of an array: of fitting length, best in the same group, else any."""
    shape = content.arrays[name].shape
    names = [key for key, array in content.arrays.items() if _is_angles(key, array)]

    def rank(key: str) -> tuple[Any, ...]:
        fits = math.prod(content.arrays[key].shape) in shape
        usual = ANGLE_KEYS.index(_last(key)) if _last(key) in ANGLE_KEYS else len(ANGLE_KEYS)
        return not fits, not _group(key).startswith(_group(name)), usual, key

    return min(names, key=rank, default=None)


def _is_angles(name: str, array: Any) -> bool:
    named = re.search(r"^(angle|theta|rotation_angle|angs?$)|(angles?|thetas?)$", _last(name))
    return named is not None and math.prod(array.shape) == max(array.shape, default=0)


def _axes_used(array: Any) -> int:
    """The number of axes; beyond three those of length 1 do not count."""
    shape = tuple(array.shape)
    return len(shape) if len(shape) < 4 else sum(n > 1 for n in shape)


def _chosen(path: Path, content: Content, array: str | None, views: int | None) -> str:
    """The name of the array to take; refused with a list where that is not clear."""
    arrays = content.arrays
    candidates = [
        name
        for name, value in arrays.items()
        if _axes_used(value) in (2, 3) and math.prod(value.shape) > max(value.shape) and value.dtype.kind in "iuf"
        and not (_is_field(name, OTHER_NAMES) or _is_angles(name, value) or "monitor" in name.lower().split("/"))
    ]  # fmt: skip
    if array is not None:
        whole = [name for name in arrays if name == array.strip("/")]
        named = whole or [name for name in arrays if _last(name) == array.lower()]
        if len(named) != 1:
            raise _refused(path, content, f"has {len(named) or 'no'} array {array!r}")
        return named[0]
    lengths = {math.prod(value.shape) for name, value in arrays.items() if _is_angles(name, value)}
    lengths = lengths if views is None else {views}
    fitting = [name for name in candidates if lengths & set(arrays[name].shape)]
    kind = next((str(v) for n, v in content.values.items() if _last(n) == "definition" and str(v)[:2] == "NX"), "")
    if not fitting and kind and "tomo" not in kind.lower():
        raise ScanError(path, f"is a NeXus file of the kind {kind} without an array of views and their angles",
                        "a scan is of the kind NXtomo, or {array} names an array and {angles} its angles")  # fmt: skip
    pool = fitting or candidates
    if "exchange/data" in pool or len(pool) == 1:
        return "exchange/data" if "exchange/data" in pool else pool[0]
    usual = [[name for name in pool if _last(name) == key] for key in SINOGRAM_KEYS]
    best = next((names for names in usual if names), [])
    if len(best) != 1:
        raise _refused(path, content, f"has {len(pool) or 'no'} arrays that may be the sinogram")
    return best[0]


def _refused(path: Path, content: Content, reason: str) -> ScanError:
    """An error that lists the arrays, largest first, or the link that leads nowhere."""
    if content.broken:
        return ScanError(path, f"{reason}: its link {content.broken[0]} leads nowhere", "put that file in its place")
    if content.outside:
        cure = "put that file below the folder of this one, or set SMADMM_LINKS=anywhere if you trust it"
        return ScanError(path, f"{reason}: its {content.outside[0]} leads out of its folder", cure)
    order = sorted(content.arrays, key=lambda name: -math.prod(content.arrays[name].shape))
    lines = [f"{name}: {' x '.join(map(str, content.arrays[name].shape))}" for name in order[:LISTED]]
    lines += [f"and {len(order) - LISTED} more"] if len(order) > LISTED else []
    listed = "".join(f"\n  {line}" for line in lines) or " none"
    return ScanError(path, f"{reason} among its arrays{listed}", "name one by {array}")


# --- NeXus ------------------------------------------------------------------------------------------------------------


def _nxtomo(path: Path, content: Content, key: str, array: str | None) -> Found | None:
    """The projections, fields and angles among all frames; None: there is no array of frames."""
    kinds = np.asarray(content.arrays[key][...]).ravel()
    control = content.arrays.get(f"{key}_control")  # negative: taken once more after the turn, to see what has moved
    if control is not None and control.shape == kinds.shape:
        kinds = np.where(np.asarray(control[...]) < 0, INVALID, kinds)
    stacks = [
        name
        for name, value in content.arrays.items()
        if len(value.shape) == 3 and len(kinds) == value.shape[0] and array in (None, name, _last(name))
    ]
    if not stacks:
        return None
    shared = {name: _shared(name, key) for name in stacks}
    best = [name for name in stacks if shared[name] == max(shared.values())]
    if len(best) > 1:
        raise _refused(path, content, f"has {len(best)} arrays of {len(kinds)} frames")
    name = best[0]
    check_readable(path, name, content.arrays[name])
    stored, frames = content.arrays[name], np.flatnonzero(kinds == PROJECTION)
    found = Found(stored, None, "auto", ("views", "slices", "detectors"), frames, names=tuple(content.arrays))
    turn = _turn(content, name, (len(kinds), len(frames)))
    if turn is not None:
        angles = np.asarray(content.arrays[turn][...], dtype=np.float64).ravel()
        found = replace(found, angles=angles, unit=named_unit(content.attribute(turn, "units")))
    frames_said = f"{len(kinds)} frames, {int((kinds > DARK).sum())} of them invalid or for alignment"
    notes = (f"the array {name} is read: {len(frames)} projections of {frames_said}",)
    flat, dark = (_frames(stored, np.flatnonzero(kinds == kind)) for kind in (FLAT, DARK))
    return replace(found, flat=flat, dark=dark, geometry=_distances(content), notes=notes)


def _turn(content: Content, name: str, lengths: tuple[int, int]) -> str | None:
    """The array of the angles of all frames, or of the projections: rotation_angle, else one near the frames."""
    sizes = {key: math.prod(array.shape) for key, array in content.arrays.items() if len(array.shape) == 1}
    turns = [key for key, size in sizes.items() if size in lengths and re.search(TURN, _last(key))]
    return min(turns, key=lambda key: (_last(key) != "rotation_angle", lengths.index(sizes[key]), -_shared(key, name)),
               default=None)  # fmt: skip


def _shared(one: str, two: str) -> int:
    """How many groups two names share from the root on."""
    return next(
        n for n, (a, b) in enumerate(zip([*one.split("/"), ""], [*two.split("/"), "/"], strict=False)) if a != b
    )


def _frames(stored: Any, numbers: NDArray[np.int64]) -> Any:
    return Lazily((len(numbers), *stored.shape[1:]), lambda i: stored[int(numbers[i])]) if len(numbers) else None


def _distances(content: Content) -> Fan | None:
    """The distances of source and detector from the sample, in metres."""
    lengths: dict[str, float] = {}
    for name, value in content.values.items():
        end = "/".join(name.lower().split("/")[-2:])
        if end in ("source/distance", "detector/distance", "detector/x_pixel_size") and isinstance(value, float):
            lengths[end] = abs(value) * METRES.get(content.attribute(name, "units"), 1.0)
    source, behind = lengths.get("source/distance"), lengths.get("detector/distance", 0.0)
    spacing = lengths.get("detector/x_pixel_size")
    if not source or (spacing is None and source > FAR):
        return None
    return Fan(source, source + behind, spacing, "m")
