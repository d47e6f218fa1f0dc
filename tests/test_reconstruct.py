"""`smadmm reconstruct`: from files to a folder of results, stopped anywhere and resumed, errors in one sentence."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from test_images import write_dicom

from smadmm import proxes, reconstruct
from smadmm.__main__ import app
from smadmm.arguments import ArgumentError
from smadmm.checkpoint import load as load_checkpoint
from smadmm.cli.app import option
from smadmm.denoisers import load as load_denoiser
from smadmm.imaging import ct, sinograms, slices
from smadmm.imaging.metrics import snr, ssim
from smadmm.imaging.priors import find_prior
from smadmm.imaging.result import DataWarning
from smadmm.imaging.simulation import half_turn, simulated_sinogram
from smadmm.io.images import window
from smadmm.io.phantoms import abdomen, abdomen_image
from smadmm.operators import Radon

pydicom = pytest.importorskip("pydicom")
h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")
from smadmm.io.sinogram import read_sinogram  # noqa: E402

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
SIZE, VIEWS = 64, 30
FAST = ("--quiet", "--iterations", "10")
FILES = {"image.npy", "image.tif", "image.png", "figure.png", "curves.png", "curves.csv", "run.json", "report.html"}


def call(*arguments):
    """The command in this process: exit code, and what it said."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["reconstruct", *map(str, arguments)])
    error = done.exception
    if isinstance(error, ArgumentError):
        error = ValueError(error.spelled(option))  # as the command says it
    return done.exit_code, done.output, error


def succeed(*arguments):
    code, said, error = call(*arguments, *FAST)
    assert code == 0, (said, error)
    return said


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


def terminal(*arguments, **options):
    command = [sys.executable, "-m", "smadmm", "reconstruct", *map(str, arguments)]
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
    assert float(rows[0]["snr"]) > told["snr_fbp"]  # the image of the trial with held-out views
    assert float(rows[-1]["snr"]) == pytest.approx(told["snr"], abs=1e-3) and rows[-1]["k"] == "10"
    page = (out / "report.html").read_text()
    assert "Reconstruction of slice.npy" in page
    assert page.count("data:image/png;base64,") == 6  # 3 images, map, figure, residual


@pytest.mark.slow
def test_objective_and_certificate_are_curves_of_the_report(hu, tmp_path):
    given = simulated(window(hu), VIEWS, 40.0)
    result = reconstruct(**given, iterations=25)
    history = result.history
    known = {k: c for k, c in zip(history["k"], history["certificate"], strict=True) if not math.isnan(c)}
    assert list(known) == [0, 10, 20, 25] and known[0] > 10 * known[20] and known[10] > known[20] > known[25] > 0
    assert [math.isnan(value) for value in history["objective"]] == [True, True, False, True, False, False]
    result.save(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("certificate dist²(0, ∂L)") > 0 and page.count("objective F(x) + h(y)") > 0
    few = reconstruct(**given, iterations=6, batch=10).history
    assert few["k"] == [0, 5, 6] and [math.isnan(value) for value in few["certificate"]] == [False, True, False]
    tv = reconstruct(**given, iterations=1, prior="tv").history
    assert "certificate" not in tv and all(map(math.isfinite, tv["objective"]))


def simulated(image, views, decibel, seed=0):
    """Arguments of `reconstruct` for a simulated sinogram of an image in [0, 1]."""
    truth = torch.as_tensor(image)
    return {"sinogram": simulated_sinogram(truth, views, decibel, seed), "truth": truth, "bounds": (0, 1)}


def test_noise_of_the_simulation_has_the_asked_for_size(hu):
    clean, noisy, other = (
        simulated(window(hu), VIEWS, decibel, seed)["sinogram"] for decibel, seed in ((300.0, 0), (35.0, 0), (35.0, 1))
    )
    assert 20 * torch.log10(clean.norm() / (noisy - clean).norm()) == pytest.approx(35, abs=0.01)
    assert not torch.equal(noisy, other)
    sigma = float((noisy - clean).std())
    assert sigma < sinograms.noise_level(noisy) < 1.6 * sigma


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
def test_data_that_do_not_fit_get_a_warning(sinogram_file, tmp_path, hu):
    stored = np.load(sinogram_file)
    sinogram, angles = stored["sinogram"], stored["angles"]
    wrong = {"turned": sinogram, "negative": -sinogram}
    for name, array in wrong.items():
        np.savez(tmp_path / f"{name}.npz", sinogram=array, angles=3 * angles if name == "turned" else angles)
        code, said, error = call(tmp_path / f"{name}.npz", "--size", SIZE, "--out", tmp_path / name, *FAST)
        assert code == 0 and ("explains the sinogram badly" in said or "turn its sign" in said), (name, error)
    assert "explains the sinogram badly" in (tmp_path / "turned" / "report.html").read_text()
    np.savez(tmp_path / "counts.npz", sinogram=1e4 * np.exp(-sinogram), angles=angles)
    said = succeed(tmp_path / "counts.npz", "--size", SIZE, "--out", tmp_path / "counts")
    assert "values are near 1e+04 beside the object" in said and "Warning" not in said
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
    options = ("--size", SIZE, "--angles", "0:180", "--raw")
    succeed(tmp_path / "big.npy", "--out", tmp_path / "loaded", *options)
    monkeypatch.setattr(sinograms, "IN_MEMORY", 0)
    succeed(tmp_path / "big.npy", "--out", tmp_path / "mapped", *options)
    loaded, mapped = (np.load(tmp_path / name / "image.npy") for name in ("loaded", "mapped"))
    np.testing.assert_allclose(mapped, loaded, atol=1e-4 * np.abs(loaded).max())
    monkeypatch.setattr(sinograms, "PIECE", 7)
    monkeypatch.setattr("smadmm.operators.radon.projector.PIECE", 7)
    rows = sinograms.read(read_sinogram(tmp_path / "big.npy", "0:180")[0], 2.0)
    assert isinstance(rows, sinograms.Views) and isinstance(rows.stored, np.memmap)
    whole, radon = torch.from_numpy(stored["sinogram"]) / 2, Radon(SIZE, np.arange(VIEWS) * np.pi / VIEWS)
    x = radon.fbp(whole)
    torch.testing.assert_close(radon.fbp(rows), x, atol=1e-5, rtol=1e-4)
    expected = float((radon(x) - whole).norm() / whole.norm())
    assert sinograms.residual(radon, rows, x) == pytest.approx(expected, rel=1e-5)


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
def test_every_method_improves_on_fbp(method):
    data = simulated(abdomen_image(48), 24, 40.0)
    result = reconstruct(**data, method=method, batch=12, iterations=20, prior="ridge-natural")
    (row,) = result.slices
    assert result.settings["method"] == method and row["snr"] > row["snr_fbp"] + 1
    assert row["snr"] == pytest.approx(snr(data["truth"], result.image), abs=1e-3)  # of the answer, also for asvrg


@pytest.mark.slow
def test_priors_by_name_and_by_file(tmp_path):
    from smadmm.denoisers.weights import SHIPPED

    data, found = simulated(abdomen_image(48), 24, 30.0), {}
    for prior in ("tv", "none", "ridge-ct", str(SHIPPED / "ridge-ct.safetensors")):
        found[prior] = reconstruct(**data, prior=prior, iterations=30).slices[0]["snr"]
    assert found["tv"] > found["none"] + 0.5 and found["ridge-ct"] > found["none"] + 0.5
    assert found[str(SHIPPED / "ridge-ct.safetensors")] == found["ridge-ct"]
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    for name, message in {"magic": "no prior 'magic'; there are", str(tmp_path / "bad.safetensors"): "is damaged",
                          "gone.safetensors": "no weights"}.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            find_prior(name)


def test_weights_that_are_no_prox_are_warned_of(tmp_path):
    from smadmm.denoisers.weights import load, save

    save(load("ridge-ct").g, tmp_path / "w.safetensors", 5 / 255, 1.25)
    with pytest.warns(UserWarning, match=r"Lip\(I - D\) = 1.250 of this denoiser is not below 1"):
        find_prior(str(tmp_path / "w.safetensors"))


def test_noisy_data_start_from_a_smooth_image():
    """From the sharp one, noise of 20 dB looks like an image to the denoiser."""
    truth, found = abdomen_image(128), {}
    for decibel in (20.0, 60.0):
        images = sinograms.BackProjections(half_turn(truth, 90), simulated(truth, 90, decibel)["sinogram"])
        first = images.first(sinograms.noise_level(images.rows), 5 / 255)
        found[decibel] = snr(truth, first), snr(truth, images[None])
    assert found[20.0][0] > found[20.0][1] + 5
    assert found[60.0][0] == found[60.0][1]


def test_the_noise_of_a_back_projection_is_known():
    for detectors, spacing in ((150, 1.0), (250, 0.6), (100, 1.5)):
        radon = Radon(96, np.arange(80) * np.pi / 80, detectors, spacing=spacing)
        noise = torch.randn(80, detectors, generator=torch.Generator().manual_seed(1))
        for cut in (1.0, 0.25):
            window = sinograms.window_of(cut)
            assert sinograms.noise_gain(radon, window) == pytest.approx(float(radon.fbp(noise, window).std()), rel=0.15)


def test_seconds_limit_a_run(slice_file, tmp_path):
    code, said, _ = call(slice_file, "--simulate", 10, "--out", tmp_path / "out", "--seconds", 0.3, "--quiet")
    told = run_json(tmp_path / "out")
    assert code == 0 and 0.3 <= told["seconds"] < 3 and told["stopped"] == "time used", said


# --- stopped and gone on with


def volume():
    parts = [simulated(abdomen_image(32, seed), 16, 40.0, seed) for seed in range(3)]
    arrays = {name: torch.stack([part[name] for part in parts]).numpy() for name in ("sinogram", "truth")}
    return {**arrays, "bounds": (0, 1), "iterations": 12}


@pytest.mark.slow
def test_a_volume_goes_on_from_the_slice_and_iteration_it_stopped_in(tmp_path, monkeypatch):
    whole = reconstruct(**volume(), batch=8)
    true_run, calls = slices.run, []

    def stopped_run(solver, start, stop, **options):
        calls.append(options["checkpoint"])
        if len(calls) == 2:  # in the second slice
            options["callback"] = lambda s: s.k == 7 and signal.raise_signal(signal.SIGINT)
        return true_run(solver, start, stop, **options)

    monkeypatch.setattr(slices, "run", stopped_run)
    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt, match="after 7 iterations"):
        reconstruct(**volume(), batch=8, checkpoint=kept)
    np.testing.assert_array_equal(np.load(kept / "image.npy")[0], whole.image[0])
    assert load_checkpoint(calls[1])[0].k == 7
    with pytest.raises(ValueError, match="holds an unfinished run; set resume to go on"):
        reconstruct(**volume(), batch=8, checkpoint=kept)
    with pytest.raises(ValueError, match="unfinished run with another batch: 8 then, 4 now"):
        reconstruct(**volume(), batch=4, checkpoint=kept, resume=True)
    other = volume() | {"sinogram": 1.1 * volume()["sinogram"]}
    with pytest.raises(ValueError, match="unfinished run with another data"):
        reconstruct(**other, batch=8, checkpoint=kept, resume=True)
    resumed = reconstruct(**volume(), batch=8, checkpoint=kept, resume=True)
    assert len(calls) == 4 and not resumed.interrupted  # the first slice was not done again
    np.testing.assert_array_equal(whole.image, resumed.image)
    assert [row["snr"] for row in whole.slices] == [row["snr"] for row in resumed.slices]
    np.testing.assert_array_equal(whole.shown["FBP"], resumed.shown["FBP"])
    np.testing.assert_array_equal(whole.residual, resumed.residual)


def test_the_residual_is_what_the_image_leaves_of_the_data():
    sinogram = simulated_sinogram(abdomen_image(SIZE), views=VIEWS, snr=40)
    result = reconstruct(sinogram, size=SIZE, iterations=3, raw=True, center=0.0)
    left = sinogram - half_turn(result.image, VIEWS)(result.image)
    np.testing.assert_allclose(result.residual, left, atol=1e-4 * float(sinogram.max()))
    assert np.linalg.norm(result.residual) / np.linalg.norm(sinogram) == pytest.approx(
        result.mean("residual"), rel=1e-3
    )


def test_a_large_residual_is_made_small_by_means_over_equal_blocks():
    rows = torch.arange(1030.0 * 40).reshape(1030, 40)
    small = sinograms.small_mean(rows)
    assert small.shape == (344, 40)
    torch.testing.assert_close(small[:343], rows[:1029].reshape(343, 3, 40).mean(1))
    torch.testing.assert_close(small[343], rows[1029])


@pytest.mark.slow
@pytest.mark.command
@posix
@pytest.mark.parametrize("number", [signal.SIGINT, 9])  # 9: SIGKILL
def test_a_killed_command_is_resumed_to_the_same_image(slice_file, tmp_path, number):
    arguments = [slice_file, "--simulate", VIEWS, "--quiet", "--iterations", 40, "--batch", 10]
    (tmp_path / "patch").mkdir()  # checkpoints every iteration, and steps slow enough to be interrupted
    (tmp_path / "patch" / "sitecustomize.py").write_text(
        "import time, smadmm.imaging.slices as module\n"
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
    deadline = time.monotonic() + 600
    while not (checkpoint.exists() and load_checkpoint(checkpoint)[0].k >= 5):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, told = process.communicate(timeout=600)
    assert {path.name for path in (tmp_path / "out").iterdir()} - {".lock"} == {"unfinished"}
    if number == signal.SIGINT:
        assert process.returncode == 130 and told.startswith("stopped after") and told.strip().endswith("--resume")
    assert 5 <= load_checkpoint(checkpoint)[0].k < 40
    code, said, error = call(*arguments, "--out", tmp_path / "out", "--resume")
    assert code == 0, (said, error)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith((".", "unfinished"))]
    assert "holds a finished result" in str(call(*arguments, "--out", tmp_path / "out")[2])
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
    (["flat.npy", "--simulate", 20], "the image is constant"),
    (["nan.npy", "--simulate", 20], "values that are not finite"),
    (["unreadable.dcm", "--simulate", 20], "cannot be read as DICOM"),
    (["unreadable.dcm"], "cannot be read as DICOM"),
    (["sinogram.npy"], "has no angles; give --angles"),
    (["sinogram.npy", "--angles", "eleven.txt"], "sinogram.npy is 12 x 30, but there are 11 angles"),
    (["sinogram.npy", "--angles", "0:180", "--unit", "turns"], "--unit is one of auto, degrees, radians"),
    (["sinogram.npy", "--angles", "0:180", "--views", 13], "--views must be between 1 and the 12 views"),
    (["sinogram.npy", "--angles", "0:180", "--snr", 30], "--snr is the noise of a simulation"),
    (["sinogram.npy", "--angles", "0:180", "--spacing", 0], "--spacing must be positive"),
    (["broken.npy", "--angles", "0:180"], "the sinogram has 1 values that are NaN"),
    (["ones.npy", "--angles", "0:180"], "the sinogram is constant"),
    (["slice.npy", "--simulate", 20, "--method", "magic"], "--method is one of"),
    (["slice.npy", "--simulate", 20, "--prior", "magic"], "no prior 'magic'"),
    (["slice.npy", "--simulate", 20, "--batch", 21], "--batch is 21, more than the 20 views"),
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
        (["slice.npy", "--simulate", 9, "--out", "file/new"], "Error: the output folder file/new cannot"),
    ):
        process = terminal(*arguments, cwd=tmp_path)
        said, told = process.communicate(timeout=600)
        assert process.returncode == 2 and told.startswith(message) and told.count("\n") == 1, (said, told)
        assert not (tmp_path / "new").exists()


# --- the verb


@pytest.mark.slow
def test_the_verb_keeps_kinds_and_says_one_line(sinogram_file):
    stored = np.load(sinogram_file)
    result = reconstruct(stored["sinogram"], stored["angles"], size=SIZE, iterations=5)
    assert isinstance(result.image, np.ndarray) and result.image.shape == (SIZE, SIZE)
    assert repr(result).startswith("Reconstruction(64 x 64, residual ") and "\n" not in repr(result)
    assert "noise" in repr(result) and result.history["k"][-1] == 5 and not result.interrupted
    tensor = reconstruct(torch.from_numpy(stored["sinogram"]), size=SIZE, iterations=5)  # the same angles by default
    assert isinstance(tensor.image, torch.Tensor)
    np.testing.assert_array_equal(tensor.image.numpy(), result.image)
    stack = reconstruct(np.stack([stored["sinogram"]] * 2), stored["angles"], size=SIZE, iterations=5)
    assert stack.image.shape == (2, SIZE, SIZE) and len(stack.slices) == 2
    np.testing.assert_array_equal(stack.image[1], result.image)
    assert result._repr_html_().count("data:image/png;base64,") == 1 and len(result.plot().axes) >= 6


@pytest.mark.slow
def test_the_verb_and_the_command_leave_the_same(sinogram_file, tmp_path):
    stored = np.load(sinogram_file)
    succeed(sinogram_file, "--out", tmp_path / "command", "--size", SIZE)
    result = reconstruct(stored["sinogram"], stored["angles"], size=SIZE, iterations=10)
    said = result.save(tmp_path / "verb")
    assert {path.name for path in (tmp_path / "verb").iterdir()} == FILES and "are in" in said[-1]
    one, other = (np.load(tmp_path / name / "image.npy") for name in ("command", "verb"))
    np.testing.assert_array_equal(one, other)


def test_the_verb_starts_where_it_is_told(sinogram_file, hu):
    stored = np.load(sinogram_file)
    truth = 0.02 * window(hu).numpy()
    near = reconstruct(stored["sinogram"], stored["angles"], size=SIZE, iterations=1, start=truth, truth=truth)
    far = reconstruct(stored["sinogram"], stored["angles"], size=SIZE, iterations=1, truth=truth)
    assert near.history["snr"][0] == np.inf and near.slices[0]["snr"] > far.slices[0]["snr"]


def test_angles_in_radians_get_a_warning(sinogram_file):
    stored = np.load(sinogram_file)
    with pytest.warns(DataWarning) as caught:
        result = reconstruct(stored["sinogram"], np.deg2rad(stored["angles"]), size=SIZE, iterations=2)
    assert any("lie below 2 pi" in str(one.message) for one in caught)
    assert "all 30 angles lie below 2 pi: they are taken as degrees" in result.warnings[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"angles": [0.0, 45.0, 90.0]}, "angles must be 30 finite numbers, one per view, got 3"),
        ({"batch": 31}, "batch is 31, more than the 30 views"),
        ({"method": "magic"}, "method is one of smadmm, .*, got 'magic'"),
        ({"seconds": -1}, "seconds must be positive, got -1"),
        ({"photons": 0.5}, "photons is a number of 1 to 1e.15 per unattenuated ray, got 0.5"),
        ({"center": np.nan}, 'center is a finite number or "auto", got nan'),
        ({"size": 1}, "size must be at least 2 pixels"),
    ],
)
def test_errors_of_the_verb_name_the_argument(sinogram_file, options, message):
    with pytest.raises(ArgumentError, match=message):
        reconstruct(np.load(sinogram_file)["sinogram"], **options)


def test_each_filter_is_used_once_per_slice_and_a_slice_is_read_once(sinogram_file, monkeypatch):
    stored, used = np.load(sinogram_file)["sinogram"], []
    true_fbp = Radon.fbp
    monkeypatch.setattr(Radon, "fbp", lambda radon, rows, window: used.append(window(torch.tensor([0.5]))) or
                        true_fbp(radon, rows, window))  # fmt: skip

    class Counted:
        shape, reads = stored.shape, 0

        def __len__(self):
            return len(stored)

        def __getitem__(self, key):
            Counted.reads += 1
            return stored[key]

    reconstruct(Counted(), size=SIZE, iterations=2, raw=True)
    assert Counted.reads == 1 and len(used) == len({float(value) for value in used})


def test_without_a_limit_the_default_number_of_iterations_is_done(sinogram_file):
    sinogram = np.load(sinogram_file)["sinogram"]
    assert reconstruct(sinogram, size=SIZE, raw=True).slices[0]["iterations"] == ct.ITERATIONS
    assert reconstruct(sinogram, size=SIZE).slices[0]["iterations"] == ct.ITERATIONS - slices.WARM


def test_a_denoiser_of_your_own_is_a_prior():
    truth = abdomen_image(48)
    sinogram = simulated_sinogram(truth, views=24, snr=35)
    shipped = reconstruct(sinogram, size=48, prior="ridge-ct", iterations=5)
    own = load_denoiser("ridge-ct").at_level(shipped.settings["prior_sigma"])
    given = reconstruct(sinogram, size=48, prior=own, iterations=5)
    assert torch.equal(given.image, shipped.image) and given.settings["prior"] == "own AtLevel"

    def unchanged(image):
        assert image.shape == (48, 48)
        return image

    by_function = reconstruct(sinogram, size=48, prior=unchanged, iterations=5)
    by_prox = reconstruct(sinogram, size=48, prior=proxes.Zero(), iterations=5)
    assert torch.equal(by_function.image, by_prox.image) and by_function.settings["prior"] == "own unchanged"
    assert not torch.equal(by_function.image, shipped.image)
    with pytest.raises(ArgumentError, match="prior is a name, a denoiser"):
        reconstruct(sinogram, size=48, prior=3)
