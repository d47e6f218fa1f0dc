"""Ridge potentials in training: free parameters of which every value satisfies Lip(grad g) < 1."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from smadmm.denoisers.ridge import Ridge, of_parity, spectral_bounds, valid_gradient

TAIL = 8  # knots over which a profile returns to a derivative >= 0


def _with_rising_ends(slopes: Tensor) -> Tensor:
    """Slopes with the last ones raised where the profile's derivative would end below 0 (1e-4: for rounding)."""
    tail = min(TAIL, slopes.shape[1])
    lift = (1e-4 - slopes.sum(1, keepdim=True)).clamp(min=0) / tail
    return torch.cat([slopes[:, :-tail], slopes[:, -tail:] + lift], 1)


class RidgeParameters(nn.Module):
    """Free parameters whose every value gives a Ridge of Lipschitz constant `bound` on the training grid.

    Filters are centred (but for the first `means`) and normalised; profiles do not fall far away; slopes are scaled
    so that max P = bound, then the negative ones so that max N <= bound, which only lifts the profiles. Start: cosine
    filters, slopes of t / (1 + (t / width)^4), width = 2.5 sigma.

    The first 8 to 15 filters, which stand alone, are even or odd in each direction, as at the start; the others come in
    octets: a filter turned and mirrored in all eight ways, with one profile.
    """

    parity: Tensor

    def __init__(
        self,
        filters: int,
        size: int,
        sigma: float,
        means: int = 0,
        seed: int = 0,
        knots: int = 24,
    ) -> None:
        super().__init__()
        step, width = 0.4, 2.5
        self.bound, self.spacing, self.means, self.margin, self.grid = 0.99, step * sigma, means, size - 1, 96
        generator = torch.Generator().manual_seed(seed)
        octets = max(0, filters // 8 - 1)
        self.singles = filters - 8 * octets
        start = _first_filters(self.singles, octets, size, means)
        self.register_buffer("parity", _parity(start[: self.singles]))
        self.filters = nn.Parameter(start + 0.02 * torch.randn(start.shape, generator=generator))
        t = step * torch.arange(knots + 1)
        self.slopes = nn.Parameter(torch.diff(t / (1 + (t / width) ** 4)).div(step).repeat(len(start), 1))
        self.log_weights = nn.Parameter(torch.zeros(len(start)))

    @torch.no_grad()
    def start_from(self, potential: object) -> None:
        """Take over filters and profiles of a trained potential of the same shape."""
        if not isinstance(potential, Ridge) or _kind(potential) != _kind(self.export()):
            raise ValueError("training can start only from weights of the same architecture and size")
        every = range(len(potential.filters))
        first = [*every[: self.singles], *every[self.singles :: 2]]
        slopes = potential.slopes[first]
        weights = slopes.abs().amax(1).clamp(min=1e-6)
        self.filters.copy_(potential.filters[first])
        self.parity.copy_(_parity(self.filters[: self.singles]))
        self.slopes.copy_(slopes / weights[:, None])
        self.log_weights.copy_(weights.log() - weights.log().mean())

    def effective(self) -> tuple[Tensor, Tensor]:
        """Filters and slopes of a `Ridge` that satisfies the bound, differentiable in the free parameters."""
        mean = self.filters.mean((1, 2), keepdim=True)
        filters = self.filters - mean * (torch.arange(len(mean), device=mean.device) >= self.means)[:, None, None]
        filters = torch.cat([of_parity(filters[: self.singles], *self.parity), filters[self.singles :]])
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None]
        slopes = _with_rising_ends(self.slopes) * self.log_weights.exp()[:, None]
        filters, slopes = _with_transposes(filters, slopes, self.singles)
        upper, _ = spectral_bounds(filters, slopes, self.grid, self.singles)
        slopes = slopes * (self.bound / upper)
        _, lower = spectral_bounds(filters, slopes, self.grid, self.singles)
        shrink = (self.bound / lower.clamp(min=1e-9)).clamp(max=1)
        return filters, torch.where(slopes > 0, slopes, slopes * shrink)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For Adam: profiles learn 10/3 as fast as filters."""
        others = [parameter for parameter in self.parameters() if parameter is not self.filters]
        return [{"params": [self.filters], "scale": 1.0}, {"params": others, "scale": 10 / 3}]

    def denoise_patches(self, y: Tensor) -> Tensor:
        """y - grad g(y) on patches N x 1 x H x W without padding: right but for `margin` at the border."""
        return y - valid_gradient(y[:, 0], *self.effective(), self.spacing, self.singles)[:, None]

    @torch.no_grad()
    def export(self) -> Ridge:
        """The potential, rescaled so that its certificate is at most `bound`."""
        filters, slopes = (t.detach().cpu().clone() for t in self.effective())
        potential = Ridge(filters, slopes, self.spacing, self.singles)
        potential.slopes.mul_(min(1.0, (self.bound - 1e-6) / potential.certificate()))
        return potential


def _kind(potential: Ridge) -> tuple[int, list[torch.Size]]:
    return potential.singles, [parameter.shape for parameter in potential.parameters()]


def _parity(filters: Tensor) -> Tensor:
    """Signs (2 x C x 1 x 1): whether filters are rather even or odd, upside down and left to right."""
    products = [(filters * filters.flip(axis)).sum((1, 2), keepdim=True) for axis in (-2, -1)]
    return torch.where(torch.stack(products) < 0, -1.0, 1.0)


def _with_transposes(filters: Tensor, slopes: Tensor, singles: int) -> tuple[Tensor, Tensor]:
    """After the singles every filter and its transpose: their mirror images are an octet."""
    turned = torch.stack([filters[singles:], filters[singles:].transpose(-1, -2)], 1).flatten(0, 1)
    slopes = torch.cat([slopes[:singles], slopes[singles:].repeat_interleave(2, 0)])
    return torch.cat([filters[:singles], turned]), slopes


def _cosine_products(size: int) -> tuple[Tensor, Tensor]:
    """The products of two orthonormal cosines, size x size x size x size, and their frequencies."""
    n = torch.arange(size)
    basis = torch.cos(math.pi * (n + 0.5) * n[:, None] / size)
    basis = basis / basis.norm(dim=1, keepdim=True)
    return torch.einsum("ui,vj->uvij", basis, basis), n[:, None] ** 2 + n**2 + 1e-3 * n[:, None]


def cosine_filters(size: int) -> Tensor:
    """The size^2 products of orthonormal cosines, by rising frequency, the constant first."""
    products, frequency = _cosine_products(size)
    return products.flatten(0, 1)[frequency.flatten().argsort()]


def _corners(size: int) -> Tensor:
    """Sums of four cosine products, one of each parity, by rising frequency; their octets span all but the highest."""
    products, frequency = _cosine_products(size)
    n = size // 2 * 2
    sums = torch.stack([products[i:n:2, j:n:2] for i in (0, 1) for j in (0, 1)]).sum(0) / 2
    above = torch.ones(n // 2, n // 2).triu() > 0
    return sums[above][frequency[:n:2, :n:2][above].argsort()]


def _first_filters(singles: int, octets: int, size: int, means: int) -> Tensor:
    """The lowest cosines, alone; for octets small filters of all frequencies, then large ones of the lowest."""
    cosines = cosine_filters(size)[0 if means else 1 :]
    n = min(size // 2, (math.isqrt(8 * octets + 1) - 1) // 2)
    small = torch.nn.functional.pad(_corners(2 * n + 1), [size // 2 - n] * 4)
    large = _corners(size)
    rest = octets - len(small)
    return torch.cat([cosines[torch.arange(singles) % len(cosines)], small, large[torch.arange(rest) % len(large)]])
