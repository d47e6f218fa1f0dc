"""Sinograms from raw counts: b = -log((counts - dark) / (flat - dark)), the flat field being the counts without object.

A ray with less than half a count above the dark field, or none, is taken as half a count (one hundredth of the flat
field, where that is less): its logarithm exists, and it stays a ray of large attenuation. The least transmission, where
they are no whole numbers, is 1e-4 of the flat field.

Frames of a flat field, each divided by its mean, scatter by their photons: a detector that shows g numbers per photon
has variance / mean = g, so mean / g photons reach it. The median over detectors of a variance with n degrees of freedom
is (1 - 2/(9n))^3 of its mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError
from smadmm.io.arrays import DARK_NAMES, FLAT_NAMES, content_of, only
from smadmm.io.images import read_tiff
from smadmm.io.limits import load_npy
from smadmm.io.scan import Sinogram, plain, readable
from smadmm.io.tiff_folder import pages_of, tiff_files

FEWEST_FRAMES = 3  # of a flat field to see its scatter
MOST_DEAD = 0.1  # of the detectors
LEAST_TRANSMISSION = 1e-4
NEAR_ONE, EDGE = 0.1, 0.03  # how far air may be off its level; the share of detectors at each edge
BRIGHTER = 0.03  # than air, in the mean over views: more is no fringe of an edge
COUNTED = 50  # whole numbers up to such a one, or more, are counts

Field = Any  # an array of numbers, or anything with a shape that is read by indexing


class Attenuation:
    """Counts on disk as attenuations, computed as they are asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, counts: Any, open_beam: NDArray[np.float64], dark: NDArray[np.float64], least: float):
        self.counts, self.shape, self.least = counts, tuple(counts.shape), least
        self.open_beam, self.dark = np.broadcast_to(open_beam, self.shape), np.broadcast_to(dark, self.shape)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        full = self.open_beam[key]
        share = (np.asarray(self.counts[key], dtype=np.float64) - self.dark[key]) / full
        floor = np.minimum(self.least / full, 0.01)
        attenuation: NDArray[np.float32] = -np.log(np.maximum(share, floor)).astype(np.float32)
        return attenuation

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self[...].astype(dtype or self.dtype)


def are_counts(stored: Any) -> bool:
    """Whether pieces of an array hold whole numbers, as large as counts are; views along the pixels may, too."""
    if stored.dtype.kind in "iu":
        return True
    length = stored.shape[0]
    pieces = [np.asarray(stored[number]) for number in (length // 7, length // 3, length - 1)]
    return all((p >= 0).all() and (p == np.rint(p)).all() for p in pieces) and max(p.max() for p in pieces) >= COUNTED


def air_level(stored: Any, axes: tuple[int | None, int, int]) -> float | None:
    """The intensity of air, if numbers are intensities: alike at both edges, and less between, as no line integral is.

    1 if it is nearly 1. Any other level must also be the largest of all detectors: a ring that reaches beyond both
    edges is darkest at its inner side.
    """
    across, length = axes[2], stored.shape[0 if axes[2] else 1]
    if len(stored.shape) == 2:
        pieces = [np.moveaxis(np.asarray(stored, dtype=np.float64), across, -1)]
    else:
        numbers = sorted({length // 7, length // 3, length - 1})
        some = [np.asarray(stored[n] if across else stored[:, n], dtype=np.float64) for n in numbers]
        pieces = [np.moveaxis(piece, max(across - 1, 0), -1) for piece in some]
    detectors = pieces[0].shape[-1]
    if detectors < 16 or not all(np.isfinite(piece).all() and piece.min() >= 0 for piece in pieces):
        return None
    width, third = max(1, round(EDGE * detectors)), detectors // 3
    sides = [[np.median(part, axis=-1).ravel() for part in (p[..., :width], p[..., -width:])] for p in pieces]
    edges = np.stack([np.concatenate(side) for side in zip(*sides, strict=True)])
    level, darkest = float(np.median(edges)), min(float(np.median(p[..., third:-third])) for p in pieces)
    brightest = float(np.concatenate([p.reshape(-1, detectors) for p in pieces]).mean(0).max())
    if abs(level - 1) <= NEAR_ONE:
        level, brightest = 1.0, max(float(np.median(piece)) for piece in pieces) - NEAR_ONE
    low, high = (1 - NEAR_ONE) * level, (1 + NEAR_ONE) * level
    alike = np.quantile(edges, 0.1, axis=1).min() >= low and np.quantile(edges, 0.9, axis=1).max() <= high
    return level if alike and darkest < low and brightest <= (1 + BRIGHTER) * level else None


def from_counts(counts: Sinogram, flat: Field | str, dark: Field | str | None) -> Sinogram:
    """The sinogram of counts, by their flat and dark (None: 0) fields: arrays, or files of them.

    A field is one number, one view, or frames of a view, which are averaged.
    """
    axis, shape = counts.axes[1], counts.stored.shape
    view = tuple(n for i, n in enumerate(shape) if i != axis)
    light, scatter = _mean(counts.path, "flat", flat, view, axis)
    no_light = np.zeros(view) if dark is None else _mean(counts.path, "dark", dark, view, axis)[0]
    dead = ~(light > no_light)
    if dead.sum() > MOST_DEAD * dead.size:
        raise ArgumentError(
            "the flat field is not above the dark one in {0} of {1} detectors; check {flat} and {dark}, or repair "
            "those detectors",
            int(dead.sum()),
            dead.size,
        )
    full, beam = float(np.median((light - no_light)[~dead])), np.where(dead, 1.0, light - no_light)
    photons = None if scatter is None else _photons(scatter[~dead], (light - no_light)[~dead])
    note = f"counts are divided by a flat field of {_rounded(full)} above the dark field"
    note += "" if photons is None else f", whose noise is that of {_rounded(photons)} photons"
    notes, lost = (*counts.notes, *([note] if full > 1 else ())), None
    if dead.any():
        slices = counts.axes[0]
        lost = dead[None] if slices is None else dead if slices < counts.axes[2] else dead.T
        notes = (*notes, f"{int(dead.sum())} of {dead.size} detectors never saw light and are given no weight")
    least = 0.5 if are_counts(counts.stored) else LEAST_TRANSMISSION * full
    fields = [np.broadcast_to(np.expand_dims(field, axis), shape) for field in (beam, no_light)]
    return replace(counts, stored=Attenuation(counts.stored, fields[0], fields[1], least), notes=notes, dead=lost,
                   photons=photons, raw=(counts.stored, *fields))  # fmt: skip


def _rounded(number: float) -> str:
    """To three digits, without an exponent: 47,000."""
    return f"{float(f'{number:.3g}'):,.10g}"


def _photons(variance: Field, beam: Field) -> float | None:
    gain = float(np.median(variance / beam))
    return float(np.median(beam)) / gain if gain > 0 else None


def _mean(
    path: Path, name: str, field: Any, view: tuple[int, ...], axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """A field, and the variance of its frames where there are enough of them."""
    told = f"the {name} field of {plain(str(path))}"
    if isinstance(field, str):
        told, path = "{" + name + "} " + plain(field), Path(field)
        field = _file(name, path)
    if math.prod(field.shape) == 1:
        field = np.broadcast_to(np.asarray(field, dtype=np.float64).ravel()[0], view)
    places = [place for place in sorted({0, axis}) if (*field.shape[:place], *field.shape[place + 1 :]) == view]
    places = [place for place in places if place < len(field.shape)]
    if len(places) > 1:
        raise ArgumentError(
            told + " has as many frames as the volume has slices, so that their axes cannot be told apart; give the "
            "mean of the frames"
        )
    if not places and tuple(field.shape) != view:
        needed, got = (" x ".join(map(str, shape)) for shape in (view, field.shape))
        raise ArgumentError(told + " is {0}, but a view is {1}; give one view or frames of it", got, needed)
    with readable(path):
        mean, variance = _moments(_frames(field, places))
    bad = int((~np.isfinite(mean)).sum())
    if bad:
        raise ArgumentError(told + " has {0} values that are not finite; repair it", bad)
    return mean, variance


def _frames(field: Any, places: list[int]) -> Iterator[NDArray[np.float64]]:
    if not places:
        yield np.asarray(field, dtype=np.float64)
    elif places == [0]:
        yield from (np.asarray(field[number], dtype=np.float64) for number in range(field.shape[0]))
    else:
        yield from np.moveaxis(np.asarray(field, dtype=np.float64), places[0], 0)


def _moments(frames: Iterable[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """The mean of frames; their variance, each frame divided by its size, where they are enough."""
    count, mean, even, squares = 0, np.zeros(()), np.zeros(()), np.zeros(())
    first = 1.0
    for frame in frames:
        size = float(frame.mean()) or 1.0
        first = size if count == 0 else first
        count += 1
        mean = mean + (frame - mean) / count
        step = frame * (first / size) - even
        even = even + step / count
        squares = squares + step * (frame * (first / size) - even)
    if count < FEWEST_FRAMES:
        return mean, None
    freedom = count - 1
    return mean, squares / freedom / (1 - 2 / (9 * freedom)) ** 3


def _file(name: str, path: Path) -> Any:
    """The array of a file of a field."""
    if not path.exists():
        raise ArgumentError("{" + name + "}: there is no file {0!r}", str(path))
    with readable(path):
        content = content_of(path)
        if content is not None:
            names = FLAT_NAMES if name == "flat" else DARK_NAMES
            return content.arrays[only(path, content, names)]
        if path.is_dir():
            return pages_of(tiff_files(path))
        if path.suffix.lower() == ".npy":
            return load_npy(path, mapped=True)
        return read_tiff(path, mapped=True)
