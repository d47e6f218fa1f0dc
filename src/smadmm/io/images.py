"""Images in [0, 1]: pictures, arrays, and CT slices in Hounsfield units.

A CT slice is mapped by (HU + 1000) / 2500 and clipped: air is 0, water 0.4, dense bone 1. Slices reconstructed with a
sharp kernel (lung, bone, B50 and above) carry noise that looks like detail; training leaves them out unless asked.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.extras import needs
from smadmm.io import dicom
from smadmm.io.limits import DEFLATED, load_npy, load_npz
from smadmm.io.scan import ScanError, readable

PICTURES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm"}
SLICES = {".npz", ".dcm"}
SHARP_KERNEL = re.compile(r"LUNG|BONE|EDGE|B[5-9]\d", re.IGNORECASE)
AIR, RANGE = -1000.0, 2500.0  # of the Hounsfield window
LUMINANCE = (0.299, 0.587, 0.114)
BITS = 8  # pixels that a byte can hold

Array = NDArray[np.float32]


def window(hounsfield: NDArray[Any]) -> Tensor:
    """(HU + 1000) / 2500, clipped to [0, 1]."""
    return torch.from_numpy(np.clip((hounsfield.astype(np.float32) - AIR) / RANGE, 0, 1))


def hounsfield(image: NDArray[Any]) -> Array:
    """The inverse of the window: 2500 x - 1000."""
    values: Array = (RANGE * image + AIR).astype(np.float32)
    return values


# --- pictures ---------------------------------------------------------------------------------------------------------


def read_tiff(path: Path, mapped: bool = False) -> Any:
    """The values of a TIFF file, pages first; memory-mapped where asked for and possible."""
    tifffile = needs("tifffile", "imaging", "TIFF files")
    try:
        with whole_tiff():
            if mapped:
                try:
                    return tifffile.memmap(path, mode="r")
                except ValueError:  # compressed or scattered: read it
                    pass
            return tifffile.imread(path)
    except (ValueError, tifffile.TiffFileError):
        return _pillow(path)  # knows more compressions


@contextmanager
def whole_tiff() -> Iterator[None]:
    """Within, a TIFF file with pages missing is an error: tifffile writes a line and goes on without them."""
    raising, log = _Raising(), logging.getLogger("tifffile")
    log.addHandler(raising)
    try:
        yield
    finally:
        log.removeHandler(raising)


class _Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or "page" in text:
            raise OSError(text.split("> ")[-1])


def _pillow(path: Path) -> NDArray[Any]:
    Pillow = needs("PIL.Image", "imaging", "pictures")
    with Pillow.open(path) as picture:
        if math.prod(picture.size) > BITS * DEFLATED * path.stat().st_size:
            declared = " x ".join(map(str, picture.size))
            raise ValueError(f"{path} declares {declared} pixels, more than {path.stat().st_size} bytes can hold")
        if picture.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV"):
            return np.asarray(picture.convert("RGB"))
        values = np.asarray(picture)
        # Pillow holds the 16 bits of some pictures in 32
        return values.astype(np.uint16) if picture.mode == "I" and values.size and values.min() >= 0 else values


def as_unit(values: NDArray[Any]) -> Array:
    """Stored values as numbers in [0, 1]: 8 and 16 bits by their range, others as they are."""
    top = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(values.dtype, 1.0)
    unit: Array = values.astype(np.float32) / np.float32(top)
    return unit


def read_picture(path: Path) -> NDArray[Any]:
    """Gray values H x W as stored (or pages N x H x W of a TIFF); colours become their luminance in [0, 1]."""
    values = np.asarray(read_tiff(path) if path.suffix.lower() in (".tif", ".tiff") else _pillow(path))
    if values.ndim >= 3 and values.shape[-1] in (3, 4):
        values = as_unit(values)[..., :3] @ np.array(LUMINANCE, np.float32)
    elif values.ndim >= 3 and values.shape[-1] == 2:  # gray and opacity
        values = values[..., 0]
    if values.ndim not in (2, 3):
        raise ValueError(f"{path} has {values.ndim} axes; an image has 2, a stack of images 3")
    return values


# --- slices to simulate a measurement from ----------------------------------------------------------------------------


class Lazily:
    """A stack of arrays of one shape, each made when it is asked for: stack[number]."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[int], Any]):
        self.shape, self.read = shape, read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, number: int) -> Any:
        return self.read(number)


class Slices(Lazily):
    """Images of one size in [0, 1], count x height x width; hounsfield: whether they were windowed from such units."""

    def __init__(
        self,
        shape: tuple[int, ...],
        read: Callable[[int], Array],
        hounsfield: bool = False,
        series: dicom.Series | None = None,
        notes: tuple[str, ...] = (),
    ):
        super().__init__(shape, read)
        self.hounsfield, self.series, self.notes = hounsfield, series, notes

    def refuse_constant(self) -> None:
        """Raise at the first slice without contrast, or of another size."""
        for number in range(len(self)):
            image, where = self[number], f"slice {number}" if len(self) > 1 else "the image"
            if image.shape != self.shape[1:]:
                raise ValueError(f"{where} has shape {image.shape}, the first has {self.shape[1:]}")
            if not image.min() < image.max():
                raise ValueError(f"{where} is constant ({image.min():g} after windowing): there is nothing to see")


def read_slices(path: Path) -> Slices:
    """The slices of a DICOM file or folder, an array (NPY, NPZ with the key `hu`), a picture or a folder of them."""
    if not path.exists():
        raise ValueError(f"there is no file or folder {str(path)!r}")
    if path.is_dir() and (pictures := _picture_files(path)):
        return _of_pictures(path, pictures)
    if path.is_dir() or dicom.is_dicom(path):
        series = dicom.read_series(path)
        read = lambda i: window(series.hounsfield(i)).numpy()  # noqa: E731
        return Slices((len(series), *series.shape), read, True, series, series.notes)
    suffix = path.suffix.lower()
    with readable(path):
        if suffix == ".npy":
            values = load_npy(path, mapped=True)
        elif suffix == ".npz":
            values = _hounsfield_array(path)
        elif suffix in PICTURES:
            values = read_picture(path)
        else:
            raise ValueError(f"{path} is not an image; give DICOM, NPY, NPZ with the key 'hu', PNG or TIFF")
    return _of_array(path, values, True if suffix == ".npz" else None)


def _picture_files(folder: Path) -> list[Path]:
    """The pictures of a folder without DICOM files, by name."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    pictures = [file for file in files if file.suffix.lower() in PICTURES]
    return [] if any(dicom.is_dicom(file) for file in files if file not in pictures) else pictures


def _of_pictures(folder: Path, files: list[Path]) -> Slices:
    parts = [read_slices(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.shape != (1, *parts[0].shape[1:]) or part.hounsfield != parts[0].hounsfield:
            raise ValueError(f"{file} differs from {files[0].name} in size or kind; a stack has slices of one size")
    note = f"{len(files)} pictures of {folder.name}, by name"
    return Slices((len(parts), *parts[0].shape[1:]), lambda i: parts[i][0], parts[0].hounsfield, notes=(note,))


def _hounsfield_array(path: Path) -> NDArray[Any]:
    archive = load_npz(path)
    if "hu" not in archive:
        raise ScanError(path, "has no array 'hu' of slices in Hounsfield units", f"it has {sorted(archive)}")
    values: NDArray[Any] = archive["hu"]
    return values


def _of_array(path: Path, values: NDArray[Any], in_hounsfield: bool | None) -> Slices:
    stack = values[None] if values.ndim == 2 else values
    if stack.ndim != 3 or 0 in stack.shape or stack.dtype.kind not in "biuf":
        raise ScanError(path, f"holds {values.dtype} {values.shape}", "slices are numbers H x W or N x H x W")
    notes: tuple[str, ...] = ()
    if in_hounsfield is None:
        in_hounsfield = _looks_hounsfield(stack)
        meaning = "Hounsfield units" if in_hounsfield else "an image in [0, 1]"
        notes = (f"{path.name} is read as {meaning}",)

    def read(number: int) -> Array:
        piece = np.asarray(stack[number])
        if not np.isfinite(piece).all():
            bad = int(np.sum(~np.isfinite(piece)))
            raise ScanError(path, f"has {bad} values that are not finite in slice {number}", "repair or remove it")
        image: Array = window(piece).numpy() if in_hounsfield else np.clip(as_unit(piece), 0, 1)
        return image

    return Slices((len(stack), stack.shape[1], stack.shape[2]), read, in_hounsfield, notes=notes)


def _looks_hounsfield(stack: NDArray[Any]) -> bool:
    """8 and 16 bits without sign are pictures; others are Hounsfield units if any value is outside [-0.5, 1.5]."""
    if stack.dtype in (np.uint8, np.uint16, np.bool_):
        return False
    return any(float(np.nanmin(piece)) < -0.5 or float(np.nanmax(piece)) > 1.5 for piece in stack if piece.size)


# --- images to train from ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    """One image H x W; images of one patient or one file share a group, which is never split."""

    name: str
    group: str
    pixels: Tensor


def _picture(path: Path) -> Iterator[Image]:
    pixels = as_unit(read_picture(path))
    if pixels.size and (pixels.max() > 1.5 or pixels.min() < -0.5):
        raise ValueError(
            f"{path} has values from {pixels.min():g} to {pixels.max():g}; images of real numbers must lie in [0, 1]"
        )
    for number, page in enumerate(pixels[None] if pixels.ndim == 2 else pixels):
        name = path.name if pixels.ndim == 2 else f"{path.name}[{number}]"
        yield Image(name, path.name, torch.from_numpy(np.clip(page, 0, 1)))


def _archive(path: Path, sharp: bool) -> Iterator[Image]:
    slices = _hounsfield_array(path)
    slices = slices[None] if slices.ndim == 2 else slices
    archive = load_npz(path)
    patients = archive.get("patient", np.full(len(slices), path.stem))
    kernels = archive.get("kernel", np.full(len(slices), ""))
    for number, (pixels, patient, kernel) in enumerate(zip(slices, patients, kernels, strict=True)):
        if sharp or not SHARP_KERNEL.search(str(kernel)):
            yield Image(f"{path.name}[{number}]", str(patient), window(pixels))


def _dicom(path: Path, sharp: bool) -> Iterator[Image]:
    series = dicom.read_series(path)
    if sharp or not SHARP_KERNEL.search(series.kernel):
        for number in range(len(series)):
            name = path.name if len(series) == 1 else f"{path.name}[{number}]"
            yield Image(name, series.patient or path.name, window(series.hounsfield(number)))


def _read(path: Path, sharp: bool) -> list[Image]:
    if path.suffix.lower() == ".npz":
        return list(_archive(path, sharp))
    if path.suffix.lower() == ".dcm":
        return list(_dicom(path, sharp))
    if path.suffix.lower() in PICTURES:
        return list(_picture(path))
    raise ValueError(f"{path} is not an image; known endings are {', '.join(sorted(PICTURES | SLICES))}")


def read_images(
    sources: Sequence[Path],
    smallest: int = 2,
    skip_unreadable: bool = False,
    sharp: bool = False,
) -> list[Image]:
    """Every image in the files and folders, at least `smallest` pixels each way; errors name the file."""
    paths = [file for source in sources for file in (sorted(source.iterdir()) if source.is_dir() else [source])]
    paths = [path for path in paths if path in sources or path.suffix.lower() in PICTURES | SLICES]
    found: list[Image] = []
    for path in paths:
        try:
            images = _read(path, sharp)
            for image in images:
                if not image.pixels.isfinite().all():
                    raise ValueError(f"{image.name} has values that are not finite; repair or remove it")
                if min(image.pixels.shape) < smallest:
                    height, width = image.pixels.shape
                    raise ValueError(
                        f"{image.name} is {height} x {width}, smaller than a patch of {smallest};"
                        " remove it or lower patch"
                    )
            found += images
        except ImportError:
            raise
        except Exception as error:
            ours = isinstance(error, ValueError) and path.name in str(error)
            message = str(error) if ours else f"{path} cannot be read: {error}"
            if not skip_unreadable:
                raise ArgumentError("{0} ({skip_unreadable} goes on without it)", message) from error
            warnings.warn(f"skipped: {message}", stacklevel=2)
    if not found:
        raise ValueError(f"no images in {', '.join(map(str, sources))}")
    return found
