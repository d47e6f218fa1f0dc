"""Phase retrieval, F(x) = 1/n sum_i f_i(x) over coded diffraction patterns z_i = A_i x (operators/diffraction.py).

    amplitude   1/2 | |z| - y |^2             y the measured amplitudes
    intensity   1/4 | |z|^2 - I |^2           I the measured intensities
    Poisson     1/2 sum |z|^2 + e - I log(|z|^2 + e)      I counts with mean |z|^2 + e, e the background

Each has the gradient A_i'(phi z) with a real factor phi: 1 - y/|z| (phi z = 0 at z = 0), |z|^2 - I, 1 - I/(|z|^2 + e).
The adjoint is linear, so a weighted sum over J points costs J FFTs forward and ONE back for every mask, not 2J. Where
masks have modulus one the amplitude loss lies below its quadratic model of curvature 1 everywhere (a step of 1 is
valid for F), though its gradient jumps at zeros of z and so has no Lipschitz constant. An amplitude of NO_DATA marks
a pixel of the detector that measured nothing: it has no part in the amplitude loss.

`reduction="sum"` leaves out the division by the size of the batch, as On-RED's code does. Data and masks on disk are
read as they are drawn.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.extras import kernels
from smadmm.operators.diffraction import PIECE, CodedDiffraction, Entries, read_entries
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid

SMALLEST = 1e-30  # of a power that is divided by
NO_DATA = -1.0  # in the place of an amplitude

_kernels = partial(kernels, "smadmm.losses.phase_kernels")


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
        if isinstance(data, Tensor) and not bool(self.allowed(data).all() & data.isfinite().all()):
            raise ValueError("amplitudes and intensities must be finite and not negative; look for NaN in the data")
        self.operator, self.reduction = operator, reduction
        self.shape, self.dtype = operator.in_shape, operator.dtype
        self._real = torch.float64 if operator.field == torch.complex128 else torch.float32
        self._data = data.to(dtype=self._real, device=operator.device) if isinstance(data, Tensor) else data
        # data and masks may be too large to be read for a checkpoint: a few stand for them
        self.fingerprint = self._fingerprint()

    def allowed(self, data: Tensor) -> Tensor:
        """Which values can be measurements."""
        return data >= 0

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

    compiled: bool = True  # whether numba kernels may be used (float32 and complex64 images on a CPU)

    def __init__(self, operator: CodedDiffraction, data: Any, reduction: str = "mean", sampling: Sampling = iid):
        super().__init__(operator, data, reduction, sampling)
        self._memory: list[Tensor] = []
        self._entries = Entries(self._data, np.float32)

    def allowed(self, data: Tensor) -> Tensor:
        return (data >= 0) | (data == NO_DATA)

    def density(self, power: Tensor, data: Tensor) -> Tensor:
        return 0.5 * (power.sqrt() - data).square() * (data >= 0)

    def factor(self, power: Tensor, data: Tensor) -> Tensor:
        return (1 - data / (power + SMALLEST).sqrt()).mul_(data >= 0)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        x = points[0]
        single = x.dtype in (torch.float32, torch.complex64) and x.device.type == "cpu"
        if self.compiled and single and _kernels() is not None:
            return self._compiled_gradient(points, weights, batch)
        return super().gradient(points, weights, batch)

    def _compiled_gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        kernels, pixels = _kernels(), math.prod(self.operator.size)
        size, scale = np.float32(math.sqrt(pixels)), np.float32(self._scale(batch) / pixels)
        images, factors = [x.resolve_conj().contiguous().numpy() for x in points], [np.float32(w) for w in weights]
        gradient = torch.empty(self.operator.size, dtype=points[0].dtype)
        mask_image, unmask = kernels.mask_image, kernels.unmask
        if gradient.is_complex():
            mask_image, unmask = kernels.mask_complex, kernels.unmask_complex
        memory = self._memory.pop() if self._memory else torch.empty(self.operator.size, dtype=torch.complex64)
        light = memory.numpy()
        for count, number in enumerate(batch.tolist()):
            mask, y = self.operator.entries[number], self._entries[number]
            fields = []
            for image in images:
                mask_image(image, mask, light)
                fields.append(torch.fft.fft2(memory, norm="backward"))
            total = self._combined(fields, factors, y, size)
            del fields  # its memory is used again
            back = torch.fft.ifft2(total, norm="forward")
            unmask(back.numpy(), mask, scale, count == 0, gradient.numpy())
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
    """|x| as the patterns tell it: |y_i|^2 = |m_i x|^2 in the mean over these masks and all pixels with data."""
    data, masks = f.data(numbers).double(), f.operator.masks(numbers)
    square = float(data.square()[data >= 0].mean()) * math.prod(f.operator.size)
    return math.sqrt(square / float(masks.abs().square().mean()))


def constant_start(f: AmplitudeLoss) -> Tensor:
    """The positive constant with the energy of the patterns."""
    size = _energy(f, f.everything[:PIECE]) / math.sqrt(math.prod(f.operator.size))
    return torch.full(f.operator.size, size, dtype=f.dtype, device=f.operator.device)


def spectral_start(f: AmplitudeLoss, steps: int = 30) -> Tensor:
    """The leading eigenvector of sum_i A_i' diag(w_i) A_i, w = max(1 - 1/t, -2), t = y^2 / mean(y^2).

    By Lanczos steps from a constant, orthogonal to all before, as one bright pixel has little of a constant; with the
    energy of the patterns. Real images get the sign of a positive mean. At most PIECE masks are used.
    """
    numbers, x = f.everything[:PIECE], constant_start(f)
    data = f.data(numbers)
    t = data.square() / data.square()[data >= 0].mean()
    weights = (1 - 1 / t.clamp(min=0.1)).clamp(min=-2.0) * (data >= 0)
    basis, small = (x / torch.linalg.vector_norm(x)).flatten()[None], x.new_zeros(steps, steps)
    for k in range(steps):
        fields = f.operator.forward_masks(basis[k].view_as(x), numbers)
        image = f.operator.adjoint_masks(weights * fields, numbers).flatten()
        for _ in range(2):  # twice is enough for orthogonality
            parts = basis.conj() @ image
            small[: k + 1, k] += parts
            image = image - parts @ basis
        basis = torch.cat([basis, (image / torch.linalg.vector_norm(image).clamp(min=1e-30))[None]])
    vector = torch.linalg.eigh(small, UPLO="U").eigenvectors[:, -1]
    found: Tensor = (vector @ basis[:steps]).view_as(x) * _energy(f, numbers)
    return found if found.is_complex() or float(found.sum()) >= 0 else -found


def alternating_start(f: AmplitudeLoss, x: Tensor, iterations: int = 60, beta: float = 0.9) -> Tensor:
    """RAAR, z+ = beta/2 (R_S R_M z + z) + (1 - beta) P_M z: relaxed averaged alternating reflections from z = A x.

    P_M gives the fields z their amplitudes, P_S = A (A'A)^-1 A' makes them fields of one image, R = 2 P - I. It leaves
    the local minima in which descent ends with few masks. At most PIECE masks are used.
    """
    numbers = f.everything[:PIECE]
    data, energy = f.data(numbers), f.operator.masks(numbers).abs().square().sum(0)
    energy = energy.clamp(min=1e-6 * float(energy.max()))
    measured = data >= 0

    def with_amplitudes(z: Tensor) -> Tensor:
        return torch.where(measured, data * torch.sgn(z), z)

    def image(z: Tensor) -> Tensor:
        return f.operator.adjoint_masks(z, numbers) / energy

    z = f.operator.forward_masks(x, numbers)
    for _ in range(iterations):
        right = with_amplitudes(z)
        reflected = 2 * right - z
        z = (0.5 * beta) * (2 * f.operator.forward_masks(image(reflected), numbers) - reflected + z)
        z += (1 - beta) * right
    return image(with_amplitudes(z))
