"""Angles of views: in a file, as a range, in degrees or radians.

Angles above 2 pi must be degrees; others are radians unless the file or the caller says degrees. A range START:STOP
leaves the stop out, as the next turn's first view; START:STOP:end gives it to the last view.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError
from smadmm.io.limits import load_npy, text_of
from smadmm.io.scan import NUMBERS, Unit, readable

UNITS = {"deg": "degrees", "rad": "radians", "°": "degrees"}


def named_unit(text: str) -> Unit:
    """The unit that a text names."""
    for start, name in UNITS.items():
        if start in text.lower():
            return "degrees" if name == "degrees" else "radians"
    return "auto"


def read_range(text: str) -> tuple[float, float, bool | None] | None:
    """Start, stop and whether the stop is included (None: not said) of START:STOP[:end]; None: a file."""
    start, colon, rest = text.partition(":")
    if not colon or Path(text).exists():
        return None
    stop, _, end = rest.partition(":")
    try:
        if end not in ("", "end"):
            raise ValueError(end)
        return float(start), float(stop), True if end else None
    except ValueError:
        raise ArgumentError("{angles} {0!r} is neither a file nor a range such as 0:180", text) from None


def read_angles(text: str, views: int) -> tuple[NDArray[np.float64], Unit]:
    """Angles from a file (NPY, or numbers in a text), or `views` of them in START:STOP[:end] degrees."""
    told = read_range(text)
    if told is not None:
        return np.linspace(told[0], told[1], views, endpoint=bool(told[2])), "degrees"
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"there is no file of angles {text!r}; give one number per view, or a range such as 0:180")
    with readable(path, "give one number per view"):
        if path.suffix.lower() == ".npy":
            values = load_npy(path)
        else:
            words = text_of(path).replace(",", " ").replace(";", " ").split()
            values = np.array(words, dtype=np.float64)
        if values.dtype.kind not in NUMBERS:
            raise ValueError(f"holds {values.dtype}, not numbers")
        angles = np.asarray(values, dtype=np.float64).ravel()
        if not len(angles) or not np.isfinite(angles).all():
            raise ValueError(f"has {len(angles)} numbers, {int((~np.isfinite(angles)).sum())} of them not finite")
        return angles, named_unit(path.stem)


def in_degrees(angles: NDArray[np.float64], unit: str) -> tuple[NDArray[np.float64], str]:
    """The angles in degrees, and what was recognised."""
    if not len(angles) or not np.isfinite(angles).all():
        raise ValueError(f"{int((~np.isfinite(angles)).sum())} of {len(angles)} angles are not finite numbers")
    low, high = float(angles.min()), float(angles.max())
    how = "as given"
    if unit == "auto":
        unit = "degrees" if max(abs(low), abs(high)) > 2 * math.pi * 1.001 else "radians"
        how = "by their size"
    said = f"{len(angles)} angles from {low:.4g} to {high:.4g}, taken as {unit} ({how})"
    return (np.rad2deg(angles) if unit == "radians" else angles), said
