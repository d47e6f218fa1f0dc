"""What is known of images beforehand, by name: a denoiser of the package or of a file, total variation, or nothing.

What a denoiser makes is cut to the range that images have: outside it knows nothing, and iterated without data it may
go there (directions that no view sees are free).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.denoisers import load, shipped
from smadmm.distributed import if_joined
from smadmm.problem import Distance, Prox, Step
from smadmm.proxes import Denoised, Zero
from smadmm.proxes.total_variation import TV

LEARNED = "ridge-ct"  # what "auto" begins with
LEVEL = 5 / 255  # the noise that total variation is set for, as the denoisers are
LEVELS = (2.0, 4.0)  # times LEVEL: the least and the most that a stored denoiser is set for
TV_SHARE = 0.5  # prox_{TV/rho} denoises best at this multiple of the noise level
PARTS = (torch.real, torch.imag)
TV_ACCURACY = 3e-4  # of its prox: finer ones change reconstructions by less than 1e-4 of their size, and take longer


Denoiser = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Prior:
    """A prior for noise of level sigma; `prox(rho)` is its h for the weight rho."""

    name: str
    sigma: float
    lipschitz: float | None  # of I - D, where it is a denoiser
    prox: Callable[[float], Prox]


# functions of modules, for lambdas cannot be sent to other processes
def _nothing(rho: float) -> Prox:
    return Zero()


def _total_variation(sigma: float, rho: float) -> Prox:
    return TV(TV_SHARE * sigma * rho, TV_ACCURACY)


def _same(h: Prox, rho: float) -> Prox:
    return h


def find_prior(
    name: str,
    device: torch.device | str = "cpu",
    limits: tuple[float, float] | None = (0.0, 1.0),
    level: float | None = None,
) -> Prior:
    """A prior: tv, none, the name of a shipped denoiser, or a file of weights (.safetensors).

    It is for noise of `level`; by default for that of its training. With limits, what a denoiser makes is cut to them.
    """
    sigma = LEVEL if level is None else level
    if name == "none":
        return Prior(name, sigma, None, _nothing)
    if name == "tv":
        return Prior(name, sigma, None, partial(_total_variation, sigma))
    if name not in shipped() and not name.endswith(".safetensors"):
        raise ValueError(f"no prior {name!r}; there are {', '.join(shipped())}, tv, none, or a file .safetensors")
    denoiser = load(name)
    assert denoiser.sigma is not None  # files of weights state it
    own = denoiser.to(device) if level is None else denoiser.to(device).at_level(level)
    h = Denoised(if_joined(own), image=True, limits=limits)
    return Prior(name, denoiser.sigma if level is None else level, denoiser.lipschitz, partial(_same, h))


def suited(prior: Prior, noise: float, device: torch.device | str, limits: tuple[float, float] | None) -> Prior:
    """The same prior for a level that suits images with this noise; unchanged unless it is a stored denoiser.

    A level of twice that of its training is better on clean data already (by 0.1 to 1 dB on training slices), and up to
    four times where the noise of a filtered back-projection is as large: fewer iterations are needed, too.
    """
    if not (prior.name in shipped() or prior.name.endswith(".safetensors")):
        return prior
    return find_prior(prior.name, device, limits, min(max(noise, LEVELS[0] * LEVEL), LEVELS[1] * LEVEL))


def own_prior(given: Prox | Denoiser, limits: tuple[float, float] | None) -> Prior:
    """A prior of your own: a denoiser, or a prox, which denoises at t = 1.

    A torch module is called with 1 x 1 x H x W, any other function with H x W; a `Denoised` is taken as it is.
    It is for noise of its attribute `sigma`, or 5/255 where it has none.
    """
    named = given.denoiser if isinstance(given, Denoised) else given
    name = f"own {getattr(named, '__name__', type(named).__name__)}"
    if isinstance(given, Denoised):
        h = given
    elif isinstance(given, Prox):
        h = Denoised(partial(given.prox, t=1.0), limits=limits)
    elif callable(given):
        h = Denoised(given, image=isinstance(given, torch.nn.Module), limits=limits)
    else:
        raise ArgumentError("{prior} is a name, a denoiser that takes an image, or a Prox, got {0!r}", given)
    sigma = getattr(named, "sigma", None)
    return Prior(name, LEVEL if sigma is None else float(sigma), h.lipschitz, partial(_same, h))


def as_prior(
    given: str | Prox | Denoiser, device: torch.device | str, limits: tuple[float, float] | None
) -> tuple[Prior, str]:
    """The prior to begin with, and the name by which it was asked for."""
    if isinstance(given, str):
        return find_prior(LEARNED if given == "auto" else given, device, limits), given
    own = own_prior(given, limits)
    return own, own.name


@dataclass(frozen=True)
class ComplexProx(Prox):
    """A real prox on the real and the imaginary part of a complex image."""

    real: Prox

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignores_step", self.real.ignores_step)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return torch.complex(*self.real.prox(torch.stack([v.real, v.imag]), t))

    def distance(self, y: Tensor, g: Tensor, r: Step) -> Distance:
        return _together(self.real.distance(part(y), part(g), r) for part in PARTS)

    def distance_after(self, z: Tensor, y: Tensor, g: Tensor, r: Step) -> Distance:
        return _together(self.real.distance_after(part(z), part(y), part(g), r) for part in PARTS)

    def value_after(self, z: Tensor, y: Tensor, r: Step) -> float | None:
        values = [self.real.value_after(part(z), part(y), r) for part in PARTS]
        return None if None in values else sum(value for value in values if value is not None)


def _together(distances: Iterable[Distance]) -> Distance:
    return Distance(*(math.hypot(*ends) for ends in zip(*distances, strict=True)))
