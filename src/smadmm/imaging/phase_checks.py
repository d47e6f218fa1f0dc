"""What may be wrong with diffraction patterns: pixels without data, and descriptions that do not fit the patterns.

A fit that leaves much of the patterns unexplained is a fit to noise or to a wrong description. Other descriptions are
then tried on a few masks, and one that explains the patterns far better is named.

Zero frequency in the middle is no misfit where sizes are even: it turns the signs of an image like a chessboard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from smadmm.extras import needs
from smadmm.imaging.phase_fit import Fit, fit_amplitudes, size_of
from smadmm.losses import AmplitudeLoss
from smadmm.losses.phase import NO_DATA
from smadmm.operators import CodedDiffraction

HIGH = 0.12  # a residual, relative to the amplitudes, that is worth a second look
TRIED = 4  # masks with which other descriptions are tried
BETTER, LESS = 0.6, 0.9  # of the noise: the right description explains at least so much more; without a background
GROUND = 0.02  # of the mean intensity, as the least one: a background, or one pixel that outshines all
GAINS, WORSE = 1.1, 2.5  # the largest exposure over the smallest; the residual of one pattern over the median
EDGE = 10.0  # times the least count, which the sum of a scan has at least around a hole
ROUGH = 2.0  # times rougher than with turned signs: no image of an object


def dead_pixels(amplitudes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Pixels that are zero in every pattern amid bright ones: a beam stop, or more single ones than chance allows."""
    mean = torch.from_numpy(np.asarray(amplitudes, dtype=np.float64).mean(0))
    dark = (mean == 0).double()
    if not bool(dark.any()):
        return np.zeros(mean.shape, dtype=bool)
    if float(dark.sum()) <= 5 + 10 * float((amplitudes == 0).mean()) ** len(amplitudes) * dark.numel():
        core = 1 - max_pool2d(1 - dark[None, None], 3, 1, 1)  # whole squares of 3 x 3
        dark = dark * max_pool2d(core, 3, 1, 1)[0, 0]
    reach = max(2, min(mean.shape) // 8)
    sums = [avg_pool2d(v[None, None], 2 * reach + 1, 1, reach)[0, 0] for v in (mean, (mean > 0).double())]
    around: Tensor = sums[0] / sums[1].clamp(min=1e-9)
    dead: NDArray[np.bool_] = ((dark > 0) & (around > 0.3 * mean[mean > 0].mean())).numpy()
    return dead


def saturation(values: NDArray[np.float32]) -> float | None:
    """The value at which the detector saturates: the largest, where it is far more frequent than the one below it."""
    top = values.max()
    lower = values[values < top]
    below = int((lower == lower.max()).sum()) if lower.size else 0
    return float(top) if int((values == top).sum()) > max(8, 2 * below) else None


def holes(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Zeros of the summed patterns of a scan that bright pixels enclose: a beam stop, or dead pixels.

    Far from the zero frequency, which is first, zeros are usual: there a hole has an edge of single photons.
    """
    scipy = needs("scipy.ndimage", "imaging", "scans")
    middle = np.fft.fftshift(counts)
    numbers, count = scipy.label(middle == 0)
    least = EDGE * float(middle[middle > 0].min(initial=math.inf))
    found = np.zeros(counts.shape, dtype=bool)
    for number in range(1, count + 1):
        hole = numbers == number
        if middle[scipy.binary_dilation(hole) & ~hole].min(initial=0.0 if hole.all() else math.inf) >= least:
            found |= hole
    whole: NDArray[np.bool_] = np.fft.ifftshift(found)
    return whole


def told_pixels(amplitudes: NDArray[np.float32], dead: NDArray[np.bool_], top: float | None) -> list[str]:
    """A sentence on dead pixels, and one on saturated ones; `amplitudes` are those of valid pixels."""
    found = []
    if dead.any():
        found.append(
            f"{dead.sum()} pixels of the detector are zero in every pattern amid bright ones (a beam stop, or dead): "
            "they are left out. Name such pixels by valid."
        )
    if top is not None:
        found.append(
            f"{(amplitudes >= top).mean():.2%} of the pixels have the largest value: the detector is saturated there, "
            "and they are left out. Expose for a shorter time."
        )
    return found


def doubts(loss: AmplitudeLoss, fit: Fit, quantity: str) -> list[str]:
    """Why the fit may be no image of the object, with the likely cause, one sentence each."""
    found = [*_equal_masks(loss), *_odd_patterns(loss, fit), *turned_signs(fit.image)]
    share = fit.residual / size_of(loss)
    if found or not fit.determined:
        return found
    told, noise = f"The image leaves {share:.0%} of the amplitudes unexplained", fit.noise / size_of(loss)
    for name, other, better in _descriptions(loss, quantity, share >= HIGH or not fit.sure):
        tried = fit_amplitudes(other, "auto" if other.dtype != loss.dtype else "constant")  # complex ones need RAAR
        if tried.determined and tried.noise / size_of(other) < better * noise:
            return [f"{told}, but {tried.residual / size_of(other):.0%} if {name}."]
    return []


def _equal_masks(loss: AmplitudeLoss) -> Iterator[str]:
    masks = loss.operator.masks(loss.everything)
    if loss.n > 1 and bool(((masks - masks[0]).abs() <= 1e-3 * masks.abs().max()).all()):
        yield "All masks are equal, so that their patterns say the same: give the complex transmission of each mask."


def turned_signs(x: Tensor) -> Iterator[str]:
    """An image whose neighbours have opposite signs."""

    def roughness(v: Tensor) -> float:
        return float(v.diff(dim=0).abs().mean() + v.diff(dim=1).abs().mean())

    rows, columns = (1 - 2 * (torch.arange(n, device=x.device) % 2) for n in x.shape)
    for signs in (rows[:, None] * columns, rows[:, None], columns[None]):
        if roughness(x) > ROUGH * roughness(signs * x):
            yield (
                "The signs of the image alternate from pixel to pixel: the patterns seem to have the zero frequency in "
                "the middle; undo it with numpy.fft.ifftshift."
            )
            return


def _odd_patterns(loss: AmplitudeLoss, fit: Fit) -> Iterator[str]:
    """Patterns that the others contradict."""
    if loss.n < 4:
        return
    gains, errors = [], []
    for number in range(loss.n):
        batch = torch.tensor([number])
        data, z = loss.data(batch), loss.operator.forward_masks(fit.image, batch).abs()
        seen = data >= 0
        gains.append(float((data * z)[seen].sum() / z.square()[seen].sum()))
        errors.append(float((z - data)[seen].square().mean().sqrt()))
    worst, usual = int(np.argmax(errors)), float(np.median(errors))
    if errors[worst] > WORSE * usual:
        yield (
            f"Pattern {worst} fits {errors[worst] / usual:.1f} times worse than the others: leave it out, or check its "
            "mask and its exposure."
        )
    elif max(gains) > GAINS * min(gains):
        low, high = int(np.argmin(gains)), int(np.argmax(gains))
        yield (
            f"Pattern {high} is {gains[high] / gains[low]:.2f} times as bright as pattern {low} should let it be: "
            "divide the patterns by their exposures."
        )


@dataclass(frozen=True)
class _Subset:
    """Some patterns with their masks, as arrays in memory."""

    data: Tensor
    masks: Tensor
    dtype: torch.dtype

    def loss(self) -> AmplitudeLoss:
        return AmplitudeLoss(CodedDiffraction(self.masks, self.dtype, self.masks.device), self.data)


def _subset(loss: AmplitudeLoss, count: int, dtype: torch.dtype | None = None) -> _Subset:
    numbers = loss.everything[:count]
    assert loss.dtype is not None
    return _Subset(loss.data(numbers), loss.operator.masks(numbers), dtype or loss.dtype)


def _descriptions(loss: AmplitudeLoss, quantity: str, all_of_them: bool) -> Iterator[tuple[str, AmplitudeLoss, float]]:
    """Other descriptions of the same patterns: what would then be true, and what share of the noise is far better."""
    few = _subset(loss, TRIED)
    y, m, known = few.data, few.masks, few.data >= 0

    def told(
        data: Tensor, masks: Tensor = m, dtype: torch.dtype = few.dtype, better: float = BETTER
    ) -> tuple[AmplitudeLoss, float]:
        return _Subset(data.contiguous(), masks, dtype).loss(), better

    if all_of_them:
        kind, power = ("intensities", 0.5) if quantity == "amplitudes" else ("amplitudes", 2.0)
        yield f"the patterns are {kind}", *told(torch.where(known, y.clamp(min=0) ** power, NO_DATA))
        yield (
            "the zero frequency is in the middle (undo it with numpy.fft.ifftshift)",
            *told(torch.fft.ifftshift(y, (1, 2))),
        )
        yield (
            "the frequencies run backwards (the masks may be conjugated)",
            *told(torch.roll(y.flip(1, 2), (1, 1), (1, 2))),
        )
        if y.shape[1] == y.shape[2]:
            yield "rows and columns of the patterns are exchanged", *told(y.mT)
        if len(y) > 1:
            yield "the masks are in the opposite order", *told(y, loss.operator.masks(loss.everything.flip(0)[:TRIED]))
        if not bool(m.imag.any()):
            yield "the masks are phases (give exp(1j * masks))", *told(y, torch.polar(torch.ones_like(m.real), m.real))
    ground = torch.quantile(y[known][:100_000], 0.001).square()
    if ground > GROUND * y[known].square().mean():
        yield (
            "a constant background is subtracted from the intensities",
            *told(torch.where(known, (y.square() - ground).clamp(min=0).sqrt(), NO_DATA), better=LESS),
        )
    if all_of_them and not few.dtype.is_complex:
        yield "the image is complex", *told(y, m, torch.complex64)
