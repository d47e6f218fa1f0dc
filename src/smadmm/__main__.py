"""The command `smadmm`, also `python -m smadmm`: the commands for users and the experiments of the paper."""

from smadmm.cli.app import app, main
from smadmm.paper.command import reproduce

app.add_typer(reproduce, name="reproduce", rich_help_panel="The paper")

if __name__ == "__main__":
    main()
