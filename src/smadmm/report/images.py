"""Images as PNG, by hand: a signature and three chunks, each with its length and checksum."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MEDIA = {SIGNATURE[:4]: "image/png", b"\xff\xd8\xff": "image/jpeg"}


def png(image: Any) -> bytes:
    """An array or tensor with values in [0, 1]: H x W or 1 x H x W is grey, H x W x 3 or 3 x H x W is colour.

    Values outside [0, 1] are clipped; those that are not numbers become black.
    """
    pixels = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    shape = pixels.shape
    if np.iscomplexobj(pixels):
        raise ValueError(f"an image must be real, got {pixels.dtype}; give its modulus or its phase")
    if pixels.ndim == 3 and shape[0] == 1:
        pixels = pixels[0]
    elif pixels.ndim == 3 and shape[0] == 3 and shape[2] != 3:
        pixels = np.moveaxis(pixels, 0, 2)
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)) or pixels.size == 0:
        raise ValueError(f"an image must have the shape H x W or H x W x 3, got {shape}")
    grey = np.nan_to_num(pixels.astype(np.float64), nan=0.0).clip(0, 1)
    lines = np.rint(255 * grey).astype(np.uint8).reshape(len(pixels), -1)
    above = np.vstack([np.zeros_like(lines[:1]), lines[:-1]])
    filtered = np.insert(lines - above, 0, 2, axis=1)  # filter 2, "up": each byte less the one above it
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def data_uri(image: Any) -> str:
    """An image inside the page: from a PNG or JPEG file, from its bytes, or from an array."""
    if isinstance(image, str | Path):
        image = Path(image).read_bytes()
    content = image if isinstance(image, bytes) else png(image)
    media = next((name for start, name in MEDIA.items() if content.startswith(start)), None)
    if media is None:
        raise ValueError(f"an image must be PNG or JPEG, got bytes that begin with {content[:4]!r}")
    return f"data:{media};base64," + base64.b64encode(content).decode()
