"""Arrays as pictures: gray values between two limits, PNG, and images inside a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from smadmm.extras import needs

MEDIA = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}

Array = NDArray[np.float32]


def gray(image: Any, limits: tuple[float, float]) -> Array:
    """The image with limits[0] at 0 and limits[1] at 1."""
    low, high = limits
    shown: Array = np.clip((np.asarray(image) - low) / max(high - low, 1e-30), 0, 1).astype(np.float32)
    return shown


def png(image: Any) -> bytes:
    """An array or tensor with values in [0, 1]: H x W or 1 x H x W is gray, H x W x 3 or 3 x H x W is colour.

    Values outside [0, 1] are clipped; those that are not numbers become black.

    >>> png(np.eye(4))[1:4]
    b'PNG'
    """
    Image = needs("PIL.Image", "imaging", "pictures")
    pixels = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    shape = pixels.shape
    if np.iscomplexobj(pixels):
        raise ValueError(f"an image must be real, got {pixels.dtype}; give its modulus or its phase")
    if pixels.ndim == 3 and shape[0] == 1:
        pixels = pixels[0]
    elif pixels.ndim == 3 and shape[0] == 3 and shape[2] != 3:
        pixels = np.moveaxis(pixels, 0, 2)
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)) or pixels.size == 0:
        raise ValueError(f"an image must have the shape H x W or H x W x 3, got {shape}")
    shown = np.nan_to_num(pixels.astype(np.float64), nan=0.0).clip(0, 1)
    buffer = io.BytesIO()
    Image.fromarray(np.rint(255 * shown).astype(np.uint8)).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def data_uri(image: Any) -> str:
    """An image inside the page: from a PNG or JPEG file, from its bytes, or from an array.

    >>> data_uri(np.eye(4))[:22]
    'data:image/png;base64,'
    """
    if isinstance(image, str | Path):
        image = Path(image).read_bytes()
    content = image if isinstance(image, bytes) else png(image)
    media = next((name for start, name in MEDIA.items() if content.startswith(start)), None)
    if media is None:
        raise ValueError(f"an image must be PNG or JPEG, got bytes that begin with {content[:4]!r}")
    return f"data:{media};base64," + base64.b64encode(content).decode()
