"""What may be wrong with a scan: positions, probe or patterns that do not fit each other, with the likely cause.

Noise of counts is the same at every amplitude; what a wrong description leaves unexplained grows with it. So where the
misfit at bright pixels of the detector is larger than at usual ones, other descriptions are tried on some neighbouring
positions, and the one that explains their patterns far better is named. A background is no such misfit, as an object
can be made that has one; it is looked for where no pixel of the detector is dark in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.imaging.phase_checks import turned_signs
from smadmm.imaging.position_scale import position_scale
from smadmm.imaging.probe import fit_blocks, position_step, redescribed
from smadmm.imaging.scan_fit import ScanFit
from smadmm.imaging.scan_parts import constant_object, neighbours, placed
from smadmm.losses.phase import NO_DATA
from smadmm.losses.ptychography import PtychographyLoss

USUAL, BRIGHT, GROWTH = (0.7, 1.2), 2.0, 1.1  # times the mean amplitude; the misfit of bright pixels over usual ones
STEPS = 40  # with which other descriptions are tried
QUANTITY, BETTER, LITTLE, LESS = 0.6, 0.85, 0.93, 0.97  # of the misfit: what the right description leaves at most
GROUND = 0.02  # of the mean intensity: a background
NARROW = 0.1  # of the probe: positions closer than that are in another unit
ASKED = 200  # positions whose distance to the next is looked at
EMPTY, WORSE = 0.01, 2.5  # of the usual energy of a pattern; times the usual misfit of one


def misfit(loss: PtychographyLoss, x: Tensor, above: float, below: float = float("inf")) -> float:
    """The root mean square of |A x| - y where y is between these numbers of mean amplitudes; nan: hardly anywhere."""
    data = loss.amplitudes
    size = data[data >= 0].square().mean().sqrt()
    chosen = (data >= above * size) & (data < below * size)
    gap = (loss.operator(x).abs() - data)[chosen]
    return float(gap.square().mean().sqrt() / size) if len(gap) > 50 else float("nan")


def growth(loss: PtychographyLoss, x: Tensor) -> float:
    """How much larger the misfit is at bright pixels than at usual ones."""
    return misfit(loss, x, BRIGHT) / misfit(loss, x, *USUAL)


def empty_patterns(amplitudes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which patterns hold hardly anything beside the others."""
    energy = np.square(amplitudes, dtype=np.float64).sum((1, 2))
    empty: NDArray[np.bool_] = energy < EMPTY * np.median(energy)
    return empty


def scan_doubts(
    given: PtychographyLoss, loss: PtychographyLoss, fit: ScanFit, free: tuple[bool, bool], quantity: str
) -> list[str]:
    """Why the fit to a scan as `given` may be no image of the object; `free`: probe and positions."""
    x = fit.image
    found = [*_narrow(loss), *_apart(loss), *turned_signs(torch.where(fit.lit, x, 0))]
    if found:
        return found
    grown, few = growth(loss, x) > GROWTH, neighbours(given)
    found = _better(few, free, _descriptions(few, free, quantity, grown))
    if not (found or any(free)):  # what is free takes it up
        found = _scale(given, few, free, fit.noise)
    if grown and not found:
        found = _better(few, free, _refinements(few, free))
    found = found or [*_odd_patterns(loss, x)]
    if grown and not found:
        found.append(
            f"The object leaves {growth(loss, x):.1f} times as much unexplained at bright pixels as at others, and "
            "noise does not: check positions (row and column in pixels), the probe, and whether the light is coherent."
        )
    return found


Description = tuple[str, PtychographyLoss, tuple[bool, bool], float]  # what would be true, what is refined, the gain


def _better(few: PtychographyLoss, free: tuple[bool, bool], others: Iterable[Description]) -> list[str]:
    """The first description that explains some neighbouring patterns far better."""
    own = None
    for name, other, refined, better in others:
        own, left = _left(few, free) if own is None else own, _left(other, refined)
        if left < better * own:
            return [f"The object leaves {own:.0%} of the amplitudes unexplained, but {left:.0%} if {name}."]
    return []


def _scale(given: PtychographyLoss, few: PtychographyLoss, free: tuple[bool, bool], noise: float) -> list[str]:
    """Positions of a wrong size of the pixel, unless what was not refined explains the patterns far better."""
    factor = position_scale(given, noise)
    if factor is None:
        return []
    left = _left(placed(few.operator.probe, few.operator.positions * factor, few.amplitudes), free)
    if any(_left(other, refined) < better * left for _, other, refined, better in _refinements(few, free)):
        return []
    return [
        f"Positions about {factor:.2f} times as far apart make the patterns far more likely: check the size of the "
        "object's pixels from which they were made (wavelength times distance over the width of the detector)."
    ]


def _narrow(loss: PtychographyLoss) -> Iterator[str]:
    span = np.ptp(loss.operator.positions, axis=0).max()
    if loss.n > 4 and span < NARROW * min(loss.operator.window):
        yield (
            f"All positions are within {span:.2g} pixels, a small part of the probe: they are rows and columns in "
            "pixels of the object, so divide lengths by the size of its pixels."
        )


def _apart(loss: PtychographyLoss) -> Iterator[str]:
    """Probes that do not meet, as wide as a disc of even light would be that spreads as far."""
    light = loss.operator.probe.abs().square().cpu().numpy().astype(np.float64)
    pixels, places = np.indices(light.shape), loss.operator.positions
    spread = sum(np.cov(axis.ravel(), aweights=light.ravel(), ddof=0) for axis in pixels)
    width, asked = math.sqrt(8 * spread), places[:: -(-loss.n // ASKED)]
    step = np.median(np.sort(np.linalg.norm(asked[:, None] - places, axis=2), axis=1)[:, 1]) if loss.n > 1 else 0.0
    if step > width:
        yield (
            f"Neighbouring positions are {step:.0f} pixels apart, and the probe is about {width:.0f} wide: patterns "
            "that do not overlap do not determine the object. Scan more densely, or check the unit of positions."
        )


def _odd_patterns(loss: PtychographyLoss, x: Tensor) -> Iterator[str]:
    """A pattern that the others contradict, by more than what chance does to its few bright pixels."""
    data = loss.amplitudes
    bright = data > data[data >= 0].square().mean().sqrt()
    pixels = bright.sum((1, 2)).clamp(min=1)
    gaps = (((loss.operator(x).abs() - data) * bright).square().sum((1, 2)) / pixels).sqrt()
    chance = 1 + 3 / (2 * pixels).sqrt()
    worst, usual = int((gaps / chance).argmax()), float(gaps.median())
    if loss.n > 4 and float(gaps[worst] / chance[worst]) > WORSE * usual:
        yield (
            f"Pattern {worst} fits {float(gaps[worst]) / usual:.1f} times worse than the others: leave it out, or "
            "check its position and its exposure."
        )


def _left(loss: PtychographyLoss, free: tuple[bool, bool]) -> float:
    """What a fit leaves unexplained of the measured amplitudes, with probe and positions free or not."""
    x = constant_object(loss)
    for _ in range(3 if free[1] else 0):
        (x, probe), _, _ = fit_blocks(loss, x, STEPS, (True, free[0]))
        loss = redescribed(loss, probe, loss.operator.positions)
        loss = redescribed(loss, probe, position_step(loss, x))
    (x, probe), _, _ = fit_blocks(loss, x, STEPS, (True, free[0]))
    return misfit(redescribed(loss, probe, loss.operator.positions), x, 0.0)


def _descriptions(
    loss: PtychographyLoss, free: tuple[bool, bool], quantity: str, all_of_them: bool
) -> Iterator[Description]:
    """Other descriptions of the same patterns: what would then be true, and what is refined."""
    probe, places, y = loss.operator.probe, loss.operator.positions, loss.amplitudes
    known, power = y >= 0, 0.5 if quantity == "amplitudes" else 2.0
    turned, moved = places * [-1, -1], torch.fft.fftshift(probe)
    for name, positions, other in (
        (
            ("rows and columns of the positions are exchanged (or those of the patterns)", places[:, ::-1], probe),
            (
                "the signs of the positions turn (or the frequencies run backwards, or the probe is conjugated)",
                turned,
                probe,
            ),
            ("the sign of the rows turns", places * [-1, 1], probe),
            ("the sign of the columns turns", places * [1, -1], probe),
            ("rows and columns are exchanged and the sign of the rows turns", places[:, ::-1] * [-1, 1], probe),
            ("rows and columns are exchanged and the sign of the columns turns", places[:, ::-1] * [1, -1], probe),
            ("the middle of the probe is that of its array (numpy.fft.fftshift)", places, moved),
        )
        if all_of_them
        else ()
    ):
        yield name, placed(other, positions.copy(), y), free, BETTER
    kind = "intensities" if quantity == "amplitudes" else "amplitudes"
    other_power = torch.where(known, y.clamp(min=0) ** power, NO_DATA)
    if all_of_them:
        yield f"the patterns are {kind}", placed(probe, places, other_power), free, QUANTITY
    intensity = torch.where(known, y.square(), torch.nan).nanmean(0)
    ground = torch.nanquantile(intensity, 0.02)
    if ground > GROUND * intensity[intensity.isfinite()].mean():
        less = torch.where(known, (y.square() - ground).clamp(min=0).sqrt(), NO_DATA)
        yield "a constant background is subtracted from the intensities", placed(probe, places, less), free, LESS


def _refinements(loss: PtychographyLoss, free: tuple[bool, bool]) -> Iterator[Description]:
    """What the patterns may ask for that was not."""
    if not free[0]:
        yield "the probe is found with the object (set refine_probe)", loss, (True, free[1]), BETTER
    if not free[1]:
        yield "positions may move (set refine_positions)", loss, (free[0], True), LITTLE
