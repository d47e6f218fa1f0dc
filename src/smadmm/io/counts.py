"""Sinograms from raw counts: b = -log((counts - dark) / (flat - dark)), the flat field being the counts without object.

A ray with less than half a count above the dark field, or none, is taken as half a count (one hundredth of the flat
field, where that is less): its logarithm exists, and it stays a ray of large attenuation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError
from smadmm.io.sinogram import Sinogram, arrays_of

FLAT_NAMES = ("flat", "flats", "white", "data_white")
DARK_NAMES = ("dark", "darks", "data_dark")


class Attenuation:
    """Counts on disk as attenuations, computed as they are asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, counts: Any, open_beam: NDArray[np.float64], dark: NDArray[np.float64]):
        self.counts, self.shape = counts, tuple(counts.shape)
        self.open_beam, self.dark = np.broadcast_to(open_beam, self.shape), np.broadcast_to(dark, self.shape)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        full = self.open_beam[key]
        share = (np.asarray(self.counts[key], dtype=np.float64) - self.dark[key]) / full
        attenuation: NDArray[np.float32] = -np.log(np.maximum(share, np.minimum(0.5 / full, 0.01))).astype(np.float32)
        return attenuation

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self[...].astype(dtype or self.dtype)


def from_counts(counts: Sinogram, flat: str, dark: str | None = None) -> Sinogram:
    """The sinogram of counts, by files of the flat and the dark field: one view, or frames that are averaged."""
    light = _field("flat", flat, FLAT_NAMES, counts)
    no_light = np.zeros_like(light) if dark is None else _field("dark", dark, DARK_NAMES, counts)
    bad = int((~(light > no_light)).sum())
    if bad:
        raise ArgumentError(
            "the flat field is not above the dark one in {0} of {1} detectors; check {flat} and {dark}, or repair "
            "those detectors",
            bad,
            light.size,
        )
    note = f"counts divided by a flat field of {np.median(light - no_light):.4g} counts above the dark field"
    attenuation = Attenuation(counts.stored, light - no_light, no_light)
    return replace(counts, stored=attenuation, notes=(*counts.notes, note))


def _field(name: str, file: str, names: tuple[str, ...], counts: Sinogram) -> NDArray[np.float64]:
    """A field for every view, with the axis of views put back in."""
    path, axis, argument = Path(file), counts.axes[1], "{" + name + "}"
    if not path.is_file():
        raise ArgumentError(argument + ": there is no file {0!r}", file)
    field = np.asarray(arrays_of(path, names), dtype=np.float64)
    view = tuple(n for i, n in enumerate(counts.stored.shape) if i != axis)
    frames = [place for place in sorted({0, axis}) if np.delete(field.shape, place).tolist() == list(view)]
    if len(frames) > 1:
        raise ArgumentError(
            argument + " {0} has as many frames as the volume has slices, so that their axes cannot be told apart; "
            "give the mean of the frames",
            file,
        )
    if frames:
        field = field.mean(frames[0])
    if field.shape != view and field.size != 1:
        needed, got = (" x ".join(map(str, shape)) for shape in (view, field.shape))
        raise ArgumentError(
            argument + " {0} is {1}, but a view is {2}; give one view or frames of it", file, got, needed
        )
    bad = int((~np.isfinite(field)).sum())
    if bad:
        raise ArgumentError(argument + " {0} has {1} values that are not finite; repair it", file, bad)
    whole: NDArray[np.float64] = np.expand_dims(
        np.broadcast_to(field.ravel()[0] if field.size == 1 else field, view), axis
    )
    return whole
