"""The app: its commands, what they share, and how errors end."""

from __future__ import annotations

import io
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

try:
    import typer
except ImportError:
    print("Error: the command line needs typer; install it with: pip install 'smadmm[cli]'", file=sys.stderr)
    sys.exit(2)

import smadmm
from smadmm.arguments import ArgumentError

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


def typed() -> str:
    """The command as it was typed, without --resume."""
    return shlex.join(["smadmm", *(word for word in sys.argv[1:] if word != "--resume")])


@contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C keeps what is done and says how to go on; warnings about the data come with the result."""
    from smadmm.imaging.result import DataWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            yield
    except KeyboardInterrupt:
        stopped("")


def stopped(where: str) -> None:
    """End with exit code 130 and the way to go on."""
    typer.echo(f"stopped{where}; everything is kept, go on with: {typed()} --resume", err=True)
    raise typer.Exit(130)


def option(argument: str) -> str:
    """An argument as the command line spells it."""
    return "--" + argument.replace("_", "-")


def main() -> None:
    """Entry point: one sentence for an error of the user or the machine, a traceback for one of ours."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter that the terminal lacks must not end a run
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"Error: {error.spelled(option) if isinstance(error, ArgumentError) else error}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if "--debug" in sys.argv or not (isinstance(error, MemoryError) or "allocate memory" in str(error)):
            raise
        typer.echo("Error: this machine has not enough memory; use smaller images or less data", err=True)
        sys.exit(2)
