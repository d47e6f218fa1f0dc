"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Annotated

import typer

from smadmm.arguments import ArgumentError
from smadmm.extras import needs

Out = Annotated[str, typer.Option("--out", help="Folder for results.json, tables and figures.")]
Data = Annotated[
    str | None, typer.Option("--data", envvar="SMADMM_DATA", help="Folder of the data files; else cache or download.")
]
ResultFolder = Annotated[str, typer.Option("--out", help="Folder for image, figure, curves, run.json and report.html.")]
MethodName = Annotated[str, typer.Option("--method", help="smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.")]
PriorName = Annotated[
    str, typer.Option("--prior", help="A shipped denoiser, a file of weights (.safetensors), tv or none; auto chooses.")
]
Strength = Annotated[
    float, typer.Option("--strength", help="Factor on the weight of the prior, which is set from the noise.")
]
Angles = Annotated[
    str | None,
    typer.Option(
        "--angles",
        help="File with the angle of every view, or a range of degrees: 0:180, or 0:180:end with a view at 180.",
    ),
]
AngleUnit = Annotated[str, typer.Option("--unit", help="Unit of the angles in a file: auto, degrees or radians.")]
Flat = Annotated[
    str | None,
    typer.Option("--flat", help="File of the counts without the object (flat field); INPUT then holds raw counts."),
]
Dark = Annotated[
    str | None, typer.Option("--dark", help="File of the counts without the beam (dark field); needs --flat.")
]
Air = Annotated[
    float | None,
    typer.Option("--air", help="Counts of an unattenuated ray, if INPUT holds raw counts.", metavar="COUNTS"),
]
ArrayName = Annotated[str | None, typer.Option("--array", help="Which array of INPUT, where it holds several.")]
AxisOrder = Annotated[
    str | None, typer.Option("--axes", help="What its axes are, such as slices,views,detectors.", metavar="NAMES")
]
Views = Annotated[int | None, typer.Option("--views", help="Use only this many of the measured views, evenly chosen.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a finished result in --out.")]
Quick = Annotated[bool, typer.Option("--quick", help="A smaller version, for a first look.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random numbers.", min=0, max=2**32 - 1)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def _some(threads: int) -> int:
    if threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}")
    if threads > (cores := os.cpu_count() or 1):
        raise ValueError(f"--threads {threads} is more than the {cores} cores of this machine; lower it")
    return threads


Threads = Annotated[int, typer.Option("--threads", help="CPU threads.", callback=_some)]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Slices are done by this many processes of this machine.", min=1)
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", help="Slices or jobs are done by the workers of this Dask scheduler.", metavar="ADDRESS"),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="INPUT (HDF5 in SWMR mode, Zarr) is still being written: previews come as its views do, and the final "
        "image when it is closed.",
    ),
]
Every = Annotated[int, typer.Option("--every", help="With --follow: views between two previews.", min=1)]
Patience = Annotated[
    float, typer.Option("--patience", help="With --follow: seconds without a view after which the scan is over.")
]
SliceRange = Annotated[
    str | None,
    typer.Option(
        "--slices",
        help="Only these slices, kept in --out beside those of other such runs; --resume without it then makes the "
        "result of all.",
        metavar="FIRST:END",
    ),
]
Jobs = Annotated[
    int, typer.Option("--threads", help="Number of jobs to run in parallel, one thread each.", callback=_some)
]


@contextmanager
def engine(workers: int | None, dask: str | None) -> Iterator[Executor | int | None]:
    """What --workers or --dask asks for."""
    if dask is None:
        yield workers
        return
    if workers is not None:
        raise ArgumentError("{workers} are processes of this machine, {dask} has its own; give one of them")
    distributed = needs("distributed", "scale", "the workers of Dask")
    try:
        client = distributed.Client(dask, timeout=10)
    except (OSError, ValueError) as error:
        raise ArgumentError("no Dask scheduler answers at {0} ({1}); check {dask}", dask, error) from None
    with client:
        yield client.get_executor()


def slice_range(text: str | None) -> tuple[int, int] | None:
    """FIRST:END as numbers."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise ArgumentError("{slices} is FIRST:END, such as 0:64, got {0!r}", text)
    return int(first), int(end)


def _cpu(device: str) -> str:
    if device != "cpu":
        raise ValueError(f"this command runs on the CPU only, got --device {device}; leave it out")
    return device


def _available(device: str) -> str:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise ValueError(f"the device {device!r} is not available here; use cpu") from None
    return device


Device = Annotated[str, typer.Option("--device", help="cpu, cuda, mps ...", callback=_available)]
OnlyCPU = Annotated[str, typer.Option("--device", help="cpu: this runs there only.", callback=_cpu)]
