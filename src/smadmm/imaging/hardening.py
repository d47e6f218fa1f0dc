"""Beam hardening: line integrals of an object of one material as one energy would give them.

Soft rays are lost first, so the attenuation b = -log(I/I0) grows slower than the path length L through the material.
    b -> c_1 b + c_2 b^2 + c_3 b^3,   L times an attenuation for which values change least,
makes up for it. The polynomial is found in one slice, in two ways.

    one density     the image is divided into object and air, and L is projected from the object, a few times, for the
                    division gets better. b as a polynomial of L, which has no noise, leaves a few per cent at most.
    several         of the material: b + c b^2 for which views agree best, |(1 - P)(b + c b^2)| with P the projection of
                    a few conjugate gradient steps' image. Noise makes c too small, and round objects do not tell it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.imaging.geometry import cgls
from smadmm.imaging.inspection import repaired
from smadmm.imaging.limited import BeamHardening
from smadmm.imaging.sinograms import BackProjections, Mended
from smadmm.imaging.survey import Survey
from smadmm.operators.radon import Radon
from smadmm.operators.radon.projector import Projector

ROUNDS = 3
SMOOTH = 0.5  # the filter of the image that is divided into object and air
THIN = 0.02  # of the largest value: rays that say nothing
POINTS = 100  # of the curve that is inverted
ONE_DENSITY = 0.03  # of the values: the fit leaves less
STEPS = 20  # of conjugate gradients
BLUR = 5  # detectors: noise would make views agree that do not

Array = NDArray[np.float64]


def straight(b: NDArray[Any], hardening: BeamHardening) -> NDArray[np.float32]:
    """What is below zero is the noise of air."""
    values: NDArray[np.float32] = (hardening(b) + hardening.coefficients[0] * np.minimum(b, 0)).astype(np.float32)
    return values


def straightened(slices: Any, rows: NDArray[Any], survey: Survey, off: frozenset[str]) -> tuple[Any, str]:
    """The slices without beam hardening, by what one of them shows, and what there is to tell."""
    b = repaired(rows, survey, off).prepared.astype(np.float64)
    make = Radon if survey.geometry is None else survey.geometry.projector
    radon = make(b.shape[1], np.deg2rad(survey.angles), b.shape[1], 1.0, survey.center)
    found = one_density(b, radon) or by_agreement(b, radon)
    if found is None:
        return slices, "beam hardening: no polynomial of one material was found; nothing was changed"
    first, *others = found.coefficients
    powers = [f"{'+' if c > 0 else '-'} {abs(c):.2g} {power}" for c, power in zip(others, ("b²", "b³"), strict=False)]
    text = f"beam hardening: values b become {' '.join([f'{first:.2g} b', *powers])}"
    return Mended(slices, partial(straight, hardening=found)), text


def one_density(b: Array, radon: Projector) -> BeamHardening | None:
    """The polynomial of an object of one density; None where the object is none."""
    filters = needs("skimage.filters", "imaging", "the correction of beam hardening")
    thick, values = b > THIN * b.max(), b
    for _ in range(ROUNDS):
        image = BackProjections(radon, torch.from_numpy(values.astype(np.float32)))[SMOOTH].numpy()
        inside = torch.from_numpy((image > filters.threshold_otsu(image)).astype(np.float32))
        lengths = radon(inside).numpy()
        grows = BeamHardening.fit(lengths[thick], b[thick])
        path = np.linspace(0, float(lengths.max()), POINTS)
        fit = BeamHardening.fit(grows(path), path)
        if not ((np.diff(grows(path)) > 0).all() and fit(b.max()) >= fit.coefficients[0] * b.max()):
            return None
        found = _least_change(fit, b)
        values = straight(b, found).astype(np.float64)
    left = np.linalg.norm(grows(lengths[thick]) - b[thick])
    return found if left < ONE_DENSITY * np.linalg.norm(b[thick]) else None


def by_agreement(b: Array, radon: Projector) -> BeamHardening | None:
    """b + c b^2 for which views agree best; None where it would not be beam hardening."""
    window = np.hanning(BLUR + 2)[1:-1]
    smooth = np.stack([np.convolve(row, window / window.sum(), mode="same") for row in b])
    one, two = (_disagreement(values, radon) for values in (smooth, smooth**2))
    c = -float((one * two).sum() / (two * two).sum())
    return _least_change(BeamHardening((1.0, c)), b) if c > 0 else None


def _least_change(fit: BeamHardening, b: Array) -> BeamHardening:
    """A multiple that is as near to b as it can be."""
    values = fit(b)
    scale = float((values * b).sum() / (values * values).sum())
    return BeamHardening(tuple(scale * c for c in fit.coefficients))


def _disagreement(values: Array, radon: Projector) -> Array:
    """What no image explains."""
    rows = torch.from_numpy(values.astype(np.float32))
    left: Array = (rows - radon(cgls(radon, rows, STEPS))).double().numpy()
    return left
