"""The command line. Errors are one sentence and exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer
except ImportError:  # pragma: no cover
    sys.exit("the command line needs typer; install it with: pip install 'smadmm[cli]'")

import smadmm

app = typer.Typer(no_args_is_help=True, add_completion=True, help=smadmm.__doc__, pretty_exceptions_enable=False)
reproduce = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper; results go to --out.")
app.add_typer(reproduce, name="reproduce")

Out = Annotated[str, typer.Option("--out", help="Folder for results.json, tables and figures.")]
Data = Annotated[
    str | None, typer.Option("--data", envvar="SMADMM_DATA", help="Folder of the data files; else cache or download.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A smaller version, for a first look.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random numbers.", min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


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


@reproduce.command()
def complexity(out: Out, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False) -> None:
    """Table 1: how the stationarity measure falls with the number of sample gradients."""
    from smadmm.experiments import complexity as experiment

    rows = experiment.reproduce(out, quick, seed, progress=not quiet)
    typer.echo(experiment.table(rows))
    typer.echo(f"results.json, table.md and complexity.png are in {out}")


@reproduce.command()
def classification(out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False) -> None:
    """Table 2 and Figure 1: graph-guided classification, every published method tuned with the same effort."""
    from smadmm.experiments import classification as experiment
    from smadmm.experiments.classification_claims import Results, verdict

    rows = experiment.reproduce(out, data, quick, seed, progress=not quiet)
    typer.echo(verdict(Results(rows)))
    typer.echo(f"results.json, results.csv, table.md and figures are in {out}; finished parts in {out}/parts")


Size = Annotated[int, typer.Option("--size", help="Pixels each way: 256 or 512.")]


def _ct(name: str, out: str, data: str | None, quick: bool, seed: int, quiet: bool, size: int) -> None:
    from smadmm.experiments import ct

    ct.reproduce(name, out, data, quick, seed, progress=not quiet, size=size)
    typer.echo(f"results.json, results.csv, table.md and figures are in {out}; finished parts in {out}/parts")


@reproduce.command("ct-tuning")
def ct_tuning(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Parameters of every CT method, on training slices."""
    _ct("ct-tuning", out, data, quick, seed, quiet, size)


@reproduce.command("ct-120")
def ct_120(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Table 3: sparse-view CT, 120 views."""
    _ct("ct-120", out, data, quick, seed, quiet, size)


@reproduce.command("ct-180")
def ct_180(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Table 4: sparse-view CT, 180 views."""
    _ct("ct-180", out, data, quick, seed, quiet, size)


@reproduce.command("ct-ablation")
def ct_ablation(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Table 5: the momentum a_k = k^-alpha."""
    _ct("ct-ablation", out, data, quick, seed, quiet, size)


@reproduce.command("ct-iterations")
def ct_iterations(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Figure 3: SNR over iterations, 120 to 720 views."""
    _ct("ct-iterations", out, data, quick, seed, quiet, size)


@reproduce.command("ct-visual")
def ct_visual(
    out: Out, data: Data = None, quick: Quick = False, seed: Seed = 0, quiet: Quiet = False, size: Size = 256
) -> None:
    """Figure 2: the images, and the library's default against the published algorithm."""
    _ct("ct-visual", out, data, quick, seed, quiet, size)


@app.command()
def classify(
    source: Annotated[str, typer.Argument(metavar="DATA", help="LIBSVM file (plain, .bz2, .gz) or the name of a set.")],
    test: Annotated[str | None, typer.Option(help="LIBSVM file to measure the accuracy on.")] = None,
    model: Annotated[str | None, typer.Option(help="Apply this saved model to DATA instead of fitting.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Folder for the model, the picture, the predictions.")
    ] = None,
    graph: Annotated[
        str, typer.Option(help="glasso, knn, chain, none, or a file of edges: two numbers a line.")
    ] = "glasso",
    alpha: Annotated[float, typer.Option(help="Weight of the penalty.")] = 1e-5,
    loss: Annotated[str, typer.Option(help="sigmoid, logistic or squared_hinge.")] = "sigmoid",
    method: Annotated[str, typer.Option(help="auto, smadmm, sadmm, svrg, saga, spider or asvrg.")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    data: Data = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Fit a classifier whose coefficients are tied along a graph, or apply a saved one."""
    from smadmm.learn import command

    if model is not None:
        lines = command.apply(model, source, out, data)
    else:
        settings = command.Settings(graph, alpha, loss, method, epochs, seed, not quiet)
        lines = command.fit(source, test, out, settings, data)
    for line in lines:
        typer.echo(line)


def main() -> None:
    """Entry point: one sentence for an error of the user or the machine, a traceback for one of ours."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
