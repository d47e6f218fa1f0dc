"""What the first `smadmm reconstruct` of an installation costs: process CPU with an empty cache and with a full one.

    python tests/torture/first_call.py [--out docs/results/torture]

It compiles at most 8 s, says so once, and the second call compiles nothing and says nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from faults import make_data

MOST = 8.0  # seconds


def call(folder: Path, number: int) -> tuple[float, int]:
    """CPU seconds of one command, and how often it says that it compiles."""
    words = ["reconstruct", folder / "data" / "volume.npz", "--out", folder / str(number)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "smadmm", *words], env=environment, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stderr.count("compiling kernels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for first_call.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        make_data(Path(place) / "data")
        (cold, told), (warm, again) = (call(Path(place), number) for number in range(2))
    text = f"| call | CPU seconds | says that it compiles |\n|---|---:|---:|\n| first | {cold:.1f} | {told} |\n"
    text += f"| second | {warm:.1f} | {again} |\n| difference | {cold - warm:.1f} | |\n"
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "first_call.md").write_text(text, encoding="utf-8", newline="\n")
    sys.exit((told, again) != (1, 0) or cold - warm > MOST)


if __name__ == "__main__":
    main()
