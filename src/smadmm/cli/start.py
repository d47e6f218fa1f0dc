"""The door of the command `smadmm`: a second run into a folder is refused before anything heavy is loaded."""

import os
import sys
from itertools import pairwise
from pathlib import Path

from smadmm.arguments import ArgumentError
from smadmm.io.files import refuse_busy


def refuse_second() -> None:
    """End at once if --out is being written by another run; the command itself takes the lock later."""
    words = sys.argv[1:]
    given = [after for word, after in pairwise(words) if word == "--out"]
    given += [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
    if not given or "RANK" in os.environ:  # ranks of torchrun share a folder
        return
    ending = "" if words[0] != "train-denoiser" or given[-1].endswith(".safetensors") else ".safetensors"
    try:
        refuse_busy(Path(given[-1] + ending))
    except ArgumentError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


def main() -> None:
    """Entry point."""
    refuse_second()
    from smadmm.__main__ import main

    main()
