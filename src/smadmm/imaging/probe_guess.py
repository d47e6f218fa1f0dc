"""A first guess of a probe of which nothing is known, or little.

The mean pattern is nearly |F P|^2. In focus F P has one phase; out of focus it has a parabola,
    F P  ~  sqrt(mean pattern) exp(i pi s |q - q0|^2 / r),      q0, r: middle and spread of the mean pattern,
which spreads the probe over about s pixels. Of several s, with both signs, the one is taken with which object and probe
leave least of neighbouring patterns after a fit that is too short for noise. To move all patterns is to give a probe's
phase a ramp: so the middle of the mean pattern may be made frequency zero where no probe is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter

import torch
from torch import Tensor

from smadmm.imaging.probe import fit_blocks, redescribed, scaled_probe
from smadmm.imaging.ptychography_checks import constant_object, misfit, neighbours
from smadmm.losses.ptychography import PtychographyLoss

SPREADS = (1 / 16, 1 / 8, 1 / 4)  # of the window, beside 0; with both signs
FINER = (0.7, 1.4)  # times the best of them
STEPS = 20  # of the fits


def guessed_probe(loss: PtychographyLoss, known: bool) -> Tensor:
    """The best of the guesses, and of the probe of `loss` if something is known of it."""
    few, root = neighbours(loss), mean_amplitudes(loss)

    def left(guess: Tensor) -> float:
        loss = redescribed(few, scaled_probe(guess, few.amplitudes), few.operator.positions)
        _, (x, probe), _ = fit_blocks(loss, constant_object(loss), STEPS)
        return misfit(redescribed(loss, probe, few.operator.positions), x, 0.0)

    def tried(spreads: list[float]) -> Iterator[tuple[float, float, Tensor]]:
        for spread in spreads:
            probe = out_of_focus(root, spread)
            yield left(probe), spread, probe

    found = [*tried([0.0, *SPREADS, *(-s for s in SPREADS)])]
    spread = min(found, key=itemgetter(0))[1]
    found += tried([factor * spread for factor in FINER if spread])
    least, _, best = min(found, key=itemgetter(0))
    given: Tensor = loss.operator.probe
    return given if known and left(given) <= least else best


def mean_amplitudes(loss: PtychographyLoss) -> Tensor:
    """The root of the mean pattern; 0 where the detector measures nothing."""
    measured = loss.amplitudes >= 0
    power = torch.where(measured, loss.amplitudes, 0).double().square().sum(0)
    root: Tensor = (power / measured.sum(0).clamp(min=1)).sqrt()
    return root


def centred(loss: PtychographyLoss) -> PtychographyLoss:
    """The scan with the middle of the mean pattern at frequency zero."""
    power = mean_amplitudes(loss).square()
    moves = [-round(len(part) * middle(part)) for part in (power.sum(1), power.sum(0))]
    return PtychographyLoss(loss.operator, loss.amplitudes.roll(moves, (1, 2)), loss.sampling)


def middle(power: Tensor) -> float:
    """The mean frequency along one axis, in cycles per pixel."""
    q = torch.fft.fftfreq(len(power), dtype=power.dtype, device=power.device)
    return float(torch.angle((power * torch.exp(2j * math.pi * q)).sum())) / (2 * math.pi)


def out_of_focus(root: Tensor, spread: float) -> Tensor:
    """The probe in the middle of its window, spread over this share of it."""
    power, squares = root.square() / root.square().sum(), torch.zeros_like(root)
    for axis in (0, 1):
        q = torch.fft.fftfreq(root.shape[axis], dtype=root.dtype, device=root.device)
        away = torch.remainder(q - middle(power.sum(1 - axis)) + 0.5, 1) - 0.5
        squares += away.square()[:, None] if axis == 0 else away.square()
    radius = float((power * squares).sum().sqrt())
    parabola = math.pi * spread * min(root.shape) / max(radius, 1e-12) * squares
    probe: Tensor = torch.fft.fftshift(torch.fft.ifft2(torch.polar(root, parabola))).to(torch.complex64)
    return probe
