"""Ptychography: the operator between pixels, the object of a scan at few photons, files, and refusals."""

import warnings

import numpy as np
import pytest
import torch

from smadmm import retrieve
from smadmm.imaging.metrics import snr, without_ramp
from smadmm.imaging.probe import Joint, likely_probe, position_step, probe_step, redescribed
from smadmm.imaging.probe_guess import guessed_probe
from smadmm.imaging.ptychography import GUESSED
from smadmm.imaging.result import DataWarning
from smadmm.imaging.scan_fit import FIT, ScanFit, fit_scan
from smadmm.imaging.scan_plan import PROBE_STEPS, ROUND, scan_snr
from smadmm.io.patterns import read_patterns
from smadmm.io.phantoms import abdomen
from smadmm.losses import PtychographyLoss
from smadmm.operators import Ptychography
from smadmm.proxes import Modulus, Support

SIZE, WINDOW = 64, 32


def scan(photons, seed=0):
    """An object with edges, a curved probe, and counts at 25 positions, some between pixels."""
    rng, image = np.random.default_rng(seed), np.clip((abdomen(SIZE, 1) + 1000) / 2000, 0, 1)
    truth = torch.from_numpy(((0.4 + 0.6 * image) * np.exp(1.5j * image.T)).astype(np.complex64))
    u = np.arange(WINDOW) - WINDOW / 2 + 0.5
    square = u[:, None] ** 2 + u**2
    probe = np.exp(-((square / 12**2) ** 4) + 1j * np.pi * square / 90)
    probe = (probe * (photons / (np.abs(probe) ** 2).sum()) ** 0.5).astype(np.complex64)
    steps = np.linspace(0, SIZE - WINDOW, 5)
    places = np.array([(r, c) for r in steps for c in steps]) + rng.uniform(-2, 2, (25, 2))
    places = places.clip(0, SIZE - WINDOW)
    operator = Ptychography(torch.from_numpy(probe), places, (SIZE, SIZE))
    counts = rng.poisson(operator(truth).abs().numpy() ** 2)
    return truth, probe, places, counts.astype(np.float32), operator


def epie(loss, epochs):
    """The usual method, position by position."""
    op, x = loss.operator, torch.ones(loss.operator.size, dtype=torch.complex64)
    for epoch in range(epochs):
        for i in np.random.default_rng(epoch).permutation(op.count).tolist():
            number = torch.tensor([i])
            probe, (r, c) = op.probes(number)[0], op.corners[i]
            step = torch.fft.ifft2(loss.residuals(x, number), norm="ortho")[0]
            x[r : r + WINDOW, c : c + WINDOW] -= probe.conj() * step / probe.abs().square().max()
    return x


def test_a_fraction_of_a_pixel_moves_the_probe():
    """By a whole pixel the object behind it is that of the next window."""
    probe = torch.zeros(8, 8, dtype=torch.complex128)
    probe[2:5, 3:6] = 1
    ones = torch.ones(12, 12, dtype=torch.complex128)
    there, half = Ptychography(probe, [(1, 0), (0.5, 0)], (12, 12)), torch.tensor([1])
    centre = (there.probes(half)[0].abs().square().sum(1) * torch.arange(8)).sum() / probe.abs().square().sum()
    assert float(centre) == pytest.approx(3.5, abs=0.1)
    assert float(there(ones)[1].norm()) == pytest.approx(float(there(ones)[0].norm()), rel=1e-9)


def rough_probe(photons=1.0):
    """A first guess: a Gaussian with three quarters of the curvature, of any strength."""
    u = np.arange(WINDOW) - WINDOW / 2 + 0.5
    square = u[:, None] ** 2 + u**2
    return (photons * np.exp(-square / 162 + 1j * np.pi * square / 120)).astype(np.complex64)


def test_factor_and_ramp_between_probe_and_object_are_no_error():
    truth, *_ = scan(1e4)
    ramp = 0.3j * torch.exp(0.4j * torch.arange(SIZE)) * torch.exp(-0.11j * torch.arange(SIZE))[:, None]
    everywhere, worse = torch.ones(SIZE, SIZE, dtype=torch.bool), truth + 0.1 * torch.randn(SIZE, SIZE)
    assert snr(truth, without_ramp(truth, ramp * truth, everywhere)) > 70
    error = snr(truth, without_ramp(truth, ramp * worse, everywhere))
    factor = torch.vdot(worse.flatten(), truth.flatten()) / worse.norm() ** 2
    assert error == pytest.approx(snr(truth, factor * worse), abs=0.02)


def test_the_true_probe_and_the_true_positions_stay_and_others_come_back():
    """Without noise, object known: steps on the probe lower its error, and positions are found to 1/50 of a pixel."""
    truth, _, places, _, operator = scan(1e4)
    loss = PtychographyLoss(operator, operator(truth).abs())
    assert float((probe_step(loss, truth, 3) - operator.probe).norm() / operator.probe.norm()) < 1e-5
    assert np.abs(position_step(loss, truth) - places).max() < 1e-4
    other = redescribed(loss, operator.probe * (1 + 0.2 * torch.rand(WINDOW, WINDOW)), places)
    errors = [float((p - operator.probe).norm()) for p in (other.operator.probe, probe_step(other, truth, 20))]
    assert errors[1] < 0.5 * errors[0]
    away = np.random.default_rng(3).uniform(-0.4, 0.4, places.shape)
    moved = redescribed(loss, operator.probe, np.clip(places + away - away.mean(0), 0, SIZE - WINDOW))
    for _ in range(6):
        moved = redescribed(moved, operator.probe, position_step(moved, truth))
    left = moved.operator.positions - places
    assert np.abs(left - left.mean(0)).max() < 0.02


def test_the_joint_gradient_and_the_line_along_a_direction_are_right():
    """Against finite differences, between pixels, for object and probe; fields on a line are a parabola."""
    truth, _, places, _, operator = scan(1e4)
    wide = Ptychography(operator.probe.to(torch.complex128), places, (SIZE, SIZE))
    loss = PtychographyLoss(wide, wide(truth.to(torch.complex128)).abs())
    joint, rng = Joint(loss, loss.amplitudes >= 0), np.random.default_rng(2)
    parts = rng.standard_normal((2, 2, SIZE**2 + WINDOW**2))
    u, d = torch.complex(*torch.from_numpy(parts))
    z = joint.fields(u, u)
    gradient, _ = joint.gradient(u, z)
    slope = float(torch.vdot(gradient, d).real)
    values = [joint.value(joint.fields(u + t * d, u + t * d)) for t in (-1e-5, 1e-5)]
    assert (values[1] - values[0]) / 2e-5 == pytest.approx(slope, rel=1e-5)
    linear, square = joint.along(u, d)
    torch.testing.assert_close(z + 0.3 * linear + 0.09 * square, joint.fields(u + 0.3 * d, u + 0.3 * d))
    fixed, _ = Joint(loss, loss.amplitudes >= 0, (True, False)).gradient(u, z)
    assert not fixed[SIZE**2 :].any() and torch.equal(fixed[: SIZE**2], gradient[: SIZE**2])


@pytest.mark.slow
def test_held_out_amplitudes_end_the_fit_before_noise_is_fitted():
    """At few photons after some steps; at many the joint fit goes on, to an object and a probe near the true ones."""
    errors = {}
    for photons in (1e3, 1e6):
        truth, _, places, counts, _ = scan(photons)
        rough = Ptychography(torch.from_numpy(rough_probe()), places, (SIZE, SIZE))
        loss, fit = fit_scan(PtychographyLoss(rough, torch.from_numpy(counts).sqrt()), refine_probe=True)
        errors[photons] = scan_snr(truth, fit.image, fit.light), fit.sfo / 25
        assert float(loss.operator.probe.norm()) == pytest.approx(counts.sum((1, 2)).mean() ** 0.5, rel=0.2)
    assert errors[1e3][0] > 6 and errors[1e6][0] > 18 and errors[1e3][1] < FIT == errors[1e6][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda y, p, P: (y, p[:, ::-1].copy(), P), "rows and columns of the positions"),
        (lambda y, p, P: (y, p.max(0) - p, P), "the signs of the positions turn"),
        (lambda y, p, P: (y, np.stack([p[:, 0].max() - p[:, 0], p[:, 1]], 1), P), "sign of the rows"),
        (lambda y, p, P: (y, p * 1e-8, P), "divide lengths by the size"),
        (lambda y, p, P: (y, p, np.fft.fftshift(P)), "numpy.fft.fftshift"),
        (lambda y, p, P: (np.sqrt(y), p, P), "patterns are amplitudes"),
        (lambda y, p, P: (y, p, np.abs(P)), "set refine_probe"),
        (lambda y, p, P: (y + 0.1 * y.mean(), p, P), "constant background"),
        (lambda y, p, P: (np.concatenate([y[:7], y[20:21], y[8:]]), p, P), "Pattern 7 fits|bright pixels"),
        (lambda y, p, P: (np.concatenate([y[:7], 0 * y[:1], y[8:]]), p, P), "hold no light"),
    ],
)
def test_a_wrong_description_of_a_scan_is_told_with_its_cause(change, cause):
    _, probe, places, counts, _ = scan(1e6)
    patterns, positions, field = change(counts, places - places.min(0), probe)
    with pytest.warns(DataWarning, match=cause):
        retrieve(patterns, positions=positions, probe=field, quantity="intensities", iterations=2)


@pytest.mark.parametrize("photons", [1e3, 1e5])
def test_a_right_scan_is_not_warned_of(photons):
    _, probe, places, counts, _ = scan(photons)
    assert not retrieve(counts, positions=places, probe=probe, quantity="intensities", iterations=5).warnings


def test_an_unknown_probe_is_found_with_the_object(tmp_path):
    truth, probe, places, counts, _ = scan(1e4)
    given = {"positions": places, "shape": (SIZE, SIZE), "quantity": "intensities", "truth": truth, "iterations": 100}
    result = retrieve(counts, probe=rough_probe(), refine_probe=True, **given)
    with pytest.warns(DataWarning, match="if the probe is found with the object"):
        fixed = retrieve(counts, probe=rough_probe() * np.linalg.norm(probe) / np.linalg.norm(rough_probe()), **given)
    (row,) = result.slices
    assert row["snr"] > row["snr_fit"] + 2 and row["snr"] > fixed.slices[0]["snr"] + 5
    refinements = -(-row["iterations"] // ROUND) - 1
    assert row["sfo"] - row["sfo_fit"] == 25 * (row["iterations"] + 1 + PROBE_STEPS * refinements)
    assert np.array_equal(retrieve(counts, probe=5 * rough_probe(), refine_probe=True, **given).positions, places)
    result.save(tmp_path)
    assert np.array_equal(np.load(tmp_path / "probe.npy"), result.probe)
    agreement = np.abs(np.vdot(result.probe, probe)) / np.linalg.norm(probe) / np.linalg.norm(result.probe)
    assert (
        agreement > 0.9 > np.abs(np.vdot(rough_probe(), probe)) / np.linalg.norm(probe) / np.linalg.norm(rough_probe())
    )


@pytest.mark.slow
@pytest.mark.parametrize("photons", [1e3, 1e6])
def test_a_prior_is_worth_most_at_few_photons(photons):
    truth, probe, places, counts, operator = scan(photons)
    loss = PtychographyLoss(operator, torch.from_numpy(counts).sqrt())
    theirs = max(scan_snr(truth, epie(loss, epochs), operator.light()) for epochs in (3, 10, 30))
    result = retrieve(counts, positions=places, probe=probe, shape=(SIZE, SIZE), quantity="intensities", truth=truth)
    (row,) = result.slices
    assert row["snr"] > theirs + (2 if photons < 1e5 else -0.5) and row["snr"] > row["snr_fit"]
    assert result.settings["noise"] == pytest.approx(0.5, abs=0.1)
    assert row["sfo"] - row["sfo_fit"] == 25 * (row["iterations"] + 1) and row["sfo_fit"] <= 25 * 300
    assert repr(result).startswith("Ptychography(64 x 64, SNR ")


def test_the_command_finds_object_and_probe(tmp_path):
    from typer.testing import CliRunner

    from smadmm.__main__ import app

    _, _, places, counts, _ = scan(1e4)
    np.savez(tmp_path / "scan.npz", intensities=counts, positions=places, probe=rough_probe())
    options = ["--out", str(tmp_path / "out"), "--refine-probe", "--refine-positions", "--iterations", "20", "--quiet"]
    done = CliRunner().invoke(app, ["retrieve", str(tmp_path / "scan.npz"), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    found = np.load(tmp_path / "out" / "positions.npy")
    assert 0 < np.abs(found - places).max() < 5 and (tmp_path / "out" / "report.html").exists()
    assert np.load(tmp_path / "out" / "image_complex.npy").dtype == np.complex64
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"probe.npy", "run.json", "image.npy"}


def test_positions_that_do_not_overlap_are_told(tmp_path):
    """By the verb, and by the command, which says that the probe was guessed, too."""
    from typer.testing import CliRunner

    from smadmm.__main__ import app

    _, _, places, counts, _ = scan(1e4)
    np.savez(tmp_path / "scan.npz", intensities=counts, positions=5 * places)
    options = ["--out", str(tmp_path / "out"), "--iterations", "2", "--quiet"]
    done = CliRunner().invoke(app, ["retrieve", str(tmp_path / "scan.npz"), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "Warning: Neighbouring positions are " in done.output and GUESSED in done.output
    assert "position gradients" in done.output


def test_constraints_of_the_object_hold_and_help():
    """A phase object in air: with both known it is found better at few photons."""
    image, probe, places, _, _ = scan(1e3)
    inside = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    inside[16:48, 16:48] = True
    truth = torch.where(inside, torch.polar(torch.ones(SIZE, SIZE), image.angle()), 1 + 0j)
    operator = Ptychography(torch.from_numpy(probe), places, (SIZE, SIZE))
    counts = np.random.default_rng(5).poisson(operator(truth).abs().numpy() ** 2)
    given = {"positions": places, "probe": probe, "shape": (SIZE, SIZE), "quantity": "intensities", "iterations": 80}
    free, phases, known = (
        retrieve(counts, **given, truth=truth, constraint=c) for c in (None, Modulus(1.0, 1.0), Support(inside, 1.0))
    )
    assert np.allclose(np.abs(phases.image), 1, atol=1e-5)
    turned = known.image[~inside.numpy()]
    assert np.abs(turned - turned[0]).max() < 1e-5  # constant, but for the phase that no pattern tells
    assert min(phases.slices[0]["snr"], known.slices[0]["snr"]) > free.slices[0]["snr"] + 1


def test_beam_stops_and_saturated_pixels_are_found_and_left_out():
    """With either of them the object is nearly as good as without; told by valid, nothing is said."""
    truth, probe, places, counts, _ = scan(1e6)
    given = {"positions": places, "probe": probe, "shape": (SIZE, SIZE), "quantity": "intensities", "iterations": 40}
    stopped, valid = counts.copy(), np.ones((WINDOW, WINDOW), dtype=bool)
    stopped[:, :3, :3], valid[:3, :3] = 0, False
    clean = retrieve(counts, **given, truth=truth).slices[0]["snr"]
    with pytest.warns(DataWarning, match="9 pixels of the detector are zero in every pattern amid bright ones"):
        found = retrieve(stopped, **given, truth=truth)
    assert found.slices[0]["snr"] > clean - 3
    known = retrieve(stopped, **given, valid=valid)
    assert not known.warnings and np.allclose(
        retrieve(stopped, **given, valid=valid[None].repeat(25, 0)).image, known.image
    )
    with pytest.warns(DataWarning, match="saturated"):
        cut = retrieve(np.minimum(counts, np.quantile(counts, 0.995)), **given, truth=truth)
    assert cut.slices[0]["snr"] > clean - 3
    with pytest.raises(ValueError, match="valid is"):
        retrieve(counts, **given, valid=valid[:4])
    with pytest.raises(ValueError, match="patterns has the shape"):
        retrieve(counts[:, :-1], **given)
    with pytest.raises(ValueError, match="negative or not finite"):
        retrieve(np.where(counts > 9, np.nan, counts), **given)


def test_files_warnings_and_refusals(tmp_path):
    _, probe, places, counts, _ = scan(1e6)
    np.savez(tmp_path / "scan.npz", intensities=counts, positions=places, probe=probe)
    read = read_patterns(tmp_path / "scan.npz")
    direct = retrieve(counts, positions=places, probe=probe, quantity="intensities", iterations=5)
    assert np.array_equal(retrieve(**read, iterations=5).image, direct.image)
    with pytest.warns(DataWarning, match="ifftshift"):
        retrieve(
            np.fft.fftshift(counts, axes=(1, 2)), positions=places, probe=probe, quantity="intensities", iterations=2
        )
    with pytest.raises(ValueError, match="positions are those of a probe that is scanned; leave out them or masks"):
        retrieve(counts, positions=places, masks=counts)
    with pytest.raises(ValueError, match="patterns are n x height x width, got the shape"):
        retrieve(counts[0], positions=places)
    with pytest.raises(ValueError, match="give masks, or for ptychography"):
        retrieve(counts)
    with pytest.raises(ValueError, match="beyond the object"):
        retrieve(counts, positions=places + 9, probe=probe, shape=(SIZE, SIZE))
    with pytest.raises(ValueError, match="n x 2"):
        Ptychography(torch.from_numpy(probe), places.T)


@pytest.mark.parametrize(("radius", "blur", "middle"), [(0.08, 0, False), (0.2, 8, True), (0.2, -8, False)])
def test_a_probe_of_which_nothing_is_known(radius, blur, middle):
    """A lens in or out of focus, nearly as if it were known; where patterns have the zero frequency does not matter."""
    truth, _, places, _, _ = scan(1e5)
    q = np.fft.fftfreq(WINDOW)
    squares = q[:, None] ** 2 + q**2
    probe = np.fft.fftshift(np.fft.ifft2((squares <= radius**2) * np.exp(1j * np.pi * blur / radius * squares)))
    probe = (probe * (1e5 / (np.abs(probe) ** 2).sum()) ** 0.5).astype(np.complex64)
    operator = Ptychography(torch.from_numpy(probe), places, (SIZE, SIZE))
    counts = np.random.default_rng(1).poisson(operator(truth).abs().numpy() ** 2)
    given = np.fft.fftshift(counts, axes=(1, 2)) if middle else counts
    options = {"positions": places, "quantity": "intensities", "iterations": 40}
    known, found = retrieve(counts, probe=probe, **options), retrieve(given, **options)
    quality = [scan_snr(truth, torch.from_numpy(result.image), operator.light()) for result in (known, found)]
    assert quality[1] > quality[0] - 3 and not found.warnings
    assert found.notes == (GUESSED,) and not known.notes


def test_a_wrong_first_guess_is_overruled_and_a_right_one_is_kept():
    _, _, places, counts, operator = scan(1e5)
    given = PtychographyLoss(operator, torch.from_numpy(np.sqrt(counts)))
    assert guessed_probe(given, known=True)[0] is operator.probe
    wrong = redescribed(given, operator.probe.conj(), places)
    assert guessed_probe(wrong, known=True)[0] is not wrong.operator.probe


def test_few_photons_leave_a_likely_probe_near_where_it_was_and_many_move_it():
    distance = {}
    for photons in (1e2, 1e6):
        truth, _, places, counts, operator = scan(photons)
        exact = PtychographyLoss(operator, torch.from_numpy(np.sqrt(counts)))
        first = redescribed(exact, 0.8 * operator.probe, places)
        likely = likely_probe(first.operator.probe, noise=0.5)
        moved = probe_step(first, truth, 30, likely)
        distance[photons] = float((moved - first.operator.probe).norm() / operator.probe.norm())
        at_end = probe_step(redescribed(first, moved, places), truth, 1, likely)
        assert float((at_end - moved).norm()) < 1e-2 * float(moved.norm())
    assert distance[1e6] == pytest.approx(0.2, rel=0.05)
    assert distance[1e2] < 0.6 * float(np.linalg.norm(probe_without_prior(1e2)))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.1, 0.85])
def test_positions_of_another_pixel_size_are_told(factor):
    _, probe, places, counts, _ = scan(1e5)
    told = retrieved_warnings(counts, places * factor, probe)
    assert told == [] if factor == 1 else (len(told) == 1 and "times as far apart" in told[0])
    if told:
        assert float(told[0].split()[2]) == pytest.approx(1 / factor, rel=0.04)


def retrieved_warnings(counts, places, probe):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        retrieve(counts, positions=places, probe=probe, quantity="intensities", iterations=20)
    return [str(each.message) for each in caught if each.category is DataWarning]


def probe_without_prior(photons):
    """How far the same steps go where nothing is known of the probe, in units of the true one."""
    truth, _, places, counts, operator = scan(photons)
    first = redescribed(PtychographyLoss(operator, torch.from_numpy(np.sqrt(counts))), 0.8 * operator.probe, places)
    return (probe_step(first, truth, 30) - first.operator.probe).numpy() / float(operator.probe.norm())


def test_a_fit_that_is_noise_over_a_constant_is_no_start():
    """The noise of a fit has no part in how far its object is from a constant."""
    rng, light = np.random.default_rng(3), torch.full((SIZE, SIZE), 0.1)
    level = 0.5 * (2 / (25 * 0.1)) ** 0.5
    noise = torch.from_numpy(level * (rng.normal(size=(SIZE, SIZE)) + 1j * rng.normal(size=(SIZE, SIZE)))).cfloat()
    turned = torch.polar(torch.ones(SIZE, SIZE), torch.from_numpy(rng.uniform(-3, 3, (SIZE, SIZE))).float())
    fits = [ScanFit(x + noise, 0.5, 0.5, light, 25, 0) for x in (torch.ones(SIZE, SIZE), turned)]
    assert [fit.dim for fit in fits] == [True, False]
