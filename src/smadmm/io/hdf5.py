"""HDF5 files: all datasets by name, through soft and external links, with the filters of hdf5plugin where it is there.

A dataset that two links lead to is one dataset. Files stay open, for datasets are read later.

External links, virtual datasets and raw data in other files are followed below the folder of the input only: a file
from elsewhere must not make us read, and show in a report, what lies on this machine. SMADMM_LINKS=anywhere allows it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from smadmm.extras import needs
from smadmm.io.scan import NUMBERS, Content, ScanError

HEAP, SEARCHED = b"GCOL\1\0\0\0", 2**26  # a heap of texts of variable length; bytes of a file that are searched for it
CHECKSUM = 4  # bytes
HDF5 = (".h5", ".hdf5", ".hdf", ".he5", ".nxs", ".nx", ".nexus", ".cxi")


def open_hdf5(path: Path, growing: bool = False) -> Any:
    """The file; `growing`: while another program appends to it (SWMR)."""
    h5py = needs("h5py", "imaging", "HDF5 files")
    with suppress(ImportError):  # its import makes the filters known; what needs one that is missing says so
        import_module("hdf5plugin")
    _refuse_endless(path)
    return h5py.File(path, "r", swmr=growing)


def _refuse_endless(path: Path) -> None:
    """Refuse a file with a heap of texts in which an entry does not lead on to the next.

    The HDF5 library would follow such entries for ever, deaf to Ctrl-C. A heap: GCOL, a version, its size; then entries
    of a number (0: the free rest, whose size includes these 16 bytes), a count, and a size, all little-endian.
    """
    size = min(path.stat().st_size, SEARCHED) if path.is_file() else 0
    if not size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        heap = data.find(HEAP)
        while heap >= 0:
            place, end = heap + 16, min(heap + int.from_bytes(data[heap + 8 : heap + 16], "little"), size)
            while place + 16 <= end:
                number, length = struct.unpack_from("<H6xQ", data, place)
                step = (16 + -(-length // 8) * 8 if number else length) % 2**64
                if not 0 < step < 2**63:
                    reason = f"is damaged: an entry of its heap of texts at byte {heap} has no valid size"
                    raise ScanError(path, reason, "copy or write it anew")
                place += step
            heap = data.find(HEAP, heap + 8)


def read_hdf5(path: Path, growing: bool = False) -> Content:
    """The datasets of a file, not read yet; `growing`: while another program appends to them (SWMR)."""
    h5py = needs("h5py", "imaging", "HDF5 files")
    content = Content()
    for name, item in _walk(h5py, open_hdf5(path, growing), "", set(), content, path.parent):
        content.values |= {f"{name}/{key}": value for key, value in _short(item.attrs).items()}
        if isinstance(item, h5py.Dataset) and item.size:
            content.attributes[name] = dict(item.attrs)
            if item.dtype.kind in NUMBERS and item.size > 1:
                content.arrays[name] = item
            elif item.size == 1:
                content.put(name, item[()])
    return content


def _short(attributes: Any) -> dict[str, Any]:
    """The numbers among attributes, and the texts."""
    content = Content()
    for name in attributes:
        with suppress(OSError, TypeError):  # types that h5py does not know
            content.put(name, attributes[name])
    return content.values


def within(h5py: Any, group: Any, name: str, folder: Path) -> bool:
    """Whether an item, and what it takes from other files, lies below the folder, or may lie anywhere."""
    if os.environ.get("SMADMM_LINKS") == "anywhere":
        return True
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink) and not _below(folder, folder / link.filename):
        return False
    item = group[name]
    files = {item.file.filename}
    if isinstance(item, h5py.Dataset):
        beside = Path(item.file.filename).parent
        if item.is_virtual:
            files |= {beside / part.file_name for part in item.virtual_sources() if part.file_name != "."}
        files |= {beside / file for file, _, _ in item.external or ()}
    return all(_below(folder, Path(file)) for file in files)


def _below(folder: Path, file: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _walk(
    h5py: Any, group: Any, prefix: str, seen: set[Any], content: Content, folder: Path
) -> Iterator[tuple[str, Any]]:
    """All items below a group, each once, hard links before others."""
    broken = content.broken
    names = sorted(group, key=lambda name: not isinstance(group.get(name, getlink=True), h5py.HardLink))
    for name in names:
        try:
            if not within(h5py, group, name, folder):
                content.outside.append(prefix + name)
                continue
            item = group[name]
        except (KeyError, OSError):
            link = group.get(name, getlink=True)
            outside = isinstance(link, h5py.ExternalLink)  # told first: other links may lead through it
            broken.insert(0 if outside else len(broken), f"{prefix}{name} -> {link.filename if outside else link.path}")
            continue
        where = h5py.h5o.get_info(item.id)
        if (where.fileno, where.addr) in seen:
            continue
        seen.add((where.fileno, where.addr))
        yield prefix + name, item
        if isinstance(item, h5py.Group):
            yield from _walk(h5py, item, f"{prefix}{name}/", seen, content, folder)


def check_readable(path: Path, name: str, dataset: Any) -> None:
    """Refuse a dataset that is compressed by an unknown filter, or whose parts lie in files that are not there."""
    h5py = needs("h5py", "imaging", "HDF5 files")
    if not isinstance(dataset, h5py.Dataset):
        return
    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(number)[0] for number in range(creation.get_nfilters())]
    for code in filters:
        if not h5py.h5z.filter_avail(code):
            needs("hdf5plugin", "formats", f"arrays compressed as {name} of {path}")
            reason = f"compresses {name} by the filter {code}, which hdf5plugin does not know"
            raise ScanError(path, reason, "write it anew by another, such as gzip")
    if h5py.h5z.FILTER_FLETCHER32 in filters:
        sizes: list[int] = []
        dataset.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
        if min(sizes, default=CHECKSUM) < CHECKSUM:  # the HDF5 library would read before its memory
            raise ScanError(path, f"is damaged: a part of {name} is smaller than its checksum", "copy or write it anew")
    if dataset.is_virtual:
        folder = Path(dataset.file.filename).parent
        parts = {source.file_name for source in dataset.virtual_sources()} - {"."}
        if gone := sorted(part for part in parts if not (folder / part).exists()):
            raise ScanError(path, f"takes {name} from {len(gone)} files that are not there, such as {gone[0]}")
