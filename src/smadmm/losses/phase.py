"""Phase retrieval, F(x) = 1/n sum_i f_i(x) over coded diffraction patterns z_i = A_i x (operators/diffraction.py).

    amplitude   1/2 | |z| - y |^2             y the measured amplitudes
    intensity   1/4 | |z|^2 - I |^2           I the measured intensities
    Poisson     1/2 sum |z|^2 + e - I log(|z|^2 + e)      I counts with mean |z|^2 + e, e the background

Each has the gradient A_i'(phi z) with a real factor phi: 1 - y/|z| (phi z = 0 at z = 0), |z|^2 - I, 1 - I/(|z|^2 + e).
The adjoint is linear, so a weighted sum over J points costs J FFTs forward and ONE back for every mask, not 2J. Where
masks have modulus one the amplitude loss lies below its quadratic model of curvature 1 everywhere (a step of 1 is
valid for F), though its gradient jumps at zeros of z and so has no Lipschitz constant.

`reduction="sum"` leaves out the division by the size of the batch, as On-RED's code does. Data and masks on disk are
read as they are drawn.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.operators.diffraction import PIECE, CodedDiffraction, Entries, read_entries
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid

SMALLEST = 1e-30  # of a power that is divided by


@lru_cache(maxsize=1)
def _kernels() -> Any:
    """The compiled kernels, or None without numba."""
    try:
        from smadmm.losses import phase_kernels
    except ImportError:
        return None
    return phase_kernels


class PhaseLoss(FiniteSum):
    """1/n sum_i f(|A_i x|^2, data_i); a subclass says what f and its factor phi are, pixel by pixel.

    >>> A = operators.CodedDiffraction(operators.circle_masks(4, (8, 8)))
    >>> x = torch.ones(8, 8)
    >>> isinstance(losses.AmplitudeLoss(A, A(x).abs()), losses.PhaseLoss)
    True
    """

    bounded_gradients = False

    def __init__(self, operator: CodedDiffraction, data: Any, reduction: str = "mean", sampling: Sampling = iid):
        super().__init__(operator.count, sampling, operator.device)
        if tuple(data.shape) != operator.out_shape:
            raise ValueError(f"the data have shape {tuple(data.shape)}, but the masks need {operator.out_shape}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is 'mean' or 'sum', got {reduction!r}")
        if isinstance(data, Tensor) and not bool((data >= 0).all() & data.isfinite().all()):
            raise ValueError("amplitudes and intensities must be finite and not negative; look for NaN in the data")
        self.operator, self.reduction = operator, reduction
        self.shape, self.dtype = operator.in_shape, operator.dtype
        self._real = torch.float64 if operator.field == torch.complex128 else torch.float32
        self._data = data.to(dtype=self._real, device=operator.device) if isinstance(data, Tensor) else data
        # data and masks may be too large to be read for a checkpoint: a few stand for them
        self.fingerprint = self._fingerprint()

    @abstractmethod
    def density(self, power: Tensor, data: Tensor) -> Tensor:
        """f of every pixel, power = |z|^2."""

    @abstractmethod
    def factor(self, power: Tensor, data: Tensor) -> Tensor:
        """phi: the gradient in z is phi z."""

    def data(self, batch: Batch) -> Tensor:
        """The measurements of these masks."""
        return read_entries(self._data, batch).to(dtype=self._real, device=self.operator.device)

    def largest_power(self) -> float:
        """The largest |m|^2 of at most PIECE masks: with the mean over masks F is as smooth."""
        numbers = torch.from_numpy(np.linspace(0, self.n - 1, min(self.n, PIECE)).astype(np.int64)).unique()
        return float(self.operator.masks(numbers).abs().max()) ** 2

    def _fingerprint(self) -> str:
        batch = torch.linspace(0, self.n - 1, min(self.n, 4)).long()
        parts = (self.data(batch), torch.view_as_real(self.operator.masks(batch).resolve_conj()))
        return hashlib.sha256(b"".join(p.cpu().contiguous().numpy().tobytes() for p in parts)).hexdigest()[:16]

    def _scale(self, batch: Batch) -> float:
        return 1.0 if self.reduction == "sum" else 1 / len(batch)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        total = torch.zeros((), dtype=self._real, device=x.device)
        for piece in batch.split(PIECE):
            power = _power(self.operator.forward_masks(x, piece))
            total = total + self.density(power, self.data(piece)).sum()
        return total * self._scale(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        gradient = torch.zeros_like(points[0])
        for piece in batch.split(PIECE):
            masks, data = self.operator.masks(piece), self.data(piece)
            total: Tensor | None = None
            for x, weight in zip(points, weights, strict=True):
                z = torch.fft.fft2(masks * x, norm="ortho")
                part = z.mul_(self.factor(_power(z), data).mul_(weight))
                total = part if total is None else total.add_(part)
            back = (masks.conj() * torch.fft.ifft2(total, norm="ortho")).sum(0)
            gradient += back if gradient.is_complex() else back.real
        return gradient.mul_(self._scale(batch))

    def assemble(self, components: Tensor, batch: Batch) -> Tensor:
        return components.sum(0) * self._scale(batch)


def _power(z: Tensor) -> Tensor:
    """|z|^2."""
    return torch.view_as_real(z).square().sum(-1)


class AmplitudeLoss(PhaseLoss):
    """1/n sum_i 1/2 | |A_i x| - y_i |^2 with measured amplitudes y_i.

    >>> A = operators.CodedDiffraction(operators.circle_masks(4, (8, 8)))
    >>> x = torch.ones(8, 8)
    >>> f = losses.AmplitudeLoss(A, A(x).abs())
    >>> float(f.value(x, f.full())) < 1e-8
    True
    """

    compiled: bool = True  # whether numba kernels may be used (real float32 images on a CPU)

    def __init__(self, operator: CodedDiffraction, data: Any, reduction: str = "mean", sampling: Sampling = iid):
        super().__init__(operator, data, reduction, sampling)
        self._memory: list[Tensor] = []
        self._entries = Entries(self._data, np.float32)

    def density(self, power: Tensor, data: Tensor) -> Tensor:
        return 0.5 * (power.sqrt() - data).square()

    def factor(self, power: Tensor, data: Tensor) -> Tensor:
        return 1 - data / (power + SMALLEST).sqrt()

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        x = points[0]
        if self.compiled and x.dtype == torch.float32 and x.device.type == "cpu" and _kernels() is not None:
            return self._compiled_gradient(points, weights, batch)
        return super().gradient(points, weights, batch)

    def _compiled_gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        kernels, pixels = _kernels(), math.prod(self.operator.size)
        size, scale = np.float32(math.sqrt(pixels)), np.float32(self._scale(batch) / pixels)
        images, factors = [x.contiguous().numpy() for x in points], [np.float32(w) for w in weights]
        gradient = torch.empty(self.operator.size)
        memory = self._memory.pop() if self._memory else torch.empty(self.operator.size, dtype=torch.complex64)
        light = memory.numpy()
        for count, number in enumerate(batch.tolist()):
            mask, y = self.operator.entries[number], self._entries[number]
            fields = []
            for image in images:
                kernels.mask_image(image, mask, light)
                fields.append(torch.fft.fft2(memory, norm="backward"))
            total = self._combined(fields, factors, y, size)
            del fields  # its memory is used again
            back = torch.fft.ifft2(total, norm="forward")
            kernels.unmask(back.numpy(), mask, scale, count == 0, gradient.numpy())
        self._memory.append(memory)  # for the next call; each running call has its own
        return gradient

    @staticmethod
    def _combined(fields: list[Tensor], factors: list[np.float32], y: Any, size: np.float32) -> Tensor:
        """sum_j w_j (1 - y/|z_j|) z_j, in the place of the first field."""
        kernels, total = _kernels(), fields[0]
        if len(fields) == 2:
            kernels.residual_of_two(total.numpy(), factors[0], fields[1].numpy(), factors[1], y, size)
            return total
        for field, factor in zip(fields, factors, strict=True):
            kernels.residual(field.numpy(), y, size, factor)
        for field in fields[1:]:
            total += field
        return total


class IntensityLoss(PhaseLoss):
    """1/n sum_i 1/4 | |A_i x|^2 - I_i |^2 with measured intensities I_i.

    >>> A = operators.CodedDiffraction(operators.circle_masks(4, (8, 8)))
    >>> x = torch.ones(8, 8)
    >>> f = losses.IntensityLoss(A, A(x).abs() ** 2)
    >>> float(f.value(x, f.full())) < 1e-8
    True
    """

    def density(self, power: Tensor, data: Tensor) -> Tensor:
        return 0.25 * (power - data).square()

    def factor(self, power: Tensor, data: Tensor) -> Tensor:
        return power - data


class PoissonLoss(PhaseLoss):
    """1/n sum_i 1/2 sum (|A_i x|^2 + e - I_i log(|A_i x|^2 + e)) with counts I_i and the background e > 0.

    >>> A = operators.CodedDiffraction(operators.circle_masks(4, (8, 8)))
    >>> x = torch.ones(8, 8)
    >>> f = losses.PoissonLoss(A, A(x).abs() ** 2)
    >>> bool(f.value(x, f.full()) < f.value(2 * x, f.full()))
    True
    """

    def __init__(
        self,
        operator: CodedDiffraction,
        data: Any,
        background: float = 1e-3,
        reduction: str = "mean",
        sampling: Sampling = iid,
    ):
        if not background > 0:
            raise ValueError(f"the background must be positive, got {background}; it keeps log(|z|^2) finite")
        self.background = float(background)
        super().__init__(operator, data, reduction, sampling)

    def density(self, power: Tensor, data: Tensor) -> Tensor:
        mean = power + self.background
        return 0.5 * (mean - torch.xlogy(data, mean))

    def factor(self, power: Tensor, data: Tensor) -> Tensor:
        return 1 - data / (power + self.background)


def _energy(f: AmplitudeLoss, numbers: Tensor) -> float:
    """|x| as the patterns tell it: |y_i|^2 = |m_i x|^2 in the mean over these masks."""
    data, masks = f.data(numbers).double(), f.operator.masks(numbers)
    return math.sqrt(float(data.square().sum()) / (len(numbers) * float(masks.abs().square().mean())))


def constant_start(f: AmplitudeLoss) -> Tensor:
    """The positive constant with the energy of the patterns."""
    size = _energy(f, f.everything[:PIECE]) / math.sqrt(math.prod(f.operator.size))
    return torch.full(f.operator.size, size, dtype=f.dtype, device=f.operator.device)


def spectral_start(f: AmplitudeLoss, iterations: int = 50) -> Tensor:
    """The leading eigenvector of sum_i A_i' diag(y_i^2) A_i by power iteration from a constant, with their energy.

    Real images get the sign of a positive mean. At most PIECE masks are used.
    """
    numbers = f.everything[:PIECE]
    data, x = f.data(numbers).square(), constant_start(f)
    for _ in range(iterations):
        x = f.operator.adjoint_masks(data * f.operator.forward_masks(x, numbers), numbers)
        x = x / torch.linalg.vector_norm(x)
    x = x * _energy(f, numbers)
    return x if x.is_complex() or float(x.sum()) >= 0 else -x
