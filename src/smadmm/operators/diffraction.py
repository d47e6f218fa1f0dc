"""Coded diffraction patterns, A_i x = F(m_i x): the unitary 2-D FFT of an image behind the mask m_i.

A_i'y = conj(m_i) F'y, its real part for real images (the operator is then linear over the reals). In both cases A'A is
the diagonal sum_i |m_i|^2: n I for n masks on the unit circle.

The masks may be larger than memory: an array that is not a tensor (NumPy memory map, HDF5 dataset) stays where it is,
and only the masks that are asked for are read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.operators.linear import Norm, Operator, Shape
from smadmm.sampling import Rng

PIECE = 16  # masks worked on at once
STREAM = 2**61  # masks have random numbers of their own, beside those of the solvers


def circle_masks(count: int, shape: Shape, seed: int = 0, dtype: torch.dtype = torch.complex64) -> Tensor:
    """Masks uniform on the unit circle; mask i depends on (seed, i) alone.

    >>> operators.circle_masks(2, (4, 4)).abs().mean().round()
    tensor(1.)
    """
    angles = torch.from_numpy(2 * math.pi * _uniform(count, shape, seed))
    return torch.polar(torch.ones_like(angles), angles).to(dtype)


def quadrant_masks(count: int, shape: Shape, seed: int = 0, dtype: torch.dtype = torch.complex64) -> Tensor:
    """Masks u + i sqrt(1 - u^2), u uniform on [0, 1]: a quarter of the unit circle, as On-RED draws them.

    >>> operators.quadrant_masks(2, (4, 4)).real.min() >= 0
    tensor(True)
    """
    real = torch.from_numpy(_uniform(count, shape, seed))
    return torch.complex(real, (1 - real.square()).sqrt()).to(dtype)


def _uniform(count: int, shape: Shape, seed: int) -> Any:
    if count < 1:
        raise ValueError(f"the number of masks must be at least 1, got {count}")
    return np.stack([Rng(seed, STREAM + i).random(shape) for i in range(count)])


def read_entries(array: Any, numbers: Tensor) -> Tensor:
    """array[numbers] along the first axis: of a file sorted and without repetition, as HDF5 wants it."""
    if isinstance(array, Tensor):
        return array[int(numbers)][None] if len(numbers) == 1 else array[numbers.to(array.device)]
    entries, back = np.unique(numbers.cpu().numpy(), return_inverse=True)
    return torch.from_numpy(np.asarray(array[entries])[back])


class Entries:
    """array[number] as a contiguous NumPy array of a dtype: a view where the array is a CPU tensor of that dtype."""

    def __init__(self, array: Any, dtype: Any):
        self.dtype, self.array = dtype, array
        self.view = isinstance(array, Tensor) and array.device.type == "cpu" and array.is_contiguous()
        if self.view:
            self.array = array.resolve_conj().numpy()
            self.view = self.array.dtype == dtype

    def __getitem__(self, number: int) -> NDArray[Any]:
        entry: NDArray[Any] = self.array[number]
        return entry if self.view else np.ascontiguousarray(entry, dtype=self.dtype)


class CodedDiffraction(Operator):
    """x -> (F(m_1 x), ..., F(m_n x)) on images of `dtype`, real or complex; leading axes of x are kept.

    >>> A = operators.CodedDiffraction(operators.circle_masks(3, (8, 8)))
    >>> A(torch.ones(8, 8)).shape
    torch.Size([3, 8, 8])
    """

    def __init__(self, masks: Any, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        if len(masks.shape) != 3 or 0 in masks.shape:
            raise ValueError(f"masks are n x height x width, got shape {tuple(masks.shape)}")
        self.dtype, self.device = dtype, torch.device(device)
        self.field = torch.complex128 if dtype in (torch.float64, torch.complex128) else torch.complex64
        self._masks = masks.to(dtype=self.field, device=device) if isinstance(masks, Tensor) else masks
        self.entries = Entries(self._masks, np.complex64)
        self.count = int(masks.shape[0])
        self.size: Shape = tuple(int(n) for n in masks.shape[1:])
        self.in_shape, self.out_shape = self.size, (self.count, *self.size)
        if isinstance(masks, Tensor):
            low, high = self._energy().aminmax()
            if float(high - low) <= 1e-5 * float(high):
                self.gram = float(high + low) / 2

    def masks(self, numbers: Tensor) -> Tensor:
        """The masks of these numbers."""
        return read_entries(self._masks, numbers).to(dtype=self.field, device=self.device)

    def _numbers(self) -> list[Tensor]:
        return list(torch.arange(self.count).split(PIECE))

    def _energy(self) -> Tensor:
        """sum_i |m_i|^2, the diagonal of A'A."""
        return sum(
            (self.masks(piece).abs().square().sum(0) for piece in self._numbers()),
            start=torch.zeros(self.size, dtype=torch.float64, device=self.device),
        )

    def forward_masks(self, x: Tensor, numbers: Tensor) -> Tensor:
        """F(m_i x) for these masks."""
        fields: Tensor = torch.fft.fft2(self.masks(numbers) * x[..., None, :, :], norm="ortho")
        return fields

    def adjoint_masks(self, y: Tensor, numbers: Tensor) -> Tensor:
        """sum_i conj(m_i) F'y_i over these masks."""
        image: Tensor = (self.masks(numbers).conj() * torch.fft.ifft2(y, norm="ortho")).sum(-3)
        return image if self.dtype is not None and self.dtype.is_complex else image.real

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.forward_masks(x, piece) for piece in self._numbers()], dim=-3)

    def adjoint(self, y: Tensor) -> Tensor:
        pieces = y.split(PIECE, dim=-3)
        images = [self.adjoint_masks(part, piece) for part, piece in zip(pieces, self._numbers(), strict=True)]
        return sum(images[1:], start=images[0])

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        return Norm(math.sqrt(float(self._energy().max())))
