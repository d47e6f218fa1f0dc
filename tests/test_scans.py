"""Scans in the formats of instruments, written by the formats' own libraries: the right sinogram comes out, or one
sentence."""

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_images import write_dicom
from typer.testing import CliRunner

import smadmm
from smadmm.__main__ import app
from smadmm.imaging.metrics import snr
from smadmm.io import scan, scanners
from smadmm.io.phantoms import abdomen_image
from smadmm.io.prepared import write_prepared
from smadmm.io.scan import Blocks, Fan, ScanError, fan_of
from smadmm.io.sinogram import read_sinogram
from smadmm.operators import Radon

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")
mrcfile = pytest.importorskip("mrcfile")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
scipy_io = pytest.importorskip("scipy.io")

SLICES, VIEWS, DETECTORS = 3, 8, 11
DEGREES = np.arange(VIEWS) * 22.5
DATA = os.environ.get("SMADMM_DATA")


class Measured:
    """Projections (views x slices x detectors) as counts, their fields, and the sinogram they stand for."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.integrals = rng.random((VIEWS, SLICES, DETECTORS)).astype(np.float32)
        self.flats = rng.poisson(4e4, (5, SLICES, DETECTORS)).astype(np.uint16)
        self.darks = rng.poisson(100, (4, SLICES, DETECTORS)).astype(np.uint16)
        dark, flat = self.darks.mean(0), self.flats.mean(0)
        self.counts = np.rint(dark + (flat - dark) * np.exp(-self.integrals)).astype(np.uint16)
        self.expected = -np.log((self.counts - dark) / (flat - dark))

    def is_in(self, sinogram):
        """Whether a sinogram of counts is the right one."""
        assert sinogram.shape == (SLICES, VIEWS, DETECTORS)
        for number in range(SLICES):
            np.testing.assert_allclose(sinogram[number][:], self.expected[:, number], atol=1e-6)
        np.testing.assert_allclose(sinogram.degrees, DEGREES)
        above, full = sinogram.counts(1)
        np.testing.assert_allclose(-np.log(above / full), self.expected[:, 1], atol=1e-12)

    def integrals_are_in(self, sinogram, tolerance=0.0):
        assert sinogram.shape == (SLICES, VIEWS, DETECTORS) and sinogram.counts(0) is None
        for number in range(SLICES):
            np.testing.assert_allclose(np.asarray(sinogram[number][:]), self.integrals[:, number], atol=tolerance)
        np.testing.assert_allclose(sinogram.degrees, DEGREES)


@pytest.fixture(scope="module")
def measured():
    return Measured()


def exchange(path, measured, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", data=measured.counts, **options)
        file["exchange/data_white"], file["exchange/data_dark"] = measured.flats, measured.darks
        file["exchange/theta"] = DEGREES
        file["exchange/theta"].attrs["units"] = "degrees"
        file["measurement/instrument/name"] = "2-BM"
    return path


def test_data_exchange(tmp_path, measured):
    found = read_sinogram(exchange(tmp_path / "a.h5", measured))
    measured.is_in(found)
    assert "5 flat and 4 dark fields of the file are used" in found.notes and found.geometry is None
    assert 2e4 < found.photons < 8e4
    measured.is_in(read_sinogram(exchange(tmp_path / "b.h5", measured, **hdf5plugin.Bitshuffle())))
    few = found.evenly(4)
    assert few.shape == (SLICES, 4, DETECTORS) and few.degrees.tolist() == DEGREES[::2].tolist()
    np.testing.assert_array_equal(few[2], found[2][::2])


def test_data_exchange_as_beamlines_vary_it(tmp_path, measured):
    """Fields before and after the scan, a start and a step instead of angles, axes of length 1."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exchange/data"], file["exchange/data_dark"] = measured.counts, measured.darks
        file["exchange/data_white_pre"], file["exchange/data_white_post"] = measured.flats[:3], measured.flats[3:]
        file["process/acquisition/rotation/rotation_start"] = np.zeros(1)
        file["process/acquisition/rotation/rotation_step"] = np.array([22.5])
    found = read_sinogram(tmp_path / "a.h5")
    measured.is_in(found)
    assert "5 flat and 4 dark fields of the file are used" in found.notes
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["entry/data/data"], file["entry/data/flat"] = measured.counts[:, None], measured.flats
        file["entry/data/dark"], file["entry/data/ang"] = measured.darks, DEGREES
    measured.is_in(read_sinogram(tmp_path / "b.h5"))
    with h5py.File(exchange(tmp_path / "c.h5", measured), "a") as file:
        file["exchange/theta"][:] = 0
    with pytest.raises(ScanError, match="c.h5 has 8 angles that are all 0; give angles"):
        read_sinogram(tmp_path / "c.h5")


def test_transmission_is_told_from_line_integrals(tmp_path):
    t = np.linspace(-1, 1, 64)
    integrals = np.repeat(2 * np.sqrt(np.clip(0.5 - t**2, 0, None))[None], 30, 0).astype(np.float32)
    for values, taken in ((integrals, False), (np.exp(-integrals), True), (1 + integrals, False), (-integrals, False)):
        np.save(tmp_path / "a.npy", values)
        np.savetxt(tmp_path / "angles.txt", np.arange(30) * 6.0)
        np.save(tmp_path / "b.npy", values.T)
        for name in ("a.npy", "b.npy"):
            found = read_sinogram(tmp_path / name, str(tmp_path / "angles.txt"))
            np.testing.assert_allclose(found[0][:], integrals if taken else values, atol=1e-6)
            assert any("transmission, of which -log is taken" in note for note in found.notes) == taken
    stack = np.exp(-np.stack([integrals, 2 * integrals], 1))
    np.savez(tmp_path / "a.npz", projections=stack, angles=np.arange(30) * 6.0)
    np.testing.assert_allclose(read_sinogram(tmp_path / "a.npz")[1][:], 2 * integrals, atol=1e-6)


def test_intensities_of_any_level_are_told_from_line_integrals(tmp_path):
    """Amperes or volts, with a beam that flickers by 3 %; but not a ring of which both edges are outside the view."""
    t, rng = np.linspace(-1, 1, 64), np.random.default_rng(0)
    integrals = np.repeat(2 * np.sqrt(np.clip(0.5 - t**2, 0, None))[None], 30, 0)
    flicker = rng.normal(1, 0.03, (30, 1))
    ring = np.repeat((np.sqrt(2.2 - t**2) - np.sqrt(np.clip(0.85 - t**2, 0, None)))[None], 30, 0)
    for level in (4.5, 3e-5):
        np.savez(tmp_path / "a.npz", sinogram=level * flicker * np.exp(-integrals), angles=np.arange(30) * 6.0)
        found = read_sinogram(tmp_path / "a.npz")
        assert found.notes[-1].startswith("values are near") and "intensities" in found.notes[-1]
        np.testing.assert_allclose(found[0][:], integrals, atol=0.12)
    for values in (ring, 5 - integrals * t, 4.5 + integrals, 4.5 * np.exp(integrals)):
        np.savez(tmp_path / "a.npz", sinogram=values, angles=np.arange(30) * 6.0)
        found = read_sinogram(tmp_path / "a.npz")
        np.testing.assert_allclose(found[0][:], values, rtol=1e-6)
        assert not any("intensities" in note for note in found.notes)


def test_photons_are_those_of_the_flat_fields(tmp_path):
    """2.5 numbers per photon, 9000 photons, and a beam that flickers."""
    rng = np.random.default_rng(0)
    flats = 2.5 * rng.poisson(9000 * rng.uniform(0.9, 1.1, (10, 1)), (10, 2000)) + 30
    np.savez(tmp_path / "a.npz", data=flats[:8], angles=DEGREES, flat=flats[:, None], dark=np.full(2000, 30.0))
    with pytest.raises(ValueError, match="the flat field of .*a.npz is 10 x 1 x 2000, but a view is 2000"):
        read_sinogram(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", data=flats[:8], angles=DEGREES, flat=flats, dark=np.full(2000, 30.0))
    assert read_sinogram(tmp_path / "a.npz").photons == pytest.approx(9000, rel=0.05)


def test_counts_without_flat_fields_are_refused_with_the_cure(tmp_path, measured):
    with h5py.File(exchange(tmp_path / "a.h5", measured), "r+") as file:
        del file["exchange/data_white"]
    np.save(tmp_path / "whole.npy", measured.counts[:, 1].astype(np.float32))
    for path, angles in ((tmp_path / "a.h5", None), (tmp_path / "whole.npy", "0:180")):
        with pytest.raises(ScanError, match=r"holds counts \(.*\) without flat fields; give .*such as air 47000"):
            read_sinogram(path, angles)
    with_air = read_sinogram(tmp_path / "whole.npy", "0:180", air=40000)
    np.testing.assert_allclose(with_air[0][:], -np.log(measured.counts[:, 1] / 40000), atol=1e-6)
    share = np.exp(-measured.integrals[:, 1] * np.float32(6))
    np.save(tmp_path / "transmission.npy", share)
    of_share = read_sinogram(tmp_path / "transmission.npy", "0:180", air=1)
    np.testing.assert_allclose(of_share[0][:], -np.log(share), atol=1e-5)
    for options, message in (
        ({"air": 1.0, "flat": "a"}, "air and flat both tell"),
        ({"air": 0.0}, "air must be positive"),
        ({"dark": "a"}, "dark needs the counts without object"),
    ):
        with pytest.raises(ValueError, match=message):
            read_sinogram(tmp_path / "whole.npy", "0:180", **options)


def test_detectors_that_never_saw_light_are_told_and_have_no_values(tmp_path, measured):
    with h5py.File(exchange(tmp_path / "a.h5", measured), "r+") as file:
        file["exchange/data_white"][:, 1, 4] = 0
    found = read_sinogram(tmp_path / "a.h5")
    assert np.argwhere(found.dead).tolist() == [[1, 4]] and "1 of 33 detectors never saw light" in found.notes[-1]
    assert np.isnan(found[1][:, 4]).all() and np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1][:, 5], measured.expected[:, 1, 5], atol=1e-6)
    write_prepared(tmp_path / "b.h5", found)  # for other tools, too
    np.testing.assert_allclose(read_sinogram(tmp_path / "b.h5")[1][:, 4], found[1][:, [3, 5]].mean(1), atol=1e-6)


def test_frames_for_alignment_are_no_projections(tmp_path, measured):
    """ESRF files end with views that were taken again: key 0, control -1."""
    with h5py.File(nxtomo(tmp_path / "a.nxs", measured), "r+") as file:
        detector = file["entry/instrument/detector"]
        keys = detector["image_key"][...]
        control = keys.copy()
        control[keys == 3], keys[keys == 3] = -1, 0
        detector["image_key"][...], detector["image_key_control"] = keys, control
    found = read_sinogram(tmp_path / "a.nxs")
    measured.is_in(found)
    assert any("1 of them invalid or for alignment" in note for note in found.notes)


def nxtomo(path, measured, source=40.0, pixel=1e-6):
    """Frames in another file, behind a link and compressed; an invalid frame; the angles in radians."""
    path.parent.mkdir(exist_ok=True)
    odd = np.full((1, SLICES, DETECTORS), 7, np.uint16)
    frames = np.concatenate([measured.darks, measured.flats[:2], measured.counts[:3], odd, measured.counts[3:],
                             measured.flats[2:]])  # fmt: skip
    keys = [2] * 4 + [1] * 2 + [0] * 3 + [3] + [0] * (VIEWS - 3) + [1] * 3
    angles = np.zeros(len(keys))
    angles[np.array(keys) == 0] = np.deg2rad(DEGREES)
    with h5py.File(path.parent / "raw_0001.h5", "w") as raw:
        raw.create_dataset("frames", data=frames, chunks=(1, SLICES, DETECTORS), **hdf5plugin.Blosc())
    with h5py.File(path, "w") as file:
        detector = file.create_group("entry/instrument/detector")
        detector["data"], detector["image_key"] = h5py.ExternalLink("raw_0001.h5", "frames"), keys
        detector["x_pixel_size"], detector["distance"] = pixel, 0.1
        file["entry/instrument/source/distance"] = -source
        file["entry/sample/rotation_angle"], file["entry/definition"] = angles, "NXtomo"
        file["entry/sample/rotation_angle"].attrs["units"] = "rad"
        file["entry/data/data"] = h5py.SoftLink("/entry/instrument/detector/data")
        file["entry/data/again"] = file["entry"]  # a circle
    return path


def test_nxtomo_with_links_keys_and_filters(tmp_path, measured):
    found = read_sinogram(nxtomo(tmp_path / "a.nxs", measured))
    measured.is_in(found)
    assert any("8 projections of 18 frames, 1 of them invalid" in note for note in found.notes)
    assert found.geometry is None and any("parallel within" in note for note in found.notes)
    assert read_sinogram(nxtomo(tmp_path / "b" / "a.nxs", measured, 0.4, 0.01)).geometry == Fan(0.4, 0.5, 0.01, "m")
    np.savetxt(tmp_path / "angles.txt", DEGREES[::-1])
    told = read_sinogram(tmp_path / "a.nxs", str(tmp_path / "angles.txt"), "degrees")
    assert told.degrees.tolist() == DEGREES[::-1].tolist()
    (tmp_path / "raw_0001.h5").unlink()
    with pytest.raises(ScanError, match=r"its link .*data -> raw_0001.h5 leads nowhere; put that file in its place"):
        read_sinogram(tmp_path / "a.nxs")


def test_a_filter_that_is_not_there_and_parts_that_are_gone(tmp_path, measured, monkeypatch):
    exchange(tmp_path / "a.h5", measured, **hdf5plugin.Zstd())
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with pytest.raises(ScanError, match="compresses exchange/data by the filter 32015"):
        read_sinogram(tmp_path / "a.h5")
    layout = h5py.VirtualLayout(measured.counts.shape, np.uint16)
    layout[:] = h5py.VirtualSource("part.h5", "d", measured.counts.shape)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
        file["exchange/theta"] = DEGREES
    with pytest.raises(ScanError, match="takes exchange/data from 1 files that are not there, such as part.h5"):
        read_sinogram(tmp_path / "v.h5")


def test_matlab_structs_with_their_geometry(tmp_path, measured):
    parameters = {"geometryType": "Cone", "distanceSourceOrigin": 410.66, "distanceSourceDetector": 553.74,
                  "distanceUnit": "mm", "angles": DEGREES, "pixelSize": 0.05, "pixelSizePost": 20.0}  # fmt: skip
    struct = {"type": "2d", "sinogram": measured.integrals[:, 0].astype(float), "parameters": parameters}
    scipy_io.savemat(tmp_path / "a.mat", {"CtDataFull": struct, "other": np.eye(5)})
    found = read_sinogram(tmp_path / "a.mat")
    assert found.geometry == Fan(410.66, 553.74, 20.0, "mm")
    np.testing.assert_array_equal(found[0], struct["sinogram"])
    assert found.degrees.tolist() == DEGREES.tolist()
    parameters["geometryType"] = "Parallel"
    scipy_io.savemat(tmp_path / "b.mat", {"CtDataFull": struct})
    assert read_sinogram(tmp_path / "b.mat").geometry is None
    scipy_io.savemat(tmp_path / "c.mat", {"projections": measured.integrals, "theta": DEGREES})
    measured.integrals_are_in(read_sinogram(tmp_path / "c.mat"))


def test_matlab_73(tmp_path, measured):
    """As MATLAB writes it: HDF5 behind 512 bytes, axes in reverse, vectors as columns, texts as numbers."""
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("scan/data", data=measured.integrals.T, chunks=(DETECTORS, SLICES, 1))
        file["scan/angles"], file["scan/dso"] = DEGREES[:, None], np.array([[100.0]])
        file["scan/dsd"], file["#refs#/a"] = np.array([[150.0]]), measured.integrals.T
        file["scan/geometry"] = np.array([[ord(letter)] for letter in "fan"], np.uint16)
        file["scan/geometry"].attrs["MATLAB_class"] = np.bytes_("char")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    found = read_sinogram(path)
    measured.integrals_are_in(found)
    assert (found.geometry.source_to_axis, found.geometry.source_to_detector) == (100, 150)


def test_nxtomo_of_several_detectors(tmp_path, measured):
    """The frames are those nearest to the key; angles may be those of the projections alone."""
    frames = np.concatenate([measured.darks, measured.flats, measured.counts])
    with h5py.File(tmp_path / "a.nxs", "w") as file:
        file["entry1/pco4000/data"] = np.zeros(frames.shape)
        tomo = file.create_group("entry1/tomo_entry")
        tomo["instrument/detector/data"], tomo["sample/rotation_angle"] = frames, DEGREES
        tomo["instrument/detector/image_key"] = np.repeat([2, 1, 0], [4, 5, VIEWS])
        tomo["data/data"] = h5py.SoftLink("/entry1/tomo_entry/instrument/detector/data")
    measured.is_in(read_sinogram(tmp_path / "a.nxs"))


def test_the_rotation_may_have_a_name_of_the_beamline(tmp_path, measured):
    frames = np.concatenate([measured.darks, measured.flats, measured.counts])
    with h5py.File(tmp_path / "a.nxs", "w") as file:
        entry = file.create_group("entry")
        entry["imaging/data"], entry["instrument/imaging/image_key"] = frames, np.repeat([2, 1, 0], [4, 5, VIEWS])
        entry["imaging/gts_theta_value"] = np.concatenate([np.zeros(9), DEGREES])
        entry["imaging/ring_current"] = np.full(len(frames), 300.0)
    measured.is_in(read_sinogram(tmp_path / "a.nxs"))


def test_the_monitor_of_the_beam_is_no_sinogram(tmp_path, measured):
    with h5py.File(tmp_path / "a.nxs", "w") as file:
        file["entry/stxm/data/data"], file["entry/stxm/data/theta"] = measured.integrals, DEGREES
        file["entry/stxm/monitor/data"] = np.ones_like(measured.integrals)
        file["entry/stxm/data/data"].attrs["axes"] = "theta:y:x"
    measured.integrals_are_in(read_sinogram(tmp_path / "a.nxs"))


def test_mrc_with_angles_in_its_extended_header(tmp_path, measured):
    sections = np.zeros(VIEWS, mrcfile.dtypes.get_ext_header_dtype(b"FEI1", "<"))
    sections["Metadata size"], sections["Alpha tilt"] = sections.dtype.itemsize, DEGREES
    with mrcfile.new(tmp_path / "a.mrc") as file:
        file.set_data(measured.integrals)
        file.set_extended_header(sections)
        file.header.exttyp = b"FEI1"
    measured.integrals_are_in(read_sinogram(tmp_path / "a.mrc"))
    with mrcfile.mmap(tmp_path / "a.mrc", "r+") as file:  # a header of another kind than it says
        file.set_extended_header(np.zeros(100, np.int16))
    with pytest.raises(ScanError, match="a.mrc has no angles"):
        read_sinogram(tmp_path / "a.mrc")


def test_mrc_with_the_angles_beside_it(tmp_path, measured):
    path = tmp_path / "a.mrc"
    with mrcfile.new(path) as file:
        file.set_data(measured.integrals)
    with pytest.raises(ScanError, match="a.mrc has no angles; give angles"):
        read_sinogram(path)
    mdoc = "[T = none]\n" + "".join(
        f"[ZValue = {i}]\nTiltAngle = {a}\nRotationAngle = 0.3\n" for i, a in enumerate(DEGREES)
    )
    (tmp_path / "a.mrc.mdoc").write_text(mdoc)
    measured.integrals_are_in(read_sinogram(path))
    sections = mdoc.split("[ZValue")
    (tmp_path / "a.mrc.mdoc").write_text("[ZValue".join([sections[0], *sections[:0:-1]]))  # in the order of the dose
    measured.integrals_are_in(read_sinogram(path))
    (tmp_path / "a.mrc.mdoc").write_text(mdoc.replace("0.3", "85.3"))
    with pytest.raises(ScanError, match="tilt axis 85.3 degrees off the vertical.*align the series first"):
        read_sinogram(path)
    np.savetxt(tmp_path / "a.rawtlt", DEGREES)
    measured.integrals_are_in(read_sinogram(path))


def tiff_folder(folder, measured):
    (folder / "flats").mkdir(parents=True)
    for number, frame in enumerate(measured.counts):
        tifffile.imwrite(folder / f"scan_{number + 5}.tif", frame)  # 9 comes before 10
    for number, frame in enumerate(measured.flats):
        tifffile.imwrite(folder / "flats" / f"scan_{number}.tif", frame, compression="zlib")
    tifffile.imwrite(folder / "dark.tif", measured.darks, photometric="minisblack")  # pages
    return folder


def test_a_folder_of_tiff_projections(tmp_path, measured):
    folder = tiff_folder(tmp_path / "scan", measured)
    measured.is_in(read_sinogram(folder, "0:180"))
    np.savetxt(folder / "angles.txt", DEGREES)
    measured.is_in(read_sinogram(folder))
    shutil.move(folder / "flats", tmp_path / "elsewhere")
    measured.is_in(read_sinogram(folder, flat=str(tmp_path / "elsewhere"), dark=str(folder / "dark.tif")))
    with pytest.raises(ScanError, match="without flat fields"):
        read_sinogram(folder)
    tifffile.imwrite(folder / "scan_7.tif", np.ones((2, 2), np.uint16))
    with pytest.raises(ScanError, match=r"scan_7.tif is \(2, 2\), but scan_5.tif is \(3, 11\); remove it"):
        read_sinogram(folder, air=4e4)[0]
    (folder / "scan_7.tif").write_bytes(b"II*\0nothing")
    with pytest.raises(ScanError, match="scan_7.tif cannot be read"):
        read_sinogram(folder, air=4e4)[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScanError, match="has no DICOM or TIFF projections in it, and is no Zarr store"):
        read_sinogram(tmp_path / "empty")


@pytest.mark.parametrize("flat", ["refHST0000", "ref_0001", "OpenBeam_3", "ob/x_1", "Gain1", "FF_2", "tomo_flat_4"])
def test_names_of_flat_fields(tmp_path, measured, flat):
    folder = tmp_path / "reference of i0"  # only names inside the folder count
    for number, frame in enumerate(measured.counts):
        (folder / flat).parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(folder / f"preference_{number}.tif", frame)
    tifffile.imwrite(folder / f"{flat}.tif", measured.flats, photometric="minisblack")
    tifffile.imwrite(folder / "DarkImage.tif", measured.darks, photometric="minisblack")
    measured.is_in(read_sinogram(folder, "0:180"))


def test_folders_that_are_not_understood(tmp_path, measured):
    folder = tiff_folder(tmp_path / "scan", measured)
    tifffile.imwrite(folder / "beam_1.tif", measured.flats[0])
    np.savetxt(folder / "angles.txt", DEGREES)
    with pytest.raises(ScanError, match=r"8 angles and 9 projections, 8 of them scan\*, 1 of them beam\*; flat fields"):
        read_sinogram(folder)
    with pytest.raises(ScanError, match="has 5 TIFF files, all named as flat or dark fields; rename"):
        read_sinogram(shutil.move(folder / "flats", tmp_path / "flat" / "flats") and tmp_path / "flat")


NIKON = """[XTekCT]
Name=bone
SrcToObject={0}
SrcToDetector={1}
DetectorPixelSizeX=0.2
InitialAngle=10
AngularStep=22.5
WhiteLevel=40000
"""
SKYSCAN = """[Acquisition]
Image Pixel Size (um)=13.0
Object to Source (mm)=94.0
Camera to Source (mm)=188.0
Rotation Step (deg)=22.500
"""


def test_what_laboratory_scanners_tell(tmp_path, measured):
    for number, frame in enumerate(measured.counts):
        tifffile.imwrite(tmp_path / f"bone_{number}.tif", frame[:1])
    about = tmp_path / "bone.xtekct"
    about.write_text(NIKON.format(4, 8))
    for path in (tmp_path, about):
        found = read_sinogram(path)
        assert found.geometry == Fan(4, 8, 0.2, "mm") and "geometry of bone.xtekct" in found.notes
        np.testing.assert_allclose(found.degrees, 10 + DEGREES)
        np.testing.assert_allclose(found[0][:], -np.log(measured.counts[:, 0] / 4e4), atol=1e-6)
    assert read_sinogram(tmp_path, "0:180").geometry == Fan(4, 8, 0.2, "mm")
    about.write_text(NIKON.format(1e4, 2e4))  # so far away that rays are parallel
    assert read_sinogram(tmp_path).geometry is None
    (tmp_path / "bone_.log").write_text(SKYSCAN)
    with pytest.raises(ScanError, match=r"has 2 files of scanners \(bone.xtekct, bone_.log\)"):
        read_sinogram(tmp_path)
    about.unlink()
    with pytest.raises(ScanError, match="without flat fields"):
        read_sinogram(tmp_path)
    assert scanners.beside(tmp_path).fan.spacing == pytest.approx(0.026)  # at the detector pixels are twice as large
    (tmp_path / "bone_.log").write_text(SKYSCAN + "[Reconstruction]\n")
    with pytest.raises(ScanError, match="bone_.log is the record of a reconstruction; give the folder of the proj"):
        read_sinogram(tmp_path, air=4e4)


def test_dicom_projections(tmp_path, measured):
    for number, frame in enumerate(measured.counts):
        turned = {"Modality": "DX", "PositionerPrimaryAngle": DEGREES[number]}
        write_dicom(
            tmp_path / f"{20 - number}.dcm", frame, number=number, intercept=0, BitsStored=16, HighBit=15, **turned
        )
    found = read_sinogram(tmp_path, air=4e4)
    assert found.shape == (SLICES, VIEWS, DETECTORS) and found.degrees.tolist() == DEGREES.tolist()
    np.testing.assert_allclose(found[1][:], -np.log(measured.counts[:, 1] / 4e4), atol=1e-6)
    alone = {"Modality": "XA", "DistanceSourceToDetector": 1200, "DistanceSourceToPatient": 800}
    fan = read_sinogram(write_dicom(tmp_path / "fan.dcm", measured.counts[0], **alone), "0:180", air=4e4).geometry
    assert fan == Fan(800, 1200, None, "mm")
    with pytest.raises(ScanError, match="holds CT slices, not projections; add simulate VIEWS"):
        read_sinogram(write_dicom(tmp_path / "ct.dcm", measured.counts[0]))


def test_zarr(tmp_path, measured):
    fields = {"flats": measured.flats, "darks": measured.darks}
    zarr.save_group(str(tmp_path / "group.zarr"), projections=measured.counts, theta=DEGREES, **fields)
    measured.is_in(read_sinogram(tmp_path / "group.zarr"))
    zarr.save_array(str(tmp_path / "a.zarr"), measured.integrals)
    np.savetxt(tmp_path / "angles.txt", DEGREES)
    measured.integrals_are_in(read_sinogram(tmp_path / "a.zarr", str(tmp_path / "angles.txt")))
    shutil.rmtree(tmp_path / "a.zarr")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{")
    with pytest.raises(ScanError, match=r"a.zarr cannot be read: .*; it may be incomplete"):
        read_sinogram(tmp_path / "a.zarr", "0:180")


def test_of_several_arrays_the_one_with_fitting_angles(tmp_path, measured):
    one = measured.integrals[:, 0]
    np.savez(tmp_path / "a.npz", data=np.eye(5), scan=one, theta=DEGREES)
    np.testing.assert_array_equal(read_sinogram(tmp_path / "a.npz")[0], one)
    many = {f"part{number}": one + number for number in range(15)}
    np.savez(tmp_path / "b.npz", theta=DEGREES, **many)
    with pytest.raises(ScanError, match="has 15 arrays that may be the sinogram") as refused:
        read_sinogram(tmp_path / "b.npz")
    assert len(str(refused.value).splitlines()) == 12 and "and 6 more; name one by array" in str(refused.value)
    np.testing.assert_array_equal(read_sinogram(tmp_path / "b.npz", array="part3")[0], many["part3"])
    with pytest.raises(ScanError, match="has no array 'part99'"):
        read_sinogram(tmp_path / "b.npz", array="part99")
    with h5py.File(tmp_path / "fluo.nxs", "w") as file:
        file["entry/definition"], file["entry/data/theta"] = "NXfluo", DEGREES[:2]
        file["entry/data/data"], file["entry/monitor/data"] = np.ones((2, 2, 2, 9)), np.ones((5, 7, 9))
    with pytest.raises(ScanError, match="a NeXus file of the kind NXfluo without an array of views and their angles"):
        read_sinogram(tmp_path / "fluo.nxs")


def test_the_end_of_a_range(tmp_path, measured):
    np.save(tmp_path / "a.npy", measured.integrals[:, 0])
    left_out, told = (read_sinogram(tmp_path / "a.npy", text) for text in ("0:360", "0:360:end"))
    assert (left_out.end_point, told.end_point) == (None, True)
    np.testing.assert_allclose(told.degrees, np.linspace(0, 360, VIEWS))
    np.testing.assert_allclose(left_out.with_end_point(True).degrees, told.degrees)
    np.testing.assert_allclose(told.with_end_point(False).degrees, left_out.degrees)
    np.testing.assert_allclose(left_out.evenly(4).with_end_point(True).degrees, told.degrees[::2])
    assert left_out.with_end_point(False).end_point is False


def test_geometry_by_other_names():
    assert fan_of({"a/source_to_axis": 1.0, "a/axis_to_detector": 2.0}) == Fan(1.0, 3.0)
    assert fan_of({"a/DSO": 1.0, "a/DSD": 2.0, "a/detector_pixel_size": 0.5}) == Fan(1.0, 2.0, 0.5)
    assert fan_of({"beam": "fan"}) == Fan() and Fan().bend(100) == np.inf
    assert fan_of({"distance": 1.0, "source": "tube", "pixel_size": 0.5}) is None
    assert Fan(400, 500, 0.2).bend(560) == pytest.approx(280**2 * 0.2 / 500)


class Counting:
    """An array on disk that counts what is read."""

    chunks = (1, 4, 16)

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.reads = values, values.shape, values.dtype, []

    def __getitem__(self, key):
        self.reads.append(self.values[key].nbytes)
        return self.values[key]


def test_projections_are_read_in_blocks_of_a_fixed_size(monkeypatch):
    stored = Counting(np.arange(10 * 32 * 16.0).reshape(10, 32, 16))
    monkeypatch.setattr(scan, "BLOCK", 9 * 10 * 16 * 8)  # nine slices, in chunks of four: eight
    blocks = Blocks(stored, 1)
    for number in [*range(32), 3]:
        np.testing.assert_array_equal(blocks[:, number, :], stored.values[:, number])
    assert stored.reads == [8 * 10 * 16 * 8] * 5


# --- what cannot be read


def originals(folder, measured):
    """A good file per format."""
    np.save(folder / "a.npy", measured.integrals)
    np.savez(folder / "a.npz", sinogram=measured.integrals, angles=DEGREES)
    tifffile.imwrite(folder / "a.tif", measured.integrals, photometric="minisblack")
    scipy_io.savemat(folder / "a.mat", {"sinogram": measured.integrals, "angles": DEGREES})
    with mrcfile.new(folder / "a.mrc") as file:
        file.set_data(measured.integrals)
    exchange(folder / "a.h5", measured)
    nxtomo(folder / "a.nxs", measured)
    write_dicom(folder / "a.dcm", measured.counts[0], Modality="DX")


ENDINGS = ("npy", "npz", "tif", "mat", "mrc", "h5", "nxs", "dcm")


def test_truncated_mislabelled_and_foreign_files_are_one_sentence(tmp_path, measured):
    originals(tmp_path, measured)
    for ending in ENDINGS:
        whole = (tmp_path / f"a.{ending}").read_bytes()
        other = tmp_path / ("a.tif" if ending != "tif" else "a.h5")
        for name, content in (("truncated", whole[: len(whole) // 2]), ("foreign", b"not a scan at all\n" * 99),
                              ("empty", b""), ("mislabelled", other.read_bytes())):  # fmt: skip
            path = tmp_path / f"{name}.{ending}"
            path.write_bytes(content)
            with pytest.raises(ScanError) as refused:
                read_sinogram(path, "0:180", axes="views,slices,detectors", air=4e4)[0]
            text = str(refused.value)
            assert text.startswith(str(path)) and "\n" not in text and len(text) < 400, text
            assert "cannot be read" in text or (name, ending) == ("truncated", "dcm"), text  # that one has no image
            if name == "mislabelled":
                kind = "TIFF" if ending != "tif" else "HDF5"
                assert text.endswith(f"it begins as {kind} files do, so its ending may be wrong"), text
    for name, cure in {"a.txrm": "read it by dxchange", "a.edf": "read it by fabio", "a.his": "numpy.fromfile",
                       "a.vgi": "give the projections", "a.xyz": "is not a scan; give .npy"}.items():  # fmt: skip
        (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0")
        with pytest.raises(ValueError, match=cure):
            read_sinogram(tmp_path / name)


def test_the_error_of_all_readers_survives_another_process():
    error = pickle.loads(pickle.dumps(ScanError(Path("a{b}.h5"), "is {bad}", "give {angles}")))
    assert str(error) == "a{b}.h5 is {bad}; give angles" and error.spelled(lambda name: f"--{name}").endswith(
        "--angles"
    )
    assert (error.path, error.reason) == (Path("a{b}.h5"), "is {bad}")


# --- commands


def command(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.output if result.exit_code == 0 else str(result.exception)


def test_prepare_writes_what_reconstruct_and_others_read(tmp_path, measured):
    path, out = nxtomo(tmp_path / "a.nxs", measured, 0.4, 0.01), tmp_path / "s.h5"
    said = command("prepare", path, "--out", out)
    assert "3 slices x 8 views x 11 detectors, line integrals" in said
    with h5py.File(out) as file:
        told = file["sinogram"].attrs
        assert told["source"] == "a.nxs" and "fields of the file are used" in told["notes"]
        np.testing.assert_allclose(file["sinogram"], measured.expected.transpose(1, 0, 2), atol=1e-6)
    before, again = read_sinogram(path), read_sinogram(out)
    assert (again.geometry, again.photons) == (before.geometry, before.photons)
    np.testing.assert_array_equal(again[2][:], before[2])
    assert f"{out} exists; choose another name" in command("prepare", path, "--out", out)
    assert "must end in .h5" in command("prepare", path, "--out", tmp_path / "s.npy")
    refused = command("reconstruct", out, "--out", tmp_path / "no")
    assert (
        "s.h5 is a volume with a fan beam (source to axis 0.4 m, source to detector 0.5 m): a cone beam" in refused
        and not (tmp_path / "no").exists()
    )


@pytest.mark.slow
def test_a_scan_as_a_beamline_writes_it_gives_the_right_image(tmp_path):
    size, views = 64, 90
    truth = abdomen_image(size)
    integrals = 0.03 * Radon(size, np.arange(views) * np.pi / views)(truth).numpy()
    rng = np.random.default_rng(0)
    gain = 4e4 * (1 + 0.2 * rng.random(integrals.shape[1]))
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["exchange/data"] = rng.poisson(gain * np.exp(-integrals) + 100).astype(np.uint16)[:, None]
        file["exchange/data_white"] = rng.poisson(gain + 100, (20, 1, len(gain))).astype(np.uint16)
        file["exchange/data_dark"] = rng.poisson(100, (20, 1, len(gain))).astype(np.uint16)
        file["exchange/theta"] = np.arange(views) * 180 / views
        file["exchange/data_white"][:, :, 20] = file["exchange/data_dark"][:, :, 20] = 100
    said = command("reconstruct", tmp_path / "scan.h5", "--size", size, "--out", tmp_path / "out", "--quiet")
    assert "20 flat and 20 dark fields of the file are used" in said and "1 of 90 detectors never saw light" in said
    image = np.load(tmp_path / "out" / "image.npy")
    assert snr(0.03 * truth, torch_of(image)) > 20
    scan = read_sinogram(tmp_path / "scan.h5")
    result = smadmm.reconstruct(scan, size=size)
    np.testing.assert_array_equal(result.image, image)
    assert not result.inspection.weights[:, 20].any()


def test_a_scan_brings_along_what_it_knows(tmp_path):
    """Angles, axis and truth; a range with an open end is left to the data, unless views are chosen."""
    values, truth = np.random.default_rng(0).random((20, 40)).astype("f4"), np.eye(40, dtype="f4")
    np.savez(tmp_path / "a.npz", sinogram=values)
    found = read_sinogram(tmp_path / "a.npz", "0:180")
    assert found.angles == (0.0, 180.0) and len(found.evenly(5).angles) == 5
    assert read_sinogram(tmp_path / "a.npz", "0:180:end").angles[-1] == 180
    scan = replace(found, center=2.5, truth=truth)
    told = smadmm.reconstruct(scan, iterations=1, raw=True).settings
    assert told["center"] == 2.5 and told["size"] == [40, 40] and told["views"] == 20
    given = smadmm.reconstruct(scan, np.arange(20.0), center=-1, iterations=1, raw=True)
    assert given.settings["center"] == -1 and given.slices[0]["snr"] < 20


def torch_of(image):
    import torch

    return torch.from_numpy(np.array(image)).reshape(image.shape[-2:])


@pytest.mark.skipif(not (DATA and (Path(DATA) / "scans").is_dir()), reason="SMADMM_DATA has no scans")
def test_real_scans():
    scans = Path(DATA) / "scans"
    tooth = read_sinogram(scans / "tooth.h5")
    assert (
        tooth.shape == (2, 181, 640)
        and 4e4 < tooth.photons < 5e4
        and tooth.degrees[-1] == pytest.approx(180 * 180 / 181)
    )
    with h5py.File(scans / "tooth.h5") as file:
        data, flat, dark = (file[f"exchange/{name}"][:] for name in ("data", "data_white", "data_dark"))
    expected = -np.log((data - dark.mean(0)) / (flat.mean(0) - dark.mean(0)))
    np.testing.assert_allclose(tooth[1], expected[:, 1], atol=1e-5)
    neutron = read_sinogram(scans / "sinogram_360_neutron_image.tif", "0:360", air=47000)
    assert neutron.shape == (1, 459, 503) and neutron.with_end_point(True).degrees[-1] == pytest.approx(360)
    for path in sorted((scans / "htc2022").glob("*_full.mat")):
        fan = read_sinogram(path)
        assert fan.geometry == Fan(410.66, 553.74, 0.2, "mm") and fan.shape == (1, 721, 560)
    with pytest.raises(ScanError, match="NXfluo"):
        read_sinogram(scans / "fluo.nxs")


@pytest.mark.parametrize("way", ["link", "soft link", "virtual", "raw"])
def test_hdf5_is_followed_below_its_folder_only(tmp_path, monkeypatch, way):
    (tmp_path / "scan").mkdir()
    values = np.random.default_rng(0).random((6, 9)).astype("f4")
    with h5py.File(tmp_path / "elsewhere.h5", "w") as file:
        file["secret"] = values
    (tmp_path / "elsewhere.raw").write_bytes(values.tobytes())
    path = tmp_path / "scan" / "scan.h5"
    with h5py.File(path, "w") as file:
        file["angles"] = np.arange(6) * 30.0
        if "link" in way:
            file["other" if way == "soft link" else "sinogram"] = h5py.ExternalLink("../elsewhere.h5", "/secret")
        if way == "soft link":
            file["sinogram"] = h5py.SoftLink("/other")
        elif way == "virtual":
            layout = h5py.VirtualLayout((6, 9), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "elsewhere.h5"), "secret", (6, 9))
            file.create_virtual_dataset("sinogram", layout)
        elif way == "raw":
            raw = [(str(tmp_path / "elsewhere.raw"), 0, values.nbytes)]
            file.create_dataset("sinogram", (6, 9), "f4", external=raw)
    with pytest.raises(ScanError, match="leads out of its folder.*SMADMM_LINKS=anywhere"):
        read_sinogram(path)
    monkeypatch.setenv("SMADMM_LINKS", "anywhere")
    np.testing.assert_array_equal(read_sinogram(path)[0][:], values)
