"""The slices of a volume, one after the other or as tasks of an executor.

A task is one slice. Where the volume is in a file, a worker opens it itself: a memory map, an HDF5 dataset, a Zarr
array, a scan of smadmm.io; of other arrays a slice is sent with its task. The image comes back to this process, which
alone keeps what is finished. Slices know nothing of each other, so images do not depend on who computes them.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.bars import tqdm
from smadmm.extras import needs
from smadmm.imaging.cost import expectation
from smadmm.imaging.finished import Finished, Solved, solved
from smadmm.imaging.inspection import Inspection
from smadmm.imaging.sinograms import BackProjections
from smadmm.imaging.slices import Scan
from smadmm.io.files import remove_stale
from smadmm.workers import Processes, executing, spread

LOG = logging.getLogger("smadmm")
SENT = 2**31  # bytes of slices that are on their way to workers


class Inspected(NamedTuple):
    """The slice in the middle as it was looked at."""

    images: BackProjections
    look: Inspection | None


def each_slice(
    finished: Finished,
    slices: Any,
    truths: Any,
    middle: Inspected,
    start: Tensor | None,
    executor: Executor | int | None,
    progress: bool,
) -> None:
    """Solve what is not finished yet, until done or interrupted."""
    volume, left = len(finished.wanted) > 1, finished.left
    source = slices if executor is None else portable(slices)
    scan: Scan | _Sendable = finished.scan

    def task(number: int) -> tuple[Any, ...]:
        truth = None if truths is None else torch.from_numpy(np.asarray(truths[number], np.float32))
        first, given, tried = start, source, number == finished.middle and finished.tried is not None
        if number == finished.middle:
            first = finished.tried if tried else first
            given = middle if isinstance(middle.images.rows, Tensor) else given  # as it was inspected
        given = _Sent(slices[number]) if given is None else given
        return scan, given, number, truth, first, tried, finished.checkpoint(number), number == finished.show

    workers = 1 if executor is None else executor if isinstance(executor, int) else None
    told = expectation(finished.scan, len(left), workers)
    if told is not None:
        LOG.info(told)
    with _bar(finished, progress) as bar:
        if executor is None or not volume:
            for number in left:
                finished.add(number, solve_slice(bar if not volume else None, *task(number)))
                if finished.interrupted:
                    return
                bar.update(volume)
            return
        if isinstance(executor, (int, Processes, ProcessPoolExecutor)):  # others send in ways of their own
            scan = _Sendable(finished.scan, uuid4().hex)
        ahead = 2**31 if source is not None else max(2, SENT // (4 * math.prod(finished.scan.radon.out_shape or ())))
        tasks = [partial(task, number) for number in left]
        try:
            with executing(executor) as engine:
                for index, found in spread(engine, partial(solve_slice, None), tasks, ahead):
                    finished.add(left[index], found)
                    bar.update()
        finally:
            if finished.folder is not None:
                remove_stale(finished.folder)  # of workers that died, or were ended after an error


def _bar(finished: Finished, progress: bool) -> Any:
    """One bar: of slices, or of the iterations of one."""
    hidden, count = None if progress else True, len(finished.wanted)
    if count == 1:
        return tqdm(total=finished.scan.stop.iterations, unit="it", leave=False, disable=hidden)
    return tqdm(total=count, initial=count - len(finished.left), unit="slice", leave=False, disable=hidden)


def solve_slice(
    bar: Any,
    scan: Scan | _Sendable,
    source: Any,
    number: int,
    truth: Tensor | None,
    start: Tensor | None,
    tried: bool,
    checkpoint: Path | None,
    show: bool,
) -> Solved:
    """One slice of a source, or as it was inspected: in any process. After a trial only the rest is to be done."""
    scan = _kept(scan) if isinstance(scan, _Sendable) else scan
    scan = replace(scan, stop=scan.rest or scan.stop) if tried else scan
    images, look = source if isinstance(source, Inspected) else scan.look(source[number])
    if checkpoint is not None and not checkpoint.parent.is_dir():  # on another machine
        checkpoint = None
    truth = None if truth is None else truth / scan.scale
    with tqdm(disable=True) as hidden:
        result, row = scan.solve(images, look, truth, start, checkpoint, hidden if bar is None else bar)
    return solved(scan, images, result, row, show)


@dataclass(frozen=True)
class _Sendable:
    """A scan that a worker keeps from its first slice on, with the tables and bounds that it made."""

    scan: Scan = field(compare=False)
    name: str

    def __post_init__(self) -> None:
        try:
            ForkingPickler.dumps(self.scan.prior)
        except Exception as error:
            raise ArgumentError(
                "{prior} cannot be sent to workers ({0}); define it in a module, not by a lambda or within a function",
                " ".join(str(error).split()),
            ) from None


@lru_cache(maxsize=1)
def _kept(sent: _Sendable) -> Scan:
    return sent.scan


# --- what workers open ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sent:
    """One slice that was sent."""

    values: Any

    def __getitem__(self, number: int) -> Any:
        return self.values


@dataclass(frozen=True)
class OnDisk:
    """An array in a file: a memory map by its layout, an HDF5 dataset by its name.

    `changed`, a time, tells it from a file that takes its place.
    """

    path: str
    changed: int
    layout: tuple[Any, ...]  # shape, dtype, offset, strides; or the name

    def __getitem__(self, number: int) -> Any:
        return _opened(self)[number]


@lru_cache(maxsize=4)
def _opened(array: OnDisk) -> Any:
    """The array, opened once in a process."""
    if len(array.layout) == 1:
        return needs("h5py", "imaging", "HDF5 files").File(array.path, "r")[array.layout[0]]
    shape, dtype, offset, strides = array.layout
    whole = np.memmap(array.path, np.uint8, "r")
    return np.ndarray(shape, dtype, buffer=whole, offset=offset, strides=strides)


def portable(slices: Any) -> Any:
    """The slices as something small that workers can open; None: there is none, and slices are to be sent."""
    kind = type(slices).__module__.partition(".")[0]
    if isinstance(slices, np.memmap):
        return _mapped(slices)
    if kind == "h5py":
        path = os.path.abspath(slices.file.filename)
        return OnDisk(path, os.stat(path).st_mtime_ns, (slices.name,)) if os.path.exists(path) else None
    return slices if kind == "zarr" or getattr(slices, "reopens", False) else None


def _mapped(view: Any) -> OnDisk | None:
    """Where a memory map, or a view of one, lies in its file."""
    root = view
    while not isinstance(root.base, mmap.mmap):
        root = root.base
        if not isinstance(root, np.memmap):
            return None
    if root.filename is None or not os.path.exists(root.filename):
        return None
    path = os.path.abspath(root.filename)
    offset = view.__array_interface__["data"][0] - root.__array_interface__["data"][0] + root.offset
    return OnDisk(path, os.stat(path).st_mtime_ns, (view.shape, view.dtype.str, offset, view.strides))
