"""Measured diffraction patterns with their masks, from NPZ, HDF5 or NPY files.

NPZ and HDF5 hold `amplitudes` or `intensities` (n x H x W), `masks` (complex, n x H x W) and perhaps the `truth`
(H x W). An NPY file holds the patterns alone; the masks are a second NPY file. NPY and HDF5 stay on disk and are read
as they are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smadmm.extras import needs

Quantity = Literal["amplitudes", "intensities"]
QUANTITIES: tuple[Quantity, ...] = ("amplitudes", "intensities")
HDF5 = {".h5", ".hdf5"}


@dataclass(frozen=True)
class Patterns:
    """n patterns H x W, read by number: the square root of intensities, divided by `scale`."""

    stored: Any
    masks: Any
    quantity: Quantity
    truth: NDArray[Any] | None = None
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.stored.shape)

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        values = np.asarray(self.stored[numbers], dtype=np.float32)
        amplitudes: NDArray[np.float32] = np.sqrt(values) if self.quantity == "intensities" else values
        return amplitudes if self.scale == 1 else amplitudes / np.float32(self.scale)


def is_patterns(path: Path) -> bool:
    """Whether a file holds patterns rather than an image: an archive with patterns, or an NPY array with three axes."""
    suffix = path.suffix.lower()
    if suffix in HDF5:
        return True
    if suffix == ".npz":
        with _opened(path, np.load, allow_pickle=False) as archive:
            return any(name in archive for name in QUANTITIES)
    return suffix == ".npy" and _opened(path, np.load, mmap_mode="r", allow_pickle=False).ndim == 3


def read_patterns(path: Path, masks: Path | None = None, quantity: Quantity | None = None) -> Patterns:
    """The patterns of a file, with every value looked at."""
    patterns = _npy(path, masks, quantity) if path.suffix.lower() == ".npy" else _archive(path, masks, quantity)
    _refuse(path, patterns)
    return patterns


def _opened(path: Path, load: Any, **options: Any) -> Any:
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        return load(path, **options)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _npy(path: Path, masks: Path | None, quantity: Quantity | None) -> Patterns:
    if masks is None:
        raise ValueError(f"{path} holds patterns without masks; give them with --mask-file MASKS.npy")
    if quantity is None:
        raise ValueError(f"say what {path} holds: --quantity amplitudes or --quantity intensities")
    arrays = [_opened(file, np.load, mmap_mode="r", allow_pickle=False) for file in (path, masks)]
    return Patterns(arrays[0], arrays[1], quantity)


def _archive(path: Path, masks: Path | None, quantity: Quantity | None) -> Patterns:
    if path.suffix.lower() in HDF5:
        h5py = needs("h5py", "imaging", "HDF5 files")
        stored = _opened(path, lambda name: h5py.File(name, "r"))
        content = {name: value for name, value in stored.items() if hasattr(value, "shape")}
    else:
        with _opened(path, np.load, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive}
    kinds = [name for name in QUANTITIES if name in content and quantity in (None, name)]
    if len(kinds) != 1:
        raise ValueError(f"{path} needs one array 'amplitudes' or 'intensities'; it has {sorted(content)}")
    if masks is not None:
        content["masks"] = _opened(masks, np.load, mmap_mode="r", allow_pickle=False)
    if "masks" not in content:
        raise ValueError(f"{path} has no array 'masks'; it has {sorted(content)}, or give --mask-file MASKS.npy")
    truth = np.asarray(content["truth"]) if "truth" in content else None
    return Patterns(content[kinds[0]], content["masks"], kinds[0], truth)


def _refuse(path: Path, patterns: Patterns) -> None:
    shape, masks = patterns.shape, patterns.masks
    if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < 2:
        raise ValueError(f"{path} holds {patterns.quantity} of shape {shape}; they are n x height x width")
    if tuple(masks.shape) != shape:
        raise ValueError(f"{path} has patterns of shape {shape}, but masks of shape {tuple(masks.shape)}")
    if patterns.truth is not None and patterns.truth.shape != shape[1:]:
        raise ValueError(f"the truth in {path} has shape {patterns.truth.shape}, but the patterns {shape[1:]}")
    largest = 0.0
    for number in range(shape[0]):
        values, mask = np.asarray(patterns.stored[number]), np.asarray(masks[number])
        if values.dtype.kind not in "biuf" or mask.dtype.kind not in "biufc":
            raise ValueError(f"{path}: patterns are real numbers and masks complex, got {values.dtype}, {mask.dtype}")
        if not (np.isfinite(values).all() and np.isfinite(mask).all()):
            raise ValueError(f"pattern or mask {number} of {path} has values that are not finite (NaN or infinity)")
        if values.min() < 0:
            raise ValueError(f"pattern {number} of {path} has negative {patterns.quantity}, the least {values.min():g}")
        if not mask.any():
            raise ValueError(f"mask {number} of {path} is zero everywhere: nothing passes it")
        largest = max(largest, float(values.max()))
    if largest == 0:
        raise ValueError(f"all patterns of {path} are zero: there is nothing to retrieve")
