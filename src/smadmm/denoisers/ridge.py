"""Ridge (field-of-experts) potential with a proved Lipschitz constant.

    g(x) = sum_c sum_p psi_c((w_c * x)_p),      grad g(x) = sum_c w_c^T * phi_c(w_c * x),     phi_c = psi_c'

with circular correlation *. phi_c is odd and piecewise linear: slopes s_cj on [j, j+1) spacing, j < J,
constant beyond; if these constants are >= 0, g is bounded below. The Hessian is sum_c W_c' diag(phi_c') W_c.
Splitting phi_c' into its positive and negative part bounds its spectrum by

    -max_omega N(omega) <= Hess g <= max_omega P(omega),
    P = sum_c max_j (s_cj)_+ |w_c^(omega)|^2,   N = sum_c max_j (-s_cj)_+ |w_c^(omega)|^2,

since circular convolutions are diagonal in the Fourier basis of every image size. P and N are trigonometric
polynomials of degree k - 1 in each variable, so their maximum is at most 1/cos(pi (k-1)/n)^2 times that on
an n x n grid. The proof covers circular padding and "valid" patches, which are sections of it; not
reflection.

Filters may live on several scales: at scale d the image is first blurred by the triangle (1, ..., d, ..., 1) /
d^2 in each direction and the taps of w_c lie d pixels apart. For the bounds w_c is then the composed filter,
d (k + 1) - 1 pixels wide, at the price of a small one.
"""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STRIP = 1024  # columns per matrix product: keeps patches and responses in the second-level cache
GRID = 1024
TAIL = 8  # knots over which a profile returns to a derivative >= 0


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


def blur(x: Tensor, d: int) -> Tensor:
    """x (... x H x W) correlated with the triangle (1, ..., d, ..., 1) / d^2 in both directions, no padding."""
    for axis in (-1, -2):
        for _ in range(2 if d > 1 else 0):  # a triangle is a box twice
            length = x.shape[axis] - d + 1
            x = torch.stack([x.narrow(axis, shift, length) for shift in range(d)]).mean(0)
    return x


def blur_adjoint(x: Tensor, d: int) -> Tensor:
    """The transpose of `blur`, which is symmetric: the same after padding by zeros."""
    return blur(F.pad(x, [2 * d - 2] * 4), d) if d > 1 else x


def valid_gradient_torch(
    x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, dilation: int = 1
) -> Tensor:
    """Gradient of one scale (without its blur), unpadded, N x H x W, in plain torch: any device, differentiable."""
    t = F.conv2d(x[:, None], filters[:, None], dilation=dilation)
    piece = _pieces(t.detach(), offset.shape[1], spacing)
    phi = offset.flatten()[piece] + slope.flatten()[piece] * t
    return F.conv_transpose2d(phi, filters[:, None], dilation=dilation)[:, 0]


class _Strips:
    """Responses t = W patches(x) of a batch of images, a strip of rows at a time."""

    def __init__(self, x: Tensor, filters: Tensor, dilation: int) -> None:
        self.count, self.height, self.width = x.shape
        self.size, self.dilation = filters.shape[-1], dilation
        reach = dilation * (self.size - 1)
        self.rows, self.cols = self.height - reach, self.width - reach
        self.flat = filters.reshape(len(filters), -1).contiguous()
        self.transposed = self.flat.t().contiguous()
        self.step = max(1, STRIP // self.cols)
        self._kept: dict[tuple[str, int], Tensor] = {}

    def __iter__(self) -> Any:
        for image in range(self.count):
            for row in range(0, self.rows, self.step):
                yield image, row, min(self.step, self.rows - row)

    def _buffer(self, name: str, height: int, rows: int) -> Tensor:
        """A matrix for a strip, the same one for all strips of a height."""
        if (name, rows) not in self._kept:
            self._kept[name, rows] = self.flat.new_empty(height, rows * self.cols)
        return self._kept[name, rows]

    def patches(self, name: str, image: Tensor, row: int, rows: int) -> Tensor:
        """The patches of a strip as columns; overwritten by the next call with that name."""
        from smadmm.denoisers.ridge_kernels import gather_patches

        columns = self._buffer(name, self.size**2, rows)
        gather_patches(image.numpy(), row, rows, self.size, self.dilation, columns.numpy())
        return columns

    def responses(self, name: str, columns: Tensor, rows: int) -> Tensor:
        """Filters times patches, overwritten likewise."""
        return torch.mm(self.flat, columns, out=self._buffer(f"of {name}", len(self.flat), rows))


class _ValidGradient(torch.autograd.Function):
    """The same on the CPU: strips of patches as columns, two matrix products, compiled spline."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float, dilation: int
    ) -> Tensor:
        from smadmm.denoisers.ridge_kernels import scatter_patches, spline

        x, offset, slope = x.contiguous(), offset.contiguous(), slope.contiguous()
        ctx.save_for_backward(x, filters, offset, slope)
        ctx.spacing, ctx.dilation = spacing, dilation
        strips, z = _Strips(x, filters, dilation), torch.zeros_like(x)
        a, b = offset.numpy(), slope.numpy()
        for image, row, rows in strips:
            columns = strips.patches("x", x[image], row, rows)
            t = strips.responses("x", columns, rows)
            spline(t.numpy(), a, b, 1 / spacing)
            torch.mm(strips.transposed, t, out=columns)
            scatter_patches(columns.numpy(), row, rows, strips.size, dilation, z[image].numpy())
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        from smadmm.denoisers.ridge_kernels import piece_sums, scatter_patches, spline, spline_slope

        x, filters, offset, slope = ctx.saved_tensors
        wants_image, wants_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        strips, v = _Strips(x, filters, ctx.dilation), v.contiguous()
        d_x, d_filters = torch.zeros_like(x), torch.zeros_like(strips.flat)
        d_offset, d_slope = (
            torch.zeros_like(offset, dtype=torch.float64),
            torch.zeros_like(slope, dtype=torch.float64),
        )
        a, b, inverse = offset.numpy(), slope.numpy(), 1 / ctx.spacing
        for image, row, rows in strips:
            of_x, of_v = strips.patches("x", x[image], row, rows), strips.patches("v", v[image], row, rows)
            t, q = strips.responses("x", of_x, rows), strips.responses("v", of_v, rows)
            if wants_weights:
                piece_sums(t.numpy(), q.numpy(), inverse, d_offset.numpy(), d_slope.numpy())
            spline_slope(t.numpy(), b, inverse, q.numpy())
            if wants_weights:
                spline(t.numpy(), a, b, inverse)
                d_filters.addmm_(q, of_x.t()).addmm_(t, of_v.t())
            if wants_image:
                columns = strips.transposed @ q
                scatter_patches(columns.numpy(), row, rows, strips.size, ctx.dilation, d_x[image].numpy())
        return d_x, d_filters.view_as(filters), d_offset.to(offset), d_slope.to(slope), None, None


def scale_gradient(x: Tensor, filters: Tensor, slopes: Tensor, spacing: float, d: int) -> Tensor:
    """Gradient of the terms of scale d, without padding, N x H x W: compiled if on the CPU and numba is there."""
    x, (offset, slope) = blur(x, d), spline_pieces(slopes, spacing)
    if x.device.type != "cpu" or find_spec("numba") is None:
        return blur_adjoint(valid_gradient_torch(x, filters, offset, slope, spacing, d), d)
    z: Tensor = _ValidGradient.apply(x, filters, offset, slope, spacing, d)  # type: ignore[no-untyped-call]
    return blur_adjoint(z, d)


def parts(scales: Sequence[int]) -> list[tuple[int, slice]]:
    """Every scale d = 1, 2, ... that has filters, and where they are; scales[d - 1] is how many."""
    ends = [sum(scales[: d + 1]) for d in range(len(scales))]
    return [(d + 1, slice(end - scales[d], end)) for d, end in enumerate(ends) if scales[d]]


def composed(filters: Tensor, scales: Sequence[int]) -> Tensor:
    """The filters with their dilation and blur written out, all of the size of the largest."""
    k = filters.shape[-1]
    largest = max(reach(k, d) for d, _ in parts(scales)) + 1
    done = []
    for d, part in parts(scales):
        full = filters.new_zeros(len(filters[part]), d * (k - 1) + 1, d * (k - 1) + 1)
        full[:, ::d, ::d] = filters[part]
        full = blur_adjoint(full, d)
        done.append(F.pad(full, [0, largest - full.shape[-1]] * 2))
    return torch.cat(done)


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


def spectral_bounds(filters: Tensor, slopes: Tensor, grid: int) -> tuple[Tensor, Tensor]:
    """max P and max N of the module docstring on a grid x grid sampling, for composed filters."""
    upper = _largest(filters, slopes.clamp(min=0).amax(1), grid)
    lower = _largest(filters, (-slopes).clamp(min=0).amax(1), grid)
    return upper, lower


def reach(size: int, d: int) -> int:
    """How far away the pixels may be on which a pixel of grad g depends, at scale d."""
    return d * (size + 1) - 2


def _wrap(x: Tensor, more: int) -> Tensor:
    """x (N x H x W) continued periodically by so many rows and columns."""
    rows = torch.arange(x.shape[1] + more, device=x.device) % x.shape[1]
    cols = torch.arange(x.shape[2] + more, device=x.device) % x.shape[2]
    return x[:, rows][:, :, cols]


def _fold(z: Tensor, height: int, width: int) -> Tensor:
    """The transpose of `_wrap`: every pixel the sum of its copies."""
    rows, cols = z.shape[1] - height, z.shape[2] - width
    if height >= rows and width >= cols:
        z = torch.cat([z[:, :rows] + z[:, height:], z[:, rows:height]], 1)
        return torch.cat([z[..., :cols] + z[..., width:], z[..., cols:width]], -1)
    row = torch.arange(z.shape[1], device=z.device) % height
    col = torch.arange(z.shape[2], device=z.device) % width
    z = z.new_zeros(len(z), height, z.shape[2]).index_add(1, row, z)
    return z.new_zeros(len(z), height, width).index_add(2, col, z)


def _profile_values(t: Tensor, slopes: Tensor, spacing: float) -> Tensor:
    """psi_c of the responses t (N x C x H x W)."""
    offset, slope = spline_pieces(slopes, spacing)
    count, half = slope.shape[1], slope.shape[1] // 2
    knot = spacing * (torch.arange(count, dtype=t.dtype, device=t.device) - half)  # left end of each piece
    knot[0] = knot[1]
    phi = offset + slope * knot
    rise = (phi[:, half:-1] * spacing + slopes * spacing**2 / 2).cumsum(1)
    right = F.pad(rise, (1, 0))  # psi at the knots 0, spacing, ...
    base = torch.cat([right[:, -1:], right.flip(1)[:, :-1], right], 1)
    piece = _pieces(t.detach(), count, spacing)
    beyond = t - knot.expand_as(slope).flatten()[piece]
    return base.flatten()[piece] + phi.flatten()[piece] * beyond + slope.flatten()[piece] * beyond**2 / 2


class Ridge(nn.Module):
    """g(x) = sum_c sum_p psi_c((w_c * x)_p): filters C x k x k, slopes C x J on knots `spacing` apart.

    scales[d - 1] of the filters, in their order, have dilation d; by default all have dilation 1.
    """

    alignment = 1
    circular = True

    def __init__(self, filters: Tensor, slopes: Tensor, spacing: float, scales: Sequence[int] = ()) -> None:
        super().__init__()
        self.filters, self.slopes = nn.Parameter(filters), nn.Parameter(slopes)
        self.spacing, self.scales = spacing, tuple(scales) or (len(filters),)
        if sum(self.scales) != len(filters):
            raise ValueError(f"scales = {self.scales} must add up to the number of filters, {len(filters)}")
        self.radius = max(reach(filters.shape[-1], d) for d, _ in parts(self.scales))

    def forward(self, x: Tensor) -> Tensor:
        """g of every image of a batch N x 1 x H x W."""
        total = x.new_zeros(len(x))
        for d, part in parts(self.scales):
            padded = blur(_wrap(x[:, 0], reach(self.filters.shape[-1], d)), d)
            t = F.conv2d(padded[:, None], self.filters[part][:, None], dilation=d)
            total = total + _profile_values(t, self.slopes[part], self.spacing).sum((1, 2, 3))
        return total

    def gradient(self, x: Tensor) -> Tensor:
        """grad g of every image of a batch N x 1 x H x W, padded circularly."""
        total = torch.zeros_like(x[:, 0])
        for d, part in parts(self.scales):
            padded = _wrap(x[:, 0], reach(self.filters.shape[-1], d))
            z = scale_gradient(padded, self.filters[part], self.slopes[part], self.spacing, d)
            total = total + _fold(z, *total.shape[1:])
        return total[:, None]

    @property
    def bounded_below(self) -> bool:
        """Whether no profile falls for ever; else iterates of D may run away."""
        return bool((self.slopes.double().sum(1) >= 0).all())

    @torch.no_grad()
    def certificate(self) -> float:
        """A proved upper bound of |Hess g| at every image of every size."""
        upper, lower = spectral_bounds(composed(self.filters.double(), self.scales), self.slopes.double(), GRID)
        between_grid_points = 1 / math.cos(math.pi * self.radius / GRID) ** 2
        return max(float(upper), float(lower)) * between_grid_points


def _with_rising_ends(slopes: Tensor) -> Tensor:
    """Slopes with the last ones raised where the profile's derivative would end below 0 (1e-4: for rounding)."""
    tail = min(TAIL, slopes.shape[1])
    lift = (1e-4 - slopes.sum(1, keepdim=True)).clamp(min=0) / tail
    return torch.cat([slopes[:, :-tail], slopes[:, -tail:] + lift], 1)


class RidgeParameters(nn.Module):
    """Free parameters whose every value gives a Ridge of Lipschitz constant `bound` on the training grid.

    Filters are centred (but for the first `means`) and normalised; profiles do not fall far away; slopes are scaled
    so that max P = bound, then the negative ones so that max N <= bound, which only lifts the profiles.
    `coarse` of the filters have dilation `dilation`. Start: cosine filters, slopes of t / (1 + (t / 2.5 sigma)^4).
    """

    def __init__(
        self,
        filters: int,
        size: int,
        sigma: float,
        means: int = 0,
        seed: int = 0,
        coarse: int = 0,
        dilation: int = 2,
        knots: int = 24,
    ) -> None:
        super().__init__()
        self.bound, self.spacing, self.means = 0.99, 0.4 * sigma, means
        self.scales = (filters - coarse,) + ((0,) * (dilation - 2) + (coarse,) if coarse else ())
        self.margin = max(reach(size, d) for d, _ in parts(self.scales))
        self.grid = 96
        generator = torch.Generator().manual_seed(seed)
        start = _first_filters(filters - coarse, size, means)
        if coarse:
            low = cosine_filters(size)[1:]
            start = torch.cat([start, low[torch.arange(coarse) % len(low)]])
        jitter = 0.02 * torch.randn(start.shape, generator=generator)
        self.filters = nn.Parameter(start + jitter)
        t = 0.4 * torch.arange(knots + 1)
        self.slopes = nn.Parameter(torch.diff(t / (1 + (t / 2.5) ** 4)).div(0.4).repeat(filters, 1))
        self.log_weights = nn.Parameter(torch.zeros(filters))

    @torch.no_grad()
    def start_from(self, potential: object) -> None:
        """Take over filters and profiles of a trained potential of the same shape."""
        alike = isinstance(potential, Ridge) and potential.scales == self.scales
        if not isinstance(potential, Ridge) or not alike or potential.filters.shape != self.filters.shape:
            raise ValueError("training can start only from weights of the same architecture and size")
        weights = potential.slopes.abs().amax(1).clamp(min=1e-6)
        self.filters.copy_(potential.filters)
        self.slopes.copy_(potential.slopes / weights[:, None])
        self.log_weights.copy_(weights.log() - weights.log().mean())

    def effective(self) -> tuple[Tensor, Tensor]:
        """Filters and slopes that satisfy the bound, differentiable in the free parameters."""
        mean = self.filters.mean((1, 2), keepdim=True)
        mean = mean * (torch.arange(len(mean), device=mean.device) >= self.means)[:, None, None]
        filters = self.filters - mean
        full = composed(filters, self.scales)
        norm = full.flatten(1).norm(dim=1)[:, None, None]
        filters, full = filters / norm, full / norm
        slopes = _with_rising_ends(self.slopes) * self.log_weights.exp()[:, None]
        upper, _ = spectral_bounds(full, slopes, self.grid)
        slopes = slopes * (self.bound / upper)
        _, lower = spectral_bounds(full, slopes, self.grid)
        shrink = (self.bound / lower.clamp(min=1e-9)).clamp(max=1)
        return filters, torch.where(slopes > 0, slopes, slopes * shrink)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For Adam: slopes learn 10/3 as fast as filters."""
        profiles = [self.slopes, self.log_weights]
        return [{"params": [self.filters], "scale": 1.0}, {"params": profiles, "scale": 10 / 3}]

    def denoise_patches(self, y: Tensor) -> Tensor:
        """y - grad g(y) on patches N x 1 x H x W without padding: right but for `margin` at the border."""
        (filters, slopes), x = self.effective(), y[:, 0]
        for d, part in parts(self.scales):
            y = y - scale_gradient(x, filters[part], slopes[part], self.spacing, d)[:, None]
        return y

    @torch.no_grad()
    def export(self) -> Ridge:
        """The potential, rescaled so that its certificate is at most `bound`."""
        filters, slopes = self.effective()
        potential = Ridge(filters.detach().cpu().clone(), slopes.detach().cpu().clone(), self.spacing, self.scales)
        potential.slopes.mul_(min(1.0, (self.bound - 1e-6) / potential.certificate()))
        return potential


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
