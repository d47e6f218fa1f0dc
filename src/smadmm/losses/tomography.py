"""Tomography, F(x) = 1/n sum_i 1/(2c) |A_i x - b_i|^2_{W_i} over the views i of a sinogram.

c bounds |W_i^{1/2} A_i|^2 for every view, so each f_i is 1-smooth and a step of 1 is valid whatever the geometry. A
weighted sum of gradients over several points costs one projection and one back-projection of the batch (inverse.py); in
float32 on the CPU by compiled kernels: project, subtract and weigh, back-project.

In `RobustTomography` wrong rays pull less, Huber's way or, which is not convex, Student's: with the weighted residual r
of a ray,
    huber     r^2/2 up to |r| = delta, then delta |r| - delta^2/2          slope  r delta / max(|r|, delta)
    student   delta^2/2 log(1 + r^2/delta^2)                               slope  r / (1 + r^2/delta^2)
Both have slopes that grow no faster than r, so least squares is a majorant of them.

The sinogram may be larger than memory: an array that is not a tensor (NumPy memory map, HDF5 dataset) stays where it
is, and only the views of a batch are read. A full gradient goes through it in pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.losses.inverse import BlockLeastSquares, combine
from smadmm.operators.radon.projector import Projector
from smadmm.problem import Batch
from smadmm.sampling import Rng, Sampling, iid

PIECE = 256  # views read at once


@dataclass(frozen=True)
class Transmission:
    """Weights for counts of photons: a ray of attenuation p keeps the share exp(-p) of them, its 1/variance.

    `attenuation` turns a sinogram value into p (1 where the sinogram is -log(I/I0) itself). `other` is the variance of
    noise that all rays have, in units of that of a ray with p = 0: then 1/variance is (1 + other) / (exp(p) + other).

    >>> losses.Transmission()(torch.tensor([0.0, 2.0])).round(decimals=2)
    tensor([1.0000, 0.1400])
    """

    attenuation: float = 1.0
    other: float = 0.0

    def __call__(self, views: Tensor) -> Tensor:
        return (1 + self.other) / (torch.exp(self.attenuation * views.clamp(min=0)) + self.other)


class Tomography(BlockLeastSquares):
    """1/n sum_i 1/(2c) |A_i x - b_i|^2_{W_i}.

    weights: an array like the sinogram, or a function of the drawn views with values in (0, 1]. Sampling numbers the
    views by their angle modulo their period, so that `stride` and `golden` are equispaced in angle.

    >>> radon = operators.Radon(16, np.arange(8) * np.pi / 8)
    >>> f = losses.Tomography(radon, radon(torch.ones(16, 16)))
    >>> float(f.value(torch.ones(16, 16), f.full())) < 1e-8
    True
    """

    def __init__(
        self,
        radon: Projector,
        sinogram: Any,
        weights: Any = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        super().__init__(radon.views, sampling, device)
        self.radon, self.shape, self.dtype, self._weights = radon, radon.in_shape, dtype, weights
        self.weighted = weights is not None
        self._sinogram = sinogram.to(dtype=dtype, device=device) if isinstance(sinogram, Tensor) else sinogram
        for name, array in (("the sinogram", sinogram), ("weights", weights)):
            if array is not None and not callable(array) and tuple(array.shape) != radon.out_shape:
                raise ValueError(f"{name}: shape {tuple(array.shape)}, but {radon} needs {radon.out_shape}")
        self._order = torch.from_numpy(np.argsort(radon.angles % radon.period, kind="stable")).to(device)
        # sinogram and weights may be too large to be read for a checkpoint: a few views stand for them
        self.fingerprint = self._fingerprint()
        self.c = float(radon.view_norms().max()) ** 2 * self._largest_weight()
        if not 0 < self.c < float("inf"):
            raise ValueError(
                f"no ray of {radon} meets the image, or the weights are not positive and finite (c = {self.c})"
            )

    def draw(self, rng: Rng, size: int) -> Batch:
        return self._order[super().draw(rng, size)]

    def _read(self, array: Any, batch: Tensor) -> Tensor:
        """The rows of these views: indexing for tensors, and for files sorted without repetition, as HDF5 wants it."""
        if isinstance(array, Tensor):
            return array.index_select(-2, batch)
        views, back = np.unique(batch.cpu().numpy(), return_inverse=True)
        rows = np.asarray(array[..., views, :])[..., back, :]
        return torch.as_tensor(rows, dtype=self.dtype, device=self.everything.device)

    def data(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """b_S and W_S."""
        b = self._read(self._sinogram, batch)
        if self._weights is None:
            return b, None
        return b, self._weights(b) if callable(self._weights) else self._read(self._weights, batch)

    def _fingerprint(self) -> str:
        batch = torch.linspace(0, self.n - 1, min(self.n, 8)).long()
        parts = [part for part in self.data(batch.to(self.everything.device)) if part is not None]
        bytes_ = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
        return hashlib.sha256(bytes_).hexdigest()[:16]

    def _largest_weight(self) -> float:
        if self._weights is None or callable(self._weights):
            return 1.0
        return max(float(self._read(self._weights, piece).max()) for piece in self._pieces(self.everything))

    @staticmethod
    def _pieces(batch: Tensor) -> Iterator[Tensor]:
        yield from batch.split(PIECE) if len(batch) > PIECE else (batch,)

    def residual(self, x: Tensor, scale: float, batch: Batch) -> tuple[Any, Tensor]:
        b, w = self.data(batch)
        root = torch.ones_like(b) if w is None else w.sqrt()
        root /= self.c**0.5
        return (batch, root), root * (self.radon.forward_views(x, batch) - scale * b)

    def back(self, context: Any, residual: Tensor) -> Tensor:
        batch, root = context
        return self.radon.adjoint_views(root * residual, batch)

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for piece in self._pieces(batch):
            total = total + 0.5 * self.residual(x, 1.0, piece)[1].square().sum()
        return total / len(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        total, scale = float(sum(weights)), 1 / (self.c * len(batch))
        fused = self.radon.fuses(points[0], min(len(batch), PIECE))
        inside = fused and len(points) == 2 and weights[0] == 1  # x + share other is formed inside the kernel
        x = points[0] if inside else combine(points, weights)
        other, share = (points[1], weights[1]) if inside else (x, 0.0)
        gradient: Tensor | None = None
        for piece in self._pieces(batch):
            if fused:
                b, w = self.data(piece)
                part = self.radon.fused_gradient(x, b, piece, other=other, share=share, data_share=total, weights=w,
                                                 scale=scale)  # fmt: skip
            else:
                context, residual = self.residual(x, total, piece)
                part = self.back(context, residual / len(batch))
            gradient = part if gradient is None else gradient.add_(part)
        assert gradient is not None
        return gradient

    def lipschitz(self) -> float:
        """|A|^2 / (n c), a bound with weights <= their largest value."""
        return self.radon.norm().upper ** 2 * self._largest_weight() / (self.n * self.c)


SHAPES = ("huber", "student")


class RobustTomography(Tomography):
    """1/n sum_i 1/c sum_j l(w_ij^{1/2} (A_i x - b_i)_j), with l that of Huber or of Student.

    delta is in the unit of the sinogram, two or three times the noise of a ray of weight 1.

    >>> radon = operators.Radon(16, np.arange(8) * np.pi / 8)
    >>> f = losses.RobustTomography(radon, radon(torch.ones(16, 16)), delta=0.1)
    >>> f.quadratic, float(f.value(torch.ones(16, 16), f.full())) < 1e-8
    (False, True)
    """

    quadratic = False

    def __init__(
        self,
        radon: Projector,
        sinogram: Any,
        delta: float,
        shape: str = "huber",
        weights: Any = None,
        sampling: Sampling = iid,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        if not delta > 0:
            raise ValueError(f"delta is the largest residual of a good ray and must be positive, got {delta}")
        if shape not in SHAPES:
            raise ValueError(f"a robust loss is one of {', '.join(SHAPES)}, got {shape!r}")
        super().__init__(radon, sinogram, weights, sampling, dtype, device)
        self.model = Tomography(radon, sinogram, weights, sampling, dtype, device)
        self.delta, self.kind = delta / self.c**0.5, shape

    def losses(self, r: Tensor) -> Tensor:
        """l of residuals that are weighted and divided by c^{1/2}."""
        if self.kind == "student":
            return torch.log1p((r / self.delta).square()).mul(0.5 * self.delta**2)
        small = r.abs().clamp(max=self.delta)
        return small.mul(r.abs() - 0.5 * small)

    def slopes(self, r: Tensor) -> Tensor:
        """l'."""
        if self.kind == "student":
            return r.div(1 + (r / self.delta).square())
        return r.mul(self.delta / r.abs().clamp(min=self.delta))

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for piece in self._pieces(batch):
            total = total + self.losses(self.residual(x, 1.0, piece)[1]).sum()
        return total / len(batch)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        total = torch.zeros_like(points[0])
        for piece in self._pieces(batch):
            for x, weight in zip(points, weights, strict=True):
                context, residual = self.residual(x, 1.0, piece)
                total += self.back(context, self.slopes(residual) * (weight / len(batch)))
        return total

    def majorant(self) -> Tomography:
        return self.model
