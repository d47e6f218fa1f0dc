"""A folder of TIFF projections, in the order of the numbers in their names.

Flat and dark fields are the files whose name, or whose folder's name, says so (flat, white, open beam; dark, offset).
Angles are in a text file of the folder named after them. A file may have several pages. Files are decoded when a block
of slices is asked for, one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smadmm.extras import needs
from smadmm.io.angles import named_unit, read_angles
from smadmm.io.images import whole_tiff
from smadmm.io.scan import Found, Frames, ScanError, readable

FLAT = r"flat|white|(^|[_\-. ])(bright|open|empty|ff|ob|io|i0)([_\-. \d]|$)"
DARK = r"dark|(^|[_\-. ])(offset|bias|df|di|dc)([_\-. \d]|$)"
ANGLES = r"(angle|theta|rotation).*\.(txt|csv|dat|npy)$"


def tiff_files(folder: Path) -> list[Path]:
    """The TIFF files of a folder and its subfolders, in the order of their numbers."""
    return sorted((path for path in folder.rglob("*") if path.suffix.lower() in (".tif", ".tiff")), key=_natural)


def _natural(path: Path) -> list[Any]:
    """File 9 before file 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def pages_of(files: Sequence[Path]) -> Frames:
    """The pages of TIFF files of one size."""
    tifffile = needs("tifffile", "imaging", "TIFF files")
    with readable(files[0]), whole_tiff(), tifffile.TiffFile(files[0]) as first:
        shape, pages, dtype = first.pages[0].shape, len(first.pages), first.pages[0].dtype
    if len(shape) != 2:
        raise ScanError(files[0], f"has pages of shape {shape}", "give gray projections, rows x columns")

    def read(number: int) -> Any:
        file, page = divmod(number, pages)
        with readable(files[file]), whole_tiff():
            frame = tifffile.imread(files[file], key=page)
        if frame.shape != shape:
            raise ScanError(files[file], f"is {frame.shape}, but {files[0].name} is {shape}", "remove it")
        return frame

    return Frames((len(files) * pages, *shape), dtype, read)


def read_tiff_folder(folder: Path) -> Found:
    """Projections, flat and dark fields."""
    kinds: dict[str, list[Path]] = {"flat": [], "dark": [], "views": []}
    for file in tiff_files(folder):
        parts = [part.lower() for part in file.relative_to(folder).with_suffix("").parts]
        flat, dark = (any(re.search(words, part) for part in parts) for words in (FLAT, DARK))
        kinds["flat" if flat else "dark" if dark else "views"].append(file)
    if not kinds["views"]:
        raise ScanError(folder, "has no DICOM or TIFF projections in it, and is no Zarr store", "give one of these")
    parents = sorted({str(path.parent.relative_to(folder)) for path in kinds["views"]})
    if len(parents) > 1:
        raise ScanError(folder, f"has TIFF files in {len(parents)} folders, {', '.join(parents[:3])}", "give one")
    beside = [path for path in sorted(folder.rglob("*")) if re.search(ANGLES, path.name, re.IGNORECASE)]
    notes = [f"{len(kinds['views'])} projections of {folder.name}, {kinds['views'][0].name} the first"]
    flat_field, dark_field = (pages_of(kinds[kind]) if kinds[kind] else None for kind in ("flat", "dark"))
    views = pages_of(kinds["views"])
    angles, unit = read_angles(str(beside[0]), len(views)) if beside else (None, named_unit(""))
    layout = ("views", "slices", "detectors")
    return Found(views, angles, unit, layout, flat=flat_field, dark=dark_field, notes=tuple(notes))
