"""Angles that are told as half as large as they are: a warning where the views show it, and no false one."""

import numpy as np
import pytest
import torch

import smadmm
from smadmm.imaging.angle_range import are_halved, doubt
from smadmm.imaging.result import DataWarning
from smadmm.operators import Radon
from smadmm.paper.scan_objects import painted

SIZE, VIEWS = 96, 120


def views(name, span, detectors=120, center=0.0, noise=0.005, beside=0):
    """With noise relative to the largest ray; the object moved by so many pixels."""
    image = torch.roll(painted(name, SIZE, 0), beside, 1)
    angles = np.arange(VIEWS) * span / VIEWS
    b = Radon(SIZE, np.deg2rad(angles), detectors, 1.0, center)(image).numpy()
    return b + noise * b.max() * np.random.default_rng(0).standard_normal(b.shape).astype(np.float32), angles


@pytest.mark.parametrize("span", [90.0, 180.0, 360.0])
@pytest.mark.parametrize("name", ["foam", "gear", "stones", "wood"])
def test_no_warning_of_right_angles(name, span):
    for detectors, center, noise in ((120, 3.3, 0), (120, 0, 0.05), (80, 1, 0.005), (56, 0, 0.02)):
        b, angles = views(name, span, detectors, center, noise, beside=4 if detectors == 120 else 0)
        drift = np.cumsum(np.random.default_rng(1).standard_normal((VIEWS, 1)), 0) * 0.002 * b.max()
        creeping = np.stack(
            [np.interp(np.arange(detectors) - 2 * i / VIEWS, np.arange(detectors), v) for i, v in enumerate(b)]
        )
        wobbling = np.stack([np.roll(v, i % 2) for i, v in enumerate(b)])
        for rows in (b, b + drift, creeping, wobbling, b - 0.15 * b**2 / b.max()):
            assert not are_halved(rows, angles)


@pytest.mark.parametrize(("told", "right"), [(90, 180), (180, 360)])
def test_halved_angles_are_found(told, right):
    b, angles = views("stones", right, beside=8, noise=0.01)
    text = doubt(b, angles * told / right)
    assert f"0 to {told} degrees, and agree" in text and f"0 to {right} degrees are likely" in text
    order = np.random.default_rng(0).permutation(VIEWS)
    assert doubt(b[order], angles[order] * told / right) == text and doubt(b[::8], angles[::8]) is None
    assert doubt(0 * b, angles) is None


@pytest.mark.slow
def test_the_warning_is_part_of_the_result():
    b, angles = views("stones", 180.0, beside=8)
    with pytest.warns(DataWarning, match="0 to 180 degrees are likely"):
        result = smadmm.reconstruct(b, angles / 2, iterations=1)
    assert any("twice as large" in text for text in result.warnings)
    result = smadmm.reconstruct(b, angles, iterations=5)
    assert not result.warnings
