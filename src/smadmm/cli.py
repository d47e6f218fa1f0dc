"""The command line. Errors are one sentence and exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

try:
    import typer
except ImportError:
    print("Error: the command line needs typer; install it with: pip install 'smadmm[cli]'", file=sys.stderr)
    sys.exit(2)

import smadmm

app = typer.Typer(no_args_is_help=True, add_completion=True, help=smadmm.__doc__, pretty_exceptions_enable=False)
reproduce = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper; results go to --out.")
app.add_typer(reproduce, name="reproduce", rich_help_panel="The paper")

Out = Annotated[str, typer.Option("--out", help="Folder for results.json, tables and figures.")]
Data = Annotated[
    str | None, typer.Option("--data", envvar="SMADMM_DATA", help="Folder of the data files; else cache or download.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A smaller version, for a first look.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random numbers.", min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def _some(threads: int) -> int:
    if threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}")
    return threads


Threads = Annotated[int, typer.Option("--threads", help="Threads of the CPU.", callback=_some)]
Jobs = Annotated[int, typer.Option("--threads", help="How many jobs run at once, each on one.", callback=_some)]


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


Size = Annotated[int, typer.Option("--size", help="Pixels each way: 256 or 512.")]


def _add_experiment(name: str, about: str) -> None:
    @reproduce.command(name, help=about)
    def command(
        out: Out,
        data: Data = None,
        quick: Quick = False,
        seed: Seed = 0,
        device: OnlyCPU = "cpu",
        threads: Jobs = 2,
        quiet: Quiet = False,
    ) -> None:
        from smadmm.experiments.everything import EXPERIMENTS

        with _resumable(out):
            EXPERIMENTS[name](out, data, quick, seed, not quiet, threads)
        _tell_verdicts(out)


def _add_ct(name: str, about: str) -> None:
    @reproduce.command(name, help=about)
    def command(
        out: Out,
        data: Data = None,
        quick: Quick = False,
        size: Size = 256,
        seed: Seed = 0,
        device: OnlyCPU = "cpu",
        threads: Jobs = 2,
        quiet: Quiet = False,
    ) -> None:
        from smadmm.experiments import ct

        with _resumable(out):
            ct.reproduce(name, out, data, quick, seed, not quiet, threads, size)
        _tell_verdicts(out)


for _name, _about in {
    "complexity": "Table 1: how the stationarity measure falls with the number of sample gradients.",
    "classification": "Table 2 and Figure 1: classification, every published method tuned with the same effort.",
    "denoisers": "Noise removed and Lipschitz constants of shipped denoisers, TV, BM3D; one at a time, to time them.",
    "phase": "Table 6: phase retrieval from coded diffraction patterns, and the case of many masks.",
}.items():
    _add_experiment(_name, _about)

for _name, _about in {
    "ct-tuning": "Parameters of every CT method, on training slices.",
    "ct-120": "Table 3: sparse-view CT, 120 views.",
    "ct-180": "Table 4: sparse-view CT, 180 views.",
    "ct-ablation": "Table 5: the momentum a_k = k^-alpha.",
    "ct-iterations": "Figure 3: SNR over iterations, 120 to 720 views.",
    "ct-visual": "Figure 2: the images, and the library's default against the published algorithm.",
}.items():
    _add_ct(_name, _about)


@reproduce.command("all")
def everything(
    out: Out,
    data: Data = None,
    quick: Quick = False,
    seed: Seed = 0,
    device: OnlyCPU = "cpu",
    threads: Jobs = 2,
    quiet: Quiet = False,
) -> None:
    """Every experiment, each in its folder below --out, and index.html; finished ones are not run again."""
    from smadmm.experiments import everything as experiments

    with _resumable(out):
        failures = experiments.reproduce(out, data, quick, seed, not quiet, threads)
    for name, reason in failures.items():
        typer.echo(f"Error: {name} failed: {reason}", err=True)
    typer.echo(f"index.html is in {out}" + ("; run the same command again for what failed" if failures else ""))
    if failures:
        raise typer.Exit(1)


@contextmanager
def _resumable(out: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the processes of the jobs and say how to go on."""
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; what is finished is kept in {out}: the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, usual)


def _tell_verdicts(out: str) -> None:
    """What became of the claims of the paper, and where the rest is."""
    from smadmm.report.figures import not_drawn

    parts = json.loads((Path(out) / "results.json").read_text(encoding="utf-8"))["report"]
    for part in parts:
        if isinstance(part, dict) and part["kind"] == "verdict":
            typer.echo(f"{part['claim']}: {part['outcome']}. {part['because']}")
    missing = not_drawn("the figures need")
    written = "results.json and table.md" if missing else "results.json, table.md and figures"
    for line in (f"{written} are in {out}; finished parts in {Path(out) / 'parts'}", *missing):
        typer.echo(line)


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

    from smadmm.learn import command

    torch.set_num_threads(threads)
    try:
        if model is not None:
            lines = command.apply(model, source, out, data)
        else:
            settings = command.Settings(graph, alpha, loss, method, epochs, seed, not quiet)
            lines = command.fit(source, test, out, settings, data)
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

    from smadmm.denoisers import command

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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter that the terminal lacks must not end a run
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
