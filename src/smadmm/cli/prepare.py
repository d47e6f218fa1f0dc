"""`smadmm prepare`: read a scan as its instrument wrote it, save its line integrals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smadmm.cli.app import app
from smadmm.cli.options import Air, Angles, AngleUnit, ArrayName, AxisOrder, Dark, Flat, Quiet, Views
from smadmm.io.prepared import write_prepared
from smadmm.io.sinogram import read_sinogram


@app.command(rich_help_panel="Images")
def prepare(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Scan: a file or a folder of projections.")],
    out: Annotated[str, typer.Option("--out", help="HDF5 file for the sinogram.", metavar="FILE")],
    angles: Angles = None,
    unit: AngleUnit = "auto",
    views: Views = None,
    flat: Flat = None,
    dark: Dark = None,
    air: Air = None,
    array: ArrayName = None,
    axes: AxisOrder = None,
    quiet: Quiet = False,
) -> None:
    """Turn a scan into a sinogram of line integrals with its angles, for reconstruct and other tools."""
    found = read_sinogram(Path(source), angles, unit, array=array, axes=axes, flat=flat, dark=dark, air=air)
    found = found if views is None else found.evenly(views)
    write_prepared(Path(out), found)
    slices, rows, detectors = found.shape
    for line in (*found.notes, f"{out}: {slices} slices x {rows} views x {detectors} detectors, line integrals"):
        if not quiet:
            typer.echo(line)
