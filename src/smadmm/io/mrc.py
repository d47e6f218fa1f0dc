"""Tilt series in MRC files: a section is a view, its columns are the detectors, its rows the slices (the tilt axis is
vertical, as IMOD writes it). Angles are in the file beside it, .rawtlt or .tlt (a number per line) or .mdoc, or in the
extended header that microscopes of FEI write.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.io.limits import text_of
from smadmm.io.scan import Found, ScanError, readable

MRC = (".mrc", ".mrcs", ".st", ".ali")
FEI = (b"FEI1", b"FEI2")
OFF = 1.0  # degrees that the tilt axis may lean


def read_mrc(path: Path) -> Found:
    """A tilt series with its angles."""
    mrcfile = needs("mrcfile", "formats", "MRC files")
    with mrcfile.mmap(path, mode="r") as file:
        data, tilts = file.data, _tilts(file)  # the map outlives the file
    angles, note = _angles(path)
    if angles is None and tilts is not None:
        angles, note = tilts, "angles of the extended header"
    layout = ("views", "slices", "detectors") if data.ndim == 3 else None
    return Found(data, angles, "degrees", layout, notes=(note,) if note else ())


def _tilts(file: Any) -> NDArray[np.float64] | None:
    """The angles in an extended header of FEI."""
    if bytes(file.header.exttyp) not in FEI:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it calls itself FEI's and is not
        sections = file.indexed_extended_header
    return None if sections is None else np.array(sections["Alpha tilt"], dtype=np.float64)


def _angles(path: Path) -> tuple[NDArray[np.float64] | None, str]:
    for beside in (path.with_suffix(".tlt"), path.with_suffix(".rawtlt")):
        if beside.is_file():
            with readable(beside, "give one number per line"):
                return np.array(text_of(beside).split(), dtype=np.float64), f"angles of {beside.name}"
    for beside in (path.with_name(path.name + ".mdoc"), path.with_suffix(".mdoc")):
        if beside.is_file():
            text = beside.read_text(encoding="utf-8", errors="replace")
            lean = [float(value) % 180 for value in _numbers("RotationAngle", text)]
            if lean and min(lean[0], 180 - lean[0]) > OFF:
                raise ScanError(
                    path,
                    f"has its tilt axis {lean[0]:g} degrees off the vertical, as {beside.name} says",
                    "align the series first, so that the axis is vertical",
                )
            return _in_order(text), f"angles of {beside.name}"
    return None, ""


def _in_order(text: str) -> NDArray[np.float64]:
    """The angles in the order of the sections, which an .mdoc may list as they were taken."""
    sections = re.findall(r"^\[ZValue\s*=\s*(\d+)\](.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    told = [(int(number), angle) for number, lines in sections for angle in _numbers("TiltAngle", lines)]
    return np.array([angle for _, angle in sorted(told)] if told else _numbers("TiltAngle", text))


def _numbers(name: str, text: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{name}\s*=\s*(\S+)", text, re.MULTILINE)]
