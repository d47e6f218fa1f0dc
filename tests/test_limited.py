"""One material in a fan beam: beam hardening and the circle that tangent rays tell."""

import numpy as np
import pytest
import torch

from smadmm.imaging.limited import BeamHardening, Circle, fit_circle
from smadmm.operators import FanBeam
from smadmm.paper.htc2022 import PIXEL, segmented
from smadmm.paper.htc2022_sparse import matthews


@pytest.fixture
def beam():
    return FanBeam(256, np.deg2rad(np.arange(0, 60, 2.0)), 560, 410.66, 553.74, pitch=0.2, pixel=0.3)


def test_chords_are_line_integrals_of_the_mask(beam):
    circle = Circle(2.0, -3.0, 30.0)
    lines = beam(torch.from_numpy(circle.mask(beam).astype(np.float32))).numpy()
    inner = circle.chords(beam) > 10
    assert float(np.abs(lines - circle.chords(beam))[inner].mean()) < beam.pixel / 2


def test_circle_of_a_range_of_views(beam):
    found = fit_circle(Circle(2.0, -3.0, 30.0).chords(beam), beam, least=1.0)
    assert found == pytest.approx((2.0, -3.0, 30.0), abs=0.05)
    with pytest.raises(ValueError, match="0 views have rays"):
        fit_circle(np.zeros(beam.out_shape), beam, least=1.0)


def test_hardening_gives_lengths_back():
    lengths = np.linspace(0, 70, 200)
    attenuation = 0.04 * lengths - 1e-4 * lengths**2
    found = BeamHardening.fit(attenuation, lengths)
    assert float(np.abs(found(attenuation) - lengths).max()) < 0.6 < float(np.abs(attenuation / 0.034 - lengths).max())
    assert found(np.array([-0.1])) == 0
    with pytest.raises(ValueError, match="2 rays cannot fit"):
        BeamHardening.fit([1.0, 2.0], [1.0, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize("first", [0.0, 245.0])
def test_holes_of_other_discs_are_found_from_40_degrees(first):
    """A disc off the axis with holes at random, seen by a finer detector, with noise: like those of the challenge."""
    pytest.importorskip("skimage")
    rng, pixel = np.random.default_rng(0), PIXEL / 2
    y, x = (np.mgrid[:1024, :1024] - 511.5) * pixel
    disc = np.hypot(x - 0.8, y + 0.6) <= 34.9
    for turn in range(0, 360, 60):
        u, v = x - 20 * np.cos(np.deg2rad(turn)), y - 20 * np.sin(np.deg2rad(turn))
        lean, (a, b) = rng.uniform(0, np.pi), rng.uniform(3, 8, 2)
        across, along = u * np.cos(lean) + v * np.sin(lean), v * np.cos(lean) - u * np.sin(lean)
        disc &= np.hypot(across / a, along / b) > 1
    angles = np.deg2rad(first + np.arange(0, 40.5, 0.5))
    beam = FanBeam(1024, angles, 1120, 410.66, 553.74, pitch=0.1, pixel=pixel)
    lengths = beam(torch.from_numpy(disc.astype(np.float32))).numpy().reshape(81, 560, 2).mean(2)
    lengths += 0.1 * rng.standard_normal(lengths.shape)
    exact = disc.reshape(512, 2, 512, 2).mean((1, 3)) > 0.5
    assert matthews(segmented(lengths, angles), exact[::-1]) > 0.93
