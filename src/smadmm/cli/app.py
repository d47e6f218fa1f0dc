"""The app: its commands, what they share, and how errors end."""

from __future__ import annotations

import io
import logging
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

try:
    import typer
except ImportError:
    print("Error: the command line needs typer; install it with: pip install 'smadmm[cli]'", file=sys.stderr)
    sys.exit(2)

import smadmm
from smadmm.arguments import ArgumentError
from smadmm.io.files import locked, output_folder, refuse_finished

LOG = logging.getLogger("smadmm")
INTERRUPTED, TERMINATED = 130, 143  # exit codes of SIGINT and SIGTERM, as shells show them

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
    """Ctrl-C and SIGTERM keep what is done and say how to go on; warnings about the data come with the result."""
    from smadmm.imaging.result import DataWarning
    from smadmm.results import Interrupted

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            yield
    except KeyboardInterrupt as error:
        stopped(f" {error}" if isinstance(error, Interrupted) else "", INTERRUPTED)
    except SystemExit as error:
        if error.code != TERMINATED:
            raise
        stopped("", TERMINATED)


def stopped(where: str, code: int) -> None:
    """End with the code of the signal and the way to go on."""
    typer.echo(f"stopped{where}; everything is kept, go on with: {typed()} --resume", err=True)
    raise typer.Exit(code)


def _terminated(number: int, frame: Any) -> None:
    raise SystemExit(TERMINATED)  # unlike death by the signal, this lets go of locks and temporary files


@contextmanager
def writing(out: str, result: str, overwrite: bool, shared: bool = False) -> Iterator[Path]:
    """The output folder, for this run alone, or those that share it; one that holds a finished `result` is refused
    unless it may be replaced.

    A folder that is made here and stays empty is removed.
    """
    folder, made = Path(out), not Path(out).exists()
    refuse_finished(folder, result, overwrite)
    try:
        with locked(output_folder(folder), shared):
            refuse_finished(folder, result, overwrite)  # a run that ended while this one began
            yield folder
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()


def option(argument: str) -> str:
    """An argument as the command line spells it."""
    return "--" + argument.replace("_", "-")


class OnStderr(logging.StreamHandler[TextIO]):
    """The sentences of the library; and, in a terminal, a bar that is there while kernels are compiled."""

    _bar: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        compiled = getattr(record, "compiled", None)
        if record.levelno >= logging.INFO:
            super().emit(record)
        elif compiled is not None and self._bar is None:
            from smadmm.bars import tqdm

            # numba cannot say how many are to come
            form = "compiling kernel {n_fmt} [{elapsed}]"
            self._bar = tqdm(initial=compiled + 1, bar_format=form, leave=False, disable=None)
        elif compiled is not None:
            self._bar.close()
            self._bar = None


def _on_stderr() -> logging.Handler:
    """What the library tells its log goes to stderr, unless it is to be quiet."""
    told = OnStderr()
    if "--quiet" not in sys.argv:
        LOG.addHandler(told)
        LOG.setLevel(logging.DEBUG)
    return told


def main() -> None:
    """Entry point: one sentence for an error of the user or the machine, a traceback for one of ours."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter that the terminal lacks must not end a run
    told = _on_stderr()
    usual = signal.getsignal(signal.SIGTERM)
    if usual is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
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
    finally:
        signal.signal(signal.SIGTERM, usual)
        LOG.removeHandler(told)
