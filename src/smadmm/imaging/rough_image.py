"""A smooth image that follows no single detector: what it leaves shows what detectors and rays do wrong."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.imaging.neighbours import filled
from smadmm.imaging.pnp import posterior_weight, sinogram_noise, tomography
from smadmm.imaging.priors import find_prior
from smadmm.imaging.sinograms import BackProjections, noise_level
from smadmm.imaging.survey import Survey
from smadmm.losses.tomography import Tomography
from smadmm.operators.radon import Radon
from smadmm.running import Stop, run
from smadmm.sampling import stride

STEPS, STRENGTH = 6, 20.0
CUT = 0.25  # the filter of its first image
NOTHING, AIR = 3.0, 0.25  # noises that a ray of air stays below, and the share of such rays that pixels of air have


class Rough(NamedTuple):
    """A smooth image of half the resolution and what it leaves of the sinogram."""

    image: Tensor
    residual: NDArray[np.float32]


def rough_image(values: NDArray[np.float32], weights: NDArray[np.float32], survey: Survey) -> Rough:
    """Solve coarsely with a strong prior, which follows no single detector."""
    detectors = values.shape[1]
    make = Radon if survey.geometry is None else survey.geometry.projector
    radon = make(math.ceil(detectors * survey.width / 2), np.deg2rad(survey.angles), detectors, 0.5, survey.center)
    known = torch.from_numpy(filled(np.where(weights > 0, values, np.nan)).astype(np.float32))
    images = BackProjections(radon, known)
    scale = float(np.quantile(np.abs(images[1.0].numpy()), 0.999))
    images.divide(scale)
    loss = Tomography(radon, images.rows, torch.from_numpy(weights), sampling=stride)
    prior, noise = find_prior("ridge-ct", "cpu", (-math.inf, math.inf)), noise_level(images.rows)
    rho = STRENGTH * posterior_weight(loss, noise, prior.sigma)
    first = images[CUT]  # rings are weak in it
    solver = tomography(loss, prior.prox(rho), rho)
    done = run(solver, first, Stop(iterations=STEPS), every=STEPS, objective=False, progress=False)
    air = images.rows.abs() < NOTHING * min(noise, sinogram_noise(images.rows.T))  # stripes are no noise along views
    empty = radon.adjoint(air.float()) > AIR * radon.adjoint(torch.ones_like(known))
    image = (done.x * scale).masked_fill(empty, 0)  # else wrong rays beside the object become objects in the corners
    return Rough(image, values - radon(image).numpy())
