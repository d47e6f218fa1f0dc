"""Training images: gray pictures and CT slices as float32 tensors in [0, 1], and random patches of them.

A CT slice in Hounsfield units is mapped by (HU + 1000) / 2500 and clipped. Slices reconstructed with a
sharp kernel (lung, bone, B50 and above) carry noise that looks like detail and are left out unless asked
for.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PICTURES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm"}
SLICES = {".npz", ".dcm"}
SHARP_KERNEL = re.compile(r"LUNG|BONE|EDGE|B[5-9]\d", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """One image H x W; images of one patient or one file share a group and are never split by hold_out."""

    name: str
    group: str
    pixels: Tensor


def window(hounsfield: NDArray[np.generic]) -> Tensor:
    """(HU + 1000) / 2500, clipped to [0, 1]."""
    return torch.from_numpy(np.clip((hounsfield.astype(np.float32) + 1000) / 2500, 0, 1))


def _picture(path: Path) -> Iterator[Image]:
    from PIL import Image as Pillow

    with Pillow.open(path) as picture:
        pixels = np.asarray(picture.convert("L"), dtype=np.float32) / 255
    yield Image(path.name, path.name, torch.from_numpy(pixels))


def _archive(path: Path, sharp: bool) -> Iterator[Image]:
    with np.load(path, allow_pickle=False) as archive:
        if "hu" not in archive:
            raise ValueError(f"{path} has no array 'hu' of slices in Hounsfield units; it has {sorted(archive)}")
        slices = archive["hu"]
        patients = archive["patient"] if "patient" in archive else np.full(len(slices), path.stem)
        kernels = archive["kernel"] if "kernel" in archive else np.full(len(slices), "")
    for number, (pixels, patient, kernel) in enumerate(zip(slices, patients, kernels, strict=True)):
        if sharp or not SHARP_KERNEL.search(str(kernel)):
            yield Image(f"{path.name}[{number}]", str(patient), window(pixels))


def _dicom(path: Path, sharp: bool) -> Iterator[Image]:
    import pydicom

    dataset = pydicom.dcmread(path)
    if sharp or not SHARP_KERNEL.search(str(dataset.get("ConvolutionKernel", ""))):
        slope, intercept = float(dataset.get("RescaleSlope", 1)), float(dataset.get("RescaleIntercept", 0))
        yield Image(
            path.name,
            str(dataset.get("PatientID", path.name)),
            window(dataset.pixel_array * slope + intercept),
        )


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
    on_error: Literal["stop", "skip"] = "stop",
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
                if min(image.pixels.shape) < smallest:
                    height, width = image.pixels.shape
                    raise ValueError(
                        f"{image.name} is {height} x {width}, smaller than a patch of {smallest};"
                        " remove it or lower patch"
                    )
            found += images
        except Exception as error:
            ours = isinstance(error, ValueError) and path.name in str(error)
            message = str(error) if ours else f"{path} cannot be read: {error}"
            if on_error == "stop":
                raise ValueError(f"{message} (on_error='skip' goes on without it)") from error
            warnings.warn(f"skipped: {message}", stacklevel=2)
    if not found:
        raise ValueError(f"no images in {', '.join(map(str, sources))}")
    return found


def hold_out(images: list[Image], count: int, seed: int) -> tuple[list[Image], list[Image]]:
    """Training and validation images: about `count` images of whole groups (patients, files) are held out."""
    sizes: dict[str, int] = {}
    for image in images:
        sizes[image.group] = sizes.get(image.group, 0) + 1
    groups = sorted(sizes)
    held: set[str] = set()
    for index in np.random.default_rng(seed).permutation(len(groups)):
        group = groups[index]
        if sum(sizes[g] for g in held) + sizes[group] <= count:
            held.add(group)
    return [i for i in images if i.group not in held], [i for i in images if i.group in held]


def random_patches(images: list[Image], count: int, size: int, rng: np.random.Generator) -> Tensor:
    """count x 1 x size x size patches at random places, flipped and turned; all groups equally likely."""
    groups: dict[str, list[Tensor]] = {}
    for image in images:
        groups.setdefault(image.group, []).append(image.pixels)
    members = list(groups.values())
    patches = []
    for _ in range(count):
        group = members[rng.integers(len(members))]
        pixels = group[rng.integers(len(group))]
        row, column = (int(rng.integers(n - size + 1)) for n in pixels.shape)
        patch = torch.rot90(pixels[row : row + size, column : column + size], int(rng.integers(4)))
        patches.append(patch.flip(1) if rng.random() < 0.5 else patch)
    return torch.stack(patches)[:, None].contiguous()
