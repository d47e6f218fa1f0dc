"""A careful look at sinograms: what is wrong is found and repaired, what is right is left alone."""

import numpy as np
import pytest
import torch

import smadmm
from smadmm.arguments import ArgumentError
from smadmm.imaging import geometry, inspect
from smadmm.imaging.detectors import Calibrated, Deviations
from smadmm.imaging.findings import REPAIRS
from smadmm.imaging.geometry import ends_twice, find_axis, is_steady, sine_fit, wedge_noise
from smadmm.imaging.metrics import snr
from smadmm.imaging.neighbours import filled, running_median
from smadmm.imaging.noise_law import noise_law
from smadmm.imaging.pnp import sinogram_noise
from smadmm.operators import Radon
from smadmm.paper.scan_defects_runs import OBJECT_CASES, measured
from smadmm.paper.scan_objects import painted

SIZE, VIEWS = 96, 90
ANGLES = np.arange(VIEWS) * 180 / VIEWS


def body(size=SIZE):
    """An unsymmetric object of discs."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    image = np.zeros((size, size), np.float32)
    for r, cx, cy, value in (
        (0.6, 0.05, -0.1, 0.5),
        (0.2, -0.25, 0.1, 0.3),
        (0.15, 0.3, -0.3, -0.2),
        (0.05, 0.1, 0.3, 0.4),
    ):
        image += value * ((x - cx) ** 2 + (y - cy) ** 2 < r**2)
    return image


def scan(center=0.0, angles=ANGLES, noise=0.05, seed=0, image=None):
    radon = Radon(SIZE, np.deg2rad(angles), round(1.2 * SIZE), 1.0, center)
    b = radon(torch.from_numpy(body() if image is None else image)).numpy()
    return b + noise * np.random.default_rng(seed).standard_normal(b.shape).astype(np.float32)


def kinds(look):
    return {finding.kind for finding in look.findings if finding.repaired}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_repaired_in_good_data(seed):
    b = scan(seed=seed, noise=(0.01, 0.05, 0.3)[seed])
    look = inspect(b, ANGLES)
    assert not look.findings and look.center == 0 and look.weights is None and look.width == 1
    np.testing.assert_array_equal(look.prepared, b)
    assert str(look) == "nothing to repair was found"


@pytest.mark.slow
@pytest.mark.parametrize("center", [-7.3, 0.6, 3.0])
def test_the_axis_is_found(center):
    look = inspect(scan(center), ANGLES)
    assert kinds(look) == {"axis"} and look.center == pytest.approx(center, abs=0.1) and look.center_error < 0.1
    assert inspect(scan(center), ANGLES, raw=["axis"]).center == 0
    assert inspect(scan(center), ANGLES, center=1.5).center == 1.5


@pytest.mark.slow
def test_where_masses_mislead_predicted_views_find_the_axis():
    b = scan(2.0).astype(np.float64)[:, 30:-30]  # truncated
    fitted, found = sine_fit(b, ANGLES), find_axis(b, ANGLES)
    assert abs(fitted.center - 2) > 1 and found.center == pytest.approx(2, abs=0.5)


def test_where_views_are_predicted_alike_a_steady_fit_is_kept(monkeypatch):
    few, b = ANGLES[::5], scan(5.0, ANGLES[::5], noise=0.5).astype(np.float64)
    monkeypatch.setattr(geometry, "prediction_error", lambda *_: 0.1)
    fitted, found = sine_fit(b, few), find_axis(b, few)
    assert fitted.left > geometry.GOOD_FIT and found == fitted._replace(error=fitted.left)
    assert found.center == pytest.approx(5, abs=0.5)
    b[::2] *= 1.3
    assert np.isinf(find_axis(b, few).error)


def test_dead_detectors_wrong_rays_and_lost_views_get_no_weight():
    b, rng = scan(), np.random.default_rng(1)
    b[:, 40], b[:, 70] = 0, rng.uniform(0, b.max(), VIEWS)
    b[20] = 0
    rays = [(5, 60), (33, 50), (71, 55)]
    for i, j in rays:
        b[i, j] += b.max()
    look = inspect(b, ANGLES)
    assert {"detectors", "views", "rays"} <= kinds(look) and look.center == 0
    expected = np.ones(b.shape, bool)
    expected[:, [40, 70]] = expected[20] = False
    for i, j in rays:
        expected[i, j] = False
    assert ((look.weights > 0) == expected).mean() > 0.97 and not (look.weights[~expected] > 0).any()
    assert np.abs(look.prepared - scan())[look.weights > 0].max() < 1e-5


@pytest.mark.parametrize("values", [0.0, 30.0, np.array([0.0, 30.0, 0.0])], ids=["dead", "hot", "mixed"])
def test_stuck_detectors_side_by_side_get_no_weight(values):
    """They hide from their neighbours, and used to move the axis."""
    b = scan()
    b[:, 60:63] = values
    look = inspect(b, ANGLES)
    assert kinds(look) == {"detectors"} and look.center == 0
    assert np.flatnonzero((look.weights == 0).all(0)).tolist() == [60, 61, 62] and look.weights.sum() == 90 * 112
    assert inspect(b, ANGLES, raw=REPAIRS).weights is None


@pytest.mark.slow
def test_many_bad_detectors_side_by_side_get_no_weight():
    """Ten read nothing, or noise; that they are filled in does not move the axis."""
    rng = np.random.default_rng(1)
    for values in (np.zeros((VIEWS, 10)), 30 * rng.random((VIEWS, 10))):
        b = scan()
        b[:, 40:50] = values
        look = inspect(b, ANGLES)
        assert np.flatnonzero((look.weights == 0).all(0)).tolist() == list(range(40, 50)) and look.center == 0


@pytest.mark.slow
def test_wrong_rays_beside_the_object_are_found():
    """Few views see the corners well, and a first image put them there."""
    b = scan(noise=0.02)
    rays = [(8, 4), (40, 110), (70, 6), (30, 108), (55, 3)]
    for i, j in rays:
        b[i, j] += 0.4 * b.max()
    look = inspect(b, ANGLES)
    assert [tuple(ray) for ray in np.argwhere(look.weights == 0)] == sorted(rays)


def test_air_is_zero_in_each_view_where_the_beam_drifts():
    drift = np.random.default_rng(4).normal(0, 1.5, (VIEWS, 1)).astype(np.float32)
    clean, truncated = scan(noise=0.02), scan()[:, 35:-35]
    look = inspect(clean + drift, ANGLES)
    assert kinds(look) == {"air"} and look.width == 1 and np.abs(look.prepared - clean).max() < 0.1
    assert "air" not in kinds(inspect(truncated, ANGLES))


@pytest.mark.slow
def test_stripes_that_begin_half_way_are_taken_off():
    angles = np.arange(180)
    offsets = np.random.default_rng(2).normal(0, 0.4, round(1.2 * SIZE)).astype(np.float32)
    clean = scan(angles=angles)
    look = inspect(clean + offsets * (angles >= 90)[:, None], angles)
    assert kinds(look) == {"stripes"} and (look.prepared - clean)[90:, 10:-10].std() < 0.7 * offsets.std()
    assert (look.prepared - clean)[:90].std() < 0.5 * offsets.std()


@pytest.mark.slow
def test_the_axis_is_refined_by_frequencies_that_no_object_has():
    """Offsets of detectors move all centres of mass alike, and are not among those frequencies."""
    rng = np.random.default_rng(0)
    b = scan(2.3, noise=0.02).astype(np.float64) + 3 * rng.standard_normal(115)
    fitted, found = sine_fit(b, ANGLES), find_axis(b, ANGLES)
    assert abs(fitted.center - 2.3) > 0.1 and found.center == pytest.approx(2.3, abs=0.03)
    noisy = b + 2 * rng.standard_normal(b.shape)
    assert geometry.refined(fitted, noisy, ANGLES) == fitted  # the wedge tells nothing


@pytest.mark.slow
def test_texture_is_no_noise_that_grows_with_the_value():
    """Rays through much foam cross many bubbles: sixth differences grow with the value, the noise does not."""
    rng, size, degrees = np.random.default_rng(3), 192, np.arange(180.0)
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    foam = (np.hypot(x, y) < 0.8).astype(np.float32)
    for _ in range(120):
        cx, cy, r = rng.uniform(-0.75, 0.75), rng.uniform(-0.75, 0.75), rng.uniform(0.02, 0.09)
        if np.hypot(cx, cy) + r < 0.78:
            foam[(x - cx) ** 2 + (y - cy) ** 2 < r**2] = 0
    b = Radon(size, np.deg2rad(degrees), 280)(torch.from_numpy(foam)).numpy()
    b += 0.002 * b.max() * np.random.default_rng(5).standard_normal(b.shape).astype(np.float32)
    look = inspect(b, degrees)
    assert look.weights is None and look.noise == pytest.approx(0.002 * b.max(), rel=0.5)


def test_a_detector_that_errs_in_some_views_gets_no_weight():
    """Behind dense material, where its dark level is off by 2 % of the beam."""
    b = scan(image=0.08 * body(), noise=0.01)
    spoilt, dense = b.copy(), b[:, 40] > np.quantile(b[:, 40], 0.75)
    spoilt[:, 40] = -np.log(np.exp(-b[:, 40]) - 0.02 * dense)
    look = inspect(spoilt, ANGLES)
    assert kinds(look) == {"detectors"} and np.flatnonzero((look.weights == 0).all(0)).tolist() == [40]
    assert not kinds(inspect(b, ANGLES))


@pytest.mark.slow
def test_stripes_are_taken_off():
    angles = np.arange(180)
    offsets = np.random.default_rng(2).normal(0, 0.2, round(1.2 * SIZE)).astype(np.float32)
    clean = scan(angles=angles)
    look = inspect(clean + offsets, angles)
    assert kinds(look) == {"stripes"} and (look.prepared - clean)[:, 10:-10].std() < 0.7 * offsets.std()
    assert look.deviations.offset == pytest.approx(offsets.std(), rel=0.3) and look.deviations.gain < 0.005
    assert "stripes" not in kinds(inspect(clean + offsets, angles, raw=["stripes"]))


@pytest.mark.slow
def test_gains_are_told_from_offsets_and_calibrated_with_the_image():
    angles, truth = np.arange(180), torch.from_numpy(body())
    gains = np.random.default_rng(2).normal(0, 0.03, round(1.2 * SIZE)).astype(np.float32)
    clean = scan(angles=angles)
    look = inspect(clean * (1 + gains), angles)
    assert "stripes" in kinds(look) and 0.01 < look.deviations.gain < 0.05
    assert look.deviations.offset < 0.5 * look.deviations.gain * clean.max()
    done = [smadmm.reconstruct(clean * (1 + gains), angles, size=SIZE, raw=raw) for raw in (False, ["stripes"])]
    calibrated, spoilt = (snr(truth, torch.from_numpy(result.image)) for result in done)
    assert calibrated > spoilt + 10


def test_offsets_and_gains_are_eliminated():
    """The loss is the minimum over offsets and gains, and its gradient that of the loss."""
    rng, radon = torch.Generator().manual_seed(0), Radon(12, np.arange(9) * np.pi / 9, 40)
    b, w = torch.rand(9, 40, generator=rng) + 1, torch.rand(9, 40, generator=rng)
    x, noise, deviations = torch.rand(12, 12, generator=rng), 0.1, Deviations(0.3, 0.2)
    loss = Calibrated(radon, b, w, noise, deviations)
    offsets, gains = loss.errors(b - radon(x))
    assert torch.allclose(
        loss.C.T @ torch.cat([offsets, gains]).double(), torch.zeros(2, dtype=torch.float64), atol=1e-5
    )

    def joint(d, g):
        left = radon(x) - b + d + g * b
        both = (d**2).sum() / deviations.offset**2 + (g**2).sum() / deviations.gain**2
        return ((w * left**2).sum() + noise**2 * both) / (2 * loss.c * loss.n)

    least = float(joint(offsets, gains))
    assert float(loss.value(x, loss.full())) == pytest.approx(least, rel=1e-4)
    for change in torch.randn(5, 2, 40, generator=rng):
        change = 0.05 * (change - change.mean(-1, keepdim=True))  # without the constant, which is the image's
        assert float(joint(offsets + change[0], gains + change[1])) > least
    step = torch.randn(12, 12, generator=rng)
    slope = float((loss.gradient((x,), (1.0,), loss.full()) * step).sum())
    values = [float(loss.value(x + h * step, loss.full())) for h in (0.01, -0.01)]
    assert slope == pytest.approx((values[0] - values[1]) / 0.02, rel=1e-2)


@pytest.mark.parametrize("center", [0.0, 2.3])
def test_noise_is_not_taken_from_texture(center):
    speckle = body() * np.random.default_rng(1).uniform(0.7, 1.3, (SIZE, SIZE)).astype(np.float32)
    angles = np.arange(180)
    b = scan(center, angles, noise=0.2, image=speckle)
    assert inspect(b, angles).noise == pytest.approx(0.2, rel=0.15)
    assert inspect(b, angles, center=center).noise < 0.7 * sinogram_noise(torch.from_numpy(b))
    assert wedge_noise(b.astype(float), np.sqrt(angles), center) == np.inf  # not equispaced
    mixed = np.random.default_rng(2).permutation(180)
    assert wedge_noise(b[mixed].astype(float), angles[mixed], center) == wedge_noise(b.astype(float), angles, center)
    whole = scan(center, 2 * angles, noise=0.2, image=speckle)
    assert wedge_noise(whole.astype(float), 2 * angles, center) == pytest.approx(0.2, rel=0.1)


@pytest.mark.slow
def test_air_is_zero_and_the_image_wider_where_the_object_is():
    look = inspect(scan() + 2, ANGLES)
    assert kinds(look) == {"air"} and np.abs(look.prepared - scan()).max() < 0.1
    truncated = inspect(scan()[:, 35:-35], ANGLES)
    assert "width" in kinds(truncated) and truncated.width == 1.4
    result = smadmm.reconstruct(scan()[:, 35:-35], ANGLES, iterations=3)
    assert result.image.shape == (45, 45)  # what the detector sees


@pytest.mark.parametrize(("stop", "inclusive"), [(360, True), (360, False), (180, True), (180, False)])
def test_the_end_point_of_a_range_is_found(stop, inclusive):
    angles = np.linspace(0, stop, VIEWS, endpoint=inclusive)
    b = scan(1.0, angles, 0.02)
    assert ends_twice(b.astype(float), stop, 1.0) == inclusive
    np.testing.assert_allclose(inspect(b, (0, stop)).angles, angles)


def test_round_steps_decide_where_noise_hides_the_end_point():
    for views, inclusive, said in ((91, True, "in steps of 2"), (90, False, None), (70, False, "one step before")):
        angles = np.linspace(0, 180, views, endpoint=inclusive)
        b = scan(1.0, angles, noise=5.0)
        assert ends_twice(b.astype(float), 180, 1.0) is None
        look = inspect(b, (0, 180))
        np.testing.assert_allclose(look.angles, angles)
        told = [finding.text for finding in look.findings if finding.kind == "angles"]
        assert bool(told) == bool(said) and all(said in text for text in told)


@pytest.mark.parametrize("inclusive", [True, False])
def test_the_end_point_of_half_a_turn_is_found_in_noise(inclusive):
    angles = np.linspace(0, 180, VIEWS, endpoint=inclusive)
    b = scan(1.0, angles, 0.4, image=painted("wood", SIZE, 0).numpy())
    assert bool(ends_twice(b.astype(float), 180, 1.0)) == inclusive


def test_photon_noise_is_measured_over_the_value():
    rng, clean = np.random.default_rng(3), scan(noise=0) * 0.1
    b = -np.log(rng.poisson(2e3 * np.exp(-clean)) / 2e3).astype(np.float32)
    look = inspect(b, ANGLES)
    assert look.weights is not None and look.noise == pytest.approx(2e3**-0.5, rel=0.25)
    thick = clean > 0.8 * clean.max()
    assert np.median(look.weights[thick]) == pytest.approx(np.exp(-np.median(clean[thick])), rel=0.35)


@pytest.mark.slow
def test_wrong_rays_at_edges_of_metal_are_found():
    truth = painted("metal pins", 192, 4)
    spoilt, angles = measured(truth, OBJECT_CASES["zingers"], 4)
    right, _ = measured(truth, OBJECT_CASES["clean"], 4)
    wrong = np.abs(spoilt - right) > 1e-3
    np.testing.assert_array_equal(inspect(spoilt, angles).weights == 0, wrong)
    assert inspect(right, angles).weights is None


def test_what_is_left_of_stripes_is_no_noise():
    rng, clean = np.random.default_rng(3), scan(noise=0) * 0.1
    b = -np.log(rng.poisson(2e3 * np.exp(-clean)) / 2e3).astype(np.float32)
    b += 0.07 * rng.standard_normal(b.shape[1]).astype(np.float32)
    known = np.ones_like(b)
    noise, law = noise_law(b, known, frozenset(), striped=True)
    assert law is not None and noise == pytest.approx(2e3**-0.5, rel=0.15)
    assert noise_law(b, known, frozenset())[0] > 2 * noise
    assert noise_law(b, known, frozenset(), striped=True, checked=False)[1] is None  # edges disturb it


@pytest.mark.parametrize("wrong", [-0.4, 0.3])
def test_an_axis_that_is_near_is_corrected_by_predicted_views(wrong):
    near = geometry.Axis(3 + wrong, 0.4, 0.05)
    found = geometry.with_predicted(near, scan(3.0).astype(float), ANGLES)
    assert found.center == pytest.approx(3, abs=0.1) and found.error < 0.1
    sure = near._replace(error=0.01)
    assert geometry.with_predicted(sure, scan(3.0).astype(float), ANGLES) == sure
    far = near._replace(center=5.0)
    assert geometry.with_predicted(far, scan(3.0).astype(float), ANGLES) == far


@pytest.mark.slow
def test_rays_that_are_no_numbers_are_filled_in():
    b = scan()
    b[3, 50], b[7] = np.nan, np.inf
    look = inspect(b, ANGLES)
    assert look.weights[3, 50] == 0 and not look.weights[7].any() and np.isfinite(look.prepared).all()
    assert np.isfinite(smadmm.reconstruct(b, ANGLES, iterations=2).image).all()
    with pytest.raises(ValueError, match="values that are NaN or infinite"):
        smadmm.reconstruct(b, ANGLES, iterations=2, raw=True)
    np.testing.assert_array_equal(filled(np.array([[1.0, np.nan, 3.0]])), [[1.0, 2.0, 3.0]])


@pytest.mark.slow
def test_values_below_zero_are_allowed_where_the_data_show_them():
    look = inspect(scan(image=body() - 0.6 * (body() > 0.4)), ANGLES)
    assert look.negative and not inspect(scan(), ANGLES).negative


@pytest.mark.slow
def test_what_is_negative_as_a_whole_gives_the_negative_image():
    """Not an empty one; and intensities taken for line integrals, whose air is not zero."""
    b, truth = scan(2.5), torch.from_numpy(body())
    right = smadmm.reconstruct(b, ANGLES, size=SIZE)
    assert snr(truth, torch.from_numpy(right.image)) > 30
    for wrong, told in ((-b, ()), (4.5 - b, ("air is at 4.5 instead of zero; this is subtracted from all rays",))):
        stack = np.stack([wrong, 0.5 * wrong])
        with pytest.warns(smadmm.imaging.result.DataWarning, match="negative as a whole, and so is the image") as seen:
            found = smadmm.reconstruct(stack if told == () else wrong, ANGLES, size=SIZE)
        images = found.image if told == () else found.image[None]
        assert len(seen) == 1 and found.notes[: len(told)] == told
        for image, factor in zip(images, (1, 0.5), strict=False):
            assert snr(-factor * truth, torch.from_numpy(image)) > 30
        low, high = found.limits()
        assert low < -0.4 and high == pytest.approx(0, abs=0.05)
        assert found.inspection.prepared.sum() < 0 and found.residual.shape == right.residual.shape
    with pytest.warns(smadmm.imaging.result.DataWarning, match="negative as a whole"):
        begun = smadmm.reconstruct(-b, ANGLES, size=SIZE, start=-body(), iterations=1)
    assert snr(-truth, torch.from_numpy(begun.image)) > 20


def test_limited_angles_are_said():
    angles = np.arange(VIEWS) * 120 / VIEWS
    (finding,) = inspect(scan(angles=angles), angles).findings
    assert finding.kind == "range" and "61 of 180 degrees have no view" in finding.text and not finding.repaired


def test_views_agree_or_not():
    b = scan().astype(np.float64)
    assert is_steady(b, ANGLES) and not is_steady(b, 3 * ANGLES) and not is_steady(np.exp(-0.1 * b), ANGLES)


@pytest.mark.slow
def test_repairs_make_the_image_and_raw_takes_data_as_they_are():
    b = scan(2.5)
    b[:, 40] = 0
    truth = torch.from_numpy(body())
    clean, repaired = smadmm.reconstruct(scan(), ANGLES, size=SIZE), smadmm.reconstruct(b, ANGLES, size=SIZE)
    raw = smadmm.reconstruct(b, ANGLES, size=SIZE, raw=True)
    quality = [snr(truth, torch.from_numpy(r.image)) for r in (clean, repaired, raw)]
    assert quality[1] > quality[0] - 2 and quality[2] < quality[0] - 6
    assert repaired.inspection.center == pytest.approx(2.5, abs=0.1) and raw.inspection is None
    assert len(repaired.notes) == 3 and "views were left out" in repaired.notes[-1] and not repaired.warnings


def test_names_of_repairs_are_checked():
    with pytest.raises(ArgumentError, match="rings is none; there are " + ", ".join(REPAIRS)):
        inspect(scan(), ANGLES, raw=["rings"])
    np.testing.assert_array_equal(running_median(np.array([0.0, 9.0, 1.0, 2.0, 3.0]), 3), [0, 1, 2, 2, 3])


def test_a_volume_may_have_slices_of_air_or_nothing():
    """The slice in the middle tells of the geometry, unless it shows air alone."""
    b, rng = scan(3.0), np.random.default_rng(6)
    air = 0.05 * rng.standard_normal(b.shape).astype(np.float32)
    volume = np.stack([b, air, np.zeros_like(b)])
    result = smadmm.reconstruct(volume, ANGLES, iterations=3)
    assert result.settings["center"] == pytest.approx(3, abs=0.1) and np.isfinite(result.image).all()
    assert np.abs(result.image[1]).max() < 0.1 * result.image[0].max() and not result.image[2].any()
    with pytest.raises(ValueError, match="is constant"):
        smadmm.reconstruct(np.zeros_like(b), ANGLES)


def test_an_image_of_a_given_size_is_computed_wider_too():
    truncated = scan()[:, 35:-35]
    whole, part = (smadmm.reconstruct(truncated, ANGLES, size=size, iterations=3) for size in (None, 41))
    assert part.image.shape == (41, 41)
    np.testing.assert_allclose(part.image, whole.image[2:-2, 2:-2], atol=0.02 * np.abs(whole.image).max())
