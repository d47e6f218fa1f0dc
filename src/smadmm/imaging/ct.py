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

import json
import math
import os
import time
import warnings
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from tqdm import tqdm

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.imaging.any_operator import by_operator
from smadmm.imaging.inspection import REPAIRS, Inspection, Survey, angles_of, repaired, skipped, survey_of
from smadmm.imaging.pnp import METHODS, Method
from smadmm.imaging.priors import LEARNED, Denoiser, Prior, as_prior, find_prior, suited
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.imaging.simulation import refuse_noise
from smadmm.imaging.sinograms import (
    BackProjections,
    Rows,
    noise_gain,
    pieces,
    read,
    root_mean_square,
    sample,
    sampled,
    small_mean,
    some,
    window_of,
)
from smadmm.imaging.slices import WARM, Scan, judged
from smadmm.imaging.trial import FEWEST_VIEWS, Trust, settled, trial_of
from smadmm.io.files import atomic_write, locked, output_folder, read_arrays, write_arrays, write_slices
from smadmm.operators.fan import FanGeometry
from smadmm.operators.linear import Operator
from smadmm.operators.radon import Radon
from smadmm.problem import Prox
from smadmm.running import History, Result, Stop

ITERATIONS = 30
OPAQUE = 20.0  # no detector sees photons behind such an attenuation
LARGE_RESIDUAL = 0.1  # a relative residual that wants an explanation
SMALL_RESIDUAL = 0.005  # the same, where views do not agree with each other
MOST_BAD = 0.2  # share of rays that may be not finite
MANY_VIEWS = 12  # from here on angles that all lie below 2 pi are suspicious
BAD_FIT = (
    "the image explains the sinogram badly; check the angles, their unit and sense, which axis counts the views, "
    "the axis of rotation, and that values are line integrals -log(I/I0), not counts"
)
WRONG_SIGN = "the sinogram is negative as a whole; line integrals are -log(I/I0): turn its sign if that is wrong"
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
    operator: Operator | None = None,
    start: Any = None,
    batch: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    strength: float = 1.0,
    method: str = "smadmm",
    photons: float | None = None,
    bounds: tuple[float, float] | None = None,
    truth: Any = None,
    raw: bool | Collection[str] = False,
    seed: int = 0,
    threads: int = 1,
    device: str = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> ImageResult:
    """Reconstruct an image from its line integrals -log(I/I0), or a volume slice by slice.

    Parameters
    ----------
    sinogram : views x detectors, or slices x views x detectors: NumPy, torch, or anything with a shape that is read by
        indexing, such as a memory map or an HDF5 dataset. The image comes back as the same kind.
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
        from your own); geometry, photons, batches and repairs do not apply.
    start : first image; None: a filtered back-projection; with an operator, least squares stopped early.
    batch : views per step; None: all.
    iterations, seconds : limits per slice; None: 30 iterations, or 18 from the image of a trial with held-out views.
    strength : multiplies the weight that the prior gets from the noise.
    method : smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.
    photons : per unattenuated ray; weighs rays by their Poisson statistics. None: noise of one level, estimated.
    bounds : smallest and largest value of images, which the prior keeps to (the answer may exceed them by what the data
        say); None: not below 0, unless the data show values below.
    truth : the image, where it is known: SNR and SSIM are then measured.
    raw : True: data are taken as they are; or names of repairs not to be done (smadmm.imaging.inspection.REPAIRS).
    threads, device : where it is computed.
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
                 "checkpoint": checkpoint}  # fmt: skip
        for name in (name for name, value in scans.items() if value is not None):
            raise ArgumentError("{" + name + "} belongs to scans, and {operator} says it all; leave it out")
        positive(iterations=iterations, seconds=seconds, strength=strength)
        limit = None if iterations is None and seconds is None else Stop(iterations=iterations, seconds=seconds)
        return by_operator(sinogram, operator, prior, start, limit, strength, bounds, truth, seed)
    refuse_noise(None, photons)
    one_of("method", method, METHODS)
    positive(batch=batch, iterations=iterations, seconds=seconds, strength=strength, spacing=spacing, threads=threads)
    if center != "auto" and not (isinstance(center, (int, float)) and math.isfinite(center)):
        raise ArgumentError('{center} is a finite number or "auto", got {0!r}', center)
    sinogram = np.asarray(sinogram) if isinstance(sinogram, list) else sinogram
    begin, slices = time.perf_counter(), _slices(sinogram, "sinogram")
    truths = None if truth is None else _slices(truth, "truth")
    given, notices = _degrees(angles, len(slices[0]), 180 if geometry is None else 360)
    off = skipped(raw)
    middle = _checked_middle(slices, raw is True)
    survey, look = _looked_at(middle, given, center, off, geometry)
    span = slices[0].shape[1] * spacing
    sides, seen = _sides(size, truths, span, survey.width)
    make = Radon if geometry is None else geometry.projector
    radon = make(sides, np.deg2rad(survey.angles), slices[0].shape[1], spacing, survey.center, threads=threads)
    if batch is not None and batch > radon.views:
        raise ArgumentError("{batch} is {0}, more than the {1} views; lower it or leave it out", batch, radon.views)
    images = BackProjections(radon, middle if look is None else torch.from_numpy(look.prepared))
    notices += [WRONG_SIGN] * (float(sample(images.rows).sum()) < 0)
    scale = images.largest() if bounds is None or math.isinf(bounds[1]) else bounds[1]
    images.divide(scale)
    if photons is not None:
        _refuse_opaque(images.rows, scale)
    lowest = -math.inf if look is not None and look.negative else 0.0
    limits = (lowest, math.inf) if bounds is None else (bounds[0] / scale, bounds[1] / scale)
    known: Method = next(name for name in METHODS if name == method)
    free = iterations is None and seconds is None
    stop = Stop(iterations=ITERATIONS if free else iterations, seconds=seconds)
    wanted, name = as_prior(prior, device, limits)
    scan = Scan(radon, scale, wanted, known, stop,
                batch=batch, strength=strength, seed=seed, photons=photons, device=device, survey=survey, off=off,
                seen=seen, rest=Stop(iterations=ITERATIONS - WARM) if free else None)  # fmt: skip
    noise = scan.statistics(images.rows, look).mean * noise_gain(radon, window_of(None))
    scan = replace(scan, prior=suited(wanted, noise, device, limits))
    told = name == "none" or batch is not None or seconds is not None or start is not None
    first = None if start is None else torch.as_tensor(np.asarray(start, dtype=np.float32)) / scale
    with nullcontext() if checkpoint is None else locked(output_folder(checkpoint)):
        finished = Finished(scan, len(slices), images.fingerprint(), name, checkpoint, resume)
        if look is not None and not told and radon.views >= FEWEST_VIEWS:
            learned = scan.prior  # its image comes first
            if name == "tv":
                learned = suited(find_prior(LEARNED, device, limits), noise, device, limits)
            finished.settle(images, look, [learned, find_prior("tv", device, limits)])
        if not finished.interrupted:
            _each_slice(finished, slices, truths, (images, look), first, progress)
    return finished.result(sinogram, truths, look, notices, time.perf_counter() - begin)


def _each_slice(
    finished: Finished,
    slices: Any,
    truths: Any,
    middle: tuple[BackProjections, Inspection | None],
    start: Tensor | None,
    progress: bool,
) -> None:
    """Solve what is not finished yet, one slice after the other, until done or interrupted."""
    scan, count = finished.scan, len(slices)
    total = None if scan.stop.iterations is None else scan.stop.iterations * count
    with tqdm(total=total, unit="it", leave=False, disable=None if progress else True) as bar:
        for number in range(count):
            if number in finished:
                bar.update(finished.rows[number]["iterations"])
                continue
            images, look = middle if number == count // 2 else scan.look(slices[number])
            truth = None if truths is None else torch.from_numpy(np.asarray(truths[number], np.float32)) / scan.scale
            solver, first = scan, start
            if number == count // 2 and finished.tried is not None:
                solver, first = replace(scan, stop=scan.rest or scan.stop), finished.tried
            result, row = solver.solve(images, look, truth, first, finished.checkpoint(number), bar)
            finished.add(number, result, images, row)
            if result.interrupted:
                return


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
        return replace(survey, angles=degrees, width=1.0, fitted=False), None
    values = rows.numpy()
    survey = survey_of(values, angles, center, off, geometry)
    if set(REPAIRS) <= off:
        return survey, None
    look = repaired(values, survey, off)
    return replace(survey, center=look.center, fitted=False, findings=()), look


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
    if size is None and truths is None and width > 1:
        margin = round((width - 1) / 2 * max(sides))
        return (sides[0] + 2 * margin, sides[1] + 2 * margin), (slice(margin, -margin), slice(margin, -margin))
    return sides, (slice(None), slice(None))


def _checked_middle(slices: Any, exact: bool) -> Rows:
    """The slice in the middle, after all slices were looked at."""
    middle = None
    for number in range(len(slices)):
        rows = read(slices[number], 1.0)
        refuse_bad_values(rows, f"slice {number}" if len(slices) > 1 else "the sinogram", exact)
        middle = rows if number == len(slices) // 2 else middle
    return middle


def refuse_bad_values(rows: Rows, name: str, exact: bool) -> None:
    """Values must not be all the same, and finite: all of them if they are not repaired, else nearly all."""
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
    if not low < high:
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


# --- finished slices --------------------------------------------------------------------------------------------------


class Finished:
    """The slices that are done: in memory or, with a folder, kept there for a run that goes on.

    The folder holds settings.json, image.npy with the finished slices, slice_NNNN.npz with their numbers and curves,
    and the checkpoint of the slice at work.
    """

    def __init__(
        self,
        scan: Scan,
        count: int,
        fingerprint: str,
        prior: str,
        folder: str | os.PathLike[str] | None,
        resume: bool,
    ) -> None:
        self.scan, self.prior, self.middle, self.interrupted = scan, prior, count // 2, False
        self.tried: Tensor | None = None  # the image of a trial
        self.trust: Trust | None = None
        self.rows: dict[int, dict[str, Any]] = {}
        self.histories: dict[int, History] = {}
        self.fbps: dict[int, NDArray[np.float32]] = {}  # of the slice to show
        self.residuals: dict[int, NDArray[np.float32]] = {}  # its b - A x, where b is in memory
        shape = (count, *np.empty((scan.radon.height, scan.radon.width), bool)[scan.seen].shape)
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            self.images: NDArray[np.float32] = np.full(shape, np.nan, np.float32)
            return
        angles = np.rad2deg(scan.radon.angles).tolist()
        self._open(
            self.folder,
            {**scan.settings(), "prior": prior, "slices": count, "data": fingerprint, "angles": angles},
            resume,
        )
        path = self.folder / "image.npy"
        if not path.exists():  # written, not mapped: a disk that is full is found now
            write_slices(path, shape, (np.full(shape[1:], np.nan) for _ in range(count)))
        self.images = np.lib.format.open_memmap(path, mode="r+")

    def _open(self, folder: Path, settings: dict[str, Any], resume: bool) -> None:
        """Read what is there; refused if it belongs to another run or would be lost."""
        told = folder / "settings.json"
        if told.exists():
            if not resume:
                raise ArgumentError("{0} holds an unfinished run; set {resume} to go on with it, or remove it", folder)
            before = json.loads(told.read_text(encoding="utf-8"))
            for name, value in json.loads(json.dumps(settings)).items():
                if before.get(name) != value:
                    change = "" if name == "angles" else f": {before.get(name)} then, {value} now"
                    raise ValueError(f"{folder} holds an unfinished run with another {name}{change}; choose another")
            for path in folder.glob("slice_*.npz"):
                self._load(path)
            return
        output_folder(folder)
        (folder / "image.npy").unlink(missing_ok=True)
        atomic_write(told, json.dumps(settings).encode())

    def _load(self, path: Path) -> None:
        number = int(path.stem.removeprefix("slice_"))
        arrays, (self.rows[number], columns) = read_arrays(path)
        self.histories[number] = History({k: [math.nan if v is None else v for v in c] for k, c in columns.items()})
        if "fbp" in arrays:
            self.fbps[number] = arrays["fbp"]
        if "residual" in arrays:
            self.residuals[number] = arrays["residual"]

    def __contains__(self, number: int) -> bool:
        return number in self.rows

    def settle(self, images: BackProjections, look: Inspection, priors: Sequence[Prior]) -> None:
        """Choose prior, strength and noise by a trial on the slice in the middle, or read what one found before."""
        path = None if self.folder is None else self.folder / "trial.npz"
        if path is not None and path.exists():
            arrays, about = read_arrays(path)
            self.tried, self.trust = torch.from_numpy(arrays["image"]), Trust(**about, differs=arrays["differs"])
        else:
            result, self.trust = trial_of(self.scan, images, look, priors, self.prior)
            self.tried = result.x
            if result.interrupted:
                noise = self.scan.statistics(images.rows, look).mean / root_mean_square(images.rows)
                self.add(
                    self.middle, result, images, {"relative_noise": noise} | self.scan.quality(images, None, result)
                )
            elif path is not None:
                numbers = {f.name: getattr(self.trust, f.name) for f in fields(Trust) if f.name != "differs"}
                write_arrays(path, {"image": result.x.numpy(), "differs": self.trust.differs}, numbers)
        self.scan = settled(self.scan, self.trust, priors)

    def checkpoint(self, number: int) -> Path | None:
        """The file in which a slice at work is kept."""
        return None if self.folder is None else self.folder / f"slice_{number:04d}.checkpoint"

    def add(self, number: int, result: Result, images: BackProjections, row: dict[str, Any]) -> None:
        """A slice that is done, or as far as it got before it was interrupted."""
        self.images[number] = (self.scan.scale * result.x.detach()).cpu().numpy()[self.scan.seen]
        self.rows[number], self.histories[number], self.interrupted = row, result.history, result.interrupted
        if number == self.middle or result.interrupted:
            self.fbps[number] = (self.scan.scale * images[None]).numpy()[self.scan.seen]
            if isinstance(images.rows, Tensor):
                left = images.rows - self.scan.radon(result.x.detach().cpu())
                self.residuals[number] = small_mean(self.scan.scale * left).numpy()
        if self.folder is not None and not result.interrupted:
            if isinstance(self.images, np.memmap):
                self.images.flush()
            kept = {"fbp": self.fbps, "residual": self.residuals} if number == self.middle else {}
            shown = {name: found[number] for name, found in kept.items() if number in found}
            write_arrays(self.folder / f"slice_{number:04d}.npz", shown, [row, result.history.columns])
            (self.folder / f"slice_{number:04d}.checkpoint").unlink(missing_ok=True)

    def result(
        self, sinogram: Any, truths: Any, look: Inspection | None, notices: list[str], seconds: float
    ) -> ImageResult:
        """All of it, in the unit and the kind of array of the sinogram."""
        number = self.middle if self.middle in self.fbps else max(self.fbps)
        shown = {} if truths is None else {"truth": np.asarray(truths[number], np.float32)}
        shown |= {"FBP": self.fbps[number], self.scan.method.upper(): np.array(self.images[number])}
        image: Any = np.array(self.images[0]) if len(sinogram.shape) == 2 else self.images
        settings = self.scan.settings() | {
            "prior_sigma": self.scan.prior.sigma,
            "prior_lipschitz": self.scan.prior.lipschitz,
            "device": self.scan.device,
            "threads": self.scan.radon.threads,
            "total_seconds": seconds,
        }
        rows = [{"slice": i, **self.rows[i]} for i in sorted(self.rows)]
        bad = truths is None and any(_unexplained(row) for row in rows)
        told = notices + [BAD_FIT] * bad
        for text in told:
            warnings.warn(text, DataWarning, stacklevel=3)
        return ImageResult(
            verb="Reconstruction",
            image=torch.from_numpy(image).to(sinogram.device) if isinstance(sinogram, Tensor) else image,
            shown=shown,
            slices=rows,
            histories=[self.histories[i] for i in sorted(self.histories)],
            settings=settings,
            notes=(
                *(() if look is None else [finding.text for finding in look.findings]),
                *(() if self.trust is None else self.trust.notes()),
            ),
            warnings=tuple(told),
            interrupted=self.interrupted,
            unit=f"attenuation per {settings['geometry']['unit'] if settings['geometry'] else 'pixel'}",
            inspection=look,
            residual=self.residuals.get(number),
            trust=None if self.trust is None else replace(self.trust, differs=self.trust.differs[self.scan.seen]),
        )


def _unexplained(row: dict[str, Any]) -> bool:
    """Whether a residual wants an explanation: it is large, and the views do not agree with one object and its angles.

    Where they do agree, a misfit beyond the noise, up to a tenth, is drift or scatter, and no error.
    """
    noise = row.get("measured_noise", row["relative_noise"])
    least = LARGE_RESIDUAL if row.get("steady", True) else SMALL_RESIDUAL
    return bool(row["residual"] > max(least, 3 * noise))
