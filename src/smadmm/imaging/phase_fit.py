"""Phase retrieval without a prior: the fit of an image to amplitudes, its noise, and what it says of the image.

Near the image the loss F (mean over n masks, e = mean_i |m_i|^2) has the curvature e/2: a residual turns with the phase
of its field, and only half of it is seen. Noise s per amplitude therefore leaves the error
    lv = s sqrt(2 / (n e))
in each real value of the fit; s follows from the residual |r|^2 = s^2 (n P - U) with U unknown real values. Where there
are no more data than unknowns (one mask; two for a complex image) the residual says nothing of s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import alternating_start, constant_start, spectral_start

STARTS = ("auto", "constant", "spectral", "raar")
STEPS, MOMENTUM, STILL = 60, 0.6, 1e-4  # of the descent: at most so many, until a step changes no more than this
HIGH = 0.15  # of the amplitudes: a residual of strong noise, or of a local minimum (one pixel that outshines all)
FEW = 3  # masks of a real image with which descent may end in a local minimum
WEAK = 0.05  # pixels that get less of the mean light are filled in from their neighbours


@dataclass(frozen=True)
class Fit:
    """An image fitted to amplitudes, and how: `residual` and `noise` are per amplitude, `level` is its own error."""

    image: Tensor
    residual: float
    noise: float
    level: float
    light: Tensor  # mean_i |m_i|^2 of every pixel

    @property
    def determined(self) -> bool:
        """Whether there are enough masks to tell the noise."""
        return math.isfinite(self.noise)

    def positive(self) -> bool:
        """Whether its negative values are no more than its error explains."""
        if self.image.is_complex():
            return False
        negative = self.image.clamp(max=0) / self.level * (self.light / self.light.mean()).sqrt()
        return bool(negative.square().mean() < 1.2) and bool(negative.min() > -8)


def light_of(loss: AmplitudeLoss) -> Tensor:
    """mean_i |m_i|^2 of every pixel."""
    masks = loss.operator.masks(loss.everything)
    return masks.abs().square().mean(0)


def residual_of(loss: AmplitudeLoss, x: Tensor) -> float:
    """The root mean square of |A x| - y over all measured amplitudes."""
    data = loss.data(loss.everything)
    return math.sqrt(2 * loss.n * float(loss.value(x, loss.full())) / max(int((data >= 0).sum()), 1))


def size_of(loss: AmplitudeLoss) -> float:
    """The root mean square of the measured amplitudes."""
    data = loss.data(loss.everything)
    return float(data[data >= 0].double().square().mean().sqrt())


def descend(loss: AmplitudeLoss, x: Tensor, light: Tensor) -> tuple[Tensor, bool]:
    """Gradient steps with momentum, each pixel with its own curvature, and whether nothing changes any more."""
    curvature = light.clamp(min=WEAK * float(light.mean()))
    old = x
    for _ in range(STEPS):
        point = x + MOMENTUM * (x - old)
        old, x = x, point - loss.gradient((point,), (1.0,), loss.full()) / curvature
        if float((x - old).norm()) <= STILL * float(x.norm()):
            return x, True
    return x, False


def _starts(loss: AmplitudeLoss, start: str) -> Tensor:
    if start == "spectral":
        return spectral_start(loss)
    return alternating_start(loss, constant_start(loss)) if start == "raar" else constant_start(loss)


def fit_amplitudes(loss: AmplitudeLoss, start: str = "auto") -> Fit:
    """The fit on all masks of a loss. `auto` begins with a constant, and tries others where that may fail."""
    light = light_of(loss)
    x, still = descend(loss, _starts(loss, start), light)
    residual, unknowns = residual_of(loss, x), 2 if x.is_complex() else 1
    tried = ["raar"] * (loss.n <= FEW * unknowns or not still) + ["spectral"] * (residual > HIGH * size_of(loss))
    for name in tried if start == "auto" else []:
        other, _ = descend(loss, _starts(loss, name), light)
        if (second := residual_of(loss, other)) < residual:
            x, residual = other, second
    x = fill(x if x.is_complex() or float(x.sum()) >= 0 else -x, light)
    free = loss.n - unknowns * float((light > 0).double().mean())
    noise = residual * math.sqrt(loss.n / free) if free > 0.1 else math.inf
    return Fit(x, residual, noise, error_level(noise, loss.n, light), light)


def error_level(noise: float, count: int, light: Tensor) -> float:
    """lv: the error that noise per amplitude leaves in a fit to so many masks."""
    return noise * math.sqrt(2 / (count * float(light.mean())))


def dark(light: Tensor) -> bool:
    """Whether some pixels are hardly seen."""
    return float(light.min()) < WEAK * float(light.mean())


def fill(x: Tensor, light: Tensor) -> Tensor:
    """Pixels that hardly any mask lets through, from their neighbours; the others as they are."""
    mean = float(light.mean())
    if not dark(light) or min(x.shape) < 3:
        return x
    if x.is_complex():
        return torch.complex(fill(x.real.contiguous(), light), fill(x.imag.contiguous(), light))

    def around(v: Tensor) -> Tensor:
        return avg_pool2d(pad(v[None, None], (2, 2, 2, 2), mode="replicate"), 5, stride=1)[0, 0]

    near = around(light * x) / around(light).clamp(min=1e-6 * mean)
    return (light * x + WEAK * mean * near) / (light + WEAK * mean)
