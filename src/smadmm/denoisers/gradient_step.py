"""The gradient-step denoiser D = I - gamma grad g, and tiles for images that do not fit into memory.

If L = Lip(gamma grad g) < 1, D is the prox of a function phi with phi(D(z)) = gamma g(z) - 1/2 |z -
D(z)|^2, and phi is L/(1+L)-weakly convex. Noise levels: D_f(x) = f D(x/f) has the potential f^2 g(x/f), the
same L, and suits noise f times the level D was trained for (training per level gives better quality).
"""

from typing import Protocol

import torch
from torch import Tensor, nn


class Potential(Protocol):
    """A differentiable g on batches N x 1 x H x W, called for its values, with its gradient written out."""

    alignment: int  # tiles begin at multiples of this
    radius: int  # a pixel of grad g depends on pixels at most this far away

    def __call__(self, x: Tensor) -> Tensor: ...
    def gradient(self, x: Tensor) -> Tensor: ...


class GradientStep(nn.Module):
    """D(x) = x - gamma grad g(x) on images B x C x H x W in [0, 1], channel by channel.

    `sigma` is the noise level of the training, `lipschitz` a proved or measured bound of Lip(I - D).
    """

    def __init__(
        self,
        potential: Potential,
        sigma: float | None = None,
        lipschitz: float | None = None,
        gamma: float = 1.0,
    ) -> None:
        super().__init__()
        self.g, self.sigma, self.lipschitz, self.gamma = potential, sigma, lipschitz, gamma

    def _factor(self, sigma: float | None) -> float:
        if sigma is None:
            return 1.0
        if self.sigma is None:
            raise ValueError(
                f"sigma = {sigma} was asked for, but this denoiser does not know the level it was trained for"
            )
        return float(sigma) / self.sigma

    def forward(self, x: Tensor, sigma: float | None = None) -> Tensor:
        """D(x), for another noise level by f D(x / f), f = sigma / (level of the training)."""
        f = self._factor(sigma)
        return x - f * self.gamma * self.gradient(x / f if f != 1 else x)

    def gradient(self, x: Tensor) -> Tensor:
        """grad g(x), without gamma."""
        return self.g.gradient(_planes(x)).reshape(x.shape)

    def potential(self, x: Tensor, sigma: float | None = None) -> Tensor:
        """gamma g(x) of every image of the batch."""
        f = self._factor(sigma)
        return f**2 * self.gamma * self.g(_planes(x / f)).reshape(x.shape[:2]).sum(1)

    def relax(self, gamma: float) -> "GradientStep":
        """I - gamma (I - D): scales the Lipschitz constant of I - D by gamma."""
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
        bound = None if self.lipschitz is None else gamma * self.lipschitz
        return GradientStep(self.g, self.sigma, bound, gamma * self.gamma)

    @torch.no_grad()
    def tiled(self, x: Tensor, tile: int = 512, overlap: int | None = None, sigma: float | None = None) -> Tensor:
        """D(x) tile by tile; equal to D(x) when overlap is at least the reach of grad g (the default)."""
        unit = self.g.alignment
        overlap = self.g.radius if overlap is None else overlap
        overlap, tile = -(-overlap // unit) * unit, max(unit, tile // unit * unit)
        _planes(x)
        out = torch.empty_like(x)
        for top in range(0, x.shape[-2], tile):
            rows, keep_rows = _window(top, tile, overlap, x.shape[-2])
            for left in range(0, x.shape[-1], tile):
                cols, keep_cols = _window(left, tile, overlap, x.shape[-1])
                part = self(x[..., rows, cols], sigma)
                out[..., top : top + tile, left : left + tile] = part[..., keep_rows, keep_cols]
        return out


def _planes(x: Tensor) -> Tensor:
    """B x C x H x W as (B C) x 1 x H x W."""
    if x.ndim != 4:
        raise ValueError(f"a denoiser takes images B x C x H x W, got shape {tuple(x.shape)}")
    if min(x.shape[-2:]) < 2:
        raise ValueError(f"images must be at least 2 pixels wide and high, got {x.shape[-2]} x {x.shape[-1]}")
    return x.reshape(-1, 1, *x.shape[-2:])


def _window(start: int, tile: int, overlap: int, length: int) -> tuple[slice, slice]:
    """Where a tile with its overlap lies in the image, and the tile in that."""
    stop, first = min(start + tile, length), max(start - overlap, 0)
    return slice(first, min(stop + overlap, length)), slice(start - first, stop - first)
