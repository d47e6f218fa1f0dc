"""`smadmm reproduce`: one command per experiment of the paper, and all of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from smadmm.cli.options import Data, Jobs, OnlyCPU, Out, Quick, Quiet, Seed

reproduce = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper; results go to --out.")

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
        from smadmm.paper.everything import EXPERIMENTS

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
        from smadmm.paper import ct

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
    from smadmm.paper import everything as experiments

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
    parts = json.loads((Path(out) / "results.json").read_text())["report"]
    for part in parts:
        if isinstance(part, dict) and part["kind"] == "verdict":
            typer.echo(f"{part['claim']}: {part['outcome']}. {part['because']}")
    typer.echo(f"results.json, table.md and figures are in {out}; finished parts in {Path(out) / 'parts'}")
