"""Scans that are still being written: an HDF5 file in SWMR mode, or a Zarr store, to which views are appended.

Views are the first axis. Arrays do not grow together: a scan is as long as the shortest of the measured array, its
angles and, in NeXus files, image_key; flat and dark fields are taken as they are. It is complete when an HDF5 file was
closed by its writer (opened without SWMR, it is refused before), or when the attribute `complete` of a Zarr store says
so; or when no view has come for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError
from smadmm.extras import needs
from smadmm.io.scan import ScanError, Sinogram
from smadmm.io.sinogram import read_sinogram

POLL = 0.25  # seconds between two looks

Rows = tuple[NDArray[np.float32], NDArray[np.float64], Sinogram]


def following(
    path: Path, read: Callable[..., Sinogram] = read_sinogram, *, every: int = 16, patience: float = 60.0
) -> Iterator[Rows]:
    """The slice in the middle, its angles and the scan, whenever at least `every` views have come.

    `read` opens the scan, as smadmm.io.sinogram.read_sinogram does. Ends when the scan is complete, or when no view has
    come for `patience` seconds; a file that never became one to read is an error then.
    """
    seen, counted, since = 0, 0, time.monotonic()
    problem: Exception = ArgumentError("{0} is not there after {1:g} seconds; check its name", path, patience)
    while True:
        over = path.exists() and complete(path)  # before the look: what comes after it belongs to the final image
        try:
            scan = read(path, growing=True) if path.exists() else None
            views = 0 if scan is None else scan.shape[1]
            if scan is not None and views >= seen + every:
                yield np.array(scan[len(scan) // 2][:], np.float32), scan.degrees, scan
                seen = views
            del scan  # the file is open as long as somebody holds it
            if views > counted:
                counted, since = views, time.monotonic()
        except (ScanError, OSError) as error:  # nothing in it yet, or between two states
            problem = error
        if over or (counted and time.monotonic() - since > patience):
            return
        if time.monotonic() - since > patience:
            raise problem
        time.sleep(POLL)


def complete(path: Path) -> bool:
    """Whether its writer has said that the scan is complete."""
    with suppress(OSError, ValueError, KeyError):
        if path.is_dir():
            zarr = needs("zarr", "formats", "Zarr stores")
            root = zarr.open(store=str(path), mode="r")
            return bool(root.attrs.get("complete", False))
        needs("h5py", "imaging", "HDF5 files").File(path, "r").close()
        return True
    return False
