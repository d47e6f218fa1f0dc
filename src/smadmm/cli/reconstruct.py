"""`smadmm reconstruct`: read a sinogram, or simulate one from images, call the verb, save the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import smadmm
from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.cli.app import INTERRUPTED, app, resumable, stopped, typed
from smadmm.cli.options import (
    Air,
    Angles,
    AngleUnit,
    ArrayName,
    AxisOrder,
    Dark,
    Dask,
    Device,
    Every,
    Flat,
    Follow,
    MethodName,
    Overwrite,
    Patience,
    PriorName,
    Quiet,
    ResultFolder,
    Resume,
    Seed,
    SliceRange,
    Strength,
    Threads,
    Views,
    Workers,
    engine,
    slice_range,
)
from smadmm.cli.ranks import writing_together
from smadmm.distributed import join, place
from smadmm.extras import needs
from smadmm.imaging.findings import REPAIRS
from smadmm.imaging.result import ImageResult
from smadmm.imaging.simulation import (
    attenuation_per_pixel,
    half_turn,
    refuse_noise,
    simulated_counts,
    simulated_sinogram,
)
from smadmm.io import dicom
from smadmm.io.angles import read_range
from smadmm.io.files import atomic_write, discard, output_folder, write_array
from smadmm.io.growing import complete, following
from smadmm.io.hdf5 import HDF5
from smadmm.io.images import Lazily, Slices, hounsfield, read_slices
from smadmm.io.scan import Fan, Sinogram
from smadmm.io.sinogram import read_sinogram
from smadmm.operators.fan import FanGeometry
from smadmm.report.pictures import gray, png

SNR = 50.0  # dB, of simulated data
WIDTH = 360.0  # mm, of a slice that does not say
SOFT_TISSUE = (-300.0, 450.0)  # black and white of Hounsfield pictures
UNFINISHED = "unfinished"
FIRST, MORE = 12, 5  # iterations of the first preview, and of those that begin at the last one


@app.command(rich_help_panel="Images")
def reconstruct(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Scan (Data Exchange, NeXus, HDF5, MATLAB, MRC, Zarr, TIFF, NPY, NPZ, folder); or, with "
            "--simulate, DICOM file or folder, Hounsfield array "
            "(NPY, NPZ with the key hu), picture.",
        ),
    ],
    out: ResultFolder,
    simulate: Annotated[int | None, typer.Option(help="Simulate this many views of INPUT.", metavar="VIEWS")] = None,
    snr: Annotated[float | None, typer.Option(help="SNR of the simulated sinogram in dB (50).")] = None,
    photons: Annotated[
        float | None,
        typer.Option(
            help="Photons per unattenuated ray: weights the rays; with --simulate, Poisson counts replace --snr."
        ),
    ] = None,
    flat: Flat = None,
    dark: Dark = None,
    air: Air = None,
    angles: Angles = None,
    unit: AngleUnit = "auto",
    array: ArrayName = None,
    axes: AxisOrder = None,
    views: Views = None,
    size: Annotated[int | None, typer.Option(help="Pixels per side (default: the width of the detector).")] = None,
    spacing: Annotated[float, typer.Option(help="Distance between detectors, in pixels of the image.")] = 1.0,
    geometry: Annotated[
        str | None, typer.Option(help="parallel or fan; by default as INPUT says.", metavar="BEAM")
    ] = None,
    source_to_axis: Annotated[
        float | None, typer.Option(help="Fan: distance from the source to the axis of rotation, in mm.")
    ] = None,
    source_to_detector: Annotated[
        float | None, typer.Option(help="Fan: distance from the source to the detector, in mm.")
    ] = None,
    pitch: Annotated[float | None, typer.Option(help="Fan: distance between detectors, in mm.")] = None,
    curved: Annotated[bool, typer.Option("--curved", help="Fan: detectors on an arc around the source.")] = False,
    center: Annotated[
        float | None,
        typer.Option(
            help="Axis of rotation, in detectors off the middle; by default from INPUT, or found in the data."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Take the data as they are: nothing is inspected or repaired.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help=f"Skip this repair (can be repeated): {', '.join(REPAIRS)}.", metavar="REPAIR"),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            help="squares; huber or student, on which rays that are wrong by a few times the noise pull less."
        ),
    ] = "squares",
    align: Annotated[
        bool, typer.Option("--align", help="Find and undo shifts along the detector, of each view by itself.")
    ] = False,
    hardening: Annotated[
        bool, typer.Option("--hardening", help="Make up for beam hardening: the object is of one material.")
    ] = False,
    method: MethodName = "smadmm",
    prior: PriorName = "auto",
    batch: Annotated[int | None, typer.Option(help="Views per step; by default all.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations per slice (30 without --seconds).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds per slice.")] = None,
    strength: Strength = 1.0,
    workers: Workers = None,
    dask: Dask = None,
    slices: SliceRange = None,
    follow: Follow = False,
    every: Every = 16,
    patience: Patience = 60.0,
    keep_patient: Annotated[
        bool, typer.Option("--keep-patient", help="DICOM: results may say whose the images are.")
    ] = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Reconstruct an image or a volume from few, noisy X-ray views."""
    needs("tifffile", "imaging", "reconstructions")  # before the work, not after
    torch.set_num_threads(threads)
    path, going_on, part = Path(source), resume and (Path(out) / UNFINISHED).exists(), slice_range(slices)
    world = join()[1]
    if world > 1 and (workers or dask or part or follow):
        raise ArgumentError(
            "torchrun shares out the views of one image; leave out {workers}, {dask}, {slices}, {follow}"
        )
    together = writing_together(out, "run.json", overwrite or going_on, part is not None, UNFINISHED)
    folder = context.with_resource(together)
    lengths = {"source_to_axis": source_to_axis, "source_to_detector": source_to_detector, "pitch": pitch}
    common: dict[str, Any] = {
        "spacing": spacing, "photons": photons, "prior": prior, "strength": strength, "method": method,
        "raw": raw or without or False, "loss": loss, "align": align, "hardening": hardening,
        "seed": seed, "threads": threads, "device": device,
    }  # fmt: skip
    if simulate is None:
        if snr is not None:
            raise ArgumentError("{snr} is the noise of a simulation; add {simulate} VIEWS or leave it out")
        read = partial(read_sinogram, angles=angles, unit=unit, array=array, axes=axes, flat=flat, dark=dark, air=air)
        if follow:
            _refuse_what_cannot_grow(path, angles)
            with resumable():
                beam = partial(_beam, asked=geometry, lengths=lengths, curved=curved)
                _preview(following(path, read, every=every, patience=patience), folder, beam, size, center, common)
        scan = read(path, growing=follow and not complete(path))  # its writer died, or others wait for more
        scan = scan if views is None else scan.evenly(views)
        fan, images = _beam(scan, geometry, lengths, curved), None
        data: dict[str, Any] = {"sinogram": replace(scan, geometry=None), "geometry": fan, "notes": scan.notes}
    else:
        _refuse_measured(angles=angles, views=views, size=size, flat=flat, dark=dark, air=air, array=array, axes=axes,
                         geometry=geometry, follow=follow or None, **lengths)  # fmt: skip
        images = read_slices(path)
        data = _simulated(images, simulate, snr, photons, seed, threads)
    if world > 1 and len(shape := tuple(data["sinogram"].shape)) == 3 and shape[0] > 1:
        raise ArgumentError("torchrun shares out the views of one image, got {0} slices; use {workers}", shape[0])
    notes = data.pop("notes")
    for line in notes:
        typer.echo(line)
    with resumable(), engine(workers, dask) as executor:
        result = smadmm.reconstruct(
            **data, **common, size=size, center="auto" if center is None else center, batch=batch,
            iterations=iterations, seconds=seconds, executor=executor, slices=part,
            checkpoint=folder / UNFINISHED, resume=resume, progress=not quiet and place()[0] == 0,
        )  # fmt: skip
        if result.interrupted:
            done, count = len(result.slices), len(result.image) if result.image.ndim == 3 else 1
            stopped(
                f" in slice {done} of {count}" if count > 1 else f" after {result.slices[0]['iterations']} iterations",
                INTERRUPTED,
            )
        if part is not None:
            typer.echo(
                f"slices {part[0]} to {part[1] - 1} are in {folder / UNFINISHED}; when all are there, the same command "
                "with --resume instead of --slices makes the result"
            )
            return
        for line in result.notes:
            typer.echo(line)
        result = replace(
            result, notes=(*notes, *result.notes), settings={"data": "measured", "input_snr": None, **result.settings}
        )
        if images is not None:
            result = _in_the_unit_of(
                images, result, data["bounds"][1], None if photons else SNR if snr is None else snr
            )
            _write_dicom(images, result, folder, keep_patient)
        series = None if images is None or keep_patient else images.series
        told = [typed(), path.name] if series is None else [series.without_patient(t) for t in (typed(), path.name)]
        if series is not None:
            result = replace(result, notes=tuple(map(series.without_patient, result.notes)))
        for line in [*result.save(folder, *told), *(f"Warning: {text}" for text in result.warnings)]:
            typer.echo(line)
        del result  # Windows cannot remove files that are mapped
        discard(folder / UNFINISHED, "settings.json")
        for name in ("preview.npy", "preview.png"):
            (folder / name).unlink(missing_ok=True)


def _refuse_what_cannot_grow(path: Path, angles: str | None) -> None:
    if not (path.is_dir() or path.suffix.lower() in (*HDF5, ".zarr")):  # a store may not be there yet
        raise ArgumentError("{follow} reads HDF5 files and Zarr stores while they grow, not {0}", path)
    if angles is not None and read_range(angles) is not None:
        raise ArgumentError(
            "{angles} {0} is a range, and a growing scan has no end; give the angle of each view", angles
        )


def _preview(
    scans: Iterator[Any],
    folder: Path,
    beam: Callable[[Sinogram], FanGeometry | None],
    size: int | None,
    center: float | None,
    common: dict[str, Any],
) -> None:
    """An image of the views so far whenever some have come, begun at the last one: preview.png and preview.npy."""
    last = None
    for rows, degrees, scan in scans:
        pixels = max(2, round(rows.shape[1] * common["spacing"])) if size is None else size
        told = scan.center if center is None else center
        result = smadmm.reconstruct(
            rows, degrees, geometry=beam(scan), size=pixels, center="auto" if told is None else told, start=last,
            iterations=FIRST if last is None else MORE, **common,
        )  # fmt: skip
        last = result.image
        write_array(folder / "preview.npy", last)
        atomic_write(folder / "preview.png", png(gray(last, result.limits())))
        typer.echo(f"{len(degrees)} views: preview.png, residual {result.mean('residual'):.2%}")
        del scan  # closes the file


def _beam(found: Sinogram, asked: str | None, lengths: Mapping[str, float | None], curved: bool) -> FanGeometry | None:
    """The fan that is asked for or that the file tells of, its lengths from both; None: parallel beams."""
    one_of("geometry", asked or "fan", ("parallel", "fan"))
    positive(**lengths)
    lengthy = curved or any(value is not None for value in lengths.values())
    if asked == "parallel":
        if lengthy:
            raise ArgumentError("distances are those of a fan; leave them out with {geometry} parallel")
        return None
    if asked is None and not lengthy:
        return found.beam
    told = found.geometry or Fan()
    fan = Fan(
        lengths["source_to_axis"] or told.source_to_axis, lengths["source_to_detector"] or told.source_to_detector,
        lengths["pitch"] or told.spacing, told.unit,
    )  # fmt: skip
    return fan.beam(found.path, curved)


def _refuse_measured(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError("{" + name + "} is for measured sinograms; leave it out with {simulate} VIEWS")


def _simulated(
    slices: Slices, views: int, snr: float | None, photons: float | None, seed: int, threads: int
) -> dict[str, Any]:
    """Sinograms of the slices, made as they are asked for: with Gaussian noise, or counts of photons."""
    if views < 1:
        raise ArgumentError("{simulate} needs at least one view, got {0}", views)
    if photons is not None and snr is not None:
        raise ArgumentError("{snr} and {photons} are two kinds of noise; give one of them")
    refuse_noise(snr, photons)
    slices.refuse_constant()
    pixel = (
        float(np.mean(slices.series.spacing)) if slices.series and slices.series.spacing else WIDTH / slices.shape[2]
    )
    top = 1.0 if photons is None else attenuation_per_pixel(pixel)

    def truth(number: int) -> Any:
        return torch.from_numpy(slices[number]) * top

    def sinogram(number: int) -> Any:
        if photons is not None:
            return simulated_counts(truth(number), views, photons, seed, number, threads)
        return simulated_sinogram(truth(number), views, SNR if snr is None else snr, seed, number, threads)

    detectors = half_turn(truth(0), views).detectors
    stack = Lazily((len(slices), views, detectors), sinogram), Lazily(slices.shape, truth)
    arrays = [part[0] if len(slices) == 1 else part for part in stack]
    return {"sinogram": arrays[0], "truth": arrays[1], "angles": None, "bounds": (0.0, top), "notes": slices.notes}


def _in_the_unit_of(slices: Slices, result: ImageResult, top: float, snr: float | None) -> ImageResult:
    """Hounsfield units for slices that had them, gray values in [0, 1] for pictures."""
    about: dict[str, Any] = {"data": "simulated", "input_snr": snr}
    if slices.series is not None:
        about["pixel_spacing_mm"] = slices.series.spacing
    result = replace(result, settings=result.settings | about)
    if slices.hounsfield:
        return result.in_unit("HU", lambda x: hounsfield(np.asarray(x) / top), SOFT_TISSUE)
    low, high = (limit / top for limit in result.limits())
    return result.in_unit("gray value", lambda x: np.asarray(x) / np.float32(top), (low, high))


def _write_dicom(slices: Slices, result: ImageResult, folder: Path, keep_patient: bool) -> None:
    """A derived DICOM file per slice, where the input was a series of single frames."""
    series = slices.series
    if series is None or any(piece.frame for piece in series.slices):
        return
    settings = result.settings
    text = f"smadmm {settings['method']} {settings['prior']}, {settings['views']} views"
    images = result.image if result.image.ndim == 3 else result.image[None]
    target = output_folder(folder / "dicom")
    for number, image in enumerate(images):
        atomic_write(target / f"slice_{number:04d}.dcm", dicom.derived(series, number, image, text, keep_patient))
