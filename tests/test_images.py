"""Pictures, Hounsfield arrays, DICOM series, sinograms, phantom: read back what was written, refuse what is wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smadmm import reconstruct
from smadmm.io import dicom
from smadmm.io.images import hounsfield, read_images, read_slices, window
from smadmm.io.phantoms import abdomen, abdomen_image
from smadmm.io.sinogram import in_degrees, read_angles, read_sinogram
from smadmm.losses import Tomography
from smadmm.operators import Radon

pydicom = pytest.importorskip("pydicom")
h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")


def write_dicom(path, stored, position=0.0, number=1, series="1.2.3", slope=1.0, intercept=-1024.0, **extra):
    """A small CT slice as a scanner would write it."""
    data = pydicom.Dataset()
    data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.CTImageStorage, f"1.2.826.{abs(int(position))}.{number}"
    data.SeriesInstanceUID, data.StudyInstanceUID, data.Modality = series, "1.2.9", "CT"
    data.PatientID, data.PatientName, data.InstanceNumber = "p1", "Nobody", number
    data.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    data.Rows, data.Columns = stored.shape
    data.PixelSpacing, data.SliceThickness = [0.7, 0.8], 5
    data.ImageOrientationPatient, data.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, position]
    data.RescaleSlope, data.RescaleIntercept = slope, intercept
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
    data.PixelPaddingValue = 0
    for name, value in extra.items():
        setattr(data, name, value)
    data.PixelData = stored.astype("<u2").tobytes()
    data["PixelData"].VR = "OW"
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.save_as(path, enforce_file_format=True)
    return path


@pytest.fixture
def stored():
    return np.random.default_rng(0).integers(0, 4000, (3, 20, 24))


@pytest.fixture
def folder(tmp_path, stored):
    """Three slices whose names and numbers are not in the order of the body, beside a scout and a report."""
    folder = tmp_path / "series"
    (folder / "sub").mkdir(parents=True)
    write_dicom(folder / "a.dcm", stored[2], 10.0, 1)
    write_dicom(folder / "sub" / "b", stored[0], -30.0, 2)  # no ending
    write_dicom(folder / "c.dcm", stored[1], -10.5, 3, slope=0.5, intercept=-500.0)
    write_dicom(folder / "scout.dcm", np.zeros((8, 8)), 0.0, 9, series="1.2.4")
    report = pydicom.dcmread(folder / "a.dcm")
    for name in ("Rows", "Columns", "PixelData"):
        delattr(report, name)
    report.save_as(folder / "report.dcm")
    (folder / "notes.txt").write_text("not DICOM")
    return folder


def test_a_dicom_series_is_sorted_by_position_and_rescaled(folder, stored):
    slices = read_slices(folder)
    assert (slices.shape, slices.hounsfield) == ((3, 20, 24), True)
    assert slices.series.spacing == (0.7, 0.8)
    expected = [stored[0] - 1024.0, 0.5 * stored[1] - 500, stored[2] - 1024.0]
    for number, hu in enumerate(expected):
        np.testing.assert_array_equal(slices.series.hounsfield(number), hu)
        np.testing.assert_array_equal(slices[number], window(hu).numpy())
    assert any("2 series found; took the largest" in note for note in slices.notes)
    assert any("1 DICOM files without an image" in note for note in slices.notes)


def test_a_derived_dicom_keeps_patient_and_geometry_and_says_what_it_is(folder, tmp_path):
    series = read_slices(folder).series
    hu = series.hounsfield(1) + 0.4
    (tmp_path / "new.dcm").write_bytes(dicom.derived(series, 1, hu, "test method", keep_patient=True))
    new, old = pydicom.dcmread(tmp_path / "new.dcm"), pydicom.dcmread(folder / "c.dcm")
    np.testing.assert_array_equal(dicom.read_series(tmp_path / "new.dcm").hounsfield(0), np.rint(hu))
    for name in ("PatientID", "StudyInstanceUID", "PixelSpacing", "ImagePositionPatient", "SliceThickness"):
        assert new[name].value == old[name].value
    assert list(new.ImageType) == ["DERIVED", "SECONDARY", "AXIAL"] and new.SeriesDescription == "test method"
    assert new.SOPInstanceUID != old.SOPInstanceUID and new.SeriesInstanceUID != old.SeriesInstanceUID
    assert new.SourceImageSequence[0].ReferencedSOPInstanceUID == old.SOPInstanceUID
    assert "PixelPaddingValue" not in new
    other = pydicom.dcmread(tmp_path / "new.dcm")
    (tmp_path / "next.dcm").write_bytes(dicom.derived(series, 2, hu, "test method"))
    assert pydicom.dcmread(tmp_path / "next.dcm").SeriesInstanceUID == other.SeriesInstanceUID


def test_a_derived_dicom_does_not_say_whose_it_is_unless_asked_to(tmp_path, stored):
    secrets = {"PatientName": "Mueller^Hans", "PatientID": "4711-x", "PatientBirthDate": "19500101",
               "AccessionNumber": "acc77", "InstitutionName": "Clinic", "OperatorsName": "Smith",
               "StudyDescription": "of Hans", "PatientComments": "Hans", "ReferringPhysicianName": "Jones"}  # fmt: skip
    path = write_dicom(tmp_path / "a.dcm", stored[0], position=4.0, **secrets)
    data = pydicom.dcmread(path)
    data.add_new((0x0011, 0x0010), "LO", "Hans Mueller")
    data.save_as(path)
    series = dicom.read_series(path)
    content = dicom.derived(series, 0, series.hounsfield(0), "test method")
    for secret in [*"^".join(secrets.values()).split("^"), data.SOPInstanceUID, data.StudyInstanceUID]:
        assert secret.encode() not in content, secret
    (tmp_path / "new.dcm").write_bytes(content)
    new = pydicom.dcmread(tmp_path / "new.dcm")
    assert new.PatientIdentityRemoved == "YES" and new.PixelSpacing == data.PixelSpacing and new.PatientName == ""
    np.testing.assert_array_equal(dicom.read_series(tmp_path / "new.dcm").hounsfield(0), series.hounsfield(0))
    assert series.without_patient("scan of HANS_mueller 4711-x.dcm") == "scan of (removed)_(removed) (removed).dcm"


def test_frames_of_one_file_are_slices(tmp_path, stored):
    path = write_dicom(tmp_path / "many.dcm", stored[0])
    data = pydicom.dcmread(path)
    data.NumberOfFrames, data.PixelData = 3, stored.astype("<u2").tobytes()
    data.save_as(path)
    slices = read_slices(path)
    assert len(slices) == 3
    np.testing.assert_array_equal(slices.series.hounsfield(2), stored[2] - 1024)
    assert [image.name for image in read_images([path])] == [f"many.dcm[{i}]" for i in range(3)]
    with pytest.raises(ValueError, match="holds several frames"):
        dicom.derived(slices.series, 0, slices.series.hounsfield(0), "")


def test_a_picture_that_declares_more_than_it_can_hold_is_refused_before_it_is_unpacked(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    Image.new("L", (12, 8)).save(tmp_path / "bomb.jpg")
    data = bytearray((tmp_path / "bomb.jpg").read_bytes())
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = (8000).to_bytes(2, "big") + (9000).to_bytes(2, "big")
    (tmp_path / "bomb.jpg").write_bytes(data)
    with pytest.raises(ValueError, match=r"declares 9000 x 8000 pixels, more than \d+ bytes can hold"):
        read_slices(tmp_path / "bomb.jpg")[0]
    Image.new("1", (4000, 4000)).save(tmp_path / "black.png")
    assert read_images([tmp_path / "black.png"])[0].pixels.shape == (4000, 4000)


def test_what_is_not_a_gray_dicom_image_is_refused_in_one_sentence(tmp_path, stored):
    (tmp_path / "broken.dcm").write_bytes(b"x" * 500)
    with pytest.raises(ValueError, match=r"broken.dcm cannot be read as DICOM"):
        read_slices(tmp_path / "broken.dcm")
    cut = write_dicom(tmp_path / "cut.dcm", stored[0])
    cut.write_bytes(cut.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"cut.dcm has pixels that cannot be read"):
        read_slices(cut)[0]
    colour = write_dicom(tmp_path / "colour.dcm", stored[0], SamplesPerPixel=3)
    with pytest.raises(ValueError, match="is a colour image"):
        read_slices(colour)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no DICOM images in"):
        read_slices(tmp_path / "empty")
    assert "the modality is MR" in read_slices(write_dicom(tmp_path / "mr.dcm", stored[0], Modality="MR")).notes[0]


@pytest.mark.parametrize(("name", "package"), [("a.dcm", "pydicom"), ("a.h5", "h5py"), ("a.tif", "tifffile")])
def test_a_missing_package_is_named_with_its_cure(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ImportError, match=rf"{package}; install it with: pip install 'smadmm\[imaging\]'"):
        read_sinogram(tmp_path / name) if name != "a.dcm" else read_slices(tmp_path / name)


def test_hounsfield_arrays_and_pictures_become_images(tmp_path):
    from PIL import Image

    hu = np.random.default_rng(0).integers(-1100, 1600, (2, 9, 7)).astype(np.int16)
    np.savez(tmp_path / "a.npz", hu=hu)
    np.save(tmp_path / "a.npy", hu)
    for path in (tmp_path / "a.npz", tmp_path / "a.npy"):
        slices = read_slices(path)
        assert (slices.shape, slices.hounsfield) == ((2, 9, 7), True)
        np.testing.assert_array_equal(slices[1], window(hu[1]).numpy())
    inside = np.clip(hu, -1000, 1500)
    np.testing.assert_allclose(hounsfield(window(inside).numpy()), inside, atol=1e-3)
    unit = np.random.default_rng(1).random((9, 7)).astype(np.float32)
    np.save(tmp_path / "unit.npy", unit)
    tifffile.imwrite(tmp_path / "unit.tif", unit)
    eight, sixteen = (255 * unit).astype(np.uint8), (65535 * unit).astype(np.uint16)
    Image.fromarray(eight).save(tmp_path / "8.png")
    Image.fromarray(sixteen).save(tmp_path / "16.png")
    Image.fromarray(eight).save(tmp_path / "packed.tif", compression="tiff_lzw")
    Image.fromarray(np.stack([eight] * 3, -1)).save(tmp_path / "colour.png")
    for name, expected in {"unit.npy": unit, "unit.tif": unit, "8.png": eight / 255, "16.png": sixteen / 65535,
                           "packed.tif": eight / 255, "colour.png": eight / 255}.items():  # fmt: skip
        slices = read_slices(tmp_path / name)
        assert not slices.hounsfield and len(slices) == 1 and "an image in [0, 1]" in slices.notes[0]
        np.testing.assert_allclose(slices[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([[0.0, np.nan], [1, 2]]), "has 1 values that are not finite in slice 0"),
        (np.zeros(5), "slices are numbers H x W or N x H x W"),
        (np.zeros((2, 2), complex), "slices are numbers"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, content, message):
    np.save(tmp_path / "a.npy", content)
    with pytest.raises(ValueError, match=message):
        read_slices(tmp_path / "a.npy")[0]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"nothing")
    (tmp_path / "a.xyz").write_text("nothing")
    np.savez(tmp_path / "a.npz", volume=np.zeros((2, 2)))
    for name, message in {"a.png": "cannot be read", "a.xyz": "is not an image", "a.npz": "no array 'hu'"}.items():
        with pytest.raises(ValueError, match=message):
            read_slices(tmp_path / name)
    with pytest.raises(ValueError, match="there is no file or folder"):
        read_slices(tmp_path / "gone")


# --- sinograms


VIEWS, DETECTORS, SLICES = 6, 11, 3
DEGREES = np.arange(VIEWS) * 180.0 / VIEWS


@pytest.fixture
def volume():
    return np.random.default_rng(0).random((SLICES, VIEWS, DETECTORS)).astype(np.float32)


def write(path: Path, data, **arrays):
    if path.suffix == ".npy":
        np.save(path, data)
    elif path.suffix == ".npz":
        np.savez(path, sinogram=data, **arrays)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, data, photometric="minisblack")
    else:
        with h5py.File(path, "w") as file:
            for name, value in {"scan/sinogram": data, **{f"scan/{k}": v for k, v in arrays.items()}}.items():
                file[name] = value
    return path


@pytest.mark.parametrize("ending", [".npy", ".npz", ".tif", ".h5"])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_a_sinogram_is_read_in_either_orientation(tmp_path, volume, ending, axes):
    inside = {} if ending in (".npy", ".tif") else {"angles": DEGREES}
    path = write(tmp_path / f"s{ending}", volume[0].transpose(axes), **inside)
    sinogram = read_sinogram(path, None if inside else str(_angles(tmp_path)))
    assert sinogram.shape == (1, VIEWS, DETECTORS)
    np.testing.assert_array_equal(np.asarray(sinogram[0]), volume[0])
    np.testing.assert_allclose(sinogram.degrees, DEGREES)
    assert "6 angles from 0 to 150, taken as degrees" in sinogram.notes[0]
    assert ("6 views x 11 detectors" if axes == (0, 1) else "11 detectors x 6 views") in sinogram.notes[1]


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (0, 2, 1)])
@pytest.mark.parametrize("ending", [".npy", ".h5"])
def test_a_volume_is_read_in_every_order_of_its_axes(tmp_path, volume, axes, ending):
    np.save(tmp_path / "theta.npy", np.deg2rad(DEGREES))
    path = write(tmp_path / f"v{ending}", volume.transpose(axes))
    sinogram = read_sinogram(path, str(tmp_path / "theta.npy"))
    assert len(sinogram) == SLICES and "radians (by their size)" in sinogram.notes[0]
    for number in range(SLICES):
        np.testing.assert_array_equal(np.asarray(sinogram[number]), volume[number])


def test_files_stay_on_disk(tmp_path, volume):
    for ending, kind in ((".npy", np.memmap), (".tif", np.memmap), (".h5", h5py.Dataset)):
        one = read_sinogram(write(tmp_path / f"one{ending}", volume[0]), "0:180")
        many = read_sinogram(write(tmp_path / f"many{ending}", volume), "0:180", axes="slices,views,detectors")
        stored = many.stored.stored if ending == ".h5" else many.stored
        assert isinstance(one[0], kind) and isinstance(stored, kind)
    turned = read_sinogram(write(tmp_path / "turned.npy", volume[0].T.copy()), str(_angles(tmp_path)))
    assert isinstance(turned[0], np.memmap)
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    radon = Radon(8, np.deg2rad(turned.degrees), DETECTORS)
    batch = torch.tensor([4, 1])
    expected = Tomography(radon, torch.from_numpy(volume[0])).gradient((x,), (1.0,), batch)
    assert torch.equal(Tomography(radon, turned[0]).gradient((x,), (1.0,), batch), expected)


def _angles(folder):
    np.savetxt(folder / "angles.txt", DEGREES)
    return folder / "angles.txt"


def test_equal_sizes_follow_the_format_or_are_asked_for(tmp_path, volume):
    cube = np.random.default_rng(0).random((4, 4, 4))
    path = write(tmp_path / "cube.npy", cube)
    np.save(tmp_path / "four.npy", np.arange(4) * 45.0)
    for angles, why in (
        ("0:180", "a range of angles does not tell"),
        (str(tmp_path / "four.npy"), "more than one is 4"),
    ):
        with pytest.raises(ValueError, match=f"is 4 x 4 x 4, and {why}.*such as axes slices,views,detectors"):
            read_sinogram(path, angles)
    for axes, expected in (("slices,views,detectors", cube[1]), ("views,slices,detectors", cube[:, 1]),
                           ("detectors,views,slices", cube[:, :, 1].T)):  # fmt: skip
        np.testing.assert_array_equal(read_sinogram(path, "0:180", axes=axes)[1], expected)
    for axes, message in (("slices,views", "must be slices,views,detectors"), ("views,views,slices", "must be")):
        with pytest.raises(ValueError, match=message):
            read_sinogram(path, "0:180", axes=axes)
    path = write(tmp_path / "v.npy", volume)
    with pytest.raises(ValueError, match="is 3 x 6 x 11, but there are 6 angles"):
        read_sinogram(path, str(_angles(tmp_path)), axes="views,slices,detectors")
    with h5py.File(tmp_path / "exchange.h5", "w") as file:
        file["exchange/data"], file["exchange/theta"] = cube, np.arange(4) * 45.0
    exchanged = read_sinogram(str(tmp_path / "exchange.h5"))  # a name will do
    np.testing.assert_array_equal(exchanged[1], cube[:, 1])  # views first


def test_units_are_recognised_or_said(tmp_path):
    few = np.array([0.0, 1.0, 2.0])
    assert "radians (by their size)" in in_degrees(few, "auto")[1]
    np.testing.assert_allclose(in_degrees(few, "degrees")[0], few)
    np.testing.assert_allclose(in_degrees(few, "radians")[0], np.rad2deg(few))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sinogram"], file["theta"] = np.eye(3), few
        file["theta"].attrs["units"] = "deg"
    assert "degrees (as given)" in read_sinogram(tmp_path / "a.h5").notes[0]
    np.savez(tmp_path / "a.npz", sino=np.eye(3), angles_deg=few, truth=np.eye(2))
    found = read_sinogram(tmp_path / "a.npz")
    assert "degrees (as given)" in found.notes[0] and found.truth.shape == (2, 2)
    assert "radians (as given)" in read_sinogram(tmp_path / "a.npz", unit="radians").notes[0]
    np.testing.assert_allclose(read_angles("10:190", 4)[0], [10, 55, 100, 145])


def test_bad_sinograms_are_refused_in_one_sentence(tmp_path, volume):
    good = write(tmp_path / "good.npy", volume[0])
    (tmp_path / "words.txt").write_text("one two")
    np.savetxt(tmp_path / "five.txt", np.arange(5))
    for angles, message in {
        None: "has no angles; give angles",
        str(tmp_path / "five.txt"): "good.npy is 6 x 11, but there are 5 angles",
        str(tmp_path / "words.txt"): ".*words.txt cannot be read",
        str(tmp_path / "gone.txt"): "there is no file of angles",
        "a:b": "neither a file nor a range such as 0:180",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_sinogram(good, angles)
    for name, data, message in (
        ("nan", np.where(volume[0] > 0.5, np.nan, volume[0]), "the sinogram has .* values that are NaN"),
        ("constant", np.ones((VIEWS, 4)), "is constant"),
    ):
        with pytest.raises(ValueError, match=message):
            reconstruct(read_sinogram(write(tmp_path / f"{name}.npy", data), "0:180")[0])
    broken = volume.copy()
    broken[2, 1, 1] = np.inf
    with pytest.raises(ValueError, match="slice 2 has 1 values"):
        reconstruct(read_sinogram(write(tmp_path / "v.npy", broken), str(_angles(tmp_path))))
    np.savez(tmp_path / "hu.npz", hu=volume)
    with pytest.raises(ValueError, match="add simulate VIEWS"):
        read_sinogram(tmp_path / "hu.npz")
    np.savez(tmp_path / "two.npz", a=volume, b=volume)
    with pytest.raises(
        ValueError, match=r"has 2 arrays that may .*\n  a: 3 x 6 x 11\n  b: 3 x 6 x 11; name one by array"
    ):
        read_sinogram(tmp_path / "two.npz")
    for name in ("bad.h5", "bad.npz", "bad.npy", "bad.tif"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(ValueError, match=rf"{name} cannot be read"):
            read_sinogram(tmp_path / name, "0:180")


# --- the phantom


def test_the_phantom_is_a_body_with_all_its_tissues():
    hu = abdomen(256)
    assert hu.dtype == np.float32 and hu.shape == (256, 256)
    assert hu[0, 0] == -1000 and hu[128, 4] == -1000  # air around
    shares = {"gas": (hu < -900), "lung": (hu > -900) & (hu < -700), "fat": (hu > -140) & (hu < -60),
              "soft": (hu > 30) & (hu < 150), "bone": hu > 500}  # fmt: skip
    for name, (low, high) in {"gas": (0.3, 0.7), "lung": (0.001, 0.05), "fat": (0.05, 0.3), "soft": (0.15, 0.4),
                              "bone": (0.004, 0.04)}.items():  # fmt: skip
        assert low < shares[name].mean() < high, (name, shares[name].mean())


def test_the_phantom_is_the_same_body_at_every_size_and_another_for_every_seed():
    assert np.array_equal(abdomen(64, 3), abdomen(64, 3))
    assert np.abs(abdomen(64, 3) - abdomen(64, 4)).mean() > 20
    coarse, fine = abdomen_image(64), abdomen_image(256)
    averaged = torch.nn.functional.avg_pool2d(fine[None, None], 4)[0, 0]
    assert float((coarse - averaged).norm() / averaged.norm()) < 0.06
    assert 0 <= float(fine.min()) < float(fine.max()) <= 1
    with pytest.raises(ValueError, match="at least 16 pixels"):
        abdomen(8)


def test_the_phantom_has_more_detail_than_ellipses():
    """Texture everywhere in the body: no flat patches such as those of Shepp and Logan."""
    fine = abdomen_image(256).numpy()
    body = fine > 0.3
    flat = (np.abs(np.diff(fine, axis=0)[:, 1:]) < 1e-6) & (np.abs(np.diff(fine, axis=1)[1:]) < 1e-6)
    assert (flat & body[1:, 1:]).mean() / body.mean() < 0.15
