"""Options that several commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

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
    float | None, typer.Option("--air", help="INPUT holds raw counts, an unattenuated ray this many.", metavar="COUNTS")
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
Jobs = Annotated[
    int, typer.Option("--threads", help="Number of jobs to run in parallel, one thread each.", callback=_some)
]


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
