"""`smadmm reconstruct --follow`: previews while a file grows, and the final image as if nobody had looked."""

import inspect
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from test_reconstruct import call

from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.growing import complete, following
from smadmm.io.phantoms import abdomen_image
from smadmm.io.sinogram import read_sinogram

h5py = pytest.importorskip("h5py")
SIZE, VIEWS = 32, 48
FAST = ("--quiet", "--iterations", 4, "--size", SIZE)


def wait_for_a_preview(path, last=None):
    """Until there is another one than the last, however slow this machine is; when it was made."""
    for _ in range(6000):
        if os.path.exists(path) and (made := os.stat(path).st_mtime_ns) != last:
            return made
        time.sleep(0.05)


WRITER = (
    "import os, time\n\n"
    + inspect.getsource(wait_for_a_preview)
    + """
import sys
import h5py, numpy as np

seen = None
rows, path = np.load(sys.argv[1]), sys.argv[2]
with h5py.File(path, "w", libver="latest") as file:
    width = rows.shape[1]
    data = file.create_dataset("sinogram", (0, width), "f4", maxshape=(None, width), chunks=(8, width))
    angles = file.create_dataset("angles", (0,), "f8", maxshape=(None,), chunks=(64,))
    file.swmr_mode = True
    for n in range(0, len(rows), 8):
        for array, part in ((data, rows[n : n + 8]), (angles, np.arange(n, n + 8) * 3.75)):
            array.resize(n + 8, 0)
            array[n:] = part
            array.flush()
        if n in (8, 24):
            seen = wait_for_a_preview(sys.argv[3], seen)
"""
)


@pytest.fixture(scope="module")
def rows():
    return simulated_sinogram(abdomen_image(SIZE), VIEWS, 40.0).numpy()


def image(folder):
    return np.load(folder / "image.npy")


@pytest.mark.slow
@pytest.mark.command
def test_a_growing_file_is_previewed_and_ends_as_the_closed_one(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "writer.py").write_text(WRITER)
    command = [sys.executable, tmp_path / "writer.py", tmp_path / "rows.npy", tmp_path / "scan.h5"]
    command.append(tmp_path / "followed" / "preview.png")
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) as writer:
        code, said, error = call(tmp_path / "scan.h5", "--follow", "--every", 12, *FAST, "--out", tmp_path / "followed")
    assert writer.returncode == 0 and code == 0, (said, error)
    counts = [int(line.split()[0]) for line in said.splitlines() if "views: preview.png" in line]
    assert len(counts) >= 2 and counts == sorted(set(counts)) and counts[0] < VIEWS
    assert call(tmp_path / "scan.h5", *FAST, "--out", tmp_path / "closed")[0] == 0
    np.testing.assert_array_equal(image(tmp_path / "followed"), image(tmp_path / "closed"))
    assert not list((tmp_path / "followed").glob("preview*"))


def test_a_zarr_store_is_followed_until_it_says_that_it_is_complete(rows, tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "scan.zarr"

    def write():
        seen = None
        time.sleep(0.3)  # the command does not find it at first
        group = zarr.open_group(store=str(path), mode="w")
        data = group.create_array("sinogram", shape=(0, rows.shape[1]), chunks=(8, rows.shape[1]), dtype="f4")
        angles = group.create_array("angles", shape=(0,), chunks=(64,), dtype="f8")
        for n in range(0, VIEWS, 8):
            data.append(rows[n : n + 8])
            angles.append(np.arange(n, n + 8) * 3.75)
            if n in (8, 24):
                seen = wait_for_a_preview(tmp_path / "followed" / "preview.png", seen)
        group.attrs["complete"] = True

    writer = threading.Thread(target=write)
    writer.start()
    code, said, error = call(path, "--follow", "--every", 8, *FAST, "--out", tmp_path / "followed")
    writer.join()
    assert code == 0 and complete(path) and said.count("views: preview.png") >= 2, (said, error)
    assert call(path, *FAST, "--out", tmp_path / "closed")[0] == 0
    np.testing.assert_array_equal(image(tmp_path / "followed"), image(tmp_path / "closed"))


def test_a_scan_is_as_long_as_the_shortest_of_its_arrays(rows, tmp_path):
    with h5py.File(tmp_path / "scan.h5", "w", libver="latest") as file:
        for name, length in (("data", 40), ("theta", 37), ("flat", 5)):
            shape = (length,) if name == "theta" else (length, rows.shape[1])
            file.create_dataset(f"exchange/{name}", data=np.ones(shape), maxshape=(None, *shape[1:]))
        file["exchange/data"][:] = np.exp(-rows[:40] / 9)
        file["exchange/theta"][:] = np.arange(37)
    scan = read_sinogram(tmp_path / "scan.h5", growing=True)
    assert scan.shape == (1, 37, rows.shape[1]) and scan.degrees[-1] == 36
    np.testing.assert_allclose(scan[0][:], rows[:37] / 9, atol=1e-5)


def test_a_writer_that_falls_silent_ends_the_scan(rows, tmp_path):
    path = tmp_path / "scan.zarr"
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(store=str(path), mode="w")
    group.create_array("sinogram", data=rows)
    group.create_array("angles", data=np.arange(VIEWS) * 3.75)
    begin = time.monotonic()
    assert [len(degrees) for _, degrees, _ in following(path, patience=0.6)] == [VIEWS]
    assert 0.5 < time.monotonic() - begin < 60
    with pytest.raises(ValueError, match="is not there after 0.3 seconds; check its name"):
        next(following(tmp_path / "none.h5", patience=0.3))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("scan.npy", (), "--follow reads HDF5 files and Zarr stores while they grow, not"),
        ("scan.h5", ("--angles", "0:180"), "--angles 0:180 is a range, and a growing scan has no end"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence(name, options, reason, tmp_path):
    code, _, error = call(tmp_path / name, "--follow", *options, "--out", tmp_path / "out")
    assert code == 1 and reason in str(error)
