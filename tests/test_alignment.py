"""Views that are shifted along the detector, each by itself."""

import math

import numpy as np
import pytest

import smadmm
from smadmm.imaging.alignment import shifted
from smadmm.imaging.result import DataWarning
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

VIEWS, SIDE = 90, 96
DEGREES = np.arange(VIEWS) * 180 / VIEWS
TRUTH = abdomen_image(SIDE)


def scan(shift):
    rows = simulated_sinogram(TRUTH, VIEWS, snr=45)
    return shifted(rows, shift * np.random.default_rng(1).standard_normal(VIEWS)), rows


def error(image):
    return float(np.linalg.norm(image - TRUTH.numpy()) / np.linalg.norm(TRUTH))


def test_shifts_are_found_and_undone():
    rows, _ = scan(1.5)
    options = {"size": SIDE, "iterations": 10}
    with pytest.warns(DataWarning, match="explains the sinogram badly"):
        plain = smadmm.reconstruct(rows, DEGREES, **options)
    result = smadmm.reconstruct(rows, DEGREES, align=True, **options)
    assert error(result.image) < 0.6 * error(plain.image)
    found = float(result.notes[0].removeprefix("views are off by ").split()[0])
    assert result.notes[0].endswith("detectors (rms), each by itself; they are shifted back")
    assert found == pytest.approx(1.5, rel=0.2)
    volume = smadmm.reconstruct(np.stack([rows, rows]), DEGREES, align=True, **options)
    np.testing.assert_allclose(volume.image[1], result.image, atol=1e-4)


def test_aligned_views_stay_as_they_are():
    _, rows = scan(0.0)
    plain, result = (smadmm.reconstruct(rows, DEGREES, align=align, size=SIDE, iterations=2) for align in (False, True))
    np.testing.assert_array_equal(result.image, plain.image)
    assert result.notes[0] == "views are aligned to 0.1 detectors (rms); nothing was changed"


def test_views_move_to_higher_detectors():
    t = np.arange(40.0)
    rows = np.exp(-(((t - 20) / 4) ** 2))[None].repeat(2, 0)
    rows[0, 3] = math.nan  # filled in first
    moved = shifted(rows, np.array([1.5, -0.5]))
    np.testing.assert_allclose(moved[0], np.exp(-(((t - 21.5) / 4) ** 2)), atol=1e-2)
    np.testing.assert_allclose(moved[1], np.exp(-(((t - 19.5) / 4) ** 2)), atol=1e-3)
