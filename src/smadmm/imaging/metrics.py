"""How far an image is from the truth.

    SNR = 20 log10(|x| / |x - xhat|), no mean removed          SSIM with the truth's range, max - min

`align` removes what the data cannot tell before either is taken: the sign of a real image, the phase of a complex one.
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


def _wide(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64


def _refuse_other_shape(truth: Tensor, x: Tensor) -> None:
    if truth.shape != x.shape:
        raise ValueError(f"the truth has shape {tuple(truth.shape)}, but the image has {tuple(x.shape)}")
