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
from smadmm.imaging.result import DataWarning
from smadmm.io.images import as_unit
from smadmm.io.patterns import read_patterns
from smadmm.io.phantoms import abdomen
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import constant_start, spectral_start
from smadmm.operators import CodedDiffraction, circle_masks
from smadmm.results import Reason, Result
from smadmm.running import Stop

PIXELS = np.clip((abdomen(40, 0) + 1000) / 10, 0, 255).astype(np.uint8)
TRUTH = as_unit(PIXELS)
MASKS = circle_masks(6, TRUTH.shape).numpy()
FILES = {"image.npy", "image.tif", "image.png", "figure.png", "curves.png", "curves.csv", "run.json", "report.html"}


START = {"constant": constant_start, "spectral": spectral_start}


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


@pytest.mark.slow
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
    loss = patterns.loss()
    assert isinstance(loss.operator._masks, np.memmap)
    in_memory = patterns.loss_of(np.arange(6))
    torch.testing.assert_close(loss.data(torch.tensor([2, 5])), in_memory.data(torch.tensor([2, 5])))


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
    data = Patterns(AMPLITUDES, MASKS, "amplitudes", is_complex)
    x = data.scale * START[start](data.loss_of(np.arange(6)))
    assert x.dtype == (torch.complex64 if is_complex else torch.float32)
    assert float(x.norm()) == pytest.approx(np.linalg.norm(TRUTH), rel=0.02)
    if not is_complex:
        assert float(x.sum()) > 0


def test_the_spectral_start_is_closer_to_the_truth_with_many_masks():
    masks = circle_masks(16, TRUTH.shape).numpy()
    clean = CodedDiffraction(torch.from_numpy(masks))(torch.from_numpy(TRUTH)).abs().numpy()
    data, truth = Patterns(clean, masks, "amplitudes"), torch.from_numpy(TRUTH)
    loss = data.loss_of(np.arange(16))
    spectral, constant = (float((data.scale * START[name](loss) - truth).norm()) for name in ("spectral", "constant"))
    assert spectral < constant


def test_the_spectral_start_finds_a_pixel_that_outshines_all():
    """A constant has hardly a part of it: many steps of a power iteration would be needed."""
    truth = torch.zeros(35, 52)
    truth[12:23, 12:40], truth[20, 30] = torch.from_numpy(0.09 * natural((11, 28))), -40
    masks = circle_masks(8, truth.shape, 4)
    clean = CodedDiffraction(masks)(truth).abs()
    start = spectral_start(AmplitudeLoss(CodedDiffraction(masks), clean))
    assert int(start.abs().argmax()) == 20 * 52 + 30
    (row,) = retrieve(clean, masks, truth=truth, iterations=5).slices
    assert row["snr_fit"] > 30


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


def natural(shape, seed=0):
    """Smooth patches with edges and some texture, in [0, 1]."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    image = 0.2 + 0.1 * np.sin(rows / 5) + 0.1 * np.cos(columns / 7)
    for _ in range(8):
        r, c, size = rng.integers(shape[0]), rng.integers(shape[1]), rng.integers(4, 14)
        image[(rows - r) ** 2 + (columns - c) ** 2 < size**2] = rng.random()
    return (image / image.max()).astype(np.float32)


def black_border(x):
    return np.pad(x[8:-8, 8:-8], 8)


def bright_pixel(x):
    x = x.copy()
    x[7, 9] = 100
    return x


HARMLESS = {
    "as it is": (lambda x: x, 6),
    "scaled": (lambda x: 1e-6 * x, 6),
    "mixed signs": (lambda x: x - 0.5, 6),
    "negative": (lambda x: -x, 4),
    "bright pixel": (bright_pixel, 6),
    "black border": (black_border, 3),
    "odd and not square": (lambda x: x[:41, :33], 2),
    "one mask": (lambda x: x, 1),
    "random phases": (lambda x: x * np.exp(2j * np.pi * natural(x.shape, 5)).astype(np.complex64), 5),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", HARMLESS)
def test_harmless_variations_end_above_their_fit_and_in_silence(kind):
    change, count = HARMLESS[kind]
    truth = change(natural((48, 44)))
    masks = circle_masks(count, truth.shape, 3).numpy()
    (row,) = retrieve(measured(truth, masks), masks, truth=truth, complex=np.iscomplexobj(truth)).slices
    assert row["snr"] > row["snr_fit"] + 0.5
    assert row["residual"] < 1.05 * row["relative_noise"] and row["stopped"] == "no more change"


def wrong(change, **options):
    """Patterns of a real image behind 6 masks, changed, and how they are given."""
    return change, options


def reordered(order):
    return wrong(lambda y, m: (y, m[order]))


def spoilt(y, m):
    y = y.copy()
    y[2] = y[2, ::-1]
    return y, m


def stopped(y, m):
    y = y.copy()
    y[:, :4, :4] = 0
    return y, m


WRONG = {
    "complex image": (wrong(lambda y, m: (measured(natural((40, 40)) * np.exp(6j * TRUTH), m), m)), "image is complex"),
    "other masks": (wrong(lambda y, m: (y, circle_masks(6, (40, 40), 9).numpy())), "each mask belongs to its pattern"),
    "opposite order": (reordered([5, 4, 3, 2, 1, 0]), "opposite order"),
    "shifted order": (reordered([1, 2, 3, 4, 5, 0]), "each mask belongs to its pattern"),
    "fftshift": (wrong(lambda y, m: (np.fft.fftshift(y, axes=(1, 2)), m)), "ifftshift"),
    "intensities": (wrong(lambda y, m: (y**2, m)), "the patterns are intensities"),
    "amplitudes": (wrong(lambda y, m: (y, m), quantity="intensities"), "the patterns are amplitudes"),
    "conjugated masks": (wrong(lambda y, m: (y, m.conj())), "conjugated"),
    "transposed": (wrong(lambda y, m: (y.transpose(0, 2, 1), m)), "rows and columns"),
    "saturated": (wrong(lambda y, m: (np.minimum(y, np.quantile(y, 0.97)), m)), "saturated"),
    "beam stop": (wrong(stopped), "beam stop"),
    "angles": (wrong(lambda y, m: (y, np.angle(m) % (2 * np.pi))), r"exp\(1j"),
    "moduli": (wrong(lambda y, m: (y, np.abs(m))), "All masks are equal"),
    "exposures": (wrong(lambda y, m: (y * np.linspace(1, 1.3, 6, dtype=np.float32)[:, None, None], m)), "exposures"),
    "one bad pattern": (wrong(spoilt), "Pattern 2 fits"),
    "background": (wrong(lambda y, m: (np.sqrt(y**2 + 0.3 * (y**2).mean()), m)), "background"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_input_is_told_with_its_cause(kind):
    (change, options), cause = WRONG[kind]
    patterns, masks = change(AMPLITUDES, MASKS)
    with pytest.warns(DataWarning, match=cause):
        result = retrieve(np.ascontiguousarray(patterns), masks, iterations=2, **options)
    assert len(result.warnings) >= 1


def test_pixels_that_are_no_data_do_no_harm(tmp_path):
    """Named by `valid`, or found: the image is as good as without them, but for the data lost."""
    stop = np.ones(TRUTH.shape, bool)
    stop[:6, :5] = stop[20, 20:23] = False
    blocked = np.where(stop, AMPLITUDES, 0)
    free = retrieve(AMPLITUDES, MASKS, truth=TRUTH).slices[0]["snr"]
    named = retrieve(np.where(stop, AMPLITUDES, 7), MASKS, truth=TRUTH, valid=stop)
    assert named.slices[0]["snr"] > free - 0.5 and not named.warnings
    with pytest.warns(DataWarning, match="33 pixels"):
        found = retrieve(blocked, MASKS, truth=TRUTH)
    np.testing.assert_allclose(found.image, named.image, atol=1e-3)
    np.savez(tmp_path / "data.npz", amplitudes=AMPLITUDES, masks=MASKS, valid=stop)
    assert np.array_equal(read_patterns(tmp_path / "data.npz")["valid"], stop)
    with pytest.raises(ValueError, match="valid is"):
        retrieve(AMPLITUDES, MASKS, valid=stop[:9])


def test_the_denoiser_is_set_for_the_error_of_the_fit():
    """lv = s sqrt(2 / (n e)) and rho = e/2; twice the light with the same noise halves lv^2."""
    for strong in (1.0, 2**0.5):
        masks = (strong * MASKS).astype(np.complex64)
        result = retrieve(measured(strong * TRUTH, MASKS), masks, truth=TRUTH)
        told, (row,) = result.settings, result.slices
        assert told["level"] == pytest.approx(told["noise"] * (2 / (6 * strong**2)) ** 0.5, rel=1e-4)
        error = np.sqrt(np.mean((result.shown["without prior"] - TRUTH) ** 2))
        assert error == pytest.approx(told["level"] * (6 / 5) ** 0.5, rel=0.1)
        assert told["rho"] == pytest.approx(strong**2 / 2, rel=1e-4)
        assert told["prior_sigma"] * told["scale"] == pytest.approx(told["level"], rel=1e-4)
        assert row["sfo"] == 6 * (row["iterations"] + 1)  # every mask once


def test_a_prior_that_explains_less_than_the_noise_gives_way_to_the_fit():
    with pytest.warns(DataWarning, match="fit without prior; lower the strength"):
        result = retrieve(AMPLITUDES, MASKS, prior="tv", strength=10, truth=TRUTH)
    (row,) = result.slices
    assert row["snr"] == row["snr_fit"] and row["residual"] == pytest.approx(row["residual_fit"])


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
