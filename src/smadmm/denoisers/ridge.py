"""Ridge (field-of-experts) potential with a proved Lipschitz constant.

    g(x) = sum_c sum_p psi_c(t_cp),     t_c = w_c * x,     grad g(x) = sum_c w_c ~* psi_c'(t_c)

with correlations * and their transposes ~*. psi_c' is odd and piecewise linear: slopes s_cj on [j, j+1) spacing,
j < J, constant beyond; if these constants are >= 0, g is bounded below. Were images continued periodically, splitting
the slopes into positive and negative ones would bound the spectrum by

    -max_omega N(omega) <= Hess g <= max_omega P(omega),
    P = sum_c max_j (s_cj)_+ |w_c^(omega)|^2,   N = sum_c max_j (-s_cj)_+ |w_c^(omega)|^2,

since circular convolutions are diagonal in the Fourier basis of every image size. P and N are trigonometric
polynomials of degree k - 1 in each variable, so their maximum is at most 1/cos(pi (k-1)/n)^2 times that on
an n x n grid. "Valid" patches, being sections of such images, have the same bounds.

Images are continued by reflection, E x, and the filters are symmetric: of odd size, and with every w_c its mirror
images left to right and upside down, or their negatives, are among them, with the same profile. E x has the period
2H x 2W; let G be g there. A pixel of x has four copies, E'E = 4, and in the mirrored quarters G sees the same
responses, permuted: g(x) = G(E x) / 4 is the sum over the places p of x alone, and Hess g = E' Hess G E / 4 has the
bounds of Hess G.
"""

import math
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

GRID = 1024


def spline_pieces(slopes: Tensor, spacing: float) -> tuple[Tensor, Tensor]:
    """Offsets and slopes (C x 2J+2) of the odd profile derivatives with the given slopes (C x J)."""
    flat = slopes.new_zeros(len(slopes), 1)
    knots = spacing * torch.arange(slopes.shape[1] + 1, dtype=slopes.dtype, device=slopes.device)
    values = torch.cat([flat, slopes.cumsum(1) * spacing], 1)
    right_slopes = torch.cat([slopes, flat], 1)
    right = values - right_slopes * knots
    return torch.cat([-right.flip(1), right], 1), torch.cat([right_slopes.flip(1), right_slopes], 1)


def _pieces(t: Tensor, count: int, spacing: float) -> Tensor:
    """Index of the piece of every response, in tables flattened over the channels of t (N x C x H x W)."""
    piece = (t / spacing + count // 2).clamp(0, count - 1).long()
    return piece + count * torch.arange(t.shape[1], device=t.device)[:, None, None]


def valid_gradient_torch(x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float) -> Tensor:
    """Gradient without padding, N x H x W, in plain torch: any device, differentiable."""
    t = F.conv2d(x[:, None], filters[:, None])
    piece = _pieces(t.detach(), offset.shape[1], spacing)
    phi = offset.flatten()[piece] + slope.flatten()[piece] * t
    return F.conv_transpose2d(phi, filters[:, None])[:, 0]


def valid_gradient(x: Tensor, filters: Tensor, slopes: Tensor, spacing: float, singles: int) -> Tensor:
    """Gradient without padding, N x H x W, of the potential `Ridge`: compiled if on the CPU and numba is there."""
    offset, slope = spline_pieces(slopes, spacing)
    if x.device.type != "cpu" or find_spec("numba") is None:
        offset, slope = repeated(offset, singles), repeated(slope, singles)
        return valid_gradient_torch(x.to(filters.dtype), mirrored(filters, singles), offset, slope, spacing).to(x.dtype)
    from smadmm.denoisers.ridge_cpu import ValidGradient

    z: Tensor = ValidGradient.apply(x, filters, offset, slope, spacing, singles)  # type: ignore[no-untyped-call]
    return z


def mirrored(filters: Tensor, singles: int) -> Tensor:
    """All filters for which these stand: singles, then fours: a filter, mirrored left to right, upside down, both."""
    w = filters[singles:]
    fours = torch.stack([w, w.flip(-1), w.flip(-2), w.flip(-1, -2)], 1).flatten(0, 1)
    return torch.cat([filters[:singles], fours])


def of_parity(filters: Tensor, upside_down: Tensor | int, left_to_right: Tensor | int) -> Tensor:
    """The part of the filters that is even (1) or odd (-1) in these directions."""
    filters = (filters + left_to_right * filters.flip(-1)) / 2
    return (filters + upside_down * filters.flip(-2)) / 2


def repeated(table: Tensor, singles: int) -> Tensor:
    """The rows of a table for the filters of `mirrored`."""
    return torch.cat([table[:singles], table[singles:].repeat_interleave(4, 0)])


def _largest(filters: Tensor, weights: Tensor, grid: int) -> Tensor:
    """max of sum_c weights_c |filters_c^|^2 on a grid x grid sampling of the frequencies.

    A grid of n >= 2k - 1 points determines this trigonometric polynomial: its coefficients, the summed
    autocorrelations, are found there and sampled finely by a single transform.
    """
    k = filters.shape[-1]
    n = 2 * k
    power = torch.einsum("c,chw->hw", weights, torch.fft.rfft2(filters, s=(n, n)).abs() ** 2)
    correlation = torch.fft.irfft2(power, s=(n, n)).roll((k, k), (0, 1))
    largest: Tensor = torch.fft.rfft2(correlation, s=(grid, grid)).abs().max()
    return largest


def spectral_bounds(filters: Tensor, slopes: Tensor, grid: int, singles: int) -> tuple[Tensor, Tensor]:
    """max P and max N of the module docstring on a grid x grid sampling."""
    filters, slopes = mirrored(filters, singles), repeated(slopes, singles)
    upper = _largest(filters, slopes.clamp(min=0).amax(1), grid)
    lower = _largest(filters, (-slopes).clamp(min=0).amax(1), grid)
    return upper, lower


def _reflected(length: int, margin: int, device: torch.device) -> Tensor:
    """Which of `length` pixels stand in a line with margins in which they are reflected."""
    place = torch.arange(-margin, length + margin, device=device) % (2 * length)
    return torch.minimum(place, 2 * length - 1 - place)


def _extend(x: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """The pixels of x (N x H x W) in those rows and columns."""
    return x[:, rows][:, :, cols]


def _fold(z: Tensor, rows: Tensor, cols: Tensor, height: int, width: int) -> Tensor:
    """The transpose of `_extend`: every pixel the sum of its copies."""
    z = z.new_zeros(len(z), height, z.shape[2]).index_add(1, rows, z)
    return z.new_zeros(len(z), height, width).index_add(2, cols, z)


def _have_parity(filters: Tensor) -> bool:
    """Whether each filter is even or odd in each direction."""
    good = True
    for axis in (-1, -2):
        even, odd = filters == filters.flip(axis), filters == -filters.flip(axis)
        good = good and bool((even.flatten(1).all(1) | odd.flatten(1).all(1)).all())
    return good


def value_pieces(slopes: Tensor, spacing: float) -> tuple[Tensor, Tensor, Tensor]:
    """psi_c(t) = start + (offset + slope t / 2) t on each piece: start, offset and slope (C x 2J+2)."""
    offset, slope = spline_pieces(slopes, spacing)
    count, half = slope.shape[1], slope.shape[1] // 2
    knot = spacing * (torch.arange(count, dtype=slope.dtype, device=slope.device) - half)  # left end of each piece
    knot[0] = knot[1]
    phi = offset + slope * knot
    rise = (phi[:, half:-1] * spacing + slopes * spacing**2 / 2).cumsum(1)
    right = F.pad(rise, (1, 0))  # psi at the knots 0, spacing, ...
    at_knot = torch.cat([right[:, -1:], right.flip(1)[:, :-1], right], 1)
    return at_knot - (offset + slope * knot / 2) * knot, offset, slope


def _profile_values(t: Tensor, slopes: Tensor, spacing: float) -> Tensor:
    """psi_c of the responses t (N x C x H x W)."""
    start, offset, slope = value_pieces(slopes, spacing)
    piece = _pieces(t.detach(), slope.shape[1], spacing)
    return start.flatten()[piece] + (offset.flatten()[piece] + slope.flatten()[piece] * t / 2) * t


class Ridge(nn.Module):
    """g(x) = sum_c sum_p psi_c(t_cp): filters C x k x k, slopes C x J of the psi_c' on knots `spacing` apart.

    The first `singles` filters must each be even or odd in each direction; each of the others stands for four:
    mirrored left to right, upside down, and both. Images are continued by reflection.

    >>> from smadmm.denoisers import load
    >>> g = load("ridge-ct").g
    >>> isinstance(g, Ridge), g(torch.rand(2, 1, 16, 16)).shape
    (True, torch.Size([2]))
    """

    alignment = 1

    def __init__(self, filters: Tensor, slopes: Tensor, spacing: float, singles: int) -> None:
        super().__init__()
        self.singles = singles
        self.filters, self.slopes, self.spacing = nn.Parameter(filters), nn.Parameter(slopes), spacing
        self.radius = filters.shape[-1] - 1  # how far away the pixels may be on which one of grad g depends
        height, width = filters.shape[-2:]
        if height != width or width % 2 == 0:
            raise ValueError(f"filters must be square and of odd size, got {height} x {width}; pad them with zeros")
        if slopes.ndim != 2 or len(slopes) != len(filters) or not spacing > 0:
            raise ValueError(
                f"{len(filters)} filters need a row of slopes each and a positive spacing, "
                f"got slopes {tuple(slopes.shape)} and spacing {spacing}"
            )
        if not 0 <= singles <= len(filters) or not _have_parity(filters[:singles]):
            raise ValueError(
                f"the first {singles} of {len(filters)} filters must be there and be even or odd in each direction; "
                "put those that are so first, and pass their number as `singles`"
            )

    def _places(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns of the continued image."""
        height, width = x.shape[-2:]
        return _reflected(height, self.radius // 2, x.device), _reflected(width, self.radius // 2, x.device)

    def forward(self, x: Tensor) -> Tensor:
        """g of every image of a batch N x 1 x H x W; compiled where no derivatives are asked for, as `gradient` is."""
        if not torch.is_grad_enabled() and x.device.type == "cpu" and find_spec("numba") is not None:
            from smadmm.denoisers.ridge_cpu import valid_values

            tables = value_pieces(self.slopes.double(), self.spacing)
            return valid_values(_extend(x[:, 0], *self._places(x)), self.filters, tables, self.spacing, self.singles)
        t = F.conv2d(_extend(x[:, 0], *self._places(x))[:, None], mirrored(self.filters, self.singles)[:, None])
        return _profile_values(t, repeated(self.slopes, self.singles), self.spacing).sum((1, 2, 3))

    def gradient(self, x: Tensor) -> Tensor:
        """grad g of every image of a batch N x 1 x H x W."""
        rows, cols = self._places(x)
        z = valid_gradient(_extend(x[:, 0], rows, cols), self.filters, self.slopes, self.spacing, self.singles)
        return _fold(z, rows, cols, *x.shape[-2:])[:, None]

    @property
    def bounded_below(self) -> bool:
        """Whether no profile falls for ever; else iterates of D may run away."""
        return bool((self.slopes.double().sum(1) >= 0).all())

    @torch.no_grad()
    def certificate(self) -> float:
        """A proved upper bound of |Hess g| at every image of every size."""
        upper, lower = spectral_bounds(self.filters.double(), self.slopes.double(), GRID, self.singles)
        between_grid_points = 1 / math.cos(math.pi * (self.filters.shape[-1] - 1) / GRID) ** 2
        return max(float(upper), float(lower)) * between_grid_points
