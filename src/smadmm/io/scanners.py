"""Text files that laboratory scanners write beside their TIFF projections: .xtekct (Nikon) and .log (SkyScan).

Both tell the fan: distances in mm, the detectors' spacing, the step of the rotation. SkyScan writes the size of a pixel
where the object is; at the detector it is larger by the magnification.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smadmm.io.limits import text_of
from smadmm.io.scan import Fan, ScanError, readable

SCANNERS = (".xtekct", ".log")


class Told(NamedTuple):
    """What such a file tells; air: counts of an unattenuated ray."""

    path: Path
    fan: Fan
    start: float
    step: float
    air: float | None

    def angles(self, views: int) -> NDArray[np.float64]:
        return self.start + self.step * np.arange(views, dtype=np.float64)


def beside(folder: Path) -> Told | None:
    """The file of a scanner in a folder; None: there is none."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SCANNERS and path.is_file()]
    found = [told for path in files if (told := _read(path)) is not None]
    if len(found) > 1:
        names = ", ".join(told.path.name for told in found)
        raise ScanError(folder, f"has {len(found)} files of scanners ({names})", "leave that of the scan alone")
    return found[0] if found else None


def _read(path: Path) -> Told | None:
    with readable(path):
        text = text_of(path)
    lines = re.findall(r"^([^=\n]+)=[ \t]*(\S+)", text, re.MULTILINE)
    named = {re.sub(r"[^a-z]", "", name.lower()): value for name, value in lines}
    numbers = {name: float(value) for name, value in named.items() if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value)}
    if path.suffix.lower() == ".xtekct":
        names = ("srctoobject", "srctodetector", "detectorpixelsizex", "angularstep")
    else:
        names = ("objecttosourcemm", "cameratosourcemm", "imagepixelsizeum", "rotationstepdeg")
    if not numbers.keys() >= set(names):
        return None
    if "[reconstruction]" in text.lower():
        raise ScanError(path, "is the record of a reconstruction", "give the folder of the projections")
    axis, detector, spacing, step = (numbers[name] for name in names)
    spacing *= 1 if path.suffix.lower() == ".xtekct" else detector / axis / 1000
    fan = Fan(axis, detector, spacing, "mm")
    return Told(path, fan, numbers.get("initialangle", 0.0), step, numbers.get("whitelevel"))
