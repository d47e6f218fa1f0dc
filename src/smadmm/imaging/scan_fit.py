"""The fit of a scan without a prior, and what it tells: the noise of the amplitudes and its own error.

Its error at a pixel with the light w = 1/n sum_i |P_i|^2 is lv = s sqrt(2 / (n w)) per real value, s the noise per
amplitude (1/2 of square roots of counts), as phase_fit.py says of masks. s is taken from what the fit leaves at bright
pixels of the detector: most others hold no photons and no noise. Only pixels with light are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from smadmm.imaging.phase import NATURAL
from smadmm.imaging.probe import ENOUGH, fit_blocks, position_step, redescribed, scaled_probe
from smadmm.imaging.scan_parts import constant_object
from smadmm.losses.phase import SMALLEST
from smadmm.losses.ptychography import PtychographyLoss

FIT = 100  # steps of a fit at most
MOVES, SHORT = 6, 25  # rounds in which positions move, the steps of each
LIT = 0.05  # of the largest light: darker pixels are not judged
DIM = 2  # times the level of the weakest denoiser: the level of a fit that is a worse start than a constant
FAR = 0.66  # of an object: what is left of it beside a constant; phases of all sizes leave 1


@dataclass(frozen=True)
class ScanFit:
    """An object fitted to a scan without a prior: residual and noise per amplitude, light of every pixel."""

    image: Tensor
    residual: float
    noise: float
    light: Tensor
    count: int  # positions
    sfo: int  # sample gradients that it took

    @property
    def lit(self) -> Tensor:
        return self.light > LIT * self.light.max()

    @property
    def extent(self) -> float:
        """The largest modulus but for outliers."""
        return float(np.quantile(self.image[self.lit].abs().cpu().numpy(), 0.999))

    @property
    def level(self) -> float:
        """lv: its error at the mean light of the pixels that are judged."""
        return self.noise * math.sqrt(2 / (self.count * float(self.light[self.lit].mean())))

    @property
    def dim(self) -> bool:
        """Whether a constant is a better start: there is little light, and the object is not far from a constant."""
        x, light = self.image[self.lit], self.light[self.lit]
        noise = float((4 * self.noise**2 / (self.count * light)).sum())  # its share of the energy
        away, energy = (float(part.abs().square().sum()) - noise for part in (x - x.mean(), x))
        far = math.sqrt(max(away, 0.0) / max(energy, SMALLEST))
        return self.level > DIM * NATURAL[0][0] * self.extent and far < FAR


def residual_of(loss: PtychographyLoss, x: Tensor) -> float:
    """The root mean square of |A x| - y over all measured amplitudes."""
    amplitudes = of_counts(loss, 0.0)
    return math.sqrt(2 * loss.n * float(amplitudes.value(x, loss.full())) / max(int((loss.amplitudes >= 0).sum()), 1))


def of_counts(loss: PtychographyLoss, dark: float) -> PtychographyLoss:
    """The loss with the likelihood of counts, or with 0 the one of amplitudes."""
    return PtychographyLoss(loss.operator, loss.amplitudes, loss.sampling, dark)


def fit_scan(
    loss: PtychographyLoss, refine_probe: bool = False, refine_positions: bool = False
) -> tuple[PtychographyLoss, ScanFit]:
    """The scan as it is described then, and the fit, from a constant; open positions move between shorter fits."""
    if refine_probe:
        loss = redescribed(loss, scaled_probe(loss.operator.probe, loss.amplitudes), loss.operator.positions)
    x, visits = constant_object(loss), 0
    for _ in range(MOVES if refine_positions else 0):
        (x, probe), _, steps = fit_blocks(loss, x, SHORT, (True, refine_probe))
        loss = redescribed(loss, probe, loss.operator.positions)
        loss, visits = redescribed(loss, probe, position_step(loss, x)), visits + (steps + 1) * loss.n
    (x, probe), last, steps = fit_blocks(loss, x, FIT, (True, refine_probe), ENOUGH if refine_probe else 1.0)
    noise = bright_noise(redescribed(loss, last[1], loss.operator.positions), last[0])
    loss = redescribed(loss, probe, loss.operator.positions)
    return loss, ScanFit(x, residual_of(loss, x), noise, loss.operator.light(), loss.n, visits + steps * loss.n)


def bright_noise(loss: PtychographyLoss, x: Tensor) -> float:
    """The noise per amplitude at bright pixels of the detector, from what a fit leaves there."""
    data = loss.amplitudes
    bright = data > data[data >= 0].square().mean().sqrt()
    return float((loss.operator(x).abs() - data)[bright].square().mean().sqrt())


def size_of(loss: PtychographyLoss) -> float:
    """The root mean square of the measured amplitudes."""
    return float(loss.amplitudes[loss.amplitudes >= 0].square().mean().sqrt())
