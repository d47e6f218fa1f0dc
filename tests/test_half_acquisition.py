"""A whole turn with the axis near an edge of the detector: opposite views complete each other."""

from functools import lru_cache

import numpy as np
import pytest
import torch

import smadmm
from smadmm.imaging import inspect
from smadmm.imaging.half_acquisition import half_acquisition, pairs_of
from smadmm.imaging.metrics import snr
from smadmm.operators import Radon
from smadmm.paper.scan_objects import painted

SIZE, VIEWS = 96, 180
WHOLE = np.arange(VIEWS) * 360 / VIEWS
EVERYTHING = frozenset()


@lru_cache
def thing(name="stones", seed=1):
    return painted(name, SIZE, seed)


def scan(detectors, center, angles=WHOLE, noise=0.01, image=None):
    """With noise relative to the largest ray."""
    image = thing() if image is None else image
    b = Radon(SIZE, np.deg2rad(angles), detectors, 1.0, center)(image).numpy()
    return b + noise * b.max() * np.random.default_rng(0).standard_normal(b.shape).astype(np.float32)


@pytest.mark.parametrize(("detectors", "center"), [(60, 24.3), (60, -24.3), (66, 20.75), (74, -12.0), (80, 8.5)])
@pytest.mark.parametrize("noise", [0, 0.05])
def test_the_axis_is_found_and_views_are_completed(detectors, center, noise):
    found = half_acquisition(scan(detectors, center, noise=noise), WHOLE, "auto", EVERYTHING)
    assert found.middle - (detectors - 1) / 2 == pytest.approx(center, abs=0.1 + 2 * noise)
    made = found(scan(detectors, center, noise=0))
    exact = Radon(SIZE, np.deg2rad(found.degrees), made.shape[1], 1.0, found.center)(thing()).numpy()
    assert made.shape[0] == VIEWS // 2 and abs(made.shape[1] - detectors - 2 * abs(center)) < 1.5
    assert abs(found.center) <= 0.5
    assert np.linalg.norm(made - exact) < (0.01 + 0.5 * noise) * np.linalg.norm(exact)


def test_a_ray_that_is_seen_twice_counts_once():
    """Weights add up to one; where a detector is dead, its opposite has the whole weight."""
    b = scan(60, 20.5, noise=0)
    found = half_acquisition(b, WHOLE, "auto", EVERYTHING)
    np.testing.assert_allclose(found(np.ones_like(b)), 1, rtol=1e-6)
    steps = np.diff(found(np.where(np.arange(VIEWS)[:, None] < VIEWS // 2, 1, 0) + 0 * b)[0])
    assert (steps <= 1e-6).all() and steps.min() > -0.1  # from one view to its opposite, little by little
    hurt = b.copy()
    hurt[:, 55] = 0
    there = found(hurt)
    apart = np.abs(there - found(b)).max(0)
    assert apart.max() < 1e-3 * b.max()  # nan would fail, too


@pytest.mark.slow
@pytest.mark.parametrize("center", [19.4, -12.0])
def test_the_image_is_as_good_as_of_a_wide_detector(center):
    size, truth = SIZE, thing()
    detectors = round(1.16 * SIZE / 2 + 56 - abs(center))
    b = scan(detectors, center, noise=0.005)
    result = smadmm.reconstruct(np.stack([0 * b, b, 0.5 * b]), WHOLE, size=size)
    ordinary = smadmm.reconstruct(scan(112, 0.0, WHOLE[: VIEWS // 2], noise=0.005), WHOLE[: VIEWS // 2], size=size)
    assert snr(truth, torch.from_numpy(result.image[1])) > snr(truth, torch.from_numpy(ordinary.image)) - 1
    assert snr(0.5 * truth, torch.from_numpy(result.image[2])) > snr(truth, torch.from_numpy(ordinary.image)) - 1.5
    assert "half-acquisition" in result.notes[0] and not result.warnings
    assert smadmm.reconstruct(b, WHOLE, iterations=1).image.shape[0] == detectors + int(2 * abs(center))


def test_it_is_told_and_can_be_switched_off():
    b = scan(60, 20.5)
    look = inspect(b, WHOLE)
    assert look.findings[0].kind == "completion" and "+20.5" in look.findings[0].text and abs(look.center) <= 0.5
    assert look.prepared.shape == (VIEWS // 2, 101)
    told = inspect(b, WHOLE, center=20.5)
    np.testing.assert_allclose(told.prepared, look.prepared, atol=0.1 * b.max())
    for options in ({"raw": ["completion"]}, {"raw": True}, {"raw": ["axis"]}, {"center": 3.0}):
        assert inspect(b, WHOLE, **options).prepared.shape == b.shape


@pytest.mark.parametrize("end", [False, True])
def test_the_end_point_of_a_range(end):
    views = 145 if end else 144
    b = scan(64, -17.3, np.linspace(0, 360, views, endpoint=end))
    found = half_acquisition(b, np.array([0.0, 360.0]), "auto", EVERYTHING)
    assert found.inclusive == end and ("repeats the first" in str(found)) == end
    assert found.degrees[-1] == pytest.approx(177.5) and found.middle == pytest.approx(31.5 - 17.3, abs=0.1)


def test_opposite_views():
    odd = pairs_of(np.arange(61) * 360 / 61)
    there = odd.opposite(np.arange(61.0)[:, None])[:, 0]
    np.testing.assert_allclose(there[:-1], odd.views[:-1] + 30.5)
    assert there[-1] == 30  # between the last view and the first
    shuffled = np.random.default_rng(0).permutation(60)
    found = pairs_of(shuffled * 6.0)
    np.testing.assert_array_equal(found.opposite(shuffled[:, None])[:, 0], shuffled[found.views] + 30)
    half, gap, few = np.arange(60) * 3.0, np.delete(np.arange(60) * 6.0, slice(20, 30)), np.arange(10) * 36.0
    assert all(pairs_of(angles) is None for angles in (half, gap, few, np.arange(120) * 6.0, 0.9 * WHOLE))


@pytest.mark.parametrize("name", ["foam", "gear", "stones", "wood", "disc", "nothing"])
def test_no_false_alarm(name):
    """Centred, slightly off, with air at the edges or truncated; noise alone."""
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    known = {"disc": 1.0 * (np.hypot(x, y) < 0.8), "nothing": 0 * x}
    for seed, (detectors, center) in enumerate(((96, 0), (130, 4), (140, 20), (60, 0), (60, 2.5), (48, -3), (60, 5))):
        image = torch.from_numpy(known[name]).float() if name in known else thing(name, seed % 3)
        for noise in (0, 0.1):
            b = scan(detectors, center, noise=noise, image=image)
            b = b + np.random.default_rng(seed).standard_normal(b.shape) * (name == "nothing")
            assert half_acquisition(b, WHOLE, "auto", EVERYTHING) is None
