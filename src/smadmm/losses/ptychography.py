"""Ptychography, F(x) = 1/n sum_i f_i(x) over the positions of a probe, z_i = A_i x (operators/ptychography.py).

    amplitudes   1/2 | |z| - y |^2                                                 the gradient  A_i'((1 - y/|z|) z)
    counts       1/4 sum (p - I) - (I + e) log((p + e) / (I + e)),  p = |z|^2      A_i'(1/2 (p - I)/(p + e) z)

y = sqrt(I) are amplitudes, square roots of counts: their noise is 1/2 at every count but the lowest, and there their
mean is too small. The second form is for these: half the negative log likelihood of counts I + e with the mean p + e.
Its gradient has mean 0 at the truth, pixels that are dark in the pattern have no pull to single photons, and both have
the same curvature where there is light. e is a given number of photons, or I/8 where that is more, which bounds the
curvature. A weighted sum over J points costs J FFTs forward and one back for every position. An amplitude of NO_DATA
has no part in either.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smadmm.losses.phase import NO_DATA, SMALLEST
from smadmm.operators.ptychography import Ptychography
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid

BRIGHT = 8.0  # e = I/8: the radial curvature is at most 17/16


class PtychographyLoss(FiniteSum):
    """1/n sum_i 1/2 | |F(P_i x[window i])| - y_i |^2, or with `dark` > 0 the likelihood of counts y_i^2, e >= dark.

    >>> A = operators.Ptychography(torch.ones(8, 8, dtype=torch.complex64), [(0, 0), (0, 4), (4, 4)])
    >>> x = torch.ones(12, 12, dtype=torch.complex64)
    >>> f = losses.PtychographyLoss(A, A(x).abs())
    >>> float(f.value(x, f.full())) < 1e-8
    True
    """

    bounded_gradients = False

    def __init__(self, operator: Ptychography, data: Tensor, sampling: Sampling = iid, dark: float = 0.0):
        super().__init__(operator.count, sampling, operator.device)
        if tuple(data.shape) != operator.out_shape:
            raise ValueError(f"the data have shape {tuple(data.shape)}, but the positions need {operator.out_shape}")
        if not bool(((data >= 0) | (data == NO_DATA)).all() & data.isfinite().all()):
            raise ValueError("amplitudes must be finite and not negative; look for NaN in the data")
        if not 0 <= dark < math.inf:
            raise ValueError(f"dark must not be negative, got {dark:g}; it is in the unit of the intensities")
        self.operator, self.shape, self.dtype, self.dark = operator, operator.in_shape, operator.dtype, float(dark)
        self.amplitudes = data.to(operator.device)
        self.fingerprint = hashlib.sha256(data[:4].cpu().contiguous().numpy().tobytes()).hexdigest()[:16]

    def data(self, batch: Batch) -> Tensor:
        """The measurements at these positions."""
        return self.amplitudes[batch.to(self.amplitudes.device)]

    def residuals(self, x: Tensor, batch: Batch) -> Tensor:
        """phi z, which A_i' makes the gradient."""
        z, data = self.operator.forward_views(x, batch), self.data(batch)
        power = torch.view_as_real(z).square().sum(-1)
        if self.dark:
            counts = data.square()
            factor = 0.5 * (power - counts) / (power + self._background(counts))
        else:
            factor = 1 - data / (power + SMALLEST).sqrt()
        return z.mul_(factor.mul_(data >= 0))

    def _background(self, counts: Tensor) -> Tensor:
        return (counts / BRIGHT).clamp(min=self.dark)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        z, data = self.operator.forward_views(x, batch), self.data(batch)
        if not self.dark:
            return 0.5 * ((z.abs() - data) * (data >= 0)).square().sum() / len(batch)
        power, counts = z.abs().square(), data.square()
        e = self._background(counts)
        gaps = (power - counts) - (counts + e) * torch.log((power + e) / (counts + e))
        return 0.25 * (gaps * (data >= 0)).sum() / len(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        total = sum(weight * self.residuals(x, batch) for x, weight in zip(points, weights, strict=True))
        assert isinstance(total, Tensor)
        return self.operator.adjoint_views(total, batch) / len(batch)
