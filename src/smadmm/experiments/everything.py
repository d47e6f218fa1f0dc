"""All experiments, one after the other, and one page of their results.

An experiment that is finished with the same settings is not run again; one that fails is reported and the others go on.
The page is written anew after each, so it can be read while the rest is running.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from tqdm import tqdm

import smadmm
from smadmm.experiments.index import index
from smadmm.files import atomic_write, output_folder

Experiment = Callable[[str, str | None, bool, int, bool, int], object]  # out, data, quick, seed, progress, processes


def _complexity(out: str, data: str | None, quick: bool, seed: int, progress: bool, processes: int) -> None:
    from smadmm.experiments import complexity

    complexity.reproduce(out, quick, seed, progress, processes)


def _classification(out: str, data: str | None, quick: bool, seed: int, progress: bool, processes: int) -> None:
    from smadmm.experiments import classification

    classification.reproduce(out, data, quick, seed, progress, processes)


def _denoisers(out: str, data: str | None, quick: bool, seed: int, progress: bool, processes: int) -> None:
    from smadmm.experiments import denoisers

    denoisers.reproduce(out, data, quick, progress)


def _ct(name: str) -> Experiment:
    def run(out: str, data: str | None, quick: bool, seed: int, progress: bool, processes: int) -> None:
        from smadmm.experiments import ct

        ct.reproduce(name, out, data, quick, seed, progress, processes)

    return run


def _phase(out: str, data: str | None, quick: bool, seed: int, progress: bool, processes: int) -> None:
    from smadmm.experiments import phase

    phase.reproduce(out, data, quick, seed, progress, processes)


EXPERIMENTS: Mapping[str, Experiment] = {  # by name: its folder below --out, and its command
    "complexity": _complexity,
    "classification": _classification,
    "denoisers": _denoisers,
    **{name: _ct(name) for name in ("ct-tuning", "ct-120", "ct-180", "ct-ablation", "ct-iterations", "ct-visual")},
    "phase": _phase,
}


def reproduce(
    out: str,
    data: str | None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    processes: int = 2,
    experiments: Mapping[str, Experiment] | None = None,
) -> dict[str, str]:
    """Run what is not finished, write index.html into `out`; the failures by name."""
    folder = output_folder(out)
    failures: dict[str, str] = {}
    chosen = EXPERIMENTS if experiments is None else experiments
    bar = tqdm(chosen.items(), unit="experiment", disable=None if progress else True)
    for name, run in bar:
        bar.set_description(name)
        if not finished(folder / name, quick, seed):
            reason = _attempt(run, folder / name, data, quick, seed, progress, processes)
            if reason:
                failures[name] = reason
        index(folder, failures).write(folder / "index.html")
    return failures


def finished(folder: Path, quick: bool, seed: int) -> bool:
    """Whether the folder holds results of this version with the same settings."""
    try:
        content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        made = (content["version"], content["quick"])
        chosen = content["seed"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return made == (smadmm.__version__, quick) and chosen in (seed, None)  # None: there is none to choose


def _attempt(
    run: Experiment, folder: Path, data: str | None, quick: bool, seed: int, progress: bool, processes: int
) -> str | None:
    """Run one experiment; the reason if it failed, whose traceback is kept in its folder."""
    try:
        run(str(folder), data, quick, seed, progress, processes)
    except Exception as error:
        output_folder(folder)
        atomic_write(folder / "error.txt", traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} (error.txt in its folder says where)"
    (folder / "error.txt").unlink(missing_ok=True)
    return None
