"""Faults on purpose: whatever happens to a run, its folder holds the old result or the new one, and it can go on.

    python tests/torture/faults.py [--minutes 10] [--case NAME ...] [--out docs/results/torture]

Every case runs in forks of this process, which has all libraries loaded: a trial takes a fraction of a second. A small
library (faults.c, compiled here) kills the process at its n-th operation on files below the folder, or lets that
operation fail. After each fault, in this order:

    the answer is the old one, the new one or, where there was none, none; an error is one sentence and exit code 2
    unless the process was killed, no hidden file is left
    the same command with --resume ends well, its answer is that of a run that was never disturbed, bit for bit, and
    the folder holds the same files

The log (a line per trial) is kept between calls: trials that passed are not repeated, random ones get new seeds.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import faulthandler
import fcntl
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRITE, SYNC, RENAME, MAKE, REMOVE = 1, 2, 4, 8, 16
PATIENCE = 120.0  # seconds, after which a run hangs

Answer = Callable[[Path], str | None]
Words = Callable[[Path, str], list[str]]


@dataclass(frozen=True)
class Case:
    """What is run in a folder: a first time, over an old result, or again after a fault; its answer as a text."""

    run: Callable[[Path, str], None]  # how: "first", "other" (another answer), "over" or "again"
    answer: Answer
    warm: bool = True  # it may run in the parent first; not with threads or backward(), which forks do not survive
    replaces: bool = True  # it can replace an old result; else that is refused, and removed by hand
    words: Words | None = None  # of the command line, if it is a command


# --- new commands join here, a line each ------------------------------------------------------------------------------


def cases() -> dict[str, Case]:
    ct = "reconstruct {data}/volume.npz --raw --iterations 3 --quiet"
    masks = "retrieve {data}/picture.npy --masks 4 --iterations 3 --quiet"
    rows = "classify {data}/rows.txt --graph chain --quiet"
    return {
        "run": Case(run_solver, state_of_checkpoint, replaces=False),
        "reconstruct": command(f"{ct} --prior tv", array("image.npy"), "--strength 2"),
        "reconstruct, learned prior": command(f"{ct} --prior ridge-ct --batch 4", array("image.npy"), "--seed 1"),
        "reconstruct --workers": command(
            f"{ct} --prior tv --workers 2", array("image.npy"), "--strength 2", warm=False
        ),
        "reconstruct --follow": command(
            f"{ct} --prior tv --follow --every 12".replace("volume.npz", "scan.h5"), array("image.npy"), "--strength 2"
        ),
        "reconstruct, two ranks": Case(two_ranks, array("image.npy"), warm=False),
        "retrieve": command(masks, array("image.npy"), "--seed 1"),
        "classify": command(rows, array("model.npz"), "--alpha 0.1", resume=None),
        "classify --stream": command(f"{rows} --stream", array("model.npz"), "--alpha 0.1", resume="unfinished.npz"),
        "train-denoiser": Case(train, array("weights.safetensors"), warm=False, replaces=False, words=training),
        "reproduce": Case(reproduce_experiment, rows_of_results),
    }


# ----------------------------------------------------------------------------------------------------------------------


def main_of(words: list[str]) -> None:
    """The command line in this process."""
    from smadmm.__main__ import main

    sys.argv = ["smadmm", *words]
    main()


def command(text: str, answer: Answer, other: str, resume: str | None = "", warm: bool = True) -> Case:
    """A command with --out, --overwrite and --resume; with the options `other` it has another answer.

    It resumes where the file `resume` is in its folder, never if that is None.
    """

    def words(folder: Path, how: str) -> list[str]:
        found = [*text.format(data=folder.parent / "data").split(), "--out", str(folder)]
        found += other.split() if how == "other" else []
        found += ["--overwrite"] if how in ("over", "again") else []
        goes_on = how == "again" and resume is not None and (folder / resume).exists()
        return found + (["--resume"] if goes_on else [])

    return Case(lambda folder, how: main_of(words(folder, how)), answer, warm, words=words)


def two_ranks(folder: Path, how: str) -> None:
    """`reconstruct` as torchrun starts it: this process is rank 0, a fork of it rank 1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "SMADMM_TIMEOUT": "20"}
    other = os.fork()
    os.environ["RANK"] = "0" if other else "1"
    words = f"reconstruct {folder.parent}/data/slice.npz --raw --iterations 3 --quiet --prior tv --out {folder}"
    more = {"first": "", "other": " --strength 2", "over": " --overwrite", "again": " --overwrite --resume"}[how]
    try:
        if not other:
            library().prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: torchrun ends the ranks that are left
            os.dup2(os.open(folder.parent / "told-1.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        main_of((words + more).split())
    finally:
        if not other:
            os._exit(0)
        os.waitpid(other, 0)


def array(name: str) -> Answer:
    """The bytes of a file; of an archive those of its arrays."""

    def answer(folder: Path) -> str | None:
        import numpy as np

        path = folder / name
        if not path.exists():
            return None
        if path.suffix == ".safetensors":
            return hashlib.sha256(path.read_bytes()).hexdigest()
        with path.open("rb") as file:
            found = np.load(file)
            arrays = [found] if path.suffix == ".npy" else [found[key] for key in sorted(found.files)]
            return hashlib.sha256(b"".join(part.tobytes() for part in arrays)).hexdigest()

    return answer


def run_solver(folder: Path, how: str) -> None:
    """smadmm.run with a checkpoint."""
    import torch

    from smadmm import ADMM, Problem, Stop, Storm, run
    from smadmm.losses import Logistic
    from smadmm.proxes import L1

    X = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    problem = Problem(Logistic(X, torch.sign(X[:, 0])), L1(0.01))
    solver = ADMM(problem, Storm(4, 0.3, 8), rho=0.1, eta=1.0, seed=int(how == "other"))
    path = folder / "checkpoint"
    try:
        run(solver, torch.zeros(5), Stop(iterations=8), every=2, checkpoint=path, checkpoint_iterations=3,
            resume=how == "again", progress=False)  # fmt: skip
    except (ValueError, OSError) as error:  # what a script of a user would see
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def state_of_checkpoint(folder: Path) -> str | None:
    from smadmm import checkpoint

    path = folder / "checkpoint"
    if not path.exists():
        return None
    state, extra = checkpoint.load(path)
    if state.k < 8:
        return None  # not finished
    history = {name: values for name, values in extra["history"].items() if name != "seconds"}
    return repr((state.x.numpy().tobytes(), state.est.v.numpy().tobytes(), history))


def train(folder: Path, how: str) -> None:
    finished = (folder / "weights.safetensors").exists() and not (folder / "weights.checkpoint").exists()
    try:
        main_of(training(folder, how))
    except SystemExit as error:
        if not (how == "again" and finished and error.code == 2):  # refused, it removes a lock without owner
            raise


def training(folder: Path, how: str) -> list[str]:
    words = f"train-denoiser {folder.parent}/data/pictures --arch ridge --steps 3 --filters 3 --size 5 --patch 16"
    words += f" --batch 2 --quiet --out {folder / 'weights'} --seed {int(how == 'other')}"
    return words.split() + (["--resume"] if (folder / "weights.checkpoint").exists() else [])


@dataclass(frozen=True)
class Job:
    name: str
    seed: int
    sees: tuple[str, ...] = ()


def work(job: Job, data: str | None) -> dict[str, float]:
    return {"value": random.Random(job.seed).random()}


def reproduce_experiment(folder: Path, how: str) -> None:
    """The machinery of `smadmm reproduce` with jobs that cost nothing."""
    from smadmm.paper.command import _resumable, _run_one
    from smadmm.paper.experiment import Experiment, Request

    def jobs(request: Request) -> list[Job]:
        return [Job(f"job-{n}", n + 10 * request.seed) for n in range(2)]

    experiment = Experiment(
        "small", "small", "A small one.", jobs=jobs, work=work,
        rows=lambda jobs, results: [{"name": job.name, "value": results[job.name]["value"]} for job in jobs],
        chapter=lambda found: [f"{len(found.rows)} rows"],
    )  # fmt: skip
    import typer

    try:
        with _resumable(str(folder)):
            _run_one(experiment, Request(folder, seed=int(how == "other"), processes=0, progress=False))
    except typer.Exit as error:
        raise SystemExit(error.exit_code) from None
    except (ValueError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def rows_of_results(folder: Path) -> str | None:
    path = folder / "results.json"
    return repr(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else None


def make_data(folder: Path) -> None:
    """What the cases read."""
    import h5py
    import numpy as np
    import torch
    from PIL import Image

    from smadmm.operators import Radon

    folder.mkdir()
    rng = np.random.default_rng(0)
    x = torch.zeros(2, 16, 16)
    x[:, 4:12, 5:11] = 1
    x[1, 6:9, 6:9] = 0.5
    A = Radon((16, 16), np.linspace(0, np.pi, 24, endpoint=False))
    sinograms = np.stack([A(part).numpy() for part in x])
    noise = 0.01 * rng.standard_normal(sinograms.shape)
    values, degrees = (sinograms + noise).astype("f4"), np.arange(24) * 7.5
    np.savez(folder / "volume.npz", sinogram=values, angles=degrees)
    np.savez(folder / "slice.npz", sinogram=values[1], angles=degrees)
    with h5py.File(folder / "scan.h5", "w") as file:
        file["data"], file["angles"] = np.moveaxis(values, 0, 1), degrees
    np.save(folder / "picture.npy", np.asarray(x[1], dtype=np.float32))
    X = rng.standard_normal((60, 5))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(60) > 0, "+1", "-1")
    (folder / "rows.txt").write_text(
        "".join(f"{a} {' '.join(f'{j + 1}:{v:.6f}' for j, v in enumerate(row))}\n" for a, row in zip(y, X)),
        encoding="utf-8",
    )
    (folder / "pictures").mkdir()
    for number in range(6):
        values = (255 * rng.random((24, 24))).astype(np.uint8)
        Image.fromarray(values).save(folder / "pictures" / f"{number}.png")


# --- one run in a child -----------------------------------------------------------------------------------------------


def library() -> Any:
    """faults.c in this process, which was started with it."""
    return ctypes.CDLL(None)


def start(case: Case, folder: Path, how: str, fault: tuple[int, int, int, bool] | None = None) -> int:
    """Run a case in a fork; its process id. fault: kinds of operations, which one, the error (0: die), for ever."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        told = os.open(folder.parent / "told.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        faulthandler.register(signal.SIGUSR1, file=2)  # where it hangs, if it does
        if fault is not None:
            kinds, number, with_error, lasting = fault
            library().arm(str(folder).encode(), kinds, ctypes.c_long(number), with_error, int(lasting))
        case.run(folder, how)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child: its exit code, or minus the signal that ended it. What this process does is counted no more."""
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            library().disarm()
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    stacks = "".join(where_it_is(each) for each in family(child))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"hangs for more than {PATIENCE:g} s: {stacks}")


def family(child: int) -> list[int]:
    """A process and its descendants."""
    with suppress(OSError):
        below = Path(f"/proc/{child}/task/{child}/children").read_text(encoding="ascii").split()
        return [child, *(each for name in below for each in family(int(name)))]
    return []


def where_it_is(process: int) -> str:
    """The stacks of a process; those started anew (workers) would die of the signal, and have none to tell."""
    try:
        told = Path(f"/proc/{process}/fd/2").resolve()
        before = told.stat().st_size
        if not told.name.startswith("told") or "faults" not in Path(f"/proc/{process}/cmdline").read_text():
            return ""
        os.kill(process, signal.SIGUSR1)
        time.sleep(0.5)
        return f"process {process}: {told.read_bytes()[before:].decode(errors='replace')}"
    except OSError as error:
        return f"process {process}: {error}"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@dataclass
class Bench:
    """A folder of its own for a case: its data, and what undisturbed runs leave."""

    case: Case
    place: Path

    def __post_init__(self) -> None:
        self.folder = self.place / "out"
        if not (self.place / "data").exists():
            make_data(self.place / "data")
        self.old, _ = self.undisturbed("other")
        shutil.copytree(self.folder, self.place / "old")
        begin = time.monotonic()
        self.new, self.operations = self.undisturbed("first")
        self.seconds = time.monotonic() - begin
        self.left = files(self.folder)
        assert self.new is not None and self.old != self.new, "a case needs another answer with another seed"

    def undisturbed(self, how: str) -> tuple[str | None, int]:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        code = ended(start(self.case, self.folder, how, (31, 0, 0, False)))
        operations = int(library().counted())
        assert code == 0, f"a run without fault ended with {code}: {self.told()}"
        return self.case.answer(self.folder), operations

    def told(self) -> str:
        return (self.place / "told.txt").read_text(encoding="utf-8", errors="replace")[-2000:]

    def begin(self, over: bool) -> str:
        """A new folder, empty or with an old result; how to run there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if over and self.case.replaces:
            shutil.copytree(self.place / "old", self.folder)
            return "over"
        self.folder.mkdir()
        return "first"

    def check(self, code: int, killed: bool, over: bool) -> None:
        """After a fault: what is there, and that it goes on to the answer of an undisturbed run."""
        told = self.told()
        assert killed or "Traceback" not in told, f"traceback: {told}"
        assert killed or code in (0, 2, 130, 143, -15), f"exit code {code}: {told}"
        found = self.case.answer(self.folder) if self.folder.exists() else None
        assert found in (self.new, self.old if over and self.case.replaces else None), (
            "neither the old nor the new answer"
        )
        assert code != 0 or found == self.new, "ended well with another answer"
        hidden = [name for name in files(self.folder) if Path(name).name.startswith(".")]
        assert killed or code == -15 or not hidden, f"stray files after exit {code}: {hidden}"
        self.folder.mkdir(exist_ok=True)
        code = ended(start(self.case, self.folder, "again"))
        assert code == 0, f"does not go on, exit {code}: {self.told()}"
        assert self.case.answer(self.folder) == self.new, "resumed, it gives another answer"
        assert files(self.folder) == self.left, f"other files: {sorted(files(self.folder) ^ self.left)}"


# --- faults: each a function of a bench and a number ------------------------------------------------------------------


def killed_at(bench: Bench, number: int, over: bool) -> None:
    how = bench.begin(over)
    code = ended(start(bench.case, bench.folder, how, (31, number, 0, False)))
    bench.check(code, code == -signal.SIGKILL, over)


def killed_some_time(bench: Bench, seed: int) -> None:
    moment = random.Random(seed)
    over = moment.random() < 0.3
    how = bench.begin(over)
    child = start(bench.case, bench.folder, how)
    time.sleep(moment.random() * 1.1 * bench.seconds)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    code = ended(child)
    bench.check(code, code == -signal.SIGKILL, over)


def failing_at(bench: Bench, number: int, over: bool, with_error: int, lasting: bool) -> None:
    how = bench.begin(over)
    code = ended(start(bench.case, bench.folder, how, (WRITE | SYNC | RENAME | MAKE, number, with_error, lasting)))
    bench.check(code, False, over)


def terminated_twice(bench: Bench, seed: int) -> None:
    moment = random.Random(seed)
    how = bench.begin(False)
    child = start(bench.case, bench.folder, how)
    time.sleep(moment.random() * bench.seconds)
    for _ in range(2):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        time.sleep(moment.random() * 0.03)
    bench.check(ended(child), False, False)


def folder_removed(bench: Bench, seed: int) -> None:
    moment = random.Random(seed)
    how = bench.begin(False)
    child = start(bench.case, bench.folder, how)
    time.sleep(moment.random() * bench.seconds)
    shutil.rmtree(bench.folder, ignore_errors=True)
    code, told = ended(child), bench.told()
    assert "Traceback" not in told and code in (0, 2), f"exit code {code}: {told}"
    shutil.rmtree(bench.folder, ignore_errors=True)
    bench.folder.mkdir()
    bench.check(2, False, False)


def two_runs(bench: Bench, seed: int) -> None:
    """The second is refused at once, and the first does not notice; commands are also started as users do."""
    first = stopped_with_lock(bench)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if bench.case.words is None or seed % 2:
        code, told = ended(start(bench.case, bench.folder, "again")), bench.told()
    else:
        command = [sys.executable, "-m", "smadmm", *bench.case.words(bench.folder, "again")]
        done = subprocess.run(command, capture_output=True, text=True)
        code, told = done.returncode, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # the clock shows others' work, too
    os.kill(first, signal.SIGCONT)
    done = ended(first)
    assert code == 2 and "being written by another run" in told, f"the second ended with {code}: {told}"
    assert seconds < 1, f"refused after {seconds:.1f} s"
    bench.check(done, False, False)
    assert done == 0


def stopped_with_lock(bench: Bench) -> int:
    """A run that is stopped (SIGSTOP) while it holds its lock."""
    marks = [bench.folder / ".lock", bench.folder / ".checkpoint.lock", bench.folder / ".weights.safetensors.lock"]
    for _ in range(50):
        first = start(bench.case, bench.folder, bench.begin(False))
        while not (found := [mark for mark in marks if mark.exists()]) and os.waitpid(first, os.WNOHANG)[0] == 0:
            pass
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(first, signal.SIGSTOP)
            if os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1]):
                if any(is_locked(mark) for mark in found):  # not between making the file and locking it
                    return first
                os.kill(first, signal.SIGKILL)
                os.waitpid(first, 0)
    raise AssertionError("its lock was never seen")


def is_locked(mark: Path) -> bool:
    with suppress(FileNotFoundError), mark.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def disk_full(bench: Bench, size: int) -> None:
    """A file system of `size` KiB."""
    shutil.rmtree(bench.folder, ignore_errors=True)
    bench.folder.mkdir()
    with small_disk(bench.folder, size):
        code, told = ended(start(bench.case, bench.folder, "first")), bench.told()
        assert "Traceback" not in told and code in (0, 2), f"exit code {code}: {told}"
        found = bench.case.answer(bench.folder)
        assert found == bench.new if code == 0 else found in (None, bench.new)
        hidden = [name for name in files(bench.folder) if Path(name).name.startswith(".")]
        assert not hidden, f"stray files: {hidden}"


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), 16):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


KILLED, FULL, FAILED = (
    "kill -9 at the n-th operation",
    "no space from the n-th operation on",
    "n-th operation fails (EIO)",
)
OVER = ", over an old result"
AT_THE_NTH = [fault + more for fault in (KILLED, FULL, FAILED) for more in ("", OVER)]


def trials(bench: Bench, repeats: int, known: int) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Fault, number or seed, and what to do; `known` random trials were done before."""
    starts = {"": False, OVER: True} if bench.case.replaces else {"": False}
    for number in range(1, bench.operations + 1):
        for more, over in starts.items():
            yield KILLED + more, number, lambda n=number, o=over: killed_at(bench, n, o)
            yield FULL + more, number, lambda n=number, o=over: failing_at(bench, n, o, errno.ENOSPC, True)
            yield FAILED + more, number, lambda n=number, o=over: failing_at(bench, n, o, errno.EIO, False)
    if can_mount():
        for size in (4, 8, 12, 16, 24, 32, 48, 64, 96, 128):
            yield "disk full", size, lambda n=size: disk_full(bench, n)
    for seed in range(known + repeats):
        yield "kill -9 at a random moment", seed, lambda n=seed: killed_some_time(bench, n)
        if seed % 5 == 0:
            yield "SIGTERM twice", seed, lambda n=seed: terminated_twice(bench, n)
            yield "folder removed", seed, lambda n=seed: folder_removed(bench, n)
            yield "two runs", seed, lambda n=seed: two_runs(bench, n)


# --- the whole --------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Libraries for the children; no figures, no key of the code (seconds), and checkpoints every few iterations."""
    import torch._dynamo  # noqa: F401  Adam loads it

    import smadmm.__main__  # noqa: F401
    from smadmm import running
    from smadmm.cli import classify_stream
    from smadmm.denoisers.training import loop
    from smadmm.io import row_stream
    from smadmm.learn import classifier  # noqa: F401
    from smadmm.paper import jobs, reproducing

    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    loop.SAVE_EVERY = classify_stream.SAVE_EVERY = 0.0
    row_stream.LabelledLines.__init__.__defaults__ = (16,)  # rows of a chunk
    jobs.code_key = reproducing.code_key = lambda *functions: "the code does not change here"
    workers_that_are_loaded()
    running._Saver.due = lambda self, k: self.path is not None and k % (self.iterations or 2) == 0  # type: ignore[method-assign]


def workers_that_are_loaded() -> None:
    """Workers are forks of one server that has the library, not processes that import it: seconds each."""
    from multiprocessing import forkserver, get_context

    from smadmm import workers

    server = get_context("forkserver")
    server.set_forkserver_preload(["smadmm.imaging.volumes"])
    forkserver.ensure_running()
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]  # it is not theirs to look after
    workers.multiprocessing.get_context = lambda kind: server  # type: ignore[assignment]


def warm(names: list[str]) -> None:
    """Run what can be run in this process, for the children inherit what it loads and compiles."""
    with tempfile.TemporaryDirectory() as place, open(os.devnull, "w", encoding="utf-8", newline="") as nowhere:
        make_data(Path(place) / "data")
        for number, name in enumerate(names):
            if cases()[name].warm:
                (Path(place) / str(number)).mkdir()
                with redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(SystemExit):
                    cases()[name].run(Path(place) / str(number), "first")


def preloaded() -> None:
    """Start this script anew with the library of faults, unless that was done."""
    if hasattr(library(), "arm"):
        return
    target = Path(tempfile.mkdtemp(prefix="smadmm-faults-")) / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", target, HERE / "faults.c", "-ldl"], check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(target),
        "SMADMM_FAULTS": str(target.with_name("armed")),
        "OMP_NUM_THREADS": "1",
        "MKL_DISABLE_FAST_MM": "1",  # tests/conftest.py says why
        "CUDA_VISIBLE_DEVICES": "",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def table(outcomes: dict[tuple[str, str, int], str], operations: dict[str, int]) -> str:
    """Fault, trials, failures; at how many operations of a case each fault was tried; the failures one by one."""
    lines = ["| fault | case | trials | failures |", "|---|---|---:|---:|"]
    for fault, case in sorted({key[:2] for key in outcomes}):
        found = [text for key, text in outcomes.items() if key[:2] == (fault, case)]
        lines.append(f"| {fault} | {case} | {len(found)} | {sum(bool(text) for text in found)} |")
    bad = [f"- {fault}, {case}, {number}: {' '.join(text.split())[:300]}"
           for (fault, case, number), text in sorted(outcomes.items()) if text]  # fmt: skip
    total = f"| all | all | {len(outcomes)} | {len(bad)} |"
    tried = ["| case | operations | " + " | ".join(AT_THE_NTH) + " |", "|---|---:|" + "---:|" * len(AT_THE_NTH)]
    for case, count in operations.items():
        numbers = [sum((fault, case, n) in outcomes for n in range(1, count + 1)) for fault in AT_THE_NTH]
        tried.append(f"| {case} | {count} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join([*lines, total, "", "At how many operations on files:", "", *tried, "", *bad]) + "\n"


def read_log(path: Path) -> dict[tuple[str, str, int], str]:
    """The last outcome of every trial: why it failed, or nothing."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(line["fault"], line["case"], line["number"]): line["failure"] for line in lines}


def torture(names: list[str], log: Path, seconds: float, repeats: int = 100, most: int | None = None) -> Any:
    """All trials that have not passed yet, until the time is over.

    The outcomes of this and earlier calls, and how many operations on files a case has.
    """
    outcomes, begin, done = read_log(log), time.monotonic(), 0
    warm(names)
    with tempfile.TemporaryDirectory() as place, log.open("a", encoding="utf-8", newline="\n") as file:
        benches, operations = [], {}
        for number, name in enumerate(names):
            folder = Path(place).resolve() / str(number)
            folder.mkdir()
            bench = Bench(cases()[name], folder)
            known = sum(key[:2] == ("kill -9 at a random moment", name) for key in outcomes)
            benches.append((name, list(trials(bench, repeats, known))))
            operations[name] = bench.operations
        waiting = [(name, *trial) for name, some in benches for trial in some]
        random.Random(len(outcomes)).shuffle(waiting)
        waiting.sort(key=lambda trial: not outcomes.get((trial[1], trial[0], trial[2])))  # those that failed first
        for name, fault, number, attempt in waiting:
            if time.monotonic() - begin > seconds or done == most:
                break
            if outcomes.get((fault, name, number)) == "":
                continue
            try:
                attempt()
                failure = ""
            except (AssertionError, OSError, ValueError) as error:
                failure = f"{type(error).__name__}: {error}"
            done += 1
            outcomes[fault, name, number] = failure
            file.write(json.dumps({"fault": fault, "case": name, "number": number, "failure": failure}) + "\n")
            file.flush()
    return outcomes, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--case", action="append", help="by default all")
    parser.add_argument("--log", type=Path, default=HERE / "faults.jsonl")
    parser.add_argument("--repeats", type=int, default=100, help="random trials per case and call")
    parser.add_argument("--most", type=int, help="at most so many trials")
    parser.add_argument("--out", type=Path, help="folder for faults.md")
    options = parser.parse_args()
    preloaded()
    prepare()
    names = options.case or list(cases())
    outcomes, operations = torture(names, options.log, 60 * options.minutes, options.repeats, options.most)
    text = table(outcomes, operations)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "faults.md").write_text(text, encoding="utf-8", newline="\n")
    sys.exit(any(outcomes.values()))


if __name__ == "__main__":
    main()
