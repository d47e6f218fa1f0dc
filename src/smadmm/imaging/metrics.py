"""How far an image is from the truth.

    SNR = 20 log10(|x| / |x - xhat|), no mean removed          SSIM with the truth's range, max - min

`align` removes what the data cannot tell before either is taken: the sign of a real image, the phase of a complex one;
`without_ramp` removes what an unknown probe leaves open, a factor and a ramp of the phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smadmm.extras import needs


def snr(truth: Tensor, x: Tensor) -> float:
    """20 log10(|truth| / |truth - x|) in dB; infinite for equal images.

    >>> round(snr(torch.ones(4), 0.9 * torch.ones(4)), 3)
    20.0
    """
    _refuse_other_shape(truth, x)
    size = float(torch.linalg.vector_norm(truth.to(_wide(truth))))
    error = float(torch.linalg.vector_norm((truth - x).to(_wide(truth))))
    if size == 0:
        raise ValueError("the SNR of an image that is zero everywhere is not defined")
    return math.inf if error == 0 else 20 * math.log10(size / error)


def ssim(truth: Tensor, x: Tensor) -> float:
    """Structural similarity of scikit-image; for complex images that of their moduli."""
    similarity: Callable[..., Any] = needs("skimage.metrics", "imaging", "values of SSIM").structural_similarity
    _refuse_other_shape(truth, x)
    first, second = ((t.abs() if t.is_complex() else t).detach().cpu().double().numpy() for t in (truth, x))
    extent = float(first.max() - first.min())
    if not extent > 0:
        raise ValueError("the SSIM of a constant image is not defined")
    return float(similarity(first, second, data_range=extent))


def align(truth: Tensor, x: Tensor) -> Tensor:
    """x times the number of modulus one that brings it closest to the truth."""
    _refuse_other_shape(truth, x)
    product = torch.vdot(x.flatten().to(truth.dtype), truth.flatten())
    if float(product.abs()) == 0:
        return x
    return x * (product / product.abs())


def without_ramp(truth: Tensor, x: Tensor, seen: Tensor) -> Tensor:
    """x times the factor c exp(i (a row + b column)) that brings it closest to the truth where `seen` is True.

    An unknown probe may take such a factor from the object: patterns do not change.

    >>> truth = torch.rand(16, 16) + 1j * torch.rand(16, 16)
    >>> ramp = 0.5 * torch.exp(0.03j * torch.arange(16))
    >>> snr(truth, without_ramp(truth, truth * ramp, torch.ones(16, 16, dtype=torch.bool))) > 80
    True
    """
    _refuse_other_shape(truth, x)
    wide = x.to(torch.complex128)
    product = torch.where(seen, wide.conj() * truth, 0)
    rows, columns = (torch.arange(n, dtype=torch.float64, device=x.device) for n in x.shape)

    def ramp(slopes: tuple[float, float]) -> Tensor:
        return torch.exp(1j * slopes[0] * rows)[:, None] * torch.exp(1j * slopes[1] * columns)

    def match(slopes: tuple[float, float]) -> float:
        return float((product * ramp(slopes).conj()).sum().abs())

    peak = int(torch.fft.fft2(product).abs().argmax())
    slopes = tuple(
        2 * math.pi * float(torch.fft.fftfreq(n)[i]) for n, i in zip(x.shape, divmod(peak, x.shape[1]), strict=True)
    )
    best, step = (slopes[0], slopes[1]), math.pi / max(x.shape)
    for _ in range(24):
        around = [(best[0] + u * step, best[1] + v * step) for u in (-1, 0, 1) for v in (-1, 0, 1)]
        nearest = max(around, key=match)
        best, step = nearest, (step if match(nearest) > match(best) else step / 2)
    factor = (product * ramp(best).conj()).sum() / wide[seen].abs().square().sum()
    return (wide * ramp(best) * factor).to(x.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64


def _refuse_other_shape(truth: Tensor, x: Tensor) -> None:
    if truth.shape != x.shape:
        raise ValueError(f"the truth has shape {tuple(truth.shape)}, but the image has {tuple(x.shape)}")
