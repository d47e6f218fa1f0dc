"""One material in a fan beam: beam hardening and the circle that tangent rays tell."""

import numpy as np
import pytest
import torch

from smadmm.imaging.limited import BeamHardening, Circle, fit_circle
from smadmm.operators import FanBeam


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
