"""A folder of TIFF projections, in the order of the numbers in their names.

Flat and dark fields are the files whose name, or whose folder's name, says so (flat, white, open beam, ref; dark,
offset). Angles are in a text file of the folder named after them, or follow from that of a scanner, which tells the
fan, too (smadmm.io.scanners). A file may have several pages. Files are decoded when a block of slices is asked for, one
at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.extras import needs
from smadmm.io.angles import named_unit, read_angles
from smadmm.io.images import whole_tiff
from smadmm.io.scan import Found, Frames, ScanError, readable
from smadmm.io.scanners import beside as scanner_beside

# words of names in lower case; those in the second part stand alone
FLAT = r"flat|white|(^|[^a-z])((bright|open|empty|gain|ff|bf|ob|io|refs?|reference|refhst)([^a-z]|$)|i0([^a-z\d]|$))"
DARK = r"dark|(^|[^a-z])(offset|bias|df|di|dc)([^a-z]|$)"
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
        parts = [_words(part) for part in file.relative_to(folder).with_suffix("").parts]
        flat, dark = (any(re.search(words, part) for part in parts) for words in (FLAT, DARK))
        kinds["flat" if flat else "dark" if dark else "views"].append(file)
    if not kinds["views"] and (named := len(kinds["flat"]) + len(kinds["dark"])):
        raise ScanError(folder, f"has {named} TIFF files, all named as flat or dark fields", "rename the projections")
    if not kinds["views"]:
        raise ScanError(folder, "has no DICOM or TIFF projections in it, and is no Zarr store", "give one of these")
    parents = sorted({str(path.parent.relative_to(folder)) for path in kinds["views"]})
    if len(parents) > 1:
        raise ScanError(folder, f"has TIFF files in {len(parents)} folders, {', '.join(parents[:3])}", "give one")
    beside = [path for path in sorted(folder.rglob("*")) if re.search(ANGLES, path.name, re.IGNORECASE)]
    notes = [f"{len(kinds['views'])} projections of {folder.name}, {kinds['views'][0].name} the first"]
    fields: list[Any] = [pages_of(kinds[kind]) if kinds[kind] else None for kind in ("flat", "dark")]
    views, told = pages_of(kinds["views"]), scanner_beside(folder)
    angles, unit = read_angles(str(beside[0]), len(views)) if beside else (None, named_unit(""))
    if told is not None:
        notes.append(f"geometry of {told.path.name}")
        angles, unit = (told.angles(len(views)), "degrees") if angles is None else (angles, unit)
        fields[0] = np.array(told.air) if fields[0] is None and told.air else fields[0]
    if angles is not None and len(angles) != len(views) and len(kinds["views"]) > 1:
        raise ScanError(folder, f"has {len(angles)} angles and {len(views)} projections, {_counted(kinds['views'])}",
                        "flat fields are named flat..., dark fields dark...")  # fmt: skip
    layout = ("views", "slices", "detectors")
    fan = None if told is None else told.fan
    return Found(views, angles, unit, layout, flat=fields[0], dark=fields[1], geometry=fan, notes=tuple(notes))


def _words(name: str) -> str:
    """A name in lower case, with an underscore between words written together: OpenBeam as open_beam."""
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _counted(files: Sequence[Path]) -> str:
    """How many files there are of each name without its number."""
    counts = Counter(re.sub(r"[\d_\-. ]+$", "", path.stem) or path.stem for path in files).most_common(4)
    return ", ".join(f"{count} of them {name}*" for name, count in counts)
