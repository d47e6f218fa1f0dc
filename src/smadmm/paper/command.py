"""`smadmm reproduce`: one command per experiment of the paper, and all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from smadmm.cli.app import INTERRUPTED, TERMINATED
from smadmm.cli.options import Dask, Data, Jobs, OnlyCPU, Out, Quick, Quiet, Seed, engine
from smadmm.io.files import locked, output_folder

if TYPE_CHECKING:
    from smadmm.paper.experiment import Experiment, Request


class Experiments(TyperGroup):
    """Its commands are made when they are asked for: importing the experiments would slow down every other command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, name: str) -> Any:
        return commands().get(name)


reproduce = typer.Typer(
    cls=Experiments, no_args_is_help=True, help="Run an experiment of the paper; results go to --out."
)


@lru_cache
def commands() -> dict[str, Any]:
    from smadmm.paper.catalogue import EXPERIMENTS

    group = typer.Typer()
    for experiment in EXPERIMENTS:
        _register(group, experiment.name, experiment.about, partial(_run_one, experiment))
    _register(group, "all", "Every experiment in its folder below --out, and index.html; finished ones stay.", _run_all)
    made: Any = typer.main.get_command(group)
    return dict(made.commands)


def _known(size: int | None) -> int | None:
    if size not in (None, 256, 512):
        raise ValueError(f"--size must be 256 or 512, got {size}")
    return size


Size = Annotated[
    int | None, typer.Option("--size", help="Pixels each way, 256 (default) or 512; for CT only.", callback=_known)
]


def _register(group: typer.Typer, name: str, about: str, run: Callable[[Request], None]) -> None:
    @group.command(name, help=about)
    def command(
        out: Out,
        data: Data = None,
        quick: Quick = False,
        size: Size = None,
        seed: Seed = 0,
        device: OnlyCPU = "cpu",
        threads: Jobs = 2,
        dask: Dask = None,
        quiet: Quiet = False,
    ) -> None:
        from smadmm.paper.experiment import Request

        with _resumable(out), engine(None, dask) as executor:
            run(Request(out, data, quick, seed, size, processes=executor or threads, progress=not quiet))


@contextmanager
def _resumable(out: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the processes of the jobs and say how to go on."""
    try:
        with locked(output_folder(out)):
            yield
    except (KeyboardInterrupt, SystemExit) as error:
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else error.code
        if code not in (INTERRUPTED, TERMINATED):
            raise
        typer.echo(f"stopped; what is finished is kept in {out}: the same command goes on from there", err=True)
        raise typer.Exit(code) from None


def _run_one(experiment: Experiment, request: Request) -> None:
    """Run an experiment; say what became of the claims of the paper, and where the rest is."""
    from smadmm.paper.reproducing import reproduce

    reproduce(experiment, request)
    folder = Path(request.out)
    for part in json.loads((folder / "results.json").read_text(encoding="utf-8"))["report"]:
        if isinstance(part, dict) and part["kind"] == "verdict":
            typer.echo(f"{part['claim']}: {part['outcome']}. {part['because']}")
    typer.echo(f"results.json, table.md and figures are in {folder}; finished parts in {folder / 'parts'}")


def _run_all(request: Request) -> None:
    from smadmm.paper.catalogue import EXPERIMENTS
    from smadmm.paper.reproducing import reproduce_all

    failures = reproduce_all(request, EXPERIMENTS)
    for name, reason in failures.items():
        typer.echo(f"Error: {name} failed: {reason}", err=True)
    typer.echo(f"index.html is in {request.out}" + ("; run the same command again for what failed" if failures else ""))
    if failures:
        raise typer.Exit(1)
