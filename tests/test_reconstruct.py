"""`smadmm reconstruct`: from files to a folder of results, stopped anywhere and resumed, errors in one sentence."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from test_images import write_dicom

from smadmm.checkpoint import load as load_checkpoint
from smadmm.cli import app
from smadmm.data.images import Slices, window
from smadmm.data.phantoms import abdomen, abdomen_image
from smadmm.imaging.priors import find_prior
from smadmm.imaging.reconstruct import ITERATIONS, Settings, reconstruct
from smadmm.imaging.scans import Views, fbp, measured, noise_level, residual, simulated
from smadmm.metrics import snr, ssim
from smadmm.operators import Radon

pydicom = pytest.importorskip("pydicom")
h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")
from smadmm.data.sinogram import read_sinogram  # noqa: E402

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
SIZE, VIEWS = 64, 30
FAST = ("--quiet", "--iterations", "10")
FILES = {"image.npy", "image.tif", "image.png", "figure.png", "curves.png", "curves.csv", "run.json", "report.html"}


def call(*arguments):
    """The command in this process: exit code, and what it said."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["reconstruct", *map(str, arguments)])
    return done.exit_code, done.output, done.exception


def succeed(*arguments):
    code, said, error = call(*arguments, *FAST)
    assert code == 0, (said, error)
    return said


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


def terminal(*arguments, **options):
    command = [sys.executable, "-m", "smadmm.cli", "reconstruct", *map(str, arguments)]
    options = {"env": os.environ | {"OMP_NUM_THREADS": "1"}} | options
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="module")
def hu():
    return abdomen(SIZE)


@pytest.fixture
def slice_file(tmp_path, hu):
    np.save(tmp_path / "slice.npy", hu)
    return tmp_path / "slice.npy"


@pytest.fixture
def sinogram_file(tmp_path, hu):
    """A sinogram in a unit of its own, with angles in degrees."""
    degrees = np.arange(VIEWS) * 180 / VIEWS
    sinogram = 0.02 * Radon(SIZE, np.deg2rad(degrees))(window(hu)).numpy()
    sinogram += np.random.default_rng(0).normal(0, 1e-3 * sinogram.std(), sinogram.shape)
    np.savez(tmp_path / "scan.npz", sinogram=sinogram.astype(np.float32), angles=degrees)
    return tmp_path / "scan.npz"


# --- results


def test_a_simulated_slice_gives_everything_promised(slice_file, tmp_path, hu):
    out = tmp_path / "out"
    said = succeed(slice_file, "--simulate", VIEWS, "--out", out)
    assert {path.name for path in out.iterdir()} == FILES
    told = run_json(out)
    assert told["method"] == "smadmm" and told["prior"] == "ridge-ct" and told["views"] == VIEWS
    assert told["iterations"] == 10 and told["sfo"] > 0 and told["seconds"] > 0 and told["input_snr"] == 50
    assert told["slices"][0]["snr"] == told["snr"] and len(told["slices"]) == 1
    # the figures are those of the files
    image, truth = np.load(out / "image.npy"), torch.clamp((torch.from_numpy(hu) + 1000) / 2500, 0, 1)
    assert told["unit"] == "HU" and np.array_equal(image, tifffile.imread(out / "image.tif"))
    found = (torch.from_numpy(image) + 1000) / 2500
    assert told["snr"] == pytest.approx(snr(truth, found), abs=1e-3)
    assert told["ssim"] == pytest.approx(ssim(truth, found), abs=1e-4)
    assert told["snr"] > told["snr_fbp"] + 2 and told["ssim"] > told["ssim_fbp"]
    assert f"SNR {told['snr']:.2f} dB (FBP {told['snr_fbp']:.2f})" in said and str(out) in said
    with (out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["snr"]) == pytest.approx(told["snr_fbp"], abs=1e-3)
    assert float(rows[-1]["snr"]) == pytest.approx(told["snr"], abs=1e-3) and rows[-1]["k"] == "10"
    page = (out / "report.html").read_text()
    assert "Reconstruction of slice.npy" in page and page.count("data:image/png;base64,") == 4  # 3 images, figure


def test_noise_of_the_simulation_has_the_asked_for_size(hu):
    image = window(hu).numpy()
    slices = Slices(1, image.shape, True, lambda i: image)
    clean = simulated("a", slices, VIEWS, 300.0, 0).read(0).sinogram
    noisy = simulated("a", slices, VIEWS, 35.0, 0).read(0).sinogram
    assert 20 * torch.log10(clean.norm() / (noisy - clean).norm()) == pytest.approx(35, abs=0.01)
    assert not torch.equal(noisy, simulated("a", slices, VIEWS, 35.0, 1).read(0).sinogram)
    sigma = float((noisy - clean).std())
    assert sigma < noise_level(noisy) < 1.6 * sigma


@pytest.mark.slow
def test_a_measured_sinogram_is_reconstructed_in_its_own_unit(sinogram_file, tmp_path, hu):
    said = succeed(sinogram_file, "--out", tmp_path / "out", "--size", SIZE, "--iterations", 30)
    assert "30 angles from 0 to 174, taken as degrees" in said and "residual" in said
    told = run_json(tmp_path / "out")
    assert told["data"] == "measured" and told["input_snr"] is None and "snr" not in told
    truth = 0.02 * window(hu)
    assert 0.01 < told["scale"] < 0.03
    image = torch.from_numpy(np.load(tmp_path / "out" / "image.npy"))
    assert snr(truth, image) > 16
    assert told["residual"] < told["residual_fbp"]


@pytest.mark.slow
def test_sinograms_of_every_format_give_the_same_image(sinogram_file, tmp_path):
    stored = np.load(sinogram_file)
    data, degrees = stored["sinogram"], stored["angles"]
    np.save(tmp_path / "turned.npy", data.T)
    np.savetxt(tmp_path / "angles.csv", degrees)
    tifffile.imwrite(tmp_path / "a.tif", data)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exchange/data"], file["exchange/theta"] = data[:, None], np.deg2rad(degrees)
    expected = None
    for path, more in (
        (sinogram_file, ()),
        (tmp_path / "turned.npy", ("--angles", tmp_path / "angles.csv")),
        (tmp_path / "a.tif", ("--angles", "0:180")),
        (tmp_path / "a.h5", ()),
    ):
        out = tmp_path / f"out_{path.name}"
        succeed(path, "--out", out, "--size", SIZE, "--iterations", 2, *more)
        image = np.load(out / "image.npy").reshape(SIZE, SIZE)
        expected = image if expected is None else expected
        np.testing.assert_allclose(image, expected, atol=1e-6)


@pytest.mark.slow
def test_a_transposed_sinogram_is_recognised_by_the_sums_of_its_views(sinogram_file, tmp_path):
    sinogram = np.load(sinogram_file)["sinogram"]
    for name, array in (("rows", sinogram), ("columns", sinogram.T)):
        np.save(tmp_path / f"{name}.npy", array)
        said = succeed(tmp_path / f"{name}.npy", "--angles", "0:180", "--size", SIZE, "--out", tmp_path / name)
        assert "Warning" not in said
    assert f"{sinogram.shape[1]} detectors x {VIEWS} views" in said
    np.testing.assert_array_equal(*(np.load(tmp_path / name / "image.npy") for name in ("rows", "columns")))


@pytest.mark.slow
def test_data_that_do_not_fit_are_warned_of(sinogram_file, tmp_path, hu):
    stored = np.load(sinogram_file)
    sinogram, angles = stored["sinogram"], stored["angles"]
    wrong = {"counts": 1e4 * np.exp(-sinogram), "turned": sinogram, "negative": -sinogram}
    for name, array in wrong.items():
        np.savez(tmp_path / f"{name}.npz", sinogram=array, angles=3 * angles if name == "turned" else angles)
        code, said, error = call(tmp_path / f"{name}.npz", "--size", SIZE, "--out", tmp_path / name, *FAST)
        assert (code == 0 and "explains the sinogram badly" in said) or "without positive values" in str(error), name
    assert "explains the sinogram badly" in (tmp_path / "turned" / "report.html").read_text()
    noisy = sinogram + np.random.default_rng(1).normal(0, 0.1 * sinogram.std(), sinogram.shape)
    np.savez(tmp_path / "noisy.npz", sinogram=noisy, angles=angles)
    assert "explains the sinogram badly" not in succeed(tmp_path / "noisy.npz", "--out", tmp_path / "noisy")


@pytest.mark.slow
def test_the_sense_of_rotation_of_scikit_image(tmp_path, hu):
    from skimage.transform import radon

    degrees = np.arange(VIEWS) * 180 / VIEWS
    image = window(hu).numpy()
    np.save(tmp_path / "scan.npy", radon(image, degrees, circle=False))
    found = []
    for sense in ("0:-180", "0:180"):
        said = succeed(tmp_path / "scan.npy", "--angles", sense, "--size", SIZE, "--out", tmp_path / sense[2:])
        found.append(np.load(tmp_path / sense[2:] / "image.npy"))
        assert "Warning" not in said  # both fit: one image is the other upside down
    right, wrong = (np.linalg.norm(one - image) for one in found)
    assert right < 0.6 * wrong and np.linalg.norm(found[1] - found[0][::-1]) < 0.2 * right


@pytest.mark.slow
def test_a_sinogram_too_large_for_memory_stays_on_disk(sinogram_file, tmp_path, monkeypatch):
    stored = np.load(sinogram_file)
    np.save(tmp_path / "big.npy", stored["sinogram"])
    options = ("--size", SIZE, "--angles", "0:180")
    succeed(tmp_path / "big.npy", "--out", tmp_path / "loaded", *options)
    monkeypatch.setattr("smadmm.imaging.scans.IN_MEMORY", 0)
    succeed(tmp_path / "big.npy", "--out", tmp_path / "mapped", *options)
    loaded, mapped = (np.load(tmp_path / name / "image.npy") for name in ("loaded", "mapped"))
    np.testing.assert_allclose(mapped, loaded, atol=1e-4 * np.abs(loaded).max())
    monkeypatch.setattr("smadmm.imaging.scans.PIECE", 7)
    scan = measured("big", read_sinogram(tmp_path / "big.npy", "0:180"), size=SIZE)
    views = scan.read(0).sinogram
    assert isinstance(views, Views) and isinstance(views.stored, np.memmap)
    whole = torch.from_numpy(stored["sinogram"]) / scan.scale
    x = scan.radon.fbp(whole)
    torch.testing.assert_close(fbp(scan.radon, views), x, atol=1e-5, rtol=1e-4)
    expected = float((scan.radon(x) - whole).norm() / whole.norm())
    assert residual(scan.radon, views, x) == pytest.approx(expected, rel=1e-5)


def test_views_can_be_left_out(sinogram_file, tmp_path):
    succeed(sinogram_file, "--out", tmp_path / "out", "--size", SIZE, "--views", 10, "--iterations", 2)
    assert run_json(tmp_path / "out")["views"] == 10


@pytest.mark.slow
def test_a_dicom_folder_becomes_a_dicom_volume(tmp_path):
    folder = tmp_path / "series"
    folder.mkdir()
    volume = [abdomen(32, seed) for seed in (1, 2)]
    for number, (hu, position) in enumerate(zip(volume, (20.0, -20.0))):
        write_dicom(folder / f"{number}.dcm", np.rint(hu + 1024), position, number)
    succeed(folder, "--simulate", 20, "--out", tmp_path / "out")
    told = run_json(tmp_path / "out")
    assert len(told["slices"]) == 2 and told["pixel_spacing_mm"] == [0.7, 0.8]
    assert told["snr"] == pytest.approx(np.mean([row["snr"] for row in told["slices"]]))
    image = np.load(tmp_path / "out" / "image.npy")
    assert image.shape == (2, 32, 32) and np.array_equal(tifffile.imread(tmp_path / "out" / "image.tif"), image)
    for number, (source, position) in enumerate(((1, -20.0), (0, 20.0))):
        derived = pydicom.dcmread(tmp_path / "out" / "dicom" / f"slice_{number:04d}.dcm")
        np.testing.assert_array_equal(derived.pixel_array, np.rint(image[number]))
        assert derived.ImagePositionPatient[2] == position and derived.ImageType[0] == "DERIVED"
        clipped = np.clip(volume[source], -1000, 1500)
        assert np.abs(derived.pixel_array - clipped).mean() < 120


@pytest.mark.slow
@pytest.mark.parametrize("method", ["smadmm", "sadmm", "spider", "svrg", "asvrg", "red-sd", "on-red"])
def test_every_method_improves_on_fbp(tmp_path, method):
    image = abdomen_image(48).numpy()
    scan = simulated("phantom", Slices(1, image.shape, True, lambda i: image), 24, 40.0, 0)
    settings = Settings(method=method, batch=12, iterations=20, prior="ridge-natural")
    list(reconstruct(scan, tmp_path / "out", settings, "test", progress=False))
    told = run_json(tmp_path / "out")
    assert told["method"] == method and told["batch"] == 12 and told["snr"] > told["snr_fbp"] + 1


@pytest.mark.slow
def test_priors_by_name_and_by_file(tmp_path):
    from smadmm.denoisers.weights_file import SHIPPED

    image = abdomen_image(48).numpy()
    scan = simulated("phantom", Slices(1, image.shape, True, lambda i: image), 24, 30.0, 0)
    found = {}
    for prior in ("tv", "none", "ridge-ct", str(SHIPPED / "ridge-ct.safetensors")):
        out = tmp_path / str(len(found))
        list(reconstruct(scan, out, Settings(prior=prior, iterations=30), "test", progress=False))
        found[prior] = run_json(out)["snr"]
    assert found["tv"] > found["none"] + 0.5 and found["ridge-ct"] > found["none"] + 0.5
    assert found[str(SHIPPED / "ridge-ct.safetensors")] == found["ridge-ct"]
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    for name, message in {"magic": "no prior 'magic'; there are", str(tmp_path / "bad.safetensors"): "is damaged",
                          "gone.safetensors": "no weights"}.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            find_prior(name)


def test_weights_that_are_no_prox_are_warned_of(tmp_path):
    from smadmm.denoisers.weights_file import load, save

    save(load("ridge-ct").g, tmp_path / "w.safetensors", 5 / 255, 1.25)
    with pytest.warns(UserWarning, match=r"Lip\(I - D\) = 1.250 of this denoiser is not below 1"):
        find_prior(str(tmp_path / "w.safetensors"))


def test_noisy_data_start_from_a_smooth_image():
    """From the sharp one, noise of 20 dB looks like an image to the denoiser."""
    from smadmm.imaging.scans import first_image

    image = abdomen_image(128).numpy()
    truth, found = torch.from_numpy(image), {}
    for decibel in (20.0, 60.0):
        scan = simulated("phantom", Slices(1, image.shape, True, lambda i: image), 90, decibel, 0)
        sinogram = scan.read(0).sinogram
        first = first_image(scan.radon, sinogram, scan.statistics(sinogram).mean_noise, 5 / 255)
        found[decibel] = snr(truth, first), snr(truth, fbp(scan.radon, sinogram))
    assert found[20.0][0] > found[20.0][1] + 5
    assert found[60.0][0] == found[60.0][1]


def test_the_noise_of_a_back_projection_is_known():
    from smadmm.imaging.scans import _hann_up_to, _noise_gain

    for detectors, spacing in ((150, 1.0), (250, 0.6), (100, 1.5)):
        radon = Radon(96, np.arange(80) * np.pi / 80, detectors, spacing=spacing)
        noise = torch.randn(80, detectors, generator=torch.Generator().manual_seed(1))
        for share in (1.0, 0.25):
            window = _hann_up_to(share)
            assert _noise_gain(radon, window) == pytest.approx(float(fbp(radon, noise, window).std()), rel=0.15)


def test_seconds_limit_a_run(slice_file, tmp_path):
    code, said, _ = call(slice_file, "--simulate", 10, "--out", tmp_path / "out", "--seconds", 0.3, "--quiet")
    told = run_json(tmp_path / "out")
    assert code == 0 and 0.3 <= told["seconds"] < 3 and told["stopped"] == "0.3 seconds used", said


# --- stopped and gone on with


def volume_scan():
    images = [abdomen_image(32, seed).numpy() for seed in range(3)]
    return simulated("volume", Slices(3, (32, 32), True, lambda i: images[i]), 16, 40.0, 0)


@pytest.mark.slow
def test_a_volume_goes_on_from_the_slice_and_iteration_it_stopped_in(tmp_path, monkeypatch):
    settings = Settings(iterations=12, batch=8)
    list(reconstruct(volume_scan(), tmp_path / "whole", settings, "test", progress=False))
    from smadmm.imaging import reconstruct as module

    true_run, calls = module.run, []

    def stopped_run(solver, start, stop, **options):
        calls.append(options["checkpoint"])
        if len(calls) == 2:  # in the second slice
            options["callback"] = lambda s: s.k == 7 and signal.raise_signal(signal.SIGINT)
        return true_run(solver, start, stop, **options)

    monkeypatch.setattr(module, "run", stopped_run)
    with pytest.raises(
        module.Interrupted, match="stopped in slice 2 of 3; everything is kept, go on with: test --resume"
    ):
        list(reconstruct(volume_scan(), tmp_path / "parts", settings, "test", progress=False))
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"unfinished"}
    assert load_checkpoint(calls[1])[0].k == 7
    with pytest.raises(ValueError, match="holds an unfinished run; add --resume"):
        list(reconstruct(volume_scan(), tmp_path / "parts", settings, "test", progress=False))
    other = Settings(iterations=12, batch=4)
    with pytest.raises(ValueError, match="unfinished run with another batch: 8 then, 4 now"):
        list(reconstruct(volume_scan(), tmp_path / "parts", other, "test", resume=True, progress=False))
    list(reconstruct(volume_scan(), tmp_path / "parts", settings, "test", resume=True, progress=False))
    assert len(calls) == 4  # the first slice was not done again
    whole, parts = (np.load(tmp_path / name / "image.npy") for name in ("whole", "parts"))
    np.testing.assert_array_equal(whole, parts)
    assert not (tmp_path / "parts" / "unfinished").exists()


@pytest.mark.slow
@pytest.mark.command
@posix
@pytest.mark.parametrize("number", [signal.SIGINT, 9])  # 9: SIGKILL
def test_a_killed_command_is_resumed_to_the_same_image(slice_file, tmp_path, number):
    arguments = [slice_file, "--simulate", VIEWS, "--quiet", "--iterations", 40, "--batch", 10]
    (tmp_path / "patch").mkdir()  # checkpoints every iteration, and steps slow enough to be interrupted
    (tmp_path / "patch" / "sitecustomize.py").write_text(
        "import time, smadmm.imaging.reconstruct as module\n"
        "true_run = module.run\n"
        "def run(*a, **o):\n"
        "    tick = o['callback']\n"
        "    o['callback'] = lambda s: time.sleep(0.05) or tick(s)\n"
        "    return true_run(*a, checkpoint_iterations=1, **o)\n"
        "module.run = run\n"
    )
    path = os.pathsep.join([str(tmp_path / "patch"), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = terminal(*arguments, "--out", tmp_path / "out", env=environment)
    checkpoint = tmp_path / "out" / "unfinished" / "slice_0000.checkpoint"
    deadline = time.monotonic() + 120
    while not (checkpoint.exists() and load_checkpoint(checkpoint)[0].k >= 5):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"unfinished"}
    if number == signal.SIGINT:
        assert process.returncode == 130 and told.startswith("stopped in") and told.strip().endswith("--resume")
    assert 5 <= load_checkpoint(checkpoint)[0].k < 40
    code, said, error = call(*arguments, "--out", tmp_path / "out", "--resume")
    assert code == 0, (said, error)
    assert call(*arguments, "--out", tmp_path / "never")[0] == 0
    stopped, never = (np.load(tmp_path / name / "image.npy") for name in ("out", "never"))
    np.testing.assert_array_equal(stopped, never)


# --- mistakes


def bad_inputs(folder, hu):
    """Files that cannot be reconstructed."""
    np.save(folder / "slice.npy", hu)
    np.save(folder / "flat.npy", np.full((20, 20), 40.0))
    np.save(folder / "nan.npy", np.where(hu > 500, np.nan, hu))
    np.save(folder / "sinogram.npy", np.random.default_rng(0).random((12, 30)))
    broken = np.random.default_rng(0).random((12, 30))
    broken[3, 4] = np.nan
    np.save(folder / "broken.npy", broken)
    np.save(folder / "ones.npy", np.ones((12, 30)))
    np.savetxt(folder / "eleven.txt", np.arange(11))
    (folder / "unreadable.dcm").write_bytes(b"x" * 300)
    (folder / "file").write_text("")


MISTAKES = [
    (["gone.npy", "--simulate", 20], "there is no file or folder"),
    (["gone.npy"], "there is no file"),
    (["slice.npy", "--simulate", 20, "--snr", -3], "--snr must not be negative, got -3"),
    (["slice.npy", "--simulate", 0], "--simulate needs at least one view"),
    (["flat.npy", "--simulate", 20], "flat.npy is constant"),
    (["nan.npy", "--simulate", 20], "values that are not finite"),
    (["unreadable.dcm", "--simulate", 20], "cannot be read as DICOM"),
    (["unreadable.dcm"], "is not a sinogram"),
    (["sinogram.npy"], "has no angles; give --angles"),
    (["sinogram.npy", "--angles", "eleven.txt"], "sinogram.npy is 12 x 30, but there are 11 angles"),
    (["sinogram.npy", "--angles", "0:180", "--unit", "turns"], "--unit is auto, degrees or radians"),
    (["sinogram.npy", "--angles", "0:180", "--views", 13], "--views must be between 1 and the 12 views"),
    (["sinogram.npy", "--angles", "0:180", "--snr", 30], "--snr is the noise of a simulation"),
    (["sinogram.npy", "--angles", "0:180", "--spacing", 0], "--spacing must be positive"),
    (["broken.npy", "--angles", "0:180"], "the sinogram has 1 values that are NaN"),
    (["ones.npy", "--angles", "0:180"], "the sinogram is constant"),
    (["slice.npy", "--simulate", 20, "--method", "magic"], "no method 'magic'"),
    (["slice.npy", "--simulate", 20, "--prior", "magic"], "no prior 'magic'"),
    (["slice.npy", "--simulate", 20, "--batch", 21], "--batch 21 is more than the 20 views"),
    (["slice.npy", "--simulate", 20, "--iterations", 0], "--iterations must be positive"),
    (["slice.npy", "--simulate", 20, "--device", "abacus"], "the device 'abacus' is not available"),
    (["slice.npy", "--simulate", 20, "--threads", 0], "--threads must be at least 1"),
    (["slice.npy", "--simulate", 20, "--size", 9], "--size is for measured sinograms"),
]


@pytest.mark.slow
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, hu, monkeypatch):
    bad_inputs(tmp_path, hu)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for arguments, message in MISTAKES:
        _, said, error = call(*arguments, "--out", "new", "--quiet")
        assert isinstance(error, ValueError) and message in str(error), (arguments, said, error)
        assert "\n" not in str(error) and sorted(tmp_path.iterdir()) == before, arguments


@pytest.mark.command
def test_the_command_says_the_sentence_with_exit_code_2(tmp_path, hu):
    bad_inputs(tmp_path, hu)
    for arguments, message in (
        (["broken.npy", "--angles", "0:180", "--out", "new"], "Error: the sinogram has 1 values that are NaN"),
        (["slice.npy", "--simulate", 9, "--out", "file/new"], "Error: the output folder file/new cannot be made"),
    ):
        process = terminal(*arguments, cwd=tmp_path)
        said, told = process.communicate(timeout=120)
        assert process.returncode == 2 and told.startswith(message) and told.count("\n") == 1 and not said
        assert not (tmp_path / "new").exists()


def test_without_a_limit_the_default_number_of_iterations_is_done():
    assert Settings().stop.iterations == ITERATIONS and Settings(seconds=3).stop.iterations is None
    with pytest.raises(ValueError, match="--seconds must be positive"):
        Settings(seconds=-1)
