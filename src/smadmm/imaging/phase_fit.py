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

from smadmm.imaging.metrics import align, snr
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import alternating_start, constant_start, spectral_start

STARTS = ("auto", "constant", "spectral", "raar")
STEPS, MOMENTUM, STILL = 60, 0.6, 1e-4  # of the descent: at most so many, until a step changes no more than this
FEW, TURNED = 3, "spectral, then raar"  # masks of a real image with which descent may end in a local minimum; a start
SAME, RIVAL = 8.0, 1.25  # dB from one fit to another that is the same image; times the residual of the best one
LEAST = 0.1  # more data than unknowns, per pixel, from which the noise is known
WEAK = 0.05  # pixels that get less of the mean light are filled in from their neighbours


@dataclass(frozen=True)
class Fit:
    """An image fitted to amplitudes, and how: `residual` and `noise` are per amplitude, `level` is its own error."""

    image: Tensor
    residual: float
    noise: float
    level: float
    light: Tensor  # mean_i |m_i|^2 of every pixel
    sure: bool = True  # whether no other image explains the patterns about as well

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


def _start(loss: AmplitudeLoss, name: str) -> Tensor:
    if name.startswith("spectral"):
        x = spectral_start(loss)
        return alternating_start(loss, x) if name == TURNED else x
    return alternating_start(loss, constant_start(loss)) if name == "raar" else constant_start(loss)


def fit_amplitudes(loss: AmplitudeLoss, start: str = "auto") -> Fit:
    """The fit on all masks of a loss.

    `auto` begins with a constant. Where that may end in a local minimum others follow, until the best image was found
    twice; if that never happens, and another image explains the patterns about as well, the fit is not sure.
    """
    light = light_of(loss)
    unknowns = 2 if loss.dtype is not None and loss.dtype.is_complex else 1
    free = loss.n - unknowns * float((light > 0).double().mean())
    x, still = descend(loss, _start(loss, start), light)
    found = [(residual_of(loss, x), x)]
    if start == "auto" and (loss.n <= FEW * unknowns or not still):
        for name in ("raar", "spectral", TURNED) if free > LEAST else ("raar",):
            x, _ = descend(loss, _start(loss, name), light)
            found = sorted([*found, (residual_of(loss, x), x)], key=lambda each: each[0])
            if any(_same(found[0][1], x, light) for _, x in found[1:]):
                break
    residual, x = found[0]
    rivals = [other for error, other in found[1:] if error < RIVAL * residual]
    sure = free <= LEAST or not rivals or any(_same(x, other, light) for other in rivals)
    x = fill(x if x.is_complex() or float(x.sum()) >= 0 else -x, light)
    noise = residual * math.sqrt(loss.n / free) if free > LEAST else math.inf
    return Fit(x, residual, noise, error_level(noise, loss.n, light), light, sure)


def _same(x: Tensor, other: Tensor, light: Tensor) -> bool:
    """Whether two fits are one image, but for its sign or phase and pixels that hardly any mask lets through."""
    lit = light > WEAK * light.mean()
    return snr(x[lit], align(x[lit], other[lit])) > SAME


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
