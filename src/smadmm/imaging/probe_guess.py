"""A first guess of a probe of which nothing is known, or little.

The mean pattern is nearly |F P|^2. In focus F P has one phase; out of focus it has a parabola,
    F P  ~  sqrt(mean pattern) exp(i pi s |q - q0|^2 / r),      q0, r: middle and spread of the mean pattern,
which spreads the probe over about s pixels. Of several s, with both signs, the one is taken that makes neighbouring
patterns most likely after some iterations with a prior on the object: without one, few photons are fitted with any
probe. To move all patterns is to give a probe's
phase a ramp: so the middle of the mean pattern may be made frequency zero where no probe is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import itemgetter

import torch
from torch import Tensor

from smadmm.imaging.probe import fit_blocks, redescribed, scaled_probe
from smadmm.imaging.scan_fit import ScanFit, bright_noise, of_counts
from smadmm.imaging.scan_parts import constant_object, neighbours
from smadmm.imaging.scan_plan import DARK, ScanPlan
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.running import Stop, run

SPREADS = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8)  # of the window, beside 0; with both signs
FINER = (0.85, 1.15)  # times the best of them
STEPS, TRIED = 15, 5  # of the fit that tells the noise; iterations with each guess


def guessed_probe(loss: PtychographyLoss, known: bool) -> tuple[Tensor, int]:
    """The best of the guesses, and of the probe of `loss` if something is known of it; the sample gradients it took."""
    few, root = neighbours(loss), mean_amplitudes(loss)
    given: Tensor = loss.operator.probe
    few_given = with_probe(few, given)
    _, (x, probe), _ = fit_blocks(few_given, constant_object(few_given), STEPS)
    noise = bright_noise(redescribed(few, probe, few.operator.positions), x)

    def tried(spreads: Iterable[float]) -> list[tuple[float, float, Tensor]]:
        guesses = ((spread, out_of_focus(root, spread)) for spread in spreads)
        return [(unlikely(with_probe(few, guess), noise), spread, guess) for spread, guess in guesses]

    found = tried([0.0, *SPREADS, *(-s for s in SPREADS)])
    spread = min(found, key=itemgetter(0))[1]
    found += tried(factor * spread for factor in FINER if spread)
    least, _, best = min(found, key=itemgetter(0))
    visits = few.n * (STEPS + TRIED * (len(found) + known))
    return (given if known and unlikely(with_probe(few, given), noise) <= least else best), visits


def unlikely(loss: PtychographyLoss, noise: float) -> float:
    """The negative logarithm of the likelihood after a few iterations from a constant with the natural prior."""
    start = constant_object(loss)
    fit = ScanFit(start, noise, noise, loss.operator.light(), loss.n, 0)
    solver = ScanPlan().solver(loss, ScanPlan().found_prior(loss, fit))
    x = run(solver, start, Stop(iterations=TRIED), every=TRIED, objective=False, progress=False).x
    return float(of_counts(loss, DARK * (2 * noise) ** 2).value(x, loss.full()))


def with_probe(loss: PtychographyLoss, probe: Tensor) -> PtychographyLoss:
    """The scan with this probe, of the energy of the mean pattern."""
    return redescribed(loss, scaled_probe(probe, loss.amplitudes), loss.operator.positions)


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
