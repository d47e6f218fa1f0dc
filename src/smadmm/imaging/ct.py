"""Tomography from arrays: `reconstruct`, and what it knows of sinograms.

The conventions, for Python and the command line alike: a sinogram is views x detectors, a volume of them slices x views
x detectors; angles are in degrees and turn clockwise as images are shown; `center` is the axis of rotation in detectors
off the middle, axis - (detectors - 1)/2; the image is in the sinogram's unit per pixel.

Inside, sinograms are divided by `scale`, a robust largest value of the image (the 99.9 % quantile of a smooth filtered
back-projection), because a denoiser expects images in [0, 1]. Every slice is solved by the default of
smadmm.imaging.pnp from a filtered back-projection, as sharp as the noise allows.

Photons: a ray of attenuation p keeps the share exp(-p) of I0 photons, so -log(N/I0) has nearly the variance
1/(I0 exp(-p)). The discretisation errs, too: no ray is trusted to less than 1/1000 of the sinogram's size. That is
added to the variance, and 1/variance is the weight.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.imaging.alignment import aligned
from smadmm.imaging.angle_range import doubt
from smadmm.imaging.any_operator import by_operator
from smadmm.imaging.findings import REPAIRS, skipped
from smadmm.imaging.finished import Finished
from smadmm.imaging.half_acquisition import half_acquisition
from smadmm.imaging.hardening import straightened
from smadmm.imaging.inspection import Inspection, repaired
from smadmm.imaging.pnp import METHODS, Method
from smadmm.imaging.priors import LEARNED, Denoiser, as_prior, find_prior, suited
from smadmm.imaging.result import ImageResult
from smadmm.imaging.simulation import refuse_noise
from smadmm.imaging.sinograms import (
    BackProjections,
    Measured,
    Mended,
    Rows,
    is_air,
    noise_gain,
    pieces,
    read,
    sample,
    sampled,
    some,
    window_of,
)
from smadmm.imaging.slices import Scan, judged
from smadmm.imaging.survey import Survey, angles_of, survey_of
from smadmm.imaging.trial import FEWEST_VIEWS
from smadmm.imaging.volumes import Inspected, each_slice
from smadmm.io.files import locked, output_folder
from smadmm.losses.tomography import SHAPES
from smadmm.operators.fan import FanGeometry
from smadmm.operators.linear import Operator
from smadmm.operators.radon import Radon
from smadmm.problem import Prox
from smadmm.running import Stop

ITERATIONS = 30
RESTS, ENOUGH_VIEWS = (13, 18, 30), 60  # iterations from the image of a trial: of enough views, few, calibrated ones
OPAQUE = 20.0  # no detector sees photons behind such an attenuation
MOST_BAD = 0.2  # share of rays that may be not finite
EIGHTHS = 8  # of a volume: the slices that may tell of its geometry
MANY_VIEWS = 12  # from here on angles that all lie below 2 pi are suspicious
WRONG_SIGN = (
    "the sinogram is negative as a whole, and so is the image; line integrals are -log(I/I0): if it holds intensities, "
    "take -log(intensities / air), as read_sinogram(..., air=...) does, or turn its sign if that is wrong"
)
RADIANS = "all {0} angles lie below 2 pi: they are taken as degrees; convert radians by numpy.rad2deg"


def reconstruct(
    sinogram: Any,
    angles: ArrayLike | Tensor | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    spacing: float = 1.0,
    geometry: FanGeometry | None = None,
    center: float | str = "auto",
    prior: str | Prox | Denoiser = "auto",
    operator: Operator | Sequence[Operator] | None = None,
    start: Any = None,
    batch: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    strength: float = 1.0,
    method: str = "smadmm",
    photons: float | None = None,
    bounds: tuple[float, float] | None = None,
    loss: str = "squares",
    align: bool = False,
    hardening: bool = False,
    truth: Any = None,
    raw: bool | Collection[str] = False,
    seed: int = 0,
    threads: int = 1,
    device: str = "cpu",
    executor: Executor | int | None = None,
    slices: tuple[int, int] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> ImageResult:
    """Reconstruct an image from its line integrals -log(I/I0), or a volume slice by slice.

    Parameters
    ----------
    sinogram : views x detectors, or slices x views x detectors: NumPy, torch, or anything with a shape that is read by
        indexing, such as a memory map or an HDF5 dataset. The image comes back as the same kind. Or a scan as
        smadmm.io.sinogram.read_sinogram reads it, which says angles, geometry, center and truth itself, so far as
        they are not given here.
    angles : of the views, in degrees; or (first, last) for equal steps, the end point included or not as the data
        say; None: equispaced over 180 degrees, or 360 for a fan, without the end point.
    size : pixels of the image, a number or (height, width); None: what the detector spans.
    spacing : distance between detectors, in pixels of the image; of a fan, where the axis of rotation is.
    geometry : smadmm.fan(source_to_axis, source_to_detector, pitch=...) for a fan beam, lengths in mm or another unit;
        the image is then in attenuation per mm. None: parallel beams.
    center : axis of rotation in detectors off the middle of the detector; "auto": found in the data.
    prior : a shipped denoiser, a file of weights (.safetensors), "tv" or "none"; "auto": ridge-ct, or tv where that
        predicts views that were left out better. Or your own denoiser of images in about [0, 1]: a torch module
        (called with 1 x 1 x H x W), any other function of a tensor H x W, or a Prox (taken at t = 1). It should remove
        noise of the level of its attribute `sigma`, or 5/255 if it has none.
    operator : maps images to data of any shape, which then take the place of the sinogram (smadmm.interop makes one
        from your own), or a list of operators, each with its data; geometry, photons, batches and repairs do not apply.
    start : first image; None: a filtered back-projection; with an operator, least squares stopped early.
    batch : views per step; None: all.
    iterations, seconds : limits per slice; None: 30 iterations, or 13 from the image of a trial with held-out views, 18
        if the views are few, 30 if detectors are calibrated.
    strength : multiplies the weight that the prior gets from the noise.
    method : smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.
    photons : per unattenuated ray; weighs rays by their Poisson statistics (scan.photons: those of the flat
        fields of a file). None: the noise is measured in the data, where it varies as a function of the value.
    bounds : smallest and largest value of images, which the prior keeps to (the answer may exceed them by what the data
        say); None: not below 0, unless the data show values below.
    loss : squares; huber or student (which is not convex), smooth losses that wrong rays pull less: for rays that are
        wrong by a few times the noise, which inspection does not find. Detectors are then not calibrated.
    align : views are shifted along the detector, each by itself (the axis wobbles): the shifts are found in the slice
        in the middle and undone in all (smadmm.imaging.alignment).
    hardening : the object is of one material, and soft rays are lost in it first: a polynomial that makes up for it is
        found in the slice in the middle (smadmm.imaging.hardening).
    truth : the image, where it is known: SNR and SSIM are then measured.
    raw : True: data are taken as they are; or names of repairs not to be done (smadmm.imaging.findings.REPAIRS).
    threads, device : where it is computed.
    executor : does the slices of a volume in parallel: a number of processes of this machine (call it below
        `if __name__ == "__main__":`), or any concurrent.futures.Executor, such as Dask's Client.get_executor() or
        mpi4py.futures.MPIPoolExecutor(). Images do not depend on it; workers open files themselves.
    slices : (first, end) reconstructs these alone, as they would come out of the whole volume. Such runs, also on
        several machines, can share a checkpoint folder; one with `resume` and without `slices` then has them all.
    checkpoint : folder in which an unfinished run is kept; with `resume` it goes on there. Remove it when you are done.
    progress : show a progress bar.

    >>> from smadmm.imaging.simulation import simulated_sinogram
    >>> from smadmm.io.phantoms import abdomen_image
    >>> sinogram = simulated_sinogram(abdomen_image(32), views=30, snr=40)
    >>> smadmm.reconstruct(sinogram, size=32, iterations=5).image.shape
    torch.Size([32, 32])
    """
    if operator is not None:
        scans = {"angles": angles, "size": size, "geometry": geometry, "photons": photons, "batch": batch,
                 "align": align or None, "hardening": hardening or None, "loss": None if loss == "squares" else loss,
                 "checkpoint": checkpoint, "executor": executor, "slices": slices, "raw": raw or None,
                 "center": None if center == "auto" else center, "spacing": None if spacing == 1 else spacing,
                 "method": None if method == "smadmm" else method, "resume": resume or None,
                 "device": None if device == "cpu" else device}  # fmt: skip
        for name in (name for name, value in scans.items() if value is not None):
            raise ArgumentError("{" + name + "} belongs to scans, and {operator} says it all; leave it out")
        positive(iterations=iterations, seconds=seconds, strength=strength)
        limit = None if iterations is None and seconds is None else Stop(iterations=iterations, seconds=seconds)
        return by_operator(sinogram, operator, prior, start, limit, strength, bounds, truth, seed)
    if isinstance(sinogram, Measured):
        source = sinogram
        geometry, angles = geometry or source.beam, source.angles if angles is None else angles
        center = source.center if center == "auto" and source.center is not None else center
        sinogram, truth = source.array, source.truth if truth is None else truth
    refuse_noise(None, photons)
    one_of("method", method, METHODS)
    one_of("loss", loss, ("squares", *SHAPES))
    positive(batch=batch, iterations=iterations, seconds=seconds, strength=strength, spacing=spacing, threads=threads)
    if center != "auto" and not (isinstance(center, (int, float)) and math.isfinite(center)):
        raise ArgumentError('{center} is a finite number or "auto", got {0!r}', center)
    sinogram = np.asarray(sinogram) if isinstance(sinogram, list) else sinogram
    begin, stack = time.perf_counter(), _slices(sinogram, "sinogram")
    chosen = _chosen(slices, len(stack))
    truths = None if truth is None else _slices(truth, "truth")
    views, detectors = (int(n) for n in sinogram.shape[-2:])
    given, notices = _degrees(angles, views, 180 if geometry is None else 360)
    off = skipped(raw)
    number, middle = _telling(stack)
    _refuse_bad_slices(stack, chosen, number, middle, raw is True)
    completion = None
    if geometry is None and isinstance(middle, Tensor) and judged(middle):
        completion = half_acquisition(middle.numpy(), given, center, off)
    if completion is not None:
        stack, given, center = Mended(stack, completion), completion.degrees, completion.center
        middle = read(stack[number], 1.0)
        detectors = int(middle.shape[1])
    changes = [name for name, asked in (("align", align), ("hardening", hardening)) if asked]
    stack, middle, changed = _changed(changes, stack, number, middle, given, center, off, geometry)
    survey, look = _looked_at(middle, given, center, off, geometry)
    below = isinstance(middle, Tensor) and _mass(middle, look) < 0
    notices += [WRONG_SIGN] * below
    turned, before = below and bounds is None and photons is None and truth is None, look
    if turned:  # its negative is an image as usual
        stack, start = Mended(stack, np.negative), None if start is None else -1.0 * np.asarray(start)
        middle = -middle
        survey, look = _looked_at(middle, given, center, off, geometry)
    told = None if look is None or geometry is not None or "angles" in off else doubt(look.prepared, survey.angles)
    notices += [] if told is None else [told]
    sides, seen = _sides(size, truths, detectors * spacing, survey.width)
    make = Radon if geometry is None else geometry.projector
    radon = make(sides, np.deg2rad(survey.angles), detectors, spacing, survey.center, threads=threads)
    if batch is not None and batch > radon.views:
        raise ArgumentError("{batch} is {0}, more than the {1} views; lower it or leave it out", batch, radon.views)
    images, scale = _scaled(BackProjections(radon, middle if look is None else torch.from_numpy(look.prepared)), bounds)
    if photons is not None:
        _refuse_opaque(images.rows, scale)
    limits = _limits(bounds, look, scale)
    known: Method = next(name for name in METHODS if name == method)
    free = iterations is None and seconds is None
    wanted, name = as_prior(prior, device, limits)
    scan = Scan(radon, scale, wanted, known, Stop(iterations=ITERATIONS if free else iterations, seconds=seconds),
                batch=batch, strength=strength, seed=seed, photons=photons, loss=loss, device=device, survey=survey,
                off=off, seen=seen, rest=Stop(iterations=_rest(radon.views, look)) if free else None)  # fmt: skip
    noise = _noise_of_image(scan, images, look)
    scan = replace(scan, prior=suited(wanted, noise, device, limits))
    plain = name == "none" or batch is not None or seconds is not None or start is not None
    with nullcontext() if checkpoint is None else locked(output_folder(checkpoint), shared=len(chosen) < len(stack)):
        finished = Finished(scan, len(stack), number, images.fingerprint(), name, checkpoint, resume, chosen)
        if look is not None and not plain and radon.views >= FEWEST_VIEWS:
            learned = suited(find_prior(LEARNED, device, limits), noise, device, limits) if name == "tv" else scan.prior
            finished.settle(images, look, [learned, find_prior("tv", device, limits)])  # the learned one's comes first
        if not finished.interrupted:
            first = None if start is None else _first_image(start, scan)
            each_slice(finished, stack, truths, Inspected(images, look), first, executor, progress)
    result = finished.result(sinogram, truths, look, notices, time.perf_counter() - begin)
    result = _turned(result, before) if turned else result
    completed = () if completion is None else (str(completion),)
    return replace(result, notes=(*completed, *changed, *result.notes))


def _mass(middle: Tensor, look: Inspection | None) -> float:
    """The sum of a sinogram, of which inspection may have taken air off."""
    return float(sample(middle if look is None else torch.from_numpy(look.prepared)).sum())


def _turned(result: ImageResult, before: Inspection | None) -> ImageResult:
    """The result of the sinogram of opposite sign; `before` tells at what level its air was."""
    low, high = result.limits()
    look, notes, left = result.inspection, result.notes, None if result.residual is None else -result.residual
    if look is not None and before is not None:
        air = [each for each in before.findings if each.kind == "air"]
        rest = tuple(each for each in look.findings if each.kind != "air")
        notes = (*(each.text for each in (*air, *rest)), *notes[len(look.findings) :])
        look = replace(look, prepared=-look.prepared, findings=(*air, *rest))
    turned = result.in_unit(result.unit, lambda image: -image, (-high, -low))
    return replace(turned, residual=left, trust=result.trust, inspection=look, notes=notes)


def _scaled(images: BackProjections, bounds: tuple[float, float] | None) -> tuple[BackProjections, float]:
    """Sinogram and images divided by the largest value of the image, and that."""
    scale = images.largest() if bounds is None or math.isinf(bounds[1]) else bounds[1]
    images.divide(scale)
    return images, scale


def _limits(bounds: tuple[float, float] | None, look: Inspection | None, scale: float) -> tuple[float, float]:
    """Of the scaled image: as told, else not below 0, unless the data show values below."""
    if bounds is not None:
        return bounds[0] / scale, bounds[1] / scale
    return -math.inf if look is not None and look.negative else 0.0, math.inf


def _noise_of_image(scan: Scan, images: BackProjections, look: Inspection | None) -> float:
    """Of a filtered back-projection; 0 for few views, for which no prior is set by it."""
    if scan.radon.views < ENOUGH_VIEWS:
        return 0.0
    return scan.statistics(images.rows, look).mean * noise_gain(scan.radon, window_of(None))


def _first_image(start: Any, scan: Scan) -> Tensor:
    """The given one, divided by the scale; nothing is known of what lies beyond it."""
    first = torch.as_tensor(np.asarray(start, dtype=np.float32)) / scan.scale
    if not any(side.start for side in scan.seen):
        return first
    whole = torch.zeros(scan.radon.height, scan.radon.width)
    whole[scan.seen] = first
    return whole


def _rest(views: int, look: Inspection | None) -> int:
    """Iterations from the image of a trial; only the prior tells rings from wrong detectors, and that takes longer."""
    return RESTS[2] if look is not None and any(look.deviations) else RESTS[views < ENOUGH_VIEWS]


# --- what the verb is given -------------------------------------------------------------------------------------------


def _slices(array: Any, name: str) -> Any:
    """A sequence of slices, each rows x columns."""
    if isinstance(array, list):
        array = np.asarray(array)
    if isinstance(array, (str, Path)):
        raise ArgumentError(
            "{" + name + "} is an array, got the name {0!r}; smadmm.io.sinogram reads files", str(array)
        )
    shape = tuple(array.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise ArgumentError("{" + name + "} has the shape {0}; it needs two axes, or three for a volume", shape)
    return (array,) if len(shape) == 2 else array


def _degrees(angles: ArrayLike | Tensor | None, views: int, turn: float) -> tuple[NDArray[np.float64], list[str]]:
    """The angles, or the two ends of their range, and what there is to warn of."""
    if angles is None:
        return np.arange(views, dtype=np.float64) * (turn / views), []
    degrees = np.asarray(angles, dtype=np.float64).ravel()
    if len(degrees) not in (views, 2) or not np.isfinite(degrees).all():
        raise ArgumentError("{angles} must be {0} finite numbers, one per view, got {1}", views, len(degrees))
    suspicious = len(degrees) >= MANY_VIEWS and float(np.abs(degrees).max()) <= 2 * math.pi * 1.001
    return degrees, [RADIANS.format(views)] if suspicious else []


def _looked_at(
    rows: Rows,
    angles: NDArray[np.float64],
    center: float | str,
    off: frozenset[str],
    geometry: FanGeometry | None,
) -> tuple[Survey, Inspection | None]:
    """The geometry of all slices, and the one in the middle as repaired, where that is wanted and possible."""
    small = not judged(rows)
    if small or not isinstance(rows, Tensor):  # too little to judge, or too much to hold in memory
        views = sampled(int(rows.shape[0]))
        degrees = angles_of(angles, int(rows.shape[0]))
        told = 0.0 if small and center == "auto" else center
        survey = survey_of(some(rows, views).numpy(), degrees[views], told, off, geometry)
        return replace(survey, angles=degrees, width=1.0, sought=False), None
    values = rows.numpy()
    survey = survey_of(values, angles, center, off, geometry)
    if set(REPAIRS) <= off:
        return survey, None
    look = repaired(values, survey, off)
    return replace(survey, center=look.center, sought=False, findings=()), look


def _changed(
    names: Sequence[str],
    stack: Any,
    number: int,
    middle: Rows,
    angles: NDArray[np.float64],
    center: float | str,
    off: frozenset[str],
    geometry: FanGeometry | None,
) -> tuple[Any, Rows, tuple[str, ...]]:
    """The slices aligned or without beam hardening, as the one in the middle shows it; that one; and what to tell."""
    notes: list[str] = []
    for name in names:
        if not (isinstance(middle, Tensor) and judged(middle)):
            size = " x ".join(map(str, middle.shape))
            raise ArgumentError("{" + name + "} is not possible with a sinogram of {0} rays; leave it out", size)
        survey = survey_of(middle.numpy(), angles, center, off, geometry)
        stack, note = (aligned if name == "align" else straightened)(stack, middle.numpy(), survey, off)
        middle, notes = read(stack[number], 1.0), [*notes, note]
    return stack, middle, tuple(notes)


def _sides(
    size: int | tuple[int, int] | None, truths: Any, span: float, width: float
) -> tuple[tuple[int, int], tuple[slice, slice]]:
    """Height and width of the image that is computed, and the part of it that is given back."""
    height, wide = np.broadcast_to(truths[0].shape if truths is not None else max(1, round(span)), 2)
    if size is not None:
        height, wide = np.broadcast_to(size, 2)
        if min(height, wide) < 2:
            raise ArgumentError("{size} must be at least 2 pixels, got {0}", size)
        if truths is not None and tuple(truths[0].shape) != (height, wide):
            needed = " x ".join(map(str, truths[0].shape))
            raise ArgumentError("{size} is {0}, but the truth has {1} pixels; leave it out", size, needed)
    sides = int(height), int(wide)
    if truths is None and width > 1:  # what lies beyond the detector is computed, and not given back
        margins = [max(0, math.ceil((width * span - n) / 2)) for n in sides]
        full = (sides[0] + 2 * margins[0], sides[1] + 2 * margins[1])
        seen = (slice(margins[0], margins[0] + sides[0]), slice(margins[1], margins[1] + sides[1]))
        return full, seen
    return sides, (slice(None), slice(None))


def _chosen(slices: tuple[int, int] | None, count: int) -> range:
    """The numbers of the slices to reconstruct."""
    if slices is None:
        return range(count)
    first, end = slices
    if not 0 <= first < end <= count:
        raise ArgumentError("{slices} must be a part of 0:{0}, got {1}:{2}", count, first, end)
    return range(first, end)


def _telling(slices: Any) -> tuple[int, Rows]:
    """The slice that tells of the geometry of all: in the middle, or near it where that shows air alone."""
    count = len(slices)
    middle = read(slices[count // 2], 1.0)
    if count == 1 or not is_air(sample(middle)):
        return count // 2, middle
    near = sorted({count * k // EIGHTHS for k in range(1, EIGHTHS)}, key=lambda n: abs(n - count // 2))
    others = ((number, read(slices[number], 1.0)) for number in near[1:])
    return next((pair for pair in others if not is_air(sample(pair[1]))), (count // 2, middle))


def _refuse_bad_slices(slices: Any, chosen: range, number: int, known: Rows, exact: bool) -> None:
    """Look at those that were chosen, a slice in memory at a time, and at the one that is known."""
    for each in sorted({*chosen, number}):
        rows = known if each == number else read(slices[each], 1.0)
        refuse_bad_values(rows, f"slice {each}" if len(slices) > 1 else "the sinogram", exact, each != number)


def refuse_bad_values(rows: Rows, name: str, exact: bool, empty: bool = False) -> None:
    """Values must be finite, all of them if not repaired, else nearly all; and not all the same unless `empty`."""
    low, high, bad = math.inf, -math.inf, 0
    for numbers in pieces(rows):
        piece = some(rows, numbers)
        finite = piece.isfinite()
        bad += int((~finite).sum())
        if bool(finite.any()):
            low, high = min(low, float(piece[finite].min())), max(high, float(piece[finite].max()))
    few = isinstance(rows, Tensor) and judged(rows) and bad <= MOST_BAD * math.prod(rows.shape)
    if bad and (exact or not few):
        raise ValueError(
            f"{name} has {bad} values that are NaN or infinite; repair those rays or leave out their views"
        )
    if not low < high and not (empty and low == high):
        raise ValueError(f"{name} is constant ({low:g}): there is nothing to reconstruct")


def _refuse_opaque(rows: Rows, scale: float) -> None:
    """Weights exp(-b) need b = -log(I/I0)."""
    largest = scale * max(float(some(rows, numbers).max()) for numbers in pieces(rows))
    if largest > OPAQUE:
        raise ArgumentError(
            "the sinogram reaches {0:g}, but {photons} needs one of -log(I/I0), which stays below {1:g}; rescale it or "
            "leave {photons} out",
            largest,
            OPAQUE,
        )
