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

from smadmm.data.images import as_unit
from smadmm.data.patterns import Patterns, read_patterns
from smadmm.data.phantoms import abdomen
from smadmm.imaging import retrieve as job
from smadmm.imaging.outputs import Interrupted
from smadmm.imaging.retrieve import Settings, open_input, retrieve
from smadmm.metrics import snr
from smadmm.operators import CodedDiffraction, circle_masks

PIXELS = np.clip((abdomen(40, 0) + 1000) / 10, 0, 255).astype(np.uint8)
TRUTH = as_unit(PIXELS)
MASKS = circle_masks(6, TRUTH.shape).numpy()
FILES = {"image.npy", "image.tif", "image.png", "figure.png", "curves.png", "curves.csv", "run.json", "report.html"}
SHORT = Settings(iterations=30)


def measured(truth, masks, decibel=25):
    operator = CodedDiffraction(torch.from_numpy(masks), torch.complex64)
    clean = operator(torch.from_numpy(truth).to(torch.complex64)).abs().numpy()
    noise = np.random.default_rng(0).standard_normal(clean.shape).astype(np.float32)
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) * 10 ** (-decibel / 20)
    return np.maximum(clean + noise, 0)


AMPLITUDES = measured(TRUTH, MASKS)


def go(patterns, out, settings=SHORT, **options):
    lines = list(retrieve("input", patterns, out, settings, "smadmm retrieve", progress=False, **options))
    return lines, json.loads((out / "run.json").read_text())


def test_an_image_is_simulated_and_retrieved(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    lines, told = go(open_input(str(tmp_path / "image.png"), 6, 25, None, None, 0), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert told["snr"] > told["snr_fit"] + 1 and told["ssim"] > told["ssim_fit"]
    assert f"{told['snr']:.2f} dB" in lines[0]
    image = np.load(tmp_path / "out" / "image.npy")
    assert snr(torch.from_numpy(TRUTH), torch.from_numpy(image)) == pytest.approx(told["snr"], abs=1e-3)
    level = np.linalg.norm(AMPLITUDES) / AMPLITUDES.size**0.5 * 10 ** (-25 / 20)
    assert told["noise"] == pytest.approx(level, rel=0.1)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Phase retrieval of input" in page and "http://" not in page.replace("http://www.w3.org", "")


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
        extra = (str(tmp_path / "masks.npy"), quantity)
    settings = Settings(iterations=30, batch=3)
    lines, told = go(open_input(str(path), None, None, *extra, 0), tmp_path / "out", settings)
    assert "snr" not in told and 0 < told["residual"] < 0.1 and "residual" in lines[0]
    _, plain = go(Patterns(AMPLITUDES, MASKS, "amplitudes", TRUTH), tmp_path / "plain", settings)
    image, expected = (np.load(tmp_path / folder / "image.npy") for folder in ("out", "plain"))
    np.testing.assert_allclose(image / 1000, expected, atol=2e-3)
    assert told["data"] == quantity and plain["snr"] > 28


def test_files_stay_on_disk(tmp_path):
    np.save(tmp_path / "data.npy", AMPLITUDES)
    np.save(tmp_path / "masks.npy", MASKS)
    patterns = read_patterns(tmp_path / "data.npy", tmp_path / "masks.npy", "amplitudes")
    assert isinstance(patterns.stored, np.memmap) and isinstance(patterns.masks, np.memmap)
    loss = job._loss(patterns, SHORT)
    assert isinstance(loss.operator._masks, np.memmap)


@pytest.mark.slow
def test_complex_images(tmp_path):
    rows, columns = np.mgrid[:40, :40] / 40
    truth = ((TRUTH + 0.2) * np.exp(1j * (rows + columns))).astype(np.complex64)
    masks = circle_masks(10, truth.shape).numpy()
    patterns = Patterns(
        measured(truth.astype(np.complex64), masks, 30), masks, "amplitudes", truth.astype(np.complex64)
    )
    _, told = go(patterns, tmp_path / "out", Settings(iterations=60, complex=True))
    assert told["snr"] > told["snr_fit"] and told["snr"] > 30
    found = np.load(tmp_path / "out" / "image_complex.npy")
    assert found.dtype == np.complex64
    error = np.linalg.norm(truth - found) / np.linalg.norm(truth)  # aligned already
    assert -20 * np.log10(error) == pytest.approx(told["snr"], abs=0.01)


@pytest.mark.parametrize("start", ["constant", "spectral"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_starts_have_the_energy_of_the_patterns(start, is_complex):
    loss = job._loss(Patterns(AMPLITUDES, MASKS, "amplitudes"), Settings(complex=is_complex), np.arange(6))
    x = job.STARTS[start](loss)
    assert x.dtype == (torch.complex64 if is_complex else torch.float32)
    assert float(x.norm()) == pytest.approx(np.linalg.norm(TRUTH), rel=0.02)
    if not is_complex:
        assert float(x.sum()) > 0


def test_the_spectral_start_is_closer_to_the_truth_with_many_masks():
    masks = circle_masks(16, TRUTH.shape).numpy()
    clean = CodedDiffraction(torch.from_numpy(masks))(torch.from_numpy(TRUTH)).abs().numpy()
    loss = job._loss(Patterns(clean, masks, "amplitudes"), SHORT, np.arange(16))
    truth = torch.from_numpy(TRUTH)
    spectral, constant = (float((job.STARTS[name](loss) - truth).norm()) for name in ("spectral", "constant"))
    assert spectral < constant


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    patterns = Patterns(AMPLITUDES, MASKS, "amplitudes", TRUTH)
    settings = Settings(iterations=20, batch=2)
    go(patterns, tmp_path / "whole", settings)
    real_run = job.run

    def interrupted(solver, start, stop, **options):
        if options.get("checkpoint") is None:
            return real_run(solver, start, stop, **options)
        done = real_run(solver, start, job.Stop(iterations=7), **options)
        return job.Result(done.state, done.history, "interrupted by SIGINT")

    monkeypatch.setattr(job, "run", interrupted)
    with pytest.raises(Interrupted, match="stopped after 7 iterations; go on with: smadmm retrieve --resume"):
        go(patterns, tmp_path / "part", settings)
    monkeypatch.setattr(job, "run", real_run)
    with pytest.raises(ValueError, match="unfinished run; add --resume"):
        go(patterns, tmp_path / "part", settings)
    go(patterns, tmp_path / "part", settings, resume=True)
    whole, part = (np.load(tmp_path / folder / "image.npy") for folder in ("whole", "part"))
    assert np.array_equal(whole, part)
    assert {path.name for path in (tmp_path / "part").iterdir()} == FILES


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
    "mask count": (lambda p: [_npz(p, amplitudes=AMPLITUDES, masks=MASKS[:5])], "masks of shape"),
    "masks missing": (lambda p: [_npz(p, amplitudes=AMPLITUDES)], "no array 'masks'"),
    "dark": (lambda p: [_npz(p, amplitudes=0 * AMPLITUDES, masks=MASKS)], "all patterns of"),
    "truth shape": (lambda p: [_npz(p, amplitudes=AMPLITUDES, masks=MASKS, truth=TRUTH[:9])], "truth in"),
    "unreadable": (lambda p: [_text(p)], "cannot be read"),
    "method": (lambda p: [_picture(p), "--masks", 6, "--method", "best"], "no method 'best'"),
    "prior": (lambda p: [_picture(p), "--masks", 6, "--prior", "best"], "no prior 'best'"),
    "batch": (lambda p: [_picture(p), "--masks", 6, "--batch", 7], "more than the 6 masks"),
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
    from smadmm import cli

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
    command = [sys.executable, "-m", "smadmm.cli", "retrieve", str(_picture(tmp_path)), "--masks", "4", "--quiet"]
    command += ["--iterations", "5", "--prior", "tv", "--method", "spider", "--start", "spectral", "--batch", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--out", tmp_path / "out"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "SNR" in done.stdout, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["method"] == "spider"
    (tmp_path / "file").write_text("")
    done = subprocess.run([*command, "--out", tmp_path / "file" / "out"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("Error: the output folder")
