"""Ptychography, F(x) = 1/n sum_i 1/2 | |A_i x| - y_i |^2 over the positions of a probe (operators/ptychography.py).

y are amplitudes, square roots of counts: their noise is 1/2 at every count but the lowest. The gradient is
A_i'((1 - y/|z|) z); a weighted sum over J points costs J FFTs forward and one back for every position. An
amplitude of NO_DATA has no part in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from smadmm.losses.phase import NO_DATA, SMALLEST
from smadmm.operators.ptychography import Ptychography
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid


class PtychographyLoss(FiniteSum):
    """1/n sum_i 1/2 | |F(P_i x[window i])| - y_i |^2.

    >>> A = operators.Ptychography(torch.ones(8, 8, dtype=torch.complex64), [(0, 0), (0, 4), (4, 4)])
    >>> x = torch.ones(12, 12, dtype=torch.complex64)
    >>> f = losses.PtychographyLoss(A, A(x).abs())
    >>> float(f.value(x, f.full())) < 1e-8
    True
    """

    bounded_gradients = False

    def __init__(self, operator: Ptychography, data: Tensor, sampling: Sampling = iid):
        super().__init__(operator.count, sampling, operator.device)
        if tuple(data.shape) != operator.out_shape:
            raise ValueError(f"the data have shape {tuple(data.shape)}, but the positions need {operator.out_shape}")
        if not bool(((data >= 0) | (data == NO_DATA)).all() & data.isfinite().all()):
            raise ValueError("amplitudes must be finite and not negative; look for NaN in the data")
        self.operator, self.shape, self.dtype = operator, operator.in_shape, operator.dtype
        self.amplitudes = data.to(operator.device)
        self.fingerprint = hashlib.sha256(data[:4].cpu().contiguous().numpy().tobytes()).hexdigest()[:16]

    def data(self, batch: Batch) -> Tensor:
        """The measurements at these positions."""
        return self.amplitudes[batch.to(self.amplitudes.device)]

    def residuals(self, x: Tensor, batch: Batch) -> Tensor:
        """(1 - y/|z|) z."""
        z, data = self.operator.forward_views(x, batch), self.data(batch)
        power = torch.view_as_real(z).square().sum(-1)
        return z.mul_((1 - data / (power + SMALLEST).sqrt()).mul_(data >= 0))

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        data = self.data(batch)
        gaps = (self.operator.forward_views(x, batch).abs() - data) * (data >= 0)
        return 0.5 * gaps.square().sum() / len(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        total = sum(weight * self.residuals(x, batch) for x, weight in zip(points, weights, strict=True))
        assert isinstance(total, Tensor)
        return self.operator.adjoint_views(total, batch) / len(batch)
