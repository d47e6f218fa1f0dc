"""Beam hardening: the polynomial of one material is found, and only where there is one."""

import math

import numpy as np
import pytest
import torch

import smadmm
from smadmm.imaging.hardening import by_agreement, one_density, straight
from smadmm.imaging.limited import BeamHardening
from smadmm.operators import Radon

SIDE, VIEWS = 64, 60
DEGREES = np.arange(VIEWS) * 180 / VIEWS
RADON = Radon(SIDE, np.deg2rad(DEGREES), SIDE)
ENERGIES, SHARES = np.array([0.24, 0.144, 0.096, 0.06]), np.array([0.2, 0.3, 0.3, 0.2])  # attenuation per pixel
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2


def plate():
    """An ellipse of one density with a hole."""
    image = ((COLUMNS / 26) ** 2 + (ROWS / 14) ** 2 < 1).astype(np.float32)
    image[np.hypot(COLUMNS - 10, ROWS) < 5] = 0
    return image


def grains():
    """Two densities of one material."""
    image = 0.4 * (np.hypot(COLUMNS - 12, ROWS + 4) < 10) + (np.hypot(COLUMNS + 12, ROWS - 6) < 12)
    return image.astype(np.float32)


def disc():
    return (np.hypot(COLUMNS - 2, ROWS) < 25).astype(np.float32)


def measured(image, photons=1e5, seed=0):
    """What all energies together show of an object, and what one energy would."""
    lengths = RADON(torch.from_numpy(image)).numpy().astype(np.float64)
    through = np.tensordot(SHARES, np.exp(-ENERGIES[:, None, None] * lengths), 1)
    counts = np.random.default_rng(seed).poisson(photons * through)
    return -np.log(np.maximum(counts, 0.5) / photons), lengths


def off(values, lengths):
    """From being proportional."""
    scale = float((values * lengths).sum() / (values * values).sum())
    return float(np.linalg.norm(scale * values - lengths) / np.linalg.norm(lengths))


@pytest.mark.parametrize("photons", [1e6, 2e4])
@pytest.mark.parametrize("image", [plate, disc])
def test_of_one_density_the_curve_is_found_whatever_the_noise(image, photons):
    b, lengths = measured(image(), photons)
    found = one_density(b, RADON)
    clean, _ = measured(image(), 1e12)
    assert off(straight(clean, found), lengths) < 0.25 * off(clean, lengths)
    assert np.linalg.norm(straight(clean, found) - clean) < 0.1 * np.linalg.norm(clean)


def test_of_several_densities_views_agree_better():
    b, lengths = measured(grains(), 1e6)
    assert one_density(b, RADON) is None
    assert off(straight(b, by_agreement(b, RADON)), lengths) < 0.4 * off(b, lengths)
    round_one, _ = measured(disc(), 2e4)
    assert by_agreement(round_one, RADON) is None  # noise alone says less than nothing


def test_reconstruct_makes_up_for_it_on_request():
    image = plate()
    b, _ = measured(image)

    def decibel(result):
        return -20 * math.log10(off(result.image, image))

    without, with_it = (smadmm.reconstruct(b.astype(np.float32), DEGREES, hardening=h) for h in (False, True))
    assert decibel(with_it) > decibel(without) + 6
    assert with_it.notes[0].startswith("beam hardening: values b become 0.")
    volume = np.stack([b, b, 0.5 * b]).astype(np.float32)
    slices = smadmm.reconstruct(volume, DEGREES, hardening=True, iterations=2)
    assert slices.image.shape == (3, SIDE, SIDE) and slices.notes[0] == with_it.notes[0]
    with pytest.raises(ValueError, match="hardening is not possible with a sinogram of 4 x 20 rays; leave it out"):
        smadmm.reconstruct(np.random.default_rng(0).random((4, 20)), hardening=True)


def test_air_keeps_its_noise():
    rows = np.array([[-0.1, 0.0, 0.5]], np.float32)
    np.testing.assert_allclose(straight(rows, BeamHardening((0.9, 0.2))), [[-0.09, 0.0, 0.5]], atol=1e-7)
