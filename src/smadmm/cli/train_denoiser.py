"""`smadmm train-denoiser`: read what the command line says, train, tell what came out and how to use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer

from smadmm.arguments import ArgumentError, one_of, positive
from smadmm.cli.app import app
from smadmm.cli.options import Device, Quiet, Seed, Threads
from smadmm.denoisers.training.loop import Trained
from smadmm.denoisers.training.recipes import OF_NETWORKS, OF_RIDGE, Arch, Preset, Recipe, recipe
from smadmm.io.files import locked, output_folder
from smadmm.report.figures import not_drawn


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
    batch: Annotated[int | None, typer.Option(help="Patches per step.")] = None,
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
    from smadmm.denoisers.training.loop import train

    torch.set_num_threads(threads)
    changes = {"steps": steps, "rate": rate, "batch": batch, "patch": patch, "penalty": penalty, "target": target}
    changes |= {"filters": filters, "size": size, "means": means, "layers": layers, "channels": channels, "seed": seed}
    chosen = chosen_recipe(arch, sigma, preset, changes)
    _refuse(chosen, minutes, steps, also or [])
    for given in [*sources, *(also or [])]:
        if not Path(given).exists():
            raise ValueError(f"there is no file or folder {given!r}")
    path = Path(out) if out.endswith(".safetensors") else Path(f"{out}.safetensors")
    output_folder(path.parent)
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes one writes and speaks
    try:
        with locked(path) if first else nullcontext():
            trained = train(
                [Path(given) for given in sources], path, chosen, minutes=minutes,
                start=None if start_from is None else _weights(start_from), also=[Path(given) for given in also or []],
                resume=resume, skip_unreadable=skip_unreadable, sharp=sharp, progress=not quiet, device=device,
            )  # fmt: skip
    except KeyboardInterrupt:
        trained = None
    if first:
        typer.echo(_told(trained, chosen, path))
    if trained is None:
        raise typer.Exit(130)


def _refuse(chosen: Recipe, minutes: float | None, steps: int | None, also: Sequence[str]) -> None:
    """Options that contradict each other."""
    positive(minutes=minutes)
    if minutes is not None and steps is not None:
        raise ArgumentError("{minutes} {0:g} and {steps} {1} are two answers to one question; give one", minutes, steps)
    if minutes is not None and chosen.epochs:
        raise ArgumentError("the preset 'paper' runs {0} epochs, not {1:g} minutes; use {preset} cpu",
                            chosen.epochs, minutes)  # fmt: skip
    if also and chosen.arch == "ridge":
        raise ArgumentError("{also} means nothing for {arch} ridge, whose bound holds for every image; leave it out")


def _told(trained: Trained | None, chosen: Recipe, path: Path) -> str:
    """What came out, and how to use it."""
    if trained is None:
        return f"stopped; {path.with_suffix('.checkpoint')} is kept: go on with the same command and --resume"
    proved = "proved" if chosen.arch == "ridge" else "measured on held-out images"
    missing = not_drawn("the figure of the learning curves needs")
    beside = "its card and .csv are" if missing else "its card, .csv and .png are"
    quality = f"PSNR {trained.psnr:.3f} dB on held-out images, Lip(I - D) = {trained.lipschitz:.3f} ({proved})"
    use = f"{path}: use it with smadmm.denoisers.load({str(path)!r}); {beside} beside it"
    return "\n".join([quality, use, *missing])


def chosen_recipe(arch: str, sigma: float, preset: str, changes: Mapping[str, float | None]) -> Recipe:
    """The recipe of a preset, with everything replaced that is not None; sigma in units of 1/255."""
    one_of("arch", arch, get_args(Arch))
    one_of("preset", preset, get_args(Preset))
    given = {name: value for name, value in changes.items() if value is not None}
    for name in OF_NETWORKS if arch == "ridge" else OF_RIDGE:
        if name in given:
            raise ArgumentError("{" + name + "} means nothing for {arch} {0}; leave it out", arch)
    if "steps" in given:
        given["epochs"] = 0
    usual = recipe(arch, sigma / 255, preset)  # type: ignore[arg-type]
    return replace(usual, **given)  # type: ignore[arg-type]


def _weights(name: str) -> Path:
    """Weights to start from: a file, or the name of shipped ones."""
    from smadmm.denoisers.weights import SHIPPED

    path = Path(name) if name.endswith(".safetensors") else SHIPPED / f"{name}.safetensors"
    if not path.exists():
        raise ValueError(f"there are no weights {name!r} to start from")
    return path
