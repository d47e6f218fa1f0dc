"""The gradient-step denoiser D = I - gamma grad g, and tiles for images that do not fit into memory.

If L = Lip(gamma grad g) < 1, D is the prox of a function phi with phi(D(z)) = gamma g(z) - 1/2 |z -
D(z)|^2, and phi is L/(1+L)-weakly convex. Noise levels: D_f(x) = f D(x/f) has the potential f^2 g(x/f), the
same L, and suits noise f times the level D was trained for (training per level gives better quality).
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

BYTES = (10.0, 65535.0)  # means of images in bytes: below are runs with wrong angles, beyond those that diverge


class Potential(Protocol):
    """A differentiable g on batches N x 1 x H x W, called for its values, with its gradient written out.

    >>> from smadmm.denoisers import load
    >>> load("ridge-ct").g.gradient(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """

    alignment: int  # tiles begin at multiples of this
    radius: int  # a pixel of grad g depends on pixels at most this far away

    def __call__(self, x: Tensor) -> Tensor: ...
    def gradient(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class HasGradient(Protocol):
    """A potential whose gradient is written out."""

    def gradient(self, x: Tensor) -> Tensor: ...


class GradientStep(nn.Module):
    """D(x) = x - gamma grad g(x) on images B x C x H x W in [0, 1], channel by channel.

    The potential g gives a value for each image of a batch N x 1 x H x W. Any such module or function will do: without
    the method `gradient` of a `Potential` it is differentiated automatically, twice where gradients of D are asked for.
    `sigma` is the noise level of the training, `lipschitz` a proved or measured bound of Lip(I - D).

    >>> D = GradientStep(lambda x: 0.25 * x.square().sum((1, 2, 3)))
    >>> D(torch.ones(1, 1, 2, 2))
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """

    def __init__(
        self,
        potential: Potential | Callable[[Tensor], Tensor],
        sigma: float | None = None,
        lipschitz: float | None = None,
        gamma: float = 1.0,
    ) -> None:
        super().__init__()
        self.g, self.sigma, self.lipschitz, self.gamma = potential, sigma, lipschitz, gamma

    def _factor(self, x: Tensor, sigma: float | Tensor | None) -> float | Tensor:
        """Noise level over that of the training; of every image where sigma is a vector."""
        if sigma is None:
            return 1.0
        if self.sigma is None:
            raise ValueError(
                f"sigma = {sigma} was asked for, but this denoiser does not know the level it was trained for"
            )
        f = torch.as_tensor(sigma, dtype=torch.float64) / self.sigma
        if not bool((f > 0).all()) or f.numel() not in (1, len(x)):
            raise ValueError(f"sigma must be positive, one number or one for each of {len(x)} images, got {sigma}")
        if bool((f * self.sigma > 1).any()):
            raise ValueError(
                f"sigma = {sigma} is more than images in [0, 1] can bear; levels of 0..255 are sigma / 255"
            )
        return float(f) if f.numel() == 1 else f.to(x).reshape(-1, 1, 1, 1)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """D(x), for another noise level by f D(x / f), f = sigma / (level of the training); one level or B."""
        _check(x)
        _warn_of_bytes(x)
        f = self._factor(x, sigma)
        return x - f * self.gamma * self.gradient(x if sigma is None else x / f)

    def gradient(self, x: Tensor) -> Tensor:
        """grad g(x), without gamma."""
        planes = self._planes(x)
        z = self.g.gradient(planes) if isinstance(self.g, HasGradient) else self._differentiated(planes)
        return z.reshape(x.shape).to(x.dtype)

    def _differentiated(self, x: Tensor) -> Tensor:
        """grad g by automatic differentiation; itself differentiable where x or the weights are to be."""
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *self.parameters()))
        with torch.enable_grad():
            x = x if graph and x.requires_grad else x.detach().requires_grad_()
            (z,) = torch.autograd.grad(self._values(x).sum(), x, create_graph=graph)
        return z

    def _values(self, x: Tensor) -> Tensor:
        """g of every image of a batch N x 1 x H x W."""
        values: Tensor = self.g(x)
        if values.shape != (len(x),):
            raise ValueError(
                f"a potential gives one value for each of {len(x)} images, got shape {tuple(values.shape)}; sum over "
                "channels, rows and columns only"
            )
        return values

    def potential(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """gamma g(x) of every image of the batch."""
        f = self._factor(x, sigma)
        values = self._values(self._planes(x / f)).reshape(x.shape[:2]).sum(1).to(x.dtype)
        return self.gamma * values * (f.flatten() if isinstance(f, Tensor) else f) ** 2

    def _planes(self, x: Tensor) -> Tensor:
        """B x C x H x W as (B C) x 1 x H x W, in the precision of the weights."""
        _check(x)
        weight = next(self.parameters(), x)
        return x.reshape(-1, 1, *x.shape[-2:]).to(weight.dtype)

    def relax(self, gamma: float) -> "GradientStep":
        """I - gamma (I - D): scales the Lipschitz constant of I - D by gamma."""
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
        bound = None if self.lipschitz is None else gamma * self.lipschitz
        return GradientStep(self.g, self.sigma, bound, gamma * self.gamma)

    def at_level(self, sigma: float) -> "AtLevel":
        """D for noise of level sigma, as a denoiser of its own."""
        return AtLevel(self, sigma)

    @torch.no_grad()
    def tiled(
        self,
        x: Tensor,
        tile: int = 512,
        overlap: int | None = None,
        sigma: float | Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """D(x) tile by tile; equal to D(x) when overlap is at least the reach of grad g (the default).

        x and `out`, where the result goes if it is given, may lie on disk: torch.from_numpy of a numpy.memmap.
        """
        unit = getattr(self.g, "alignment", 1)
        overlap = getattr(self.g, "radius", None) if overlap is None else overlap
        if overlap is None:
            raise ValueError("this potential does not say how far its gradient reaches (`radius`); pass the overlap")
        if tile < 2 or overlap < 0:
            raise ValueError(f"tiles need at least 2 pixels and no negative overlap, got {tile} and {overlap}")
        overlap, tile = -(-overlap // unit) * unit, max(2, tile // unit * unit)
        _check(x)
        out = torch.empty_like(x) if out is None else out
        if out.shape != x.shape or out.dtype != x.dtype:
            raise ValueError(f"out must be {x.dtype} of {tuple(x.shape)}, got {out.dtype} of {tuple(out.shape)}")
        for rows, kept_rows, out_rows in _windows(x.shape[-2], tile, overlap, unit):
            for cols, kept_cols, out_cols in _windows(x.shape[-1], tile, overlap, unit):
                part = self(x[..., rows, cols], sigma)
                out[..., out_rows, out_cols] = part[..., kept_rows, kept_cols]
        return out


class AtLevel(nn.Module):
    """f D(x / f): a gradient step at another noise level than that of its training, with the same Lipschitz bound."""

    def __init__(self, denoiser: GradientStep, sigma: float) -> None:
        super().__init__()
        self.denoiser, self.sigma, self.lipschitz = denoiser, sigma, denoiser.lipschitz

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.denoiser(x, self.sigma)
        return y

    def potential(self, x: Tensor) -> Tensor:
        """f^2 g(x / f) of every image of the batch."""
        return self.denoiser.potential(x, self.sigma)


def _check(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"a denoiser takes tensors, got {type(x).__name__}; use torch.from_numpy")
    if x.ndim != 4:
        raise ValueError(
            f"a denoiser takes images B x C x H x W, got shape {tuple(x.shape)}; add axes by x[None, None], "
            "and set image=True in Denoised"
        )
    if min(x.shape[-2:]) < 2:
        raise ValueError(f"images must be at least 2 pixels wide and high, got {x.shape[-2]} x {x.shape[-1]}")
    if not x.is_floating_point():
        raise ValueError(f"a denoiser takes real numbers in [0, 1], got {x.dtype}; use x.float() / 255 for bytes")


def _warn_of_bytes(x: Tensor) -> None:
    """Warn of images of 0..255, which pass a denoiser for [0, 1] nearly unchanged."""
    try:
        mean = float(x.detach().mean())
    except RuntimeError:  # inside torch.func.vmap nothing has a value
        return
    if BYTES[0] < mean <= BYTES[1]:
        warnings.warn(
            f"a denoiser takes images in [0, 1], got a mean of {mean:.1g}; divide images of 0..255 by 255",
            stacklevel=3,  # the mean has one digit, since Python shows a text once and iterations differ little
        )


def _windows(length: int, tile: int, overlap: int, unit: int) -> Iterator[tuple[slice, slice, slice]]:
    """For every tile: where it lies with its overlap, the tile in that, and where the tile lies."""
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        first = max(0, min(start - overlap, (length - 2) // unit * unit))  # the last tile may be a single pixel
        yield slice(first, min(stop + overlap, length)), slice(start - first, stop - first), slice(start, stop)
