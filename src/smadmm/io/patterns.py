"""Measured diffraction patterns with their masks, or the positions and the probe of a scan, from files.

NPZ and HDF5 hold `amplitudes` or `intensities` (n x H x W), `masks` (complex, n x H x W) and perhaps the `truth` and
the detector's `valid` pixels (both H x W); for ptychography `positions` (n x 2, row and column in pixels) and the
complex `probe` (H x W) in the place of masks. An NPY file holds the patterns alone; the masks are a second NPY
file. NPY and HDF5 stay on disk and are read as they are drawn. Scans of PtyPy and CXI are read by coherent.py; a probe
may come from a file of its own.

Positions are those of the probe's upper left corner, in pixels of the object, whose upper left pixel is (0, 0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smadmm.arguments import ArgumentError
from smadmm.extras import needs
from smadmm.imaging.phase import QUANTITIES
from smadmm.io.coherent import SUFFIXES, read_scan_file
from smadmm.io.hdf5 import open_hdf5, within
from smadmm.io.limits import load_npy, load_npz
from smadmm.io.scan import ScanError, readable

HDF5 = (".h5", ".hdf5", *SUFFIXES)


def is_patterns(path: Path) -> bool:
    """Whether a file holds patterns rather than an image: an archive with patterns, or an NPY array with three axes."""
    suffix = path.suffix.lower()
    if suffix in HDF5:
        return True
    if suffix == ".npz":
        return any(name in _opened(path, load_npz) for name in QUANTITIES)
    return suffix == ".npy" and bool(read_array(path).ndim == 3)


def read_patterns(
    path: Path, masks: Path | None = None, quantity: str | None = None, probe: Path | None = None
) -> dict[str, Any]:
    """What `retrieve` needs: patterns, masks or positions and probe, quantity and, where the file has it, the truth."""
    found = _content(path, quantity)
    if masks is not None:
        found["masks"] = read_array(masks)
    if probe is not None:
        found["probe"] = read_probe(probe)
    kinds = [name for name in QUANTITIES if name in found and quantity in (None, name)]
    if len(kinds) != 1:
        raise ScanError(path, f"has the arrays {sorted(found)}", "it needs one of 'amplitudes' or 'intensities'")
    with readable(path):
        scan: dict[str, Any] = {name: np.asarray(found[name]) for name in ("positions", "probe") if name in found}
    if "masks" not in found and "positions" not in scan:
        raise ArgumentError("{0} has no array 'masks'; it has {1}, or give {mask_file} MASKS.npy", path, sorted(found))
    with readable(path):
        parts = {name: np.asarray(found[name]) if name in found else None for name in ("truth", "valid")}
    return {"patterns": found[kinds[0]], "masks": found.get("masks"), "quantity": kinds[0], **parts, **scan}


def read_array(path: Path) -> Any:
    """The array of an NPY file, left on disk."""
    return _opened(path, load_npy, mapped=True)


def read_probe(path: Path) -> Any:
    """The probe of an NPY file, of a PtyPy reconstruction, or of an NPZ or HDF5 file that has a `probe`."""
    found = {"probe": read_array(path)} if path.suffix.lower() == ".npy" else _content(path, None)
    if "probe" not in found:
        raise ValueError(f"{path} has no array 'probe'; it has {sorted(found)}")
    return np.asarray(found["probe"])


def _content(path: Path, quantity: str | None) -> dict[str, Any]:
    """The arrays of a file by name; that of an NPY file has the name of its quantity."""
    if path.suffix.lower() == ".npy":
        if quantity is None:
            raise ArgumentError("say what {0} holds: {quantity} amplitudes or {quantity} intensities", path)
        return {quantity: read_array(path)}
    if path.suffix.lower() not in HDF5:
        return dict(_opened(path, load_npz))
    h5py = needs("h5py", "imaging", "HDF5 files")
    stored = _opened(path, open_hdf5)
    with readable(path):
        if path.suffix.lower() in SUFFIXES:
            with stored:
                return read_scan_file(path, stored)
        items = {name: stored[name] for name in stored if within(h5py, stored, name, path.parent)}
        found = {name: value for name, value in items.items() if isinstance(value, h5py.Dataset)}
        for dataset in found.values():
            h5py.h5t.py_create(dataset.dtype)  # types that cannot be read are told here, not when the data are used
        return found


def _opened(path: Path, load: Any, **options: Any) -> Any:
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    with readable(path):
        return load(path, **options)
