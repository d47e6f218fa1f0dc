"""The slices of a volume that are done, and the result made of them.

In memory or, with a folder, kept there for a run that goes on, in any number of processes:
    settings.json          what decides the images; a run with others is refused
    trial.npz              what a trial found, for all slices
    image.npy              the finished slices of a run that is alone there
    slice_NNNN.npz         numbers and curves of a finished slice, FBP and residual of the one to show; of a run that
                           does a part of the slices also its image, which goes into image.npy when a run is alone
    slice_NNNN.checkpoint  a slice at work
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.imaging.inspection import Inspection
from smadmm.imaging.priors import Prior
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.imaging.sinograms import BackProjections, root_mean_square, small_mean
from smadmm.imaging.slices import Scan
from smadmm.imaging.trial import Trust, settled, trial_of
from smadmm.io.files import atomic_write, output_folder, read_arrays, read_json, write_arrays, write_slices
from smadmm.records import History
from smadmm.results import Result

LARGE_RESIDUAL = 0.1  # a relative residual that wants an explanation
SMALL_RESIDUAL = 0.005  # the same, where views do not agree with each other
BAD_FIT = (
    "the image explains the sinogram badly; check the angles, their unit and sense, which axis counts the views, "
    "the axis of rotation, whether the beam is parallel or a fan, and that values are line integrals -log(I/I0), "
    "not counts"
)

Array = NDArray[np.float32]


class Solved(NamedTuple):
    """A slice that is done, or as far as it got before it was interrupted, in the unit of the sinogram."""

    image: Array
    row: dict[str, Any]
    history: History
    shown: dict[str, Array]  # FBP and residual, of the slice to show
    interrupted: bool


def solved(scan: Scan, images: BackProjections, result: Result, row: dict[str, Any], show: bool) -> Solved:
    """What is kept of the result of a slice."""
    shown = {}
    if show or result.interrupted:
        shown["fbp"] = (scan.scale * images[None]).numpy()[scan.seen]
        if isinstance(images.rows, Tensor):
            left = images.rows - scan.radon(result.x.detach().cpu())
            shown["residual"] = small_mean(scan.scale * left).numpy()
    image = (scan.scale * result.x.detach()).cpu().numpy()[scan.seen]
    return Solved(image, row, result.history, shown, result.interrupted)


class Finished:
    """The slices that are done, of those that are `wanted`; `middle`: the one that was looked at; `alone`: nobody else
    writes to the folder."""

    def __init__(
        self,
        scan: Scan,
        count: int,
        middle: int,
        fingerprint: str,
        prior: str,
        folder: str | os.PathLike[str] | None,
        resume: bool,
        wanted: range,
    ) -> None:
        self.scan, self.prior, self.middle, self.interrupted = scan, prior, middle, False
        self.wanted, self.alone = wanted, len(wanted) == count
        self.show = self.middle if self.middle in wanted else wanted[len(wanted) // 2]
        self.tried: Tensor | None = None  # the image of a trial
        self.trust: Trust | None = None
        self.rows: dict[int, dict[str, Any]] = {}
        self.histories: dict[int, History] = {}
        self.shown: dict[int, dict[str, Array]] = {}
        shape = (len(wanted), *np.empty((scan.radon.height, scan.radon.width), bool)[scan.seen].shape)
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            angles = np.rad2deg(scan.radon.angles).tolist()
            told = {**scan.settings(), "prior": prior, "slices": count, "data": fingerprint, "angles": angles}
            self._open(self.folder, told, resume or not self.alone)
        if self.folder is None or not self.alone:
            self.images: Array = np.full(shape, np.nan, np.float32)
        else:
            path = self.folder / "image.npy"
            if not path.exists():  # written, not mapped: a disk that is full is found now
                write_slices(path, shape, (np.full(shape[1:], np.nan) for _ in range(count)))
            self.images = np.lib.format.open_memmap(path, mode="r+")
        for path in () if self.folder is None else sorted(self.folder.glob("slice_*.npz")):
            self._load(path)

    def _open(self, folder: Path, settings: dict[str, Any], resume: bool) -> None:
        """Refuse a folder that belongs to another run or would be lost."""
        told = folder / "settings.json"
        if not told.exists():
            output_folder(folder)
            for left in (*folder.glob("slice_*"), folder / "trial.npz", folder / "image.npy"):
                left.unlink(missing_ok=True)  # of a run whose removal was stopped
            atomic_write(told, json.dumps(settings).encode())
            return
        if not resume:
            raise ArgumentError("{0} holds an unfinished run; set {resume} to go on with it, or remove it", folder)
        before = read_json(told)
        for name, value in json.loads(json.dumps(settings)).items():
            if before.get(name) != value:
                change = "" if name == "angles" else f": {before.get(name)} then, {value} now"
                raise ValueError(f"{folder} holds an unfinished run with another {name}{change}; choose another")

    def _load(self, path: Path) -> None:
        number = int(path.stem.removeprefix("slice_"))
        if number not in self.wanted:
            return
        arrays, about = read_arrays(path)
        row, columns = about
        image = arrays.pop("image", None)
        if image is not None:
            self._put(number, image)
            if self.alone:  # the image has moved
                write_arrays(path, arrays, about)
        elif not self.alone:
            self._put(number, np.load(path.parent / "image.npy", mmap_mode="r", allow_pickle=False)[number])
        self.rows[number] = row
        self.histories[number] = History({k: [math.nan if v is None else v for v in c] for k, c in columns.items()})
        if arrays:
            self.shown[number] = arrays

    def _put(self, number: int, image: Array) -> None:
        self.images[number - self.wanted.start] = image
        if isinstance(self.images, np.memmap):
            self.images.flush()

    @property
    def left(self) -> list[int]:
        """The numbers of slices that are not done."""
        return [number for number in self.wanted if number not in self.rows]

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
                row = {"relative_noise": noise} | self.scan.quality(images, None, result)
                self.add(self.show, solved(self.scan, images, result, row, True))
            elif path is not None:
                numbers = {f.name: getattr(self.trust, f.name) for f in fields(Trust) if f.name != "differs"}
                write_arrays(path, {"image": result.x.numpy(), "differs": self.trust.differs}, numbers)
        self.scan = settled(self.scan, self.trust, priors)

    def checkpoint(self, number: int) -> Path | None:
        """The file in which a slice at work is kept."""
        return None if self.folder is None else (self.folder / f"slice_{number:04d}.checkpoint").absolute()

    def add(self, number: int, found: Solved) -> None:
        """Keep a slice."""
        self._put(number, found.image)
        self.rows[number], self.histories[number], self.interrupted = found.row, found.history, found.interrupted
        if found.shown:
            self.shown[number] = found.shown
        if self.folder is not None and not found.interrupted:
            arrays = found.shown if self.alone else {**found.shown, "image": found.image}
            write_arrays(self.folder / f"slice_{number:04d}.npz", arrays, [found.row, found.history.columns])
            (self.folder / f"slice_{number:04d}.checkpoint").unlink(missing_ok=True)

    def result(
        self, sinogram: Any, truths: Any, look: Inspection | None, notices: list[str], seconds: float
    ) -> ImageResult:
        """All of it, in the unit and the kind of array of the sinogram."""
        number = self.show if self.show in self.shown else max(self.shown, default=self.show)
        kept = self.shown.get(number, {})  # nothing of slices that a run of the whole volume has done
        shown = {} if truths is None else {"truth": np.asarray(truths[number], np.float32)}
        answer = np.array(self.images[number - self.wanted.start])
        shown |= {"FBP": kept["fbp"]} if kept else {}
        shown[self.scan.method.upper()] = answer
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
            residual=kept.get("residual"),
            trust=None if self.trust is None else replace(self.trust, differs=self.trust.differs[self.scan.seen]),
        )


def _unexplained(row: dict[str, Any]) -> bool:
    """Whether a residual wants an explanation: it is large, and the views do not agree with one object and its angles.

    Where they do agree, a misfit beyond the noise, up to a tenth, is drift or scatter, and no error.
    """
    noise = row.get("measured_noise", row["relative_noise"])
    least = LARGE_RESIDUAL if row.get("steady", True) else SMALL_RESIDUAL
    return bool(row["residual"] > max(least, 3 * noise))
