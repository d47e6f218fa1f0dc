"""Prepared sinograms: line integrals that `reconstruct` and other tools read, without the scan they came from.

An HDF5 file with `sinogram` (slices x views x detectors, float32), its axis of rotation `center`, distances of a fan
beam and what was done as attributes, and `angles` in degrees.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import smadmm
from smadmm.arguments import ArgumentError
from smadmm.extras import needs
from smadmm.imaging.neighbours import filled
from smadmm.io.files import written_whole
from smadmm.io.scan import Sinogram


def write_prepared(path: Path, sinogram: Sinogram) -> None:
    """Write a sinogram slice by slice; a file that exists is refused."""
    h5py = needs("h5py", "imaging", "HDF5 files")
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise ArgumentError("{out} {0} must end in .h5 or .hdf5", path)
    if path.exists():
        raise ArgumentError("{out} {0} exists; choose another name or remove it", path)
    fan = sinogram.geometry
    about = {
        "center": sinogram.center,
        "photons": sinogram.photons,
        "notes": "\n".join(sinogram.notes) or None,
        "axes": "slices:views:detectors",
        "source": sinogram.path.name,
        "made_by": f"smadmm {smadmm.__version__}",
    }
    if fan is not None:
        about |= {"geometry": "fan", "source_to_axis": fan.source_to_axis, "distance_unit": fan.unit,
                  "source_to_detector": fan.source_to_detector, "detector_spacing": fan.spacing}  # fmt: skip
    with written_whole(path) as temporary, h5py.File(temporary, "w", locking=False) as file:
        stored = file.create_dataset("sinogram", sinogram.shape, "f4", chunks=(1, *sinogram.shape[1:]))
        stored.attrs.update({name: value for name, value in about.items() if value is not None})
        file["angles"] = sinogram.degrees
        file["angles"].attrs["units"] = "degrees"
        for number in range(len(sinogram)):
            stored[number] = filled(np.asarray(sinogram[number][:]))  # other tools may not know NaN
