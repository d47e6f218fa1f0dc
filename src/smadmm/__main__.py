"""The command `smadmm`, also `python -m smadmm`: the commands for users, and the experiments of the paper."""

from smadmm.cli.start import refuse_second

if __name__ == "__main__":
    refuse_second()

from smadmm.cli.app import app, main
from smadmm.cli.classify import classify, predict
from smadmm.cli.prepare import prepare
from smadmm.cli.reconstruct import reconstruct
from smadmm.cli.retrieve import retrieve
from smadmm.cli.train_denoiser import train_denoiser
from smadmm.paper.command import reproduce

app.add_typer(reproduce, name="reproduce", rich_help_panel="The paper")

__all__ = ["app", "classify", "main", "predict", "prepare", "reconstruct", "reproduce", "retrieve", "train_denoiser"]

if __name__ == "__main__":
    main()
