"""Ridge potentials in training: free parameters of which every value satisfies Lip(grad g) < 1."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from smadmm.denoisers.ridge import Ridge, reach, spectral_bounds, valid_gradient

TAIL = 8  # knots over which a profile returns to a derivative >= 0


def _with_rising_ends(slopes: Tensor) -> Tensor:
    """Slopes with the last ones raised where the profile's derivative would end below 0 (1e-4: for rounding)."""
    tail = min(TAIL, slopes.shape[1])
    lift = (1e-4 - slopes.sum(1, keepdim=True)).clamp(min=0) / tail
    return torch.cat([slopes[:, :-tail], slopes[:, -tail:] + lift], 1)


class RidgeParameters(nn.Module):
    """Free parameters whose every value gives a Ridge of Lipschitz constant `bound` on the training grid.

    Filters are centred (but for the first `means`) and normalised; profiles do not fall far away; slopes are scaled
    so that max P = bound, then the negative ones so that max N <= bound, which only lifts the profiles. Responses are
    pooled over `pool` x `pool` pixels. Start: cosine filters, slopes of t / (1 + (t / width)^4), width = 2.5 sigma, or
    1.5 sigma for pooled responses, which vary less.
    """

    def __init__(
        self, filters: int, size: int, sigma: float, means: int = 0, seed: int = 0, pool: int = 1, knots: int = 24
    ) -> None:
        super().__init__()
        step, width = (0.4, 2.5) if pool == 1 else (0.2, 1.5)
        self.bound, self.spacing, self.means, self.margin, self.grid = 0.99, step * sigma, means, reach(size, pool), 96
        generator = torch.Generator().manual_seed(seed)
        start = _first_filters(filters, size, means)
        self.filters = nn.Parameter(start + 0.02 * torch.randn(start.shape, generator=generator))
        t = step * torch.arange(knots + 1)
        self.slopes = nn.Parameter(torch.diff(t / (1 + (t / width) ** 4)).div(step).repeat(filters, 1))
        self.log_weights = nn.Parameter(torch.zeros(filters))
        place = (torch.arange(pool) - (pool - 1) / 2) / pool
        self.log_pools = nn.Parameter((-8 * place**2).repeat(filters, 2, 1)) if pool > 1 else None

    @torch.no_grad()
    def start_from(self, potential: object) -> None:
        """Take over filters, profiles and pools of a trained potential of the same shape."""
        if not isinstance(potential, Ridge) or _shapes(potential) != _shapes(self.export()):
            raise ValueError("training can start only from weights of the same architecture and size")
        weights = potential.slopes.abs().amax(1).clamp(min=1e-6)
        self.filters.copy_(potential.filters)
        self.slopes.copy_(potential.slopes / weights[:, None])
        self.log_weights.copy_(weights.log() - weights.log().mean())
        if self.log_pools is not None and potential.pools is not None:
            self.log_pools.copy_(potential.pools.clamp(min=1e-9).log())

    def effective(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Filters, slopes and pools that satisfy the bound, differentiable in the free parameters."""
        mean = self.filters.mean((1, 2), keepdim=True)
        mean = mean * (torch.arange(len(mean), device=mean.device) >= self.means)[:, None, None]
        filters = self.filters - mean
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None]
        slopes = _with_rising_ends(self.slopes) * self.log_weights.exp()[:, None]
        upper, _ = spectral_bounds(filters, slopes, self.grid)
        slopes = slopes * (self.bound / upper)
        _, lower = spectral_bounds(filters, slopes, self.grid)
        shrink = (self.bound / lower.clamp(min=1e-9)).clamp(max=1)
        pools = None if self.log_pools is None else self.log_pools.softmax(-1)
        return filters, torch.where(slopes > 0, slopes, slopes * shrink), pools

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For Adam: profiles and pools learn 10/3 as fast as filters."""
        others = [parameter for parameter in self.parameters() if parameter is not self.filters]
        return [{"params": [self.filters], "scale": 1.0}, {"params": others, "scale": 10 / 3}]

    def denoise_patches(self, y: Tensor) -> Tensor:
        """y - grad g(y) on patches N x 1 x H x W without padding: right but for `margin` at the border."""
        return y - valid_gradient(y[:, 0], *self.effective(), self.spacing)[:, None]

    @torch.no_grad()
    def export(self) -> Ridge:
        """The potential, rescaled so that its certificate is at most `bound`."""
        filters, slopes, pools = (None if t is None else t.detach().cpu().clone() for t in self.effective())
        assert filters is not None and slopes is not None
        potential = Ridge(filters, slopes, self.spacing, pools)
        potential.slopes.mul_(min(1.0, (self.bound - 1e-6) / potential.certificate()))
        return potential


def _shapes(potential: Ridge) -> list[torch.Size]:
    return [parameter.shape for parameter in potential.parameters()]


def cosine_filters(size: int) -> Tensor:
    """The size^2 products of orthonormal cosines, by rising frequency, the constant first."""
    n = torch.arange(size)
    basis = torch.cos(math.pi * (n + 0.5) * n[:, None] / size)
    basis = basis / basis.norm(dim=1, keepdim=True)
    frequency = (n[:, None] ** 2 + n**2 + 1e-3 * n[:, None]).flatten()
    products = torch.einsum("ui,vj->uvij", basis, basis).reshape(-1, size, size)
    return products[frequency.argsort()]


def _first_filters(count: int, size: int, means: int) -> Tensor:
    """All products of n cosines, n as large as count allows: no frequency is missed; then the lowest."""
    n = min(size, math.isqrt(count + 1 - means))
    fine = torch.nn.functional.pad(cosine_filters(n)[1:], (0, size - n, 0, size - n))
    coarse = cosine_filters(size)[0 if means else 1 :]
    rest = count - len(fine)
    return torch.cat([coarse[torch.arange(rest) % len(coarse)], fine])
