"""Plug-and-play methods by name, all on one footing: min F(x) + rho phi(x), a denoiser in the place of phi's prox.

    smadmm   Storm, a_k = k^(-2/3): PnP-SMADMM, Algorithm 2          spider   recursive, a full gradient every N/batch
    sadmm    SGD: PnP-SADMM                                          svrg     an anchor every N/batch
    on-red   RED with the gradient of a batch                        asvrg    SVRG at theta x + (1 - theta) anchor
    red-sd   RED with full gradients (steepest descent)

`tomography` is the default for CT: smadmm with all views and a nearly exact x-step, or batches of equispaced views and
the Fourier preconditioner, and
    rho = s^2 / (c N sigma^2),
the weight for which F + rho phi is a negative log posterior: s is the noise of the sinogram, c and N the loss's scale
and views, and phi the prior of a denoiser for noise of level sigma, D = prox_phi.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from smadmm.estimators import ASVRG, SGD, SVRG, Estimator, Spider, Storm
from smadmm.imaging.preconditioner import FourierStep, NewtonStep
from smadmm.imaging.red import RED
from smadmm.losses.tomography import Tomography
from smadmm.problem import Loss, Problem, Prox
from smadmm.sampling import golden, reshuffled, stride
from smadmm.schedules import Power, ScheduleLike
from smadmm.solver import ADMM
from smadmm.xsteps import XStep, linearised

Method = Literal["smadmm", "sadmm", "spider", "svrg", "asvrg", "on-red", "red-sd"]
METHODS: tuple[Method, ...] = get_args(Method)
STEPS, WEIGHTED_STEPS = 3, 6  # of conjugate gradients: the Fourier preconditioner knows of no weights
PASSES = (stride, golden, reshuffled)  # a batch of n samples is every sample once


def estimator(method: Method, batch: int, n: int | None, a: ScheduleLike | None = None) -> Estimator:
    """The gradient estimator of a method; double loops restart after a pass over the n samples."""
    every = max(1, -(-n // batch)) if n is not None else 1
    if method == "smadmm":
        return Storm(batch, Power(1.0, -2 / 3) if a is None else a)
    if method in ("sadmm", "on-red"):
        return SGD(batch)
    if method == "spider":
        return Spider(batch, every)
    if method == "svrg":
        return SVRG(batch, every)
    if method == "asvrg":
        return ASVRG(batch, every)
    if method == "red-sd":
        return Spider(batch, 1)
    raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")


def pnp(
    loss: Loss,
    prior: Prox,
    method: Method = "smadmm",
    batch: int = 1,
    rho: float = 1.0,
    eta: ScheduleLike | None = None,
    a: ScheduleLike | None = None,
    x_step: XStep = linearised,
    seed: int = 0,
) -> ADMM | RED:
    """A solver for `run`. eta is the inverse step, by default 1 + rho: for 1-smooth losses, as those of images are.

    rho is the weight of the prior (the r of ADMM, the tau of RED) and stays fixed: with a denoiser it decides what is
    solved. `a` is the momentum of smadmm.
    """
    if a is not None and method != "smadmm":
        raise ValueError(f"only smadmm has a momentum a, {method} does not; leave it out")
    parts = (Problem(loss, prior), estimator(method, batch, loss.n, a), rho, 1 + rho if eta is None else eta)
    if method in ("on-red", "red-sd"):
        return RED(*parts, x_step=x_step, seed=seed)
    return ADMM(*parts, x_step=x_step, seed=seed)


def sinogram_noise(sinogram: Tensor) -> float:
    """The noise level of a sinogram, from the median size of sixth differences along the detector.

    What remains of the image itself in them makes it an upper estimate: 2 to 40 % high at 50 dB, right at 35 dB.
    """
    order = min(6, sinogram.shape[-1] - 1)
    if order < 1:
        raise ValueError("the noise of a sinogram with one detector cannot be estimated; give it")
    scale = math.sqrt(math.comb(2 * order, order)) * 0.6745  # of a median of absolute values
    return float(torch.diff(sinogram, n=order, dim=-1).abs().median()) / scale


def posterior_weight(loss: Tomography, noise: float, sigma: float) -> float:
    """rho = noise^2 / (c N sigma^2)."""
    if not (noise > 0 and sigma > 0):
        raise ValueError(f"the noise of the data and of the denoiser must be positive, got {noise} and {sigma}")
    return noise**2 / (loss.c * loss.n * sigma**2)


def tomography(
    loss: Tomography, prior: Prox, rho: float, method: Method = "smadmm", batch: int | None = None, seed: int = 0
) -> ADMM | RED:
    """The solver for CT, views as the loss samples them (best: `stride`).

    By default every iteration uses all views, and its x-step is nearly exact (`NewtonStep`): with a denoiser the views
    cost little beside it, and few iterations are needed. With a batch, or independent draws, it is `FourierStep`; eta =
    1/2 goes up to 1.8 times as far as the minimum of a batch, which is stable up to 2 and quicker.
    """
    if batch is None and loss.sampling in PASSES:
        inner = WEIGHTED_STEPS if loss.weighted else STEPS
        return pnp(loss, prior, method, loss.n, rho, eta=1.0, x_step=NewtonStep(loss, inner), seed=seed)
    size = min(loss.n, 180) if batch is None else batch
    return pnp(loss, prior, method, size, rho, eta=0.5, x_step=FourierStep(loss, size), seed=seed)
