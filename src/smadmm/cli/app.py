"""The command line. Errors are one sentence and exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

try:
    import typer
except ImportError:  # pragma: no cover
    sys.exit("the command line needs typer; install it with: pip install 'smadmm[cli]'")

import smadmm
from smadmm.cli.options import Data, Device, OnlyCPU, Quiet, Seed, Threads

app = typer.Typer(no_args_is_help=True, add_completion=True, help=smadmm.__doc__, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"smadmm {smadmm.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Stochastic ADMM with momentum, and its rivals, on one loop."""


@app.command(rich_help_panel="Data")
def classify(
    source: Annotated[str, typer.Argument(metavar="DATA", help="LIBSVM file (plain, .bz2, .gz) or the name of a set.")],
    test: Annotated[str | None, typer.Option(help="LIBSVM file to measure the accuracy on.")] = None,
    model: Annotated[str | None, typer.Option(help="Apply this saved model to DATA instead of fitting.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder for the model, the picture, the predictions.")
    ] = None,
    graph: Annotated[
        str, typer.Option(help="glasso, knn, chain, none, or a file of edges: two features a line, from 0.")
    ] = "glasso",
    alpha: Annotated[float, typer.Option(help="Weight of the penalty.")] = 1e-5,
    loss: Annotated[str, typer.Option(help="sigmoid, logistic or squared_hinge.")] = "sigmoid",
    method: Annotated[str, typer.Option(help="auto, smadmm, sadmm, svrg, saga, spider or asvrg.")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    data: Data = None,
    seed: Seed = 0,
    device: OnlyCPU = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Fit a classifier whose coefficients are tied along a graph, or apply a saved one."""
    import torch

    from smadmm.cli import classify as command

    torch.set_num_threads(threads)
    try:
        if model is not None:
            lines = command.apply(model, source, out, data)
        else:
            untrained = command.classifier(method, graph, alpha, loss, epochs, seed=seed, progress=not quiet)
            lines = command.fit(untrained, source, test, out, data)
        for line in lines:
            typer.echo(line)
    except KeyboardInterrupt:
        typer.echo("stopped; nothing was written. Fewer --epochs end sooner", err=True)
        raise typer.Exit(130) from None


@app.command(rich_help_panel="Images")
def retrieve(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Patterns with masks (NPZ or HDF5: amplitudes or intensities, masks, perhaps truth; NPY with "
            "--mask-file), or, with --masks, an image to simulate from.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", help="Folder for image, figure, curves, run.json and report.html.")],
    masks: Annotated[int | None, typer.Option(help="Simulate patterns of INPUT behind this many masks.")] = None,
    snr: Annotated[float | None, typer.Option(help="Noise of the simulated amplitudes in dB (25).")] = None,
    mask_file: Annotated[str | None, typer.Option(help="NPY file of the masks, n x height x width.")] = None,
    quantity: Annotated[str | None, typer.Option(help="What an NPY file holds: amplitudes or intensities.")] = None,
    method: Annotated[str, typer.Option(help="smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.")] = "smadmm",
    prior: Annotated[
        str, typer.Option(help="A shipped denoiser, a file of weights (.safetensors), tv or none.")
    ] = "ridge-natural",
    batch: Annotated[int | None, typer.Option(help="Masks a step (6, or all if there are fewer).")] = None,
    iterations: Annotated[int, typer.Option(help="Iterations.")] = 200,
    strength: Annotated[float, typer.Option(help="Multiplies the weight that the prior gets from the noise.")] = 1.0,
    start: Annotated[str, typer.Option(help="Of the fit without prior: constant or spectral.")] = "constant",
    complex_image: Annotated[bool, typer.Option("--complex", help="The image is complex.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Retrieve an image from the amplitudes of its coded diffraction patterns."""
    import torch

    from smadmm.imaging import retrieve as job

    torch.set_num_threads(threads)
    settings = job.Settings(method, prior, batch, iterations, strength, start, complex_image, seed, device)
    patterns = job.open_input(source, masks, snr, mask_file, quantity, seed)
    _tell(job.retrieve(Path(source).name, patterns, out, settings, _typed(), resume, progress=not quiet))


@app.command("train-denoiser", rich_help_panel="Images")
def train_denoiser(
    sources: Annotated[list[str], typer.Argument(metavar="DIR_OR_FILES", help="Images; CT slices as .npz or .dcm.")],
    out: Annotated[str, typer.Option("--out", help="File of the weights (.safetensors).")],
    arch: Annotated[str, typer.Option(help="ridge (Lipschitz constant proved), unshuffled or dncnn.")] = "ridge",
    sigma: Annotated[float, typer.Option(help="Noise level, in units of 1/255.")] = 5.0,
    preset: Annotated[str, typer.Option(help="cpu: minutes; paper: 50 epochs of 128 x 128 patches.")] = "cpu",
    minutes: Annotated[
        float | None, typer.Option(help="CPU minutes of the steps, instead of --steps; validation comes on top.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of Adam.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(help="Patches a step.")] = None,
    patch: Annotated[int | None, typer.Option(help="Width of a patch.")] = None,
    penalty: Annotated[float | None, typer.Option(help="Networks: weight of the Jacobian penalty.")] = None,
    target: Annotated[float | None, typer.Option(help="Networks: largest Lip(I - D) at the end.")] = None,
    also: Annotated[list[str] | None, typer.Option(help="Networks: the penalty looks at these images, too.")] = None,
    filters: Annotated[int | None, typer.Option(help="Ridge: number of filters.")] = None,
    size: Annotated[int | None, typer.Option(help="Ridge: width of the filters.")] = None,
    means: Annotated[int | None, typer.Option(help="Ridge: filters that may have a mean.")] = None,
    layers: Annotated[int | None, typer.Option(help="Networks: number of layers.")] = None,
    channels: Annotated[int | None, typer.Option(help="Networks: their width.")] = None,
    start_from: Annotated[str | None, typer.Option(help="Begin with these weights: a file or shipped ones.")] = None,
    sharp: Annotated[bool, typer.Option("--sharp", help="Use CT slices of sharp kernels, too.")] = False,
    skip_unreadable: Annotated[bool, typer.Option(help="Go on without files that cannot be used, or stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Train a denoiser D = I - grad g with Lip(I - D) < 1. Under torchrun the patches are shared out."""
    import torch

    from smadmm.cli import train_denoiser as command

    torch.set_num_threads(threads)
    if minutes is not None and steps is not None:
        raise ValueError(f"--minutes {minutes:g} and --steps {steps} are two answers to one question; give one")
    changes = {"steps": steps, "rate": rate, "batch": batch, "patch": patch, "penalty": penalty, "target": target}
    changes |= {"filters": filters, "size": size, "means": means}
    changes |= {"layers": layers, "channels": channels, "seed": seed}
    chosen = command.chosen_recipe(arch, sigma, preset, changes)
    finished, text = command.run(
        sources, out, chosen, minutes, start_from, also or [], resume, skip_unreadable, sharp, not quiet, device
    )
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes one speaks
        typer.echo(text)
    if not finished:
        raise typer.Exit(130)


@app.command(rich_help_panel="Images")
def reconstruct(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Sinogram (NPY, NPZ, HDF5, TIFF); or, with --simulate, DICOM file or folder, Hounsfield array "
            "(NPY, NPZ with the key hu), picture.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", help="Folder for image, figure, curves, run.json and report.html.")],
    simulate: Annotated[int | None, typer.Option(help="Simulate this many views of INPUT.", metavar="VIEWS")] = None,
    snr: Annotated[float | None, typer.Option(help="Noise of the simulated sinogram in dB (50).")] = None,
    photons: Annotated[
        float | None, typer.Option(help="Photons a ray without object: weighs rays; simulates counts instead of --snr.")
    ] = None,
    flat: Annotated[str | None, typer.Option(help="INPUT holds raw counts, this file those without object.")] = None,
    dark: Annotated[str | None, typer.Option(help="File of the counts without beam, for --flat.")] = None,
    angles: Annotated[
        str | None, typer.Option(help="File with the angle of every view, or a range of degrees as 0:180.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Of the angles: auto, degrees or radians.")] = "auto",
    views: Annotated[int | None, typer.Option(help="Use only so many of the measured views, evenly chosen.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels of the image, a side; else what the detector spans.")] = None,
    spacing: Annotated[float, typer.Option(help="Distance of detectors in pixels of the image.")] = 1.0,
    center: Annotated[float, typer.Option(help="Axis of rotation, in detectors off the middle.")] = 0.0,
    method: Annotated[str, typer.Option(help="smadmm, sadmm, spider, svrg, asvrg, red-sd or on-red.")] = "smadmm",
    prior: Annotated[
        str, typer.Option(help="A shipped denoiser, a file of weights (.safetensors), tv or none.")
    ] = "ridge-ct",
    batch: Annotated[int | None, typer.Option(help="Views a step; by default all.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations a slice (30 if no seconds are given).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds a slice.")] = None,
    strength: Annotated[float, typer.Option(help="Multiplies the weight that the prior gets from the noise.")] = 1.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Reconstruct an image or a volume from few, noisy X-ray views."""
    import torch

    from smadmm.imaging import reconstruct as job
    from smadmm.imaging.source import Source

    torch.set_num_threads(threads)
    settings = job.Settings(method, prior, batch, iterations, seconds, strength, seed, device)
    geometry = (angles, unit, views, size, spacing, center)
    scan = Source(source, simulate, snr, *geometry, seed, threads, photons, flat, dark).scan()
    _tell(job.reconstruct(scan, out, settings, _typed(), resume, progress=not quiet))


def _tell(lines: Iterable[str]) -> None:
    """Say what a job has to say; one that was stopped says how to go on, with exit code 130."""
    from smadmm.imaging.outputs import Interrupted

    try:
        for line in lines:
            typer.echo(line)
    except Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(130) from None


def _typed() -> str:
    """The command as it was typed, without --resume."""
    return shlex.join(["smadmm", *(word for word in sys.argv[1:] if word != "--resume")])


def main() -> None:
    """Entry point: one sentence for an error of the user or the machine, a traceback for one of ours."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if "--debug" in sys.argv or not (isinstance(error, MemoryError) or "allocate memory" in str(error)):
            raise
        typer.echo(
            "Error: the memory of this machine is not enough for this; use smaller images or less data", err=True
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
