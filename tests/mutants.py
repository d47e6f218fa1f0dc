"""Mutants: errors of one line, each of which some test must notice. `make mutants` runs those of mutants.txt.

    python tests/mutants.py [--jobs N] [WORD ...]      with words: only mutants whose name contains one of them

A mutant in mutants.txt is its file (a key of FILES) and error, the tests that kill it (x::test_y is test_y of
test_x.py), the text (-), which must occur exactly once in the file, and its replacement (+). The tests run on a changed
copy of src, never on src itself, and the mutant is killed if one fails. All tests named must pass on an unchanged copy,
else failing would mean nothing.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
TIME_LIMIT = 900  # seconds

FILES = {  # below src/smadmm; where files move, this is all there is to change
    "operator losses": "losses/operators.py",
    "detectors": "imaging/detectors.py",
    "joint fit": "imaging/probe.py",
    "probe": "imaging/probe.py",
    "angle range": "imaging/angle_range.py",
    "arrays": "io/arrays.py",
    "certificate": "certificate.py",
    "checkpoint": "checkpoint.py",
    "classification": "paper/classification_runs.py",
    "complexity": "paper/complexity.py",
    "complexity kernel": "paper/complexity_kernel.py",
    "any operator": "imaging/any_operator.py",
    "counts": "io/counts.py",
    "ct chapter": "paper/ct_chapter.py",
    "ct runs": "paper/ct_runs.py",
    "ct tuning": "paper/ct_tuning.py",
    "chunks": "learn/chunks.py",
    "distributed": "distributed.py",
    "estimators": "estimators.py",
    "fan beam": "operators/fan/beam.py",
    "fan kernels": "operators/fan/kernels.py",
    "fan lanes": "operators/fan/lanes.py",
    "fan torch": "operators/fan/generic.py",
    "filters": "operators/radon/filters.py",
    "geometry": "imaging/geometry.py",
    "half acquisition": "imaging/half_acquisition.py",
    "glm": "losses/glm.py",
    "sharding": "learn/sharding.py",
    "leaving out": "learn/leaving_out.py",
    "newton": "learn/exact.py",
    "samples kernel": "learn/_kernels/samples.py",
    "sources": "losses/sources.py",
    "stream": "losses/stream.py",
    "air": "imaging/air.py",
    "noise law": "imaging/noise_law.py",
    "rough image": "imaging/rough_image.py",
    "rounds": "imaging/rounds.py",
    "stripes": "imaging/stripes.py",
    "survey": "imaging/survey.py",
    "wrong rays": "imaging/wrong_rays.py",
    "inverse": "losses/inverse.py",
    "matlab": "io/matlab.py",
    "alignment": "imaging/alignment.py",
    "hardening": "imaging/hardening.py",
    "mrc": "io/mrc.py",
    "scanners": "io/scanners.py",
    "metrics": "imaging/metrics.py",
    "pace": "stepsize.py",
    "phase kernels": "losses/phase_kernels.py",
    "phase loss": "losses/phase.py",
    "phase runs": "paper/phase_runs.py",
    "phase": "paper/phase.py",
    "pnp": "imaging/pnp.py",
    "preconditioner": "imaging/preconditioner.py",
    "problem": "problem.py",
    "projector": "operators/radon/projector.py",
    "protocol": "protocol.py",
    "proxes": "proxes/penalties.py",
    "published kernel": "learn/_kernels/published.py",
    "rtk": "interop/rtk.py",
    "radon bins": "operators/radon/bins.py",
    "radon kernels": "operators/radon/kernels.py",
    "radon torch": "operators/radon/generic.py",
    "radon transpose": "operators/radon/transpose.py",
    "radon": "operators/radon/parallel.py",
    "red": "imaging/red.py",
    "ridge kernels": "denoisers/ridge_kernels.py",
    "ridge": "denoisers/ridge.py",
    "running": "running.py",
    "sampling": "sampling.py",
    "scan": "io/scan.py",
    "schedules": "schedules.py",
    "simulation": "imaging/simulation.py",
    "finished": "imaging/finished.py",
    "volumes": "imaging/volumes.py",
    "workers": "workers.py",
    "solver": "solver.py",
    "theory": "theory/theorems.py",
    "theory check": "theory/checking.py",
    "theory numbers": "theory/measuring.py",
    "theory presets": "theory/presets.py",
    "tomography": "losses/tomography.py",
    "tuning": "tuning.py",
    "tv": "proxes/total_variation.py",
    "tv kernels": "proxes/total_variation_kernels.py",
    "xsteps": "xsteps.py",
    "ysteps": "ysteps.py",
}


@dataclass(frozen=True)
class Mutant:
    """In a file below src, `text` becomes `replacement`; one of the tests must fail."""

    name: str
    file: Path
    text: str
    replacement: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The source with the error in it."""
        found = source.count(self.text)
        if found != 1:
            raise ValueError(
                f"{self.text!r} occurs {found} times in {self.file}, not once; bring {LIST.name} up to date"
            )
        return source.replace(self.text, self.replacement)


def read_mutants() -> list[Mutant]:
    """The mutants of mutants.txt."""
    mutants = []
    for block in LIST.read_text().strip().split("\n\n"):
        if block.startswith("#"):
            continue
        name, tests, *lines = block.split("\n")
        text, replacement = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        ids = tuple("tests/test_" + test.replace("::", ".py::") for test in tests.removeprefix("by ").split())
        mutants.append(Mutant(name, Path("smadmm", FILES[name.split(":")[0]]), text, replacement, ids))
    return mutants


def run_tests(source: Path, tests: tuple[str, ...], numba_cache: Path) -> subprocess.CompletedProcess[str]:
    """pytest with the package that lies in `source`; nothing is written outside of temporary folders."""
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",  # two changes within a second would share their bytecode
        "NUMBA_CACHE_DIR": str(numba_cache),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)


def judge(mutant: Mutant, place: Path) -> str:
    """Killed, survived, or what went wrong; the copy of src in `place` is as before afterwards."""
    file = place / "src" / mutant.file
    original = file.read_text()
    # a changed kernel is compiled with all its callers, which a common cache would not notice
    kernels = re.search("njit|@compiled|@inlined|@intrinsic", original)
    cache = Path(tempfile.mkdtemp(dir=place)) if kernels else place / "numba"
    try:
        file.write_text(mutant.applied(original))
        done = run_tests(place / "src", mutant.tests, cache)
    except (ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        file.write_text(original)
    # 1: a test failed; others, as 2 (no import) and 4 (no such test), judge nothing
    return {0: "survived", 1: "killed"}.get(done.returncode, done.stdout + done.stderr)


def judge_all(mutants: list[Mutant], jobs: int) -> Counter[str]:
    """How many were killed, how many survived; tells of every one that was not killed."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        places: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            shutil.copytree(
                ROOT / "src", Path(folder, str(number), "src"), ignore=shutil.ignore_patterns("__pycache__")
            )
            places.put(Path(folder, str(number)))

        def in_some_place(mutant: Mutant | None) -> str:
            place = places.get()
            try:
                if mutant is not None:
                    return judge(mutant, place)
                tests = tuple(dict.fromkeys(test for m in mutants for test in m.tests))
                done = run_tests(place / "src", tests, place / "numba")
                return "passed" if done.returncode == 0 else done.stdout + done.stderr
            finally:
                places.put(place)

        waiting = {pool.submit(in_some_place, mutant): mutant for mutant in (None, *mutants)}
        for future in as_completed(waiting):
            mutant, verdict = waiting[future], future.result()
            counts[verdict] += 1
            if verdict not in ("killed", "passed"):
                print(f"{mutant.name if mutant else 'unchanged'}: {verdict}", flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants judged at the same time (default 2)")
    options = parser.parse_args()
    mutants = [m for m in read_mutants() if not options.words or any(word in m.name for word in options.words)]
    if not mutants or options.jobs < 1:
        parser.error("give words that occur in names of mutants, and at least one job")
    counts = judge_all(mutants, options.jobs)
    print(f"{len(mutants)} mutants, {counts['killed']} killed, {counts['survived']} survived")
    return 0 if counts["killed"] == len(mutants) and counts["passed"] == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
