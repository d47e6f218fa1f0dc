"""Readers only refuse: whatever a file holds, the answer is a result or one sentence that names file, reason and cure.

    python tests/torture/readers.py [--inputs 10000] [--target NAME ...] [--minutes 10] [--out docs/results/torture]

A target is a small valid file and the function that reads it. Inputs are made of the file by a seeded mutator: number n
of a target is always the same. They are read in forks of this process with 1.5 GiB of memory to spare; more than 5 s is
a hang. A reader that raises anything but `FileError` (or `ArgumentError`, where a question is open, such as which array
to take), crashes or hangs has failed, and the input belongs into the corpus, which is read first.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"  # TARGET.NUMBER or TARGET.name: inputs that once failed
SPARE = 3 * 2**29  # bytes of memory
LONGEST = 5  # seconds per input
BATCH = 200  # inputs per fork

Read = Callable[[Path], Any]

# --- samples: valid files, small --------------------------------------------------------------------------------------


def sinogram() -> Any:
    import numpy as np

    return np.random.default_rng(0).random((6, 9), dtype=np.float32)


def npy(path: Path) -> None:
    import numpy as np

    np.save(path, sinogram())


def npz(path: Path) -> None:
    import numpy as np

    np.savez(path, sinogram=sinogram(), angles=np.arange(6.0) * 30)


def npz_small(path: Path) -> None:
    import numpy as np

    np.savez_compressed(path, sinogram=sinogram(), angles=np.arange(6.0) * 30, flat=np.ones(9))


def hounsfield(path: Path) -> None:
    import numpy as np

    np.savez(path, hu=np.arange(-1000, 1400, 25, dtype=np.int16).reshape(1, 8, 12), patient=np.array(["one"]))


def hdf5(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        group["data"] = (1000 * sinogram()[:, None]).astype("u2")
        group["data_white"], group["data_dark"] = np.full((2, 1, 9), 1000, "u2"), np.zeros((2, 1, 9), "u2")
        group["theta"] = np.arange(6.0) * 30
        group["theta"].attrs["units"] = "deg"
        file["link"] = h5py.SoftLink("/exchange/data")


def nexus(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        frames = np.concatenate([np.full((1, 2, 9), 1000, "u2"), (900 * sinogram()[:, None].repeat(2, 1)).astype("u2")])
        file["entry/instrument/detector/data"] = frames
        file["entry/instrument/detector/image_key"] = np.array([1, 0, 0, 0, 0, 0, 0])
        file["entry/sample/rotation_angle"] = np.arange(7.0) * 30
        file["entry/sample/rotation_angle"].attrs["units"] = "degree"
        file["entry/definition"] = "NXtomo"


def compressed_hdf5(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        file.create_dataset(
            "sinogram", data=sinogram(), chunks=(3, 9), compression="gzip", shuffle=True, fletcher32=True
        )
        file["angles"] = np.arange(6.0) * 30


def tiff(path: Path) -> None:
    import tifffile

    tifffile.imwrite(path, sinogram())


def tiff_packed(path: Path) -> None:
    import tifffile

    tifffile.imwrite(path, (255 * sinogram()).astype("u1"), compression="zlib")


def dicom(path: Path, modality: str = "CT") -> None:
    import numpy as np
    import pydicom

    data = pydicom.Dataset()
    data.SOPClassUID, data.SOPInstanceUID, data.SeriesInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3", "1.2.4"
    data.Modality, data.PatientID, data.PatientName = modality, "id-17", "Someone^Secret"
    data.Rows, data.Columns, data.SamplesPerPixel, data.PhotometricInterpretation = 8, 12, 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
    data.RescaleSlope, data.RescaleIntercept, data.PixelSpacing = 1, -1000, [0.7, 0.7]
    data.ImageOrientationPatient, data.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 5]
    data.PositionerPrimaryAngle, data.InstanceNumber = 10, 1
    data.PixelData = np.arange(96, dtype="<i2").tobytes()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID, data.file_meta.MediaStorageSOPInstanceUID = data.SOPClassUID, "1.2.3"
    data.save_as(path, enforce_file_format=True)


def projections(path: Path) -> None:
    dicom(path, "XA")


def picture(path: Path) -> None:
    from PIL import Image

    Image.fromarray((255 * sinogram()).astype("u1")).save(path)


def matlab(path: Path) -> None:
    import numpy as np
    import scipy.io

    about = {"type": "2D parallel", "distance": 1.0}
    scipy.io.savemat(path, {"sinogram": sinogram(), "angles": np.arange(6.0) * 30, "parameters": about})


def matlab73(path: Path) -> None:
    hdf5(path)


def mrc(path: Path) -> None:
    import mrcfile

    with mrcfile.new(path) as file:
        file.set_data(sinogram()[:, None].repeat(2, 1))
    path.with_suffix(".tlt").write_text("\n".join(str(30 * n) for n in range(6)), encoding="utf-8")


def zarr(path: Path) -> None:
    import numpy as np
    import zarr

    group = zarr.open_group(store=str(path), mode="w")
    group.create_array("sinogram", data=sinogram())
    group.create_array("angles", data=np.arange(6.0) * 30)


def text(content: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(content, encoding="utf-8", newline="\n")

    return make


def packed_text(content: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(gzip.compress(content.encode(), mtime=0))

    return make


def frame(path: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": [1.0, 2.5, 3.0], "word": ["x", "y", "x"], "label": [0, 1, 0]})
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_feather(path)


def angles_npy(path: Path) -> None:
    import numpy as np

    np.save(path, np.arange(6.0) * 30)


def checkpoint(path: Path) -> None:
    import torch

    from smadmm import ADMM, Problem, Stop, Storm, run
    from smadmm.losses import Squared
    from smadmm.proxes import L1

    solver = ADMM(Problem(Squared(torch.eye(3), torch.ones(3)), L1(0.1)), Storm(1, 0.5, 2), rho=1.0, eta=2.0)
    run(solver, torch.zeros(3), Stop(iterations=3), checkpoint=path, progress=False)


def part(path: Path) -> None:
    import numpy as np

    from smadmm.io.files import write_arrays

    write_arrays(path, {"fbp": np.ones((3, 4), np.float32)}, [{"slice": 1}, {"k": [1, 2]}])


def weights(path: Path) -> None:
    import torch

    from smadmm.denoisers.ridge import Ridge
    from smadmm.denoisers.weights import save

    g = Ridge(torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3), 0.1, 0)
    save(g, path, 0.1, g.certificate())


def model(path: Path) -> None:
    import numpy as np

    from smadmm.io.models import save_model
    from smadmm.learn import GraphGuidedClassifier

    X = np.random.default_rng(0).standard_normal((30, 3))
    save_model(path, GraphGuidedClassifier(0.05, graph="chain").fit(X, X[:, 0] > 0))


def patterns(path: Path) -> None:
    import numpy as np

    np.savez(path, amplitudes=np.ones((2, 4, 5), "f4"), masks=np.ones((2, 4, 5), "c8"))


def patterns_hdf5(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        file["amplitudes"], file["masks"] = np.ones((2, 4, 5), "f4"), np.ones((2, 4, 5), "c8")


def ptypy(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        file["meta/energy"], file["meta/distance"], file["meta/psize"] = 6.2, 2.0, [1e-4, 1e-4]
        for number in range(2):
            chunk = file.create_group(f"chunks/{number}")
            chunk["data"], chunk["positions"] = np.ones((2, 4, 4), "f4"), np.arange(4.0).reshape(2, 2) * 1e-6
            chunk["weights"] = np.ones((2, 4, 4), "u1")


def ptypy_probe(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        file["content/probe/S00/data"] = np.ones((1, 4, 4), "c8")


def cxi(path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        detector = file.create_group("entry_1/instrument_1/detector_1")
        detector["distance"], detector["x_pixel_size"], detector["y_pixel_size"] = 2.0, 1e-4, 1e-4
        detector["data"], detector["mask"] = np.ones((3, 4, 4), "f4"), np.zeros((4, 4), "u4")
        file["entry_1/data_1/data"] = h5py.SoftLink("/entry_1/instrument_1/detector_1/data")
        file["entry_1/instrument_1/source_1/energy"] = 1e-15
        file["entry_1/sample_1/geometry_1/translation"] = np.arange(9.0).reshape(3, 3) * 1e-6
        file["entry_1/instrument_1/source_1/illumination"] = np.ones((1, 4, 4), "c8")


RESULTS = json.dumps({
    "experiment": "ct-180", "command": "smadmm reproduce ct-180", "version": "1", "code": "k", "quick": True, "seed": 0,
    "size": None, "seconds": 1.0, "environment": {"cpu": "x"}, "rows": [{"a": 1.0}],
    "report": ["text", {"kind": "heading", "text": "one", "level": 2},
               {"kind": "verdict", "claim": "c", "outcome": "holds", "because": "b"},
               {"kind": "table", "caption": "t", "columns": ["a", "b"], "rows": [["x", {"ours": 1.0, "paper": 2.0}]]}],
}, indent=1)  # fmt: skip

# --- how they are read ------------------------------------------------------------------------------------------------


def read_scan(path: Path) -> None:
    from smadmm.io.sinogram import read_sinogram

    scan = read_sinogram(path, None if path.suffix not in (".npy", ".tif", ".dcm") else "0:180")
    for number in range(min(len(scan), 3)):
        scan[number][:]


def read_image(path: Path) -> None:
    from smadmm.io.images import read_slices

    slices = read_slices(path)
    for number in range(min(len(slices), 3)):
        slices[number]


def read_training_images(path: Path) -> None:
    from smadmm.io.images import read_images

    read_images([path])


def read_angle_file(path: Path) -> None:
    from smadmm.io.angles import in_degrees, read_angles

    in_degrees(*read_angles(str(path), 6))


def read_rows(path: Path) -> None:
    from smadmm.cli.classify import load_rows

    load_rows(str(path), None, None, "label", True)


def read_edges(path: Path) -> None:
    from smadmm.cli.classify import _graph

    _graph(str(path))


def read_checkpoint(path: Path) -> None:
    from smadmm import checkpoint

    checkpoint.load(path)


def read_checkpoint_with_checksum(path: Path) -> None:
    """As if the one who damaged it had made the checksum right again."""
    import hashlib

    from smadmm.checkpoint import HEADER

    data = path.read_bytes()[HEADER.size :]
    start = struct.pack("<8sIQ32s", b"SMADMM\r\n", 1, len(data), hashlib.sha256(data).digest())
    path.write_bytes(start + data)
    read_checkpoint(path)


def read_part(path: Path) -> None:
    from smadmm.io.files import read_arrays

    read_arrays(path)


def read_weights(path: Path) -> None:
    from smadmm.denoisers.weights import load

    load(path)


def read_card(path: Path) -> None:
    from unittest.mock import patch

    from smadmm.denoisers import weights

    path.with_suffix(".safetensors").touch()
    with patch.object(weights, "SHIPPED", path.parent):
        weights.card(path.stem)


def read_model(path: Path) -> None:
    import numpy as np

    from smadmm.io.models import load_model

    load_model(path).predict_proba(np.zeros((1, 3)))


def read_diffraction(path: Path) -> None:
    import numpy as np

    from smadmm.io.patterns import is_patterns, read_patterns

    if is_patterns(path):
        found = read_patterns(path)
        for name in ("patterns", "masks", "probe"):
            np.asarray(found.get(name))


def read_ptypy(path: Path) -> None:
    """A scan without its probe, which is in a file of its own."""
    from smadmm.io.patterns import _content

    _content(path, None)["intensities"]


def read_probe_file(path: Path) -> None:
    from smadmm.io.patterns import read_probe

    read_probe(path)


def read_results(path: Path) -> None:
    from smadmm.paper.index import index

    folder = path.parent / "index" / "ct-180"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / "results.json")
    index(folder.parent).write(folder.parent / "index.html")


LIBSVM = "+1 1:0.5 3:1\n-1 2:0.25 3:-1e3\n+1 1:1 2:2 # comment\n"
CSV = "a,word,label\n1.0,x,0\n2.5,y,1\n,x,0\n"
ARFF = "@relation r\n@attribute a numeric\n@attribute word {x,y}\n@attribute label {0,1}\n@data\n1.0,x,0\n2.5,y,1\n"
MDOC = "RotationAngle = 0.0\n" + "".join(f"[ZValue = {n}]\nTiltAngle = {30 * n}\n" for n in range(6))

# --- new readers join here, a line each: the name (with the ending of the file), a sample, how it is read, libraries --

TARGETS: dict[str, tuple[Callable[[Path], None], Read, str]] = {
    "array.npy": (npy, read_scan, ""),
    "archive.npz": (npz, read_scan, ""),
    "compressed.npz": (npz_small, read_scan, ""),
    "slices.npz": (hounsfield, read_image, ""),
    "training.npz": (hounsfield, read_training_images, ""),
    "exchange.h5": (hdf5, read_scan, "h5py"),
    "tomo.nxs": (nexus, read_scan, "h5py"),
    "filtered.h5": (compressed_hdf5, read_scan, "h5py"),
    "stack.tif": (tiff, read_scan, "tifffile"),
    "packed.tif": (tiff_packed, read_image, "tifffile"),
    "slice.dcm": (dicom, read_image, "pydicom"),
    "view.dcm": (projections, read_scan, "pydicom"),
    "picture.png": (picture, read_image, "PIL"),
    "picture.jpg": (picture, read_image, "PIL"),
    "five.mat": (matlab, read_scan, "scipy"),
    "seven.mat": (matlab73, read_scan, "h5py"),
    "tilt.mrc": (mrc, read_scan, "mrcfile"),
    "store.zarr": (zarr, read_scan, "zarr"),
    "rows.txt": (text(LIBSVM), read_rows, "sklearn"),
    "rows.gz": (packed_text(LIBSVM), read_rows, "sklearn"),
    "table.csv": (text(CSV), read_rows, "pandas"),
    "table.tsv": (text(CSV.replace(",", "\t")), read_rows, "pandas"),
    "table.arff": (text(ARFF), read_rows, "pandas"),
    "table.parquet": (frame, read_rows, "pyarrow"),
    "table.feather": (frame, read_rows, "pyarrow"),
    "angles.txt": (text("0, 30.5; 60\n90 120 1.5e2\n"), read_angle_file, ""),
    "angles.npy": (angles_npy, read_angle_file, ""),
    "edges.txt": (text("0 1\n1 2 # a comment\n\n2 3\n"), read_edges, "typer"),
    "run.checkpoint": (checkpoint, read_checkpoint, ""),
    "forged.checkpoint": (checkpoint, read_checkpoint_with_checksum, ""),
    "unfinished.npz": (part, read_part, ""),
    "weights.safetensors": (weights, read_weights, "safetensors"),
    "card.json": (text(json.dumps({"command": "c", "seed": 0, "test": {"measured": 0.9}})), read_card, ""),
    "model.npz": (model, read_model, "sklearn"),
    "patterns.npz": (patterns, read_diffraction, ""),
    "patterns.h5": (patterns_hdf5, read_diffraction, "h5py"),
    "scan.ptyd": (ptypy, read_ptypy, "h5py"),
    "probe.ptyr": (ptypy_probe, read_probe_file, "h5py"),
    "scan.cxi": (cxi, read_diffraction, "h5py"),
    "results.json": (text(RESULTS), read_results, "typer"),
}
TENTH = ("exchange.h5", "tomo.nxs", "filtered.h5", "seven.mat", "slice.dcm", "view.dcm", "table.parquet",
         "table.feather", "patterns.h5", "scan.ptyd", "probe.ptyr", "scan.cxi")  # fmt: skip

# --- mutations --------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (b"nan", b"inf", b"-1", b"1e999", b"99999999999999999999", b"{}", b"{0}", b"[", b"]", b'"', b"\0", b"\xff\xfe",
         b"../../etc/passwd", b"null", b"(9999999999,)", b"|O", b"\n", b":", b"%s", b"{angles}", b"-")  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with some damage."""
    content = bytearray(data)
    for _ in range(1 + min(int(rng.expovariate(0.7)), 12)):
        place = rng.randrange(len(content) + 1)
        if rng.random() < 0.35:  # where headers are
            place = min(place, rng.randrange(1 + min(len(content), 256)))
        kind = rng.randrange(9)
        if kind <= 1 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 2 and place < len(content):
            content[place] = rng.randrange(256)
        elif kind == 3:
            number, size = rng.choice(NUMBERS), rng.choice((1, 2, 4, 8))
            number &= 2 ** (8 * size) - 1
            content[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 4:
            del content[place : place + rng.choice((1, 2, 4, 8, 16, 64, 512))]
        elif kind == 5:
            other = rng.randrange(len(content) + 1)
            content[place:place] = content[other : other + rng.choice((1, 4, 16, 64))]
        elif kind == 6:
            other = rng.randrange(len(content) + 1)
            piece = content[other : other + rng.choice((4, 8, 16, 64))]
            content[place : place + len(piece)] = piece
        elif kind == 7:
            word = rng.choice(WORDS)
            content[place : place + rng.choice((0, len(word)))] = word
        elif rng.random() < 0.3:
            del content[place:]
    return bytes(content)


def damage(sample: Path, target: Path, number: int) -> None:
    """Input `number` of a sample; of a folder one file is damaged."""
    rng = random.Random(f"{sample.name} {number}")
    if sample.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(sample, target)
        chosen = rng.choice(sorted(path for path in target.rglob("*") if path.is_file()))
        chosen.write_bytes(mutated(chosen.read_bytes(), rng))
    else:
        target.write_bytes(mutated(sample.read_bytes(), rng))


# --- attempts ---------------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A reader takes too long."""


def _too_long(number: int, stack: Any) -> None:
    raise Hang


def attempt(read: Read, path: Path) -> str:
    """Why reading failed as it must not; nothing where it gave a result or a sentence."""
    from smadmm.arguments import ArgumentError, FileError

    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    faulthandler.dump_traceback_later(2 * LONGEST, exit=True)  # libraries may hang where no signal is heard
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            read(path)
    except FileError as error:
        bad = not error.reason or not error.cure or re.search(r"[\n\r]", error.reason.split("among its arrays")[0])
        return f"no cure or several lines: {error!r}" if bad else ""
    except ArgumentError:
        return ""
    except Hang:
        return f"hangs for more than {LONGEST} s"
    except BaseException as error:
        return (
            "".join(traceback.format_exception(error)[-3:]) if not isinstance(error, KeyboardInterrupt) else "stopped"
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    return ""


def in_a_fork(work: Callable[[int], None]) -> int:
    """Run work(descriptor to write to) with a limit on memory; its answer is read by the caller from the pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return reading
    code = 1
    try:
        os.close(reading)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.signal(signal.SIGALRM, _too_long)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        work(writing)
        code = 0
    finally:
        os._exit(code)


def run_batch(name: str, numbers: list[Any], sample: Path) -> dict[Any, str]:
    """The failures among these inputs (numbers, or files of the corpus)."""
    read = TARGETS[name][1]
    failures: dict[Any, str] = {}
    waiting = list(numbers)
    while waiting:

        def work(pipe: int, some: list[Any] = waiting) -> None:
            with tempfile.TemporaryDirectory(dir=sample.parent) as place:
                for number in some:
                    target = Path(place) / name
                    for beside in sample.parent.glob("*.tlt"):
                        shutil.copy(beside, target.with_suffix(".tlt"))
                    if isinstance(number, Path):
                        shutil.copy(number, target)
                    else:
                        damage(sample, target, number)
                    os.write(pipe, json.dumps(str(number)).encode() + b"\n")
                    if failure := attempt(read, target):
                        os.write(pipe, json.dumps([str(number), failure]).encode() + b"\n")

        pipe = in_a_fork(work)
        with os.fdopen(pipe, "rb") as answers:
            lines = [json.loads(line) for line in answers.read().splitlines()]
        _, status = os.wait()
        failures |= dict(line for line in lines if isinstance(line, list))
        begun = [line for line in lines if isinstance(line, str)]
        if os.waitstatus_to_exitcode(status) == 0:
            break
        code = os.waitstatus_to_exitcode(status)
        failures[begun[-1] if begun else "start"] = f"crashed or hangs in a library, exit {code}"
        waiting = waiting[max(len(begun), 1) :]
    return failures


def available(name: str) -> bool:
    library = TARGETS[name][2]
    return not library or find_spec(library) is not None


def fuzz(name: str, first: int, count: int, deadline: float = float("inf")) -> tuple[int, dict[str, str]]:
    """Inputs first, first + 1, ... of a target, after its corpus: how many were read, and the failures."""
    with tempfile.TemporaryDirectory() as place:
        sample = Path(place) / name
        TARGETS[name][0](sample)
        assert (failure := attempt_sample(name, sample)) == "", f"the sample of {name} is refused: {failure}"
        corpus = sorted(CORPUS.glob(f"{name}.*"))
        failures, done = run_batch(name, corpus, sample) if corpus else {}, 0
        while done < count and time.monotonic() < deadline:
            some = list(range(first + done, first + min(count, done + BATCH)))
            failures |= run_batch(name, some, sample)
            done += len(some)
        return done, failures


def attempt_sample(name: str, sample: Path) -> str:
    """A valid file is read, so that inputs reach what is behind the first check."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = Path(place) / name
        shutil.copytree(sample, copy) if sample.is_dir() else shutil.copy(sample, copy)
        for beside in sample.parent.glob("*.tlt"):
            shutil.copy(beside, copy.with_suffix(".tlt"))
        try:
            TARGETS[name][1](copy)
        except Exception as error:
            return repr(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--inputs", type=int, default=10_000, help="per target and call; a tenth for HDF5, DICOM and Parquet"
    )
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--target", action="append")
    parser.add_argument("--log", type=Path, default=HERE / "readers.json")
    parser.add_argument("--out", type=Path, help="folder for readers.md")
    options = parser.parse_args()
    log = json.loads(options.log.read_text(encoding="utf-8")) if options.log.exists() else {}
    deadline = time.monotonic() + 60 * options.minutes
    for name in options.target or TARGETS:
        if not available(name):
            print(f"{name}: {TARGETS[name][2]} is not installed")
            continue
        entry = log.setdefault(name, {"inputs": 0, "failures": {}})
        repeated = {}
        for number in entry["failures"]:  # those of earlier calls: mended or not
            if number.isdigit():
                repeated |= fuzz(name, int(number), 1)[1]
        count = options.inputs // (10 if name in TENTH else 1)
        done, failures = fuzz(name, entry["inputs"], count, deadline)
        entry["inputs"], entry["failures"] = entry["inputs"] + done, repeated | failures
        kinds = {text.strip().splitlines()[-1][:150]: number for number, text in entry["failures"].items()}
        print(f"{name}: {entry['inputs']} inputs, {len(entry['failures'])} failures", flush=True)
        for text, number in kinds.items():
            print(f"   {number}: {text}", flush=True)
        options.log.write_text(json.dumps(log, indent=1), encoding="utf-8", newline="\n")
    lines = ["| file | inputs | failures |", "|---|---:|---:|"]
    lines += [f"| {name} | {entry['inputs']} | {len(entry['failures'])} |" for name, entry in log.items()]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "readers.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    sys.exit(any(entry["failures"] for entry in log.values()))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
