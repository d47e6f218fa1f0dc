"""Ptychographic scans as instruments store them: PtyPy (.ptyd, .ptyr) and the format of the CXI Data Bank (.cxi).

Both are HDF5, with intensities whose zero frequency is in the middle and positions in metres. A pixel of the object is
    wavelength * distance / (pixels of the detector * their size)          wavelength = h c / energy
so that positions become rows and columns in pixels, of which the smallest are 0: there the object begins.

    .ptyd  chunks/*/data, positions (row, column: where the probe is), weights; meta: energy in keV, distance, psize
    .ptyr  content/probe/*/data, the probe of a reconstruction; it holds no patterns
    .cxi   entry_1: data_1/data, translation (x, y, z: where the sample is, so signs turn), detector_1: distance,
           x_pixel_size, y_pixel_size, mask (0: valid), source_1: energy in joules and perhaps the probe
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.io.hdf5 import within
from smadmm.io.limits import memory

HC = 1.98644586e-25  # Planck's constant times the speed of light, in joule metres
KEV = 1.602176634e-16  # joules
ENTRY, DETECTOR, SOURCE = "entry_1", "entry_1/instrument_1/detector_1", "entry_1/instrument_1/source_1"
PATTERNS = (f"{ENTRY}/data_1/data", f"{DETECTOR}/data")
TRANSLATIONS = (f"{ENTRY}/data_1/translation", f"{ENTRY}/sample_1/geometry_1/translation", f"{DETECTOR}/translation")
PROBES = tuple(f"{place}/{name}" for place in (SOURCE, DETECTOR) for name in ("probe", "illumination",
               "data_illumination"))  # fmt: skip
SUFFIXES = (".ptyd", ".ptyr", ".cxi")


def read_scan_file(path: Path, file: Any) -> dict[str, Any]:
    """The arrays of an open PtyPy or CXI file, by the names that `read_patterns` knows."""
    try:
        if path.suffix.lower() == ".cxi":
            return _cxi(path, file)
        return _probe(path, file) if path.suffix.lower() == ".ptyr" else _ptyd(path, file)
    except OSError as error:  # what a file lacks that was not written to its end
        raise ValueError(f"{path} cannot be read: {error}") from None


def _ptyd(path: Path, file: Any) -> dict[str, Any]:
    chunks = [file["chunks"][name] for name in sorted(file.get("chunks", ()), key=_number)]
    if not chunks or any(name not in chunk for chunk in chunks for name in ("data", "positions")):
        raise ValueError(f"{path} is no PtyPy scan: it has no chunks with data and positions")
    counts, places = (np.concatenate([_array(path, c, name) for c in chunks]) for name in ("data", "positions"))
    energy = KEV * float(_value(path, file, "meta/energy"))
    sizes = np.broadcast_to(_value(path, file, "meta/psize"), 2)
    pixels = _pixels(path, energy, float(_value(path, file, "meta/distance")), sizes, counts.shape)
    made = {"intensities": _zero_first(counts, _centre(file)), "positions": _from_zero(places / pixels)}
    weights = [_array(path, chunk, "weights") for chunk in chunks if "weights" in chunk]
    if sum(w.size for w in weights) == counts.size:
        made["valid"] = _zero_first(np.concatenate(weights) > 0, _centre(file))
    return made


def _number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, name)


def _centre(file: Any) -> NDArray[np.float64] | None:
    """Where the zero frequency is; None: in the middle, as numpy.fft.fftshift puts it."""
    value = np.asarray(file["meta/center"][()] if "meta/center" in file else ())
    return value.astype(np.float64) if value.size == 2 and value.dtype.kind in "iuf" else None


def _cxi(path: Path, file: Any) -> dict[str, Any]:
    patterns, moved = (next((name for name in names if name in file), None) for names in (PATTERNS, TRANSLATIONS))
    if patterns is None or moved is None:
        lacking = PATTERNS[0] if patterns is None else TRANSLATIONS[0]
        raise ValueError(f"{path} is no CXI file of a ptychographic scan: it has no {lacking}")
    counts, places = _array(path, file, patterns), _array(path, file, moved)[:, 1::-1]  # x, y, z -> y, x
    sizes = np.array([float(_value(path, file, f"{DETECTOR}/{axis}_pixel_size")) for axis in "yx"])
    energy, distance = (float(_value(path, file, name)) for name in (f"{SOURCE}/energy", f"{DETECTOR}/distance"))
    shifted = bool(file[patterns].attrs.get("is_fft_shifted", False))
    pixels = _pixels(path, energy, distance, sizes, counts.shape)
    made = {"intensities": counts if shifted else _zero_first(counts), "positions": _from_zero(-places / pixels)}
    if f"{DETECTOR}/mask" in file:
        valid = _array(path, file, f"{DETECTOR}/mask") == 0
        made["valid"] = valid if shifted else _zero_first(valid)
    stored = next((name for name in PROBES if name in file and file[name].ndim >= 2), None)
    return made if stored is None else made | {"probe": _one_mode(path, _array(path, file, stored))}


def _probe(path: Path, file: Any) -> dict[str, Any]:
    stored = [group for group in file.get("content/probe", {}).values() if "data" in group]
    if len(stored) != 1:
        raise ValueError(f"{path} is no PtyPy reconstruction of one probe: content/probe has {len(stored)}")
    return {"probe": _one_mode(path, _array(path, stored[0], "data"))}


def _array(path: Path, group: Any, name: str) -> NDArray[Any]:
    """An array of the file; refused before memory is taken for it if it is too large or belongs to somebody else."""
    h5py = needs("h5py", "imaging", "HDF5 files")
    if not within(h5py, group, name, path.parent):
        raise ValueError(
            f"{path} takes {name} from a file outside its folder; set SMADMM_LINKS=anywhere if you trust it"
        )
    if group[name].nbytes > memory():
        raise ValueError(f"{path} declares {group[name].nbytes} bytes of {name}, more than this machine has memory")
    return np.asarray(group[name])


def _one_mode(path: Path, probe: NDArray[Any]) -> NDArray[Any]:
    modes: NDArray[Any] = probe.reshape(-1, *probe.shape[-2:])
    if len(modes) > 1:
        raise ValueError(f"{path} has a probe of {len(modes)} modes, of which one can be used; store that one as probe")
    return np.asarray(modes[0])


def _value(path: Path, file: Any, name: str) -> Any:
    if name not in file:
        raise ValueError(f"{path} does not say {name}, without which positions in metres are not known in pixels")
    return file[name][()]


def _pixels(
    path: Path, energy: float, distance: float, sizes: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """The size of the object's pixels in metres, of rows and of columns."""
    if len(shape) != 3:
        raise ValueError(f"{path} has patterns of shape {shape}; they are n x height x width")
    if not (0 < energy < 1e-12 and distance > 0 and (sizes > 0).all()):
        raise ValueError(f"{path} says energy {energy:g} J, distance {distance:g} m, pixels {sizes} m: these are no "
                         "X-ray experiment; PtyPy's energies are in keV, those of CXI in joules")  # fmt: skip
    pixels: NDArray[np.float64] = HC / energy * distance / (np.array(shape[1:]) * sizes)
    return pixels


def _from_zero(places: NDArray[Any]) -> NDArray[np.float64]:
    moved: NDArray[np.float64] = places.astype(np.float64) - places.min(0)
    return moved


def _zero_first(values: NDArray[Any], centre: NDArray[np.float64] | None = None) -> NDArray[Any]:
    """Patterns with the zero frequency first; `centre` is where it is."""
    middle = np.array(values.shape[-2:]) // 2 if centre is None else np.rint(centre).astype(int)
    return np.roll(values, -middle, (-2, -1))
