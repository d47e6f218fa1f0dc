"""Photons and raw counts in `smadmm reconstruct`: Poisson noise, weights, flat and dark fields."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from smadmm import reconstruct
from smadmm.__main__ import app
from smadmm.arguments import ArgumentError
from smadmm.cli.app import option
from smadmm.cli.reconstruct import WIDTH
from smadmm.imaging.metrics import snr
from smadmm.imaging.pnp import METHODS, posterior_weight, tomography
from smadmm.imaging.priors import find_prior
from smadmm.imaging.simulation import attenuation_per_pixel, half_turn, simulated_counts
from smadmm.imaging.slices import Scan
from smadmm.io.phantoms import abdomen, abdomen_image
from smadmm.io.sinogram import read_sinogram
from smadmm.losses import Tomography
from smadmm.losses.tomography import Transmission
from smadmm.operators import Radon
from smadmm.running import Stop, run
from smadmm.sampling import stride

h5py = pytest.importorskip("h5py")
SIZE, VIEWS, PHOTONS = 64, 40, 3e4


def call(*arguments):
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["reconstruct", *map(str, arguments), "--quiet"])
    error = done.exception
    if isinstance(error, ArgumentError):
        error = ValueError(error.spelled(option))
    return done.exit_code, done.output, error


def attenuation(size=SIZE):
    """Of a pixel of value 1, for a phantom 360 mm wide."""
    return attenuation_per_pixel(WIDTH / size)


def counted(photons=PHOTONS, seed=0, size=SIZE):
    """The phantom in attenuation per pixel, its projector, and a sinogram of counts."""
    truth = attenuation(size) * abdomen_image(size)
    return truth, half_turn(truth, VIEWS), simulated_counts(truth, VIEWS, photons, seed)


def scan_of(radon, photons, scale=1.0):
    return Scan(radon, scale, find_prior("none"), "smadmm", Stop(iterations=1), photons=photons)


def test_simulated_counts_have_the_variance_of_photons():
    truth, radon, sinogram = counted()
    clean = radon(truth)
    assert attenuation() == pytest.approx(0.02 * 2.5 * WIDTH / SIZE)
    errors = torch.stack([counted(seed=seed)[2] - clean for seed in range(10)])
    expected = 1 / (PHOTONS * torch.exp(-clean))  # of every ray
    assert float((errors.square() / expected).mean()) == pytest.approx(1, abs=0.03)
    # that is what noise and weights of the loss say, the least noise of every ray added
    noise, weights, *_ = scan_of(radon, PHOTONS).statistics(clean)
    least = 1e-6 * clean.square().mean()
    torch.testing.assert_close(noise**2 / weights(clean), expected + least)
    assert float(weights(clean).min()) > 0 and float(weights(clean).max()) == pytest.approx(1)
    assert torch.equal(counted()[2], sinogram)


def test_rays_without_photons_are_half_a_photon():
    sinogram = counted(photons=2)[2]
    assert torch.isfinite(sinogram).all()
    assert float(sinogram.max()) == pytest.approx(math.log(2 / 0.5), rel=1e-5)


@pytest.mark.parametrize(("method", "batch"), [("smadmm", None), *((method, 10) for method in METHODS)])
def test_with_weights_no_method_diverges(method, batch):
    _, radon, sinogram = counted(1e3, size=32)
    mu = attenuation(32)
    sinogram = sinogram / mu
    noise, weights, *_ = scan_of(radon, 1e3, mu).statistics(sinogram)
    loss = Tomography(radon, sinogram, weights, sampling=stride)
    prior = find_prior("ridge-natural")
    rho = posterior_weight(loss, noise, prior.sigma)
    start = radon.fbp(sinogram)
    solver = tomography(loss, prior.prox(rho), rho, method, batch)
    result = run(solver, start, Stop(iterations=40), objective=False, progress=False)
    assert float(result.x.abs().max()) < 2
    assert float(loss.value(result.x, loss.full())) < float(loss.value(torch.zeros_like(start), loss.full()))


def test_few_photons_do_not_stay_in_the_image():
    """Noise that lies mostly on the dense rays counts with its mean square when the first image is chosen."""
    truth, radon, sinogram = counted(1e3)
    error = sinogram - radon(truth)
    mean_noise = scan_of(radon, 1e3).statistics(sinogram)[2]
    assert mean_noise == pytest.approx(float(error.square().mean().sqrt()), rel=0.3)
    options = {"photons": 1e3, "truth": truth, "bounds": (0.0, attenuation()), "prior": "ridge-natural"}
    (row,) = reconstruct(sinogram, **options).slices
    assert row["snr"] > row["snr_fbp"] + 6


def test_the_default_step_minimises_the_weighted_loss():
    """Without a prior and noise: NewtonStep goes down on weights of 1 : 300, too."""
    _, radon, sinogram = counted(1e12)
    loss = Tomography(radon, sinogram / attenuation(), Transmission(attenuation()), sampling=stride)
    prior = find_prior("none")
    values = []
    solver = tomography(loss, prior.prox(1e-6), 1e-6)
    run(solver, radon.fbp(sinogram / attenuation()), Stop(iterations=20), objective=False, progress=False,
        callback=lambda s: values.append(float(loss.value(s.x, loss.full()))))  # fmt: skip
    assert all(after <= before * (1 + 1e-4) + 1e-9 for before, after in pairwise(values))
    assert values[-1] < 0.1 * values[0]


# --- raw counts


@pytest.fixture
def raw(tmp_path):
    """Counts with a flat field that varies, and a dark one; the attenuation they stand for."""
    rng = np.random.default_rng(0)
    degrees = np.arange(VIEWS) * 180 / VIEWS
    attenuation = 1.5 * WIDTH / SIZE * 0.02 * Radon(SIZE, np.deg2rad(degrees))(abdomen_image(SIZE)).numpy()
    detectors = attenuation.shape[1]
    flat, dark = 5e4 * (1 + 0.3 * np.sin(np.arange(detectors))), 100 + rng.random(detectors)
    counts = np.rint(dark + flat * np.exp(-attenuation)).astype(np.uint16)
    np.savez(tmp_path / "counts.npz", data=counts, angles=degrees)
    np.save(tmp_path / "flat.npy", np.stack([flat + dark - 3, flat + dark + 3]))  # frames
    np.save(tmp_path / "dark.npy", dark)
    return tmp_path, counts, attenuation


def test_counts_become_attenuations(raw):
    folder, _, attenuation = raw
    sinogram = read_sinogram(folder / "counts.npz", flat=str(folder / "flat.npy"), dark=str(folder / "dark.npy"))
    np.testing.assert_allclose(sinogram[0][:], attenuation, atol=0.01)
    assert sinogram.notes[-1] == "counts are divided by a flat field of 50,100 above the dark field"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_fields_of_a_volume_follow_its_axes(raw, order):
    folder, counts, attenuation = raw
    volume = np.stack([counts, counts[::-1], counts])  # slices x views x detectors
    path = folder / "volume.h5"
    flat = np.broadcast_to(np.load(folder / "flat.npy").mean(0), (3, counts.shape[1]))
    dark = np.broadcast_to(np.load(folder / "dark.npy"), (3, counts.shape[1]))
    with h5py.File(path, "w") as file:
        file["exchange/data"], file["exchange/theta"] = volume.transpose(order), np.arange(VIEWS) * 180 / VIEWS
        turned = [axis for axis in order if axis != 1]
        for name, field in (("data_white", flat), ("data_dark", dark)):
            file[f"exchange/{name}"] = field if turned == [0, 2] else field.T
    sinogram = read_sinogram(path)
    slices = [np.asarray(sinogram[i][:]) for i in range(len(sinogram))]
    if order == (2, 1, 0):  # views in the middle: slices and detectors cannot be told apart, the first axis counts
        np.testing.assert_allclose(np.stack(slices).transpose(2, 1, 0)[1], attenuation[::-1], atol=0.01)
    else:
        np.testing.assert_allclose(slices[1], attenuation[::-1], atol=0.01)


@pytest.mark.parametrize("slices_first", [False, True])
def test_frames_of_a_volume_are_averaged_on_either_side(raw, slices_first):
    folder, counts, attenuation = raw
    np.savez(folder / "volume.npz", data=np.stack([counts] * 3), angles=np.arange(VIEWS) * 180 / VIEWS)
    frames = np.repeat(np.load(folder / "flat.npy")[:, None], 3, axis=1)  # frames x slices x detectors
    np.save(folder / "flats.npy", frames.swapaxes(0, 1) if slices_first else frames)
    np.save(folder / "darks.npy", np.stack([np.load(folder / "dark.npy")] * 3))
    fields = {"flat": str(folder / "flats.npy"), "dark": str(folder / "darks.npy")}
    sinogram = read_sinogram(folder / "volume.npz", **fields)
    np.testing.assert_allclose(sinogram[1][:], attenuation, atol=0.01)
    np.save(folder / "flats.npy", np.concatenate([frames, frames[:1]]))
    with pytest.raises(ValueError, match="as many frames as the volume has slices.*give the mean"):
        read_sinogram(folder / "volume.npz", flat=fields["flat"])


def test_rays_without_a_count_are_half_a_count(raw):
    folder, counts, _ = raw
    counts[3, 4:7] = 0, 50, 99  # below the dark field
    np.savez(folder / "counts.npz", data=counts, angles=np.arange(VIEWS) * 180 / VIEWS)
    sinogram = read_sinogram(folder / "counts.npz", flat=str(folder / "flat.npy"), dark=str(folder / "dark.npy"))
    full = (np.load(folder / "flat.npy").mean(0) - np.load(folder / "dark.npy"))[4:7]
    np.testing.assert_allclose(sinogram[0][3][4:7], np.log(full / 0.5), rtol=1e-6)


@pytest.mark.slow
def test_the_command_reconstructs_counts(raw):
    folder, _, attenuation = raw
    np.savez(folder / "sinogram.npz", data=attenuation.astype(np.float32), angles=np.arange(VIEWS) * 180 / VIEWS)
    options = ("--size", SIZE, "--iterations", 10, "--photons", PHOTONS)
    fields = ("--flat", folder / "flat.npy", "--dark", folder / "dark.npy")
    code, said, error = call(folder / "counts.npz", "--out", folder / "a", *options, *fields)
    assert code == 0 and "counts are divided by a flat field" in said, (said, error)
    assert call(folder / "sinogram.npz", "--out", folder / "b", *options)[0] == 0
    of_counts, of_sinogram = (torch.from_numpy(np.load(folder / name / "image.npy")) for name in "ab")
    assert snr(of_sinogram, of_counts) > 30
    told = json.loads((folder / "a" / "run.json").read_text())
    assert told["photons"] == PHOTONS and told["noise"] > 1 / math.sqrt(PHOTONS) / told["scale"]


def test_the_command_simulates_photons(tmp_path):
    np.save(tmp_path / "slice.npy", abdomen(SIZE))
    code, said, error = call(
        tmp_path / "slice.npy", "--simulate", VIEWS, "--photons", 1e6, "--iterations", 10, "--out", tmp_path / "out"
    )
    assert code == 0, (said, error)
    told = json.loads((tmp_path / "out" / "run.json").read_text())
    assert told["data"] == "simulated" and told["photons"] == 1e6 and told["input_snr"] is None
    assert told["snr"] > told["snr_fbp"] + 1
    assert "photons" in (tmp_path / "out" / "report.html").read_text()


def test_mistakes_are_one_sentence_and_leave_nothing(raw, monkeypatch):
    folder, counts, attenuation = raw
    np.save(folder / "slice.npy", abdomen(SIZE))
    np.save(folder / "short.npy", np.ones(7))
    np.save(folder / "nan.npy", np.full(counts.shape[1], np.nan))
    np.savez(folder / "large.npz", data=attenuation * 100, angles=np.arange(VIEWS))
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    for arguments, message in (
        (
            ["slice.npy", "--simulate", 20, "--photons", 0],
            "--photons is a number of 1 to 1e+15 per unattenuated ray",
        ),
        (["slice.npy", "--simulate", 20, "--photons", 1e4, "--snr", 30], "--snr and --photons are two kinds of noise"),
        (["slice.npy", "--simulate", 20, "--flat", "flat.npy"], "--flat is for measured sinograms"),
        (["counts.npz", "--dark", "dark.npy"], "--dark needs the counts without object, too; add --flat FILE"),
        (["counts.npz", "--flat", "gone.npy"], "--flat: there is no file 'gone.npy'"),
        (["counts.npz", "--flat", "short.npy"], "--flat short.npy is 7, but a view is 90; give one view or frames"),
        (["counts.npz", "--flat", "nan.npy"], "--flat nan.npy has 90 values that are not finite"),
        (["counts.npz", "--flat", "dark.npy", "--dark", "flat.npy"], "not above the dark one in 90 of 90 detectors"),
        (["large.npz", "--photons", 1e4], "but --photons needs one of -log(I/I0)"),
    ):
        _, said, error = call(*arguments, "--out", "new")
        assert isinstance(error, ValueError) and message in str(error), (arguments, said, error)
        assert "\n" not in str(error) and sorted(folder.iterdir()) == before, arguments


def test_a_measured_sinogram_is_weighed_by_its_own_values(raw):
    _, _, measured = raw
    p, scale = torch.from_numpy(measured).float(), 0.03
    radon = Radon(SIZE, np.arange(VIEWS) * np.pi / VIEWS, p.shape[1])
    noise, weights, *_ = scan_of(radon, PHOTONS, scale).statistics(p / scale)
    variance = torch.exp(p) / PHOTONS + 1e-6 * p.square().mean()
    torch.testing.assert_close((noise * scale) ** 2 / weights(p / scale), variance, rtol=1e-3, atol=0)


def test_without_photons_there_are_no_weights():
    truth, radon, sinogram = counted()
    noise, weights, mean_noise, _ = scan_of(radon, None).statistics(sinogram)
    assert weights is None and noise == mean_noise
    (row,) = reconstruct(sinogram, truth=truth, bounds=(0.0, 1.0), prior="none", iterations=1, raw=True).slices
    assert row["noise"] == pytest.approx(noise)
