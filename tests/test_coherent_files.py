"""Scans in files of PtyPy and CXI: what is written in metres is read in pixels; other files are refused."""

import numpy as np
import pytest
from test_ptychography import SIZE, WINDOW, rough_probe, scan
from typer.testing import CliRunner

from smadmm import retrieve
from smadmm.__main__ import app
from smadmm.io.coherent import HC, KEV
from smadmm.io.patterns import is_patterns, read_patterns, read_probe

h5py = pytest.importorskip("h5py")
ENERGY, DISTANCE, PIXEL = 6.2, 7.0, 172e-6  # keV, metres
STEP = HC / (ENERGY * KEV) * DISTANCE / (WINDOW * PIXEL)  # metres per pixel of the object


@pytest.fixture(scope="module")
def scanned():
    _, probe, places, counts, _ = scan(1e4)
    return probe, places - places.min(0), counts


def middle(counts):
    return np.fft.fftshift(counts, axes=(-2, -1))


def write_ptyd(path, places, counts, centre=None, weights=None):
    with h5py.File(path, "w") as file:
        file["meta/energy"], file["meta/distance"], file["meta/psize"] = ENERGY, DISTANCE, [PIXEL, PIXEL]
        if centre is not None:
            file["meta/center"] = centre
        for number, part in enumerate(np.array_split(np.arange(len(counts)), 11)):  # chunk 10 comes after 9, not 1
            chunk = file.create_group(f"chunks/{number}")
            chunk["data"], chunk["positions"] = middle(counts)[part], 1e-3 + STEP * places[part]
            chunk["indices"], chunk["weights"] = part, np.empty(0) if weights is None else weights[part]
    return path


def write_cxi(path, places, counts, probe=None, energy=ENERGY * KEV, mask=None, shifted=False):
    with h5py.File(path, "w") as file:
        detector = file.create_group("entry_1/instrument_1/detector_1")
        detector["distance"], detector["x_pixel_size"], detector["y_pixel_size"] = DISTANCE, PIXEL, PIXEL
        detector["data"] = counts if shifted else middle(counts)
        detector["data"].attrs["is_fft_shifted"] = shifted
        file["entry_1/data_1/data"] = h5py.SoftLink("/entry_1/instrument_1/detector_1/data")
        file["entry_1/instrument_1/source_1/energy"] = energy
        x, y = -STEP * places[:, 1], -STEP * places[:, 0]  # of the sample
        file["entry_1/sample_1/geometry_1/translation"] = np.stack([x, y, np.zeros_like(x)], 1)
        if probe is not None:
            file["entry_1/instrument_1/source_1/illumination"] = probe[None]
        if mask is not None:
            detector["mask"] = middle(mask)
    return path


def write_ptyr(path, probes):
    with h5py.File(path, "w") as file:
        for name, probe in probes.items():
            file[f"content/probe/{name}/data"] = probe
    return path


def test_ptypy_scans_with_the_probe_of_a_reconstruction(scanned, tmp_path):
    probe, places, counts = scanned
    path, found = write_ptyd(tmp_path / "a.ptyd", places, counts), write_ptyr(tmp_path / "a.ptyr", {"S0": probe[None]})
    read = read_patterns(path, probe=found)
    assert is_patterns(path) and read["quantity"] == "intensities" and read["valid"] is None
    assert np.array_equal(read["patterns"], counts) and np.array_equal(read["probe"], probe)
    assert np.abs(read["positions"] - places).max() < 1e-6
    direct = retrieve(counts, positions=places, probe=probe, quantity="intensities", iterations=3)
    assert np.abs(retrieve(**read, iterations=3).image - direct.image).max() < 1e-4
    weights = np.ones_like(counts)
    weights[3, 0, 5] = 0
    moved = write_ptyd(tmp_path / "b.ptyd", places, np.roll(counts, (1, 2), (1, 2)), (17, 18), weights)
    read = read_patterns(moved, probe=found)
    assert np.array_equal(read["patterns"], counts) and read["valid"].sum() == counts.size - 1


def test_cxi_scans_move_the_sample(scanned, tmp_path):
    probe, places, counts = scanned
    mask = np.zeros((WINDOW, WINDOW), dtype=np.uint32)
    mask[2, 7] = 4
    read = read_patterns(write_cxi(tmp_path / "a.cxi", places, counts, probe, mask=mask))
    assert np.array_equal(read["patterns"], counts) and np.array_equal(read["probe"], probe)
    assert np.abs(read["positions"] - places).max() < 1e-6
    assert np.array_equal(read["valid"], mask == 0)
    shifted = read_patterns(write_cxi(tmp_path / "b.cxi", places, counts, probe, shifted=True))
    assert np.array_equal(shifted["patterns"], counts)


def test_probes_of_files_of_their_own(scanned, tmp_path):
    probe, places, counts = scanned
    np.save(tmp_path / "probe.npy", probe)
    np.savez(tmp_path / "probe.npz", probe=probe)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["intensities"], file["positions"] = counts, places
    for name in ("probe.npy", "probe.npz"):
        read = read_patterns(tmp_path / "scan.h5", probe=tmp_path / name)
        assert np.array_equal(read["probe"], probe) and np.array_equal(read["positions"], places)
    assert "probe" not in read_patterns(tmp_path / "scan.h5")  # to be guessed
    with pytest.raises(ValueError, match="has no array 'probe'; it has"):
        read_probe(tmp_path / "scan.h5")


def test_the_command_reads_a_scan_and_its_probe(scanned, tmp_path):
    _, places, counts = scanned
    path, found = write_ptyd(tmp_path / "a.ptyd", places, counts), write_ptyr(tmp_path / "a.ptyr", {"S": rough_probe()})
    options = ["--out", str(tmp_path / "out"), "--refine-probe", "--iterations", "10", "--quiet"]
    done = CliRunner().invoke(app, ["retrieve", str(path), "--probe-file", str(found), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    assert min(np.load(tmp_path / "out" / "image.npy").shape) >= SIZE - 4


def test_foreign_files_are_refused_in_one_sentence(scanned, tmp_path):
    probe, places, counts = scanned

    def refused(path, sentence):
        with pytest.raises(ValueError, match=sentence) as caught:
            read_patterns(path)
        assert "\n" not in str(caught.value)

    whole = write_cxi(tmp_path / "whole.cxi", places, counts, probe).read_bytes()
    (tmp_path / "cut.cxi").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "cut.cxi", "cannot be read")
    (tmp_path / "text.ptyd").write_text("no HDF5")
    refused(tmp_path / "text.ptyd", "cannot be read")
    refused(write_ptyr(tmp_path / "a.ptyr", {"S": probe}), "needs one of 'amplitudes' or 'intensities'")
    refused(write_ptyr(tmp_path / "b.ptyr", {"S": np.stack([probe, probe])}), "2 modes")
    refused(write_ptyr(tmp_path / "c.ptyr", {"S": probe, "T": probe}), "content/probe has 2")
    refused(write_cxi(tmp_path / "ev.cxi", places, counts, probe, energy=6200.0), "those of CXI in joules")
    refused(write_ptyr(tmp_path / "d.cxi", {"S": probe}), "no CXI file of a ptychographic scan")
    refused(write_ptyr(tmp_path / "d.ptyd", {"S": probe}), "no chunks with data and positions")
    with h5py.File(write_ptyd(tmp_path / "e.ptyd", places, counts), "r+") as file:
        del file["meta/psize"]
    refused(tmp_path / "e.ptyd", "does not say meta/psize")


def test_scans_take_nothing_from_elsewhere_and_no_memory_for_what_is_not_there(scanned, tmp_path):
    _, places, counts = scanned
    (tmp_path / "inside").mkdir()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["data"] = counts
    path = write_ptyd(tmp_path / "inside" / "a.ptyd", places, counts)
    with h5py.File(path, "r+") as file:
        del file["chunks/0/data"]
        file["chunks/0/data"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "data")
    with pytest.raises(ValueError, match="takes data from a file outside its folder"):
        read_patterns(path)
    with h5py.File(path, "r+") as file:
        del file["chunks/0/data"]
        file["chunks/0"].create_dataset("data", (2**40, 64, 64), "f8", chunks=(1, 64, 64))
    with pytest.raises(ValueError, match="declares 36028797018963968 bytes of data"):
        read_patterns(path)
