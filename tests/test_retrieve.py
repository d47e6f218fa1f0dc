"""smadmm retrieve: from patterns or an image to a folder; bad input is one sentence, and nothing is written."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from smadmm import retrieve
from smadmm.__main__ import app
from smadmm.imaging import phase
from smadmm.imaging.metrics import snr
from smadmm.imaging.phase import Patterns
from smadmm.io.images import as_unit
from smadmm.io.patterns import read_patterns
from smadmm.io.phantoms import abdomen
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.running import Reason, Result, Stop

PIXELS = np.clip((abdomen(40, 0) + 1000) / 10, 0, 255).astype(np.uint8)
TRUTH = as_unit(PIXELS)
MASKS = circle_masks(6, TRUTH.shape).numpy()
FILES = {"image.npy", "image.tif", "image.png", "figure.png", "curves.png", "curves.csv", "run.json", "report.html"}


def measured(truth, masks, decibel=25):
    operator = CodedDiffraction(torch.from_numpy(masks), torch.complex64)
    clean = operator(torch.from_numpy(truth).to(torch.complex64)).abs().numpy()
    noise = np.random.default_rng(0).standard_normal(clean.shape).astype(np.float32)
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) * 10 ** (-decibel / 20)
    return np.maximum(clean + noise, 0)


AMPLITUDES = measured(TRUTH, MASKS)


def call(*arguments):
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["retrieve", *map(str, arguments), "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_an_image_is_simulated_and_retrieved(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    out = tmp_path / "out"
    said = call(tmp_path / "image.png", "--masks", 6, "--out", out, "--iterations", 30)
    told = json.loads((out / "run.json").read_text())
    assert {path.name for path in out.iterdir()} == FILES
    assert told["snr"] > told["snr_fit"] + 1 and told["ssim"] > told["ssim_fit"]
    assert f"{told['snr']:.2f} dB" in said and f"without prior {told['snr_fit']:.2f}" in said
    image = np.load(out / "image.npy")
    assert snr(torch.from_numpy(TRUTH), torch.from_numpy(image)) == pytest.approx(told["snr"], abs=1e-3)
    level = np.linalg.norm(AMPLITUDES) / AMPLITUDES.size**0.5 * 10 ** (-25 / 20)
    assert told["noise"] == pytest.approx(level, rel=0.1)
    page = (out / "report.html").read_text()
    assert "Retrieval of image.png" in page and "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "h5", "npy"])
@pytest.mark.parametrize("quantity", ["amplitudes", "intensities"])
def test_every_format_and_quantity_gives_the_same_image(kind, quantity, tmp_path):
    """Also in another unit: patterns 1000 times as strong give an image 1000 times as strong."""
    values = 1000 * AMPLITUDES if quantity == "amplitudes" else (1000 * AMPLITUDES) ** 2
    path, extra = tmp_path / f"data.{kind}", (None, None)
    if kind == "npz":
        np.savez(path, **{quantity: values}, masks=MASKS)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file[quantity], file["masks"] = values, MASKS
    else:
        np.save(path, values)
        np.save(tmp_path / "masks.npy", MASKS)
        extra = (tmp_path / "masks.npy", quantity)
    result = retrieve(**read_patterns(path, *extra), iterations=30, batch=3)
    assert "snr" not in result and 0 < result.slices[0]["residual"] < 0.1 and result.settings["data"] == quantity
    plain = retrieve(AMPLITUDES, MASKS, truth=TRUTH, iterations=30, batch=3)
    np.testing.assert_allclose(result.image / 1000, plain.image, atol=2e-3)
    assert plain.slices[0]["snr"] > 28 and isinstance(plain.image, np.ndarray)
    assert repr(plain).startswith("Retrieval(40 x 40, SNR ")


def test_files_stay_on_disk(tmp_path):
    np.save(tmp_path / "data.npy", AMPLITUDES)
    np.save(tmp_path / "masks.npy", MASKS)
    found = read_patterns(tmp_path / "data.npy", tmp_path / "masks.npy", "amplitudes")
    patterns = Patterns(found["patterns"], found["masks"], found["quantity"])
    assert isinstance(patterns.stored, np.memmap) and isinstance(patterns.masks, np.memmap)
    assert isinstance(patterns.loss().operator._masks, np.memmap)


@pytest.mark.slow
def test_complex_images(tmp_path):
    rows, columns = np.mgrid[:40, :40] / 40
    truth = ((TRUTH + 0.2) * np.exp(1j * (rows + columns))).astype(np.complex64)
    masks = circle_masks(10, truth.shape).numpy()
    result = retrieve(measured(truth, masks, 30), masks, truth=truth, iterations=60, complex=True)
    (row,) = result.slices
    assert row["snr"] > row["snr_fit"] and row["snr"] > 30
    result.save(tmp_path)
    found = np.load(tmp_path / "image_complex.npy")
    assert found.dtype == np.complex64 and np.array_equal(found, result.image)
    error = np.linalg.norm(truth - found) / np.linalg.norm(truth)  # aligned already
    assert -20 * np.log10(error) == pytest.approx(row["snr"], abs=0.01)
    np.testing.assert_allclose(np.load(tmp_path / "image.npy"), np.abs(found), rtol=1e-5)


@pytest.mark.parametrize("start", ["constant", "spectral"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_starts_have_the_energy_of_the_patterns(start, is_complex):
    loss = Patterns(AMPLITUDES, MASKS, "amplitudes", is_complex).loss_of(np.arange(6))
    x = phase.STARTS[start](loss)
    assert x.dtype == (torch.complex64 if is_complex else torch.float32)
    assert float(x.norm()) == pytest.approx(np.linalg.norm(TRUTH), rel=0.02)
    if not is_complex:
        assert float(x.sum()) > 0


def test_the_spectral_start_is_closer_to_the_truth_with_many_masks():
    masks = circle_masks(16, TRUTH.shape).numpy()
    clean = CodedDiffraction(torch.from_numpy(masks))(torch.from_numpy(TRUTH)).abs().numpy()
    loss = Patterns(clean, masks, "amplitudes").loss_of(np.arange(16))
    truth = torch.from_numpy(TRUTH)
    spectral, constant = (float((phase.STARTS[name](loss) - truth).norm()) for name in ("spectral", "constant"))
    assert spectral < constant


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    data = {"patterns": AMPLITUDES, "masks": MASKS, "truth": TRUTH, "iterations": 20, "batch": 2}
    whole, kept, real_run = retrieve(**data), tmp_path / "kept", phase.run

    def interrupted(solver, start, stop, **options):
        if options.get("checkpoint") is None:
            return real_run(solver, start, stop, **options)
        done = real_run(solver, start, Stop(iterations=7), **options)
        return Result(done.state, done.history, Reason.INTERRUPTED)

    monkeypatch.setattr(phase, "run", interrupted)
    part = retrieve(**data, checkpoint=kept)
    assert part.interrupted and part.slices[0]["iterations"] == 7
    monkeypatch.setattr(phase, "run", real_run)
    with pytest.raises(ValueError, match="unfinished run; set resume to go on"):
        retrieve(**data, checkpoint=kept)
    assert np.array_equal(retrieve(**data, checkpoint=kept, resume=True).image, whole.image)


def _npz(tmp_path, **arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    return tmp_path / "bad.npz"


def _with(array, value):
    array = array.copy()
    array.flat[5] = value
    return array


BAD = {
    "no file": (lambda p: [p / "none.png", "--masks", 6], "there is no file"),
    "constant image": (lambda p: [_constant(p), "--masks", 6], "constant"),
    "negative snr": (lambda p: [_picture(p), "--masks", 6, "--snr", -3], "--snr must not be negative"),
    "no masks": (lambda p: [_picture(p)], "give --masks NUMBER"),
    "zero masks": (lambda p: [_picture(p), "--masks", 0], "--masks must be at least 1"),
    "nan": (lambda p: [_npz(p, amplitudes=_with(AMPLITUDES, np.nan), masks=MASKS)], "not finite"),
    "negative": (lambda p: [_npz(p, intensities=_with(AMPLITUDES, -1), masks=MASKS)], "negative intensities"),
    "mask count": (lambda p: [_npz(p, amplitudes=AMPLITUDES, masks=MASKS[:5])], "but --masks has"),
    "masks missing": (lambda p: [_npz(p, amplitudes=AMPLITUDES)], "no array 'masks'"),
    "dark": (lambda p: [_npz(p, amplitudes=0 * AMPLITUDES, masks=MASKS)], "all patterns are zero"),
    "truth shape": (lambda p: [_npz(p, amplitudes=AMPLITUDES, masks=MASKS, truth=TRUTH[:9])], "the truth has shape"),
    "unreadable": (lambda p: [_text(p)], "cannot be read"),
    "method": (lambda p: [_picture(p), "--masks", 6, "--method", "best"], "--method is one of"),
    "prior": (lambda p: [_picture(p), "--masks", 6, "--prior", "best"], "no prior 'best'"),
    "batch": (lambda p: [_picture(p), "--masks", 6, "--batch", 7], "--batch is 7, more than the 6 masks"),
    "device": (lambda p: [_picture(p), "--masks", 6, "--device", "tpu9"], "not available"),
}


def _picture(folder):
    Image.fromarray(PIXELS).save(folder / "picture.png")
    return folder / "picture.png"


def _constant(folder):
    Image.fromarray(np.full((9, 9), 7, np.uint8)).save(folder / "constant.png")
    return folder / "constant.png"


def _text(folder):
    (folder / "text.h5").write_text("no HDF5")
    return folder / "text.h5"


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(name, tmp_path, monkeypatch, capsys):
    from smadmm import __main__ as cli

    make, message = BAD[name]
    arguments = ["smadmm", "retrieve", *map(str, make(tmp_path)), "--out", str(tmp_path / "out"), "--quiet"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert message in told and told.startswith("Error: ") and told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.command
def test_the_command_runs_and_refuses_an_output_it_cannot_write(tmp_path):
    command = [sys.executable, "-m", "smadmm", "retrieve", str(_picture(tmp_path)), "--masks", "4", "--quiet"]
    command += ["--iterations", "5", "--prior", "tv", "--method", "spider", "--start", "spectral", "--batch", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--out", tmp_path / "out"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "SNR" in done.stdout, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["method"] == "spider"
    (tmp_path / "file").write_text("")
    done = subprocess.run([*command, "--out", tmp_path / "file" / "out"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("Error: the output folder")
