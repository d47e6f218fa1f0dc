"""Ridge (field-of-experts) potential with a proved Lipschitz constant.

    g(x) = sum_c sum_p psi_c((w_c * x)_p),      grad g(x) = sum_c w_c^T * phi_c(w_c * x),     phi_c = psi_c'

with circular correlation *. phi_c is odd and piecewise linear: slopes s_cj on [j, j+1) spacing, j < J,
constant beyond. The Hessian is sum_c W_c' diag(phi_c') W_c. Splitting phi_c' into its positive and negative
part bounds its spectrum by

    -max_omega N(omega) <= Hess g <= max_omega P(omega),
    P = sum_c max_j (s_cj)_+ |w_c^(omega)|^2,   N = sum_c max_j (-s_cj)_+ |w_c^(omega)|^2,

since circular convolutions are diagonal in the Fourier basis of every image size. P and N are trigonometric
polynomials of degree k - 1 in each variable, so their maximum is at most 1/cos(pi (k-1)/n)^2 times that on
an n x n grid. The proof covers circular padding and "valid" patches, which are sections of it; not
reflection.
"""

import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STRIP = 4096  # columns per matrix product: keeps patches and responses in the second-level cache
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
    """Gradient of the potential without padding, N x H x W, in plain torch: any device, differentiable."""
    t = F.conv2d(x[:, None], filters[:, None])
    piece = _pieces(t.detach(), offset.shape[1], spacing)
    return F.conv_transpose2d(offset.flatten()[piece] + slope.flatten()[piece] * t, filters[:, None])[:, 0]


class _Strips:
    """Responses t = W patches(x) of a batch of images, a strip of rows at a time."""

    def __init__(self, x: Tensor, filters: Tensor) -> None:
        self.count, self.height, self.width = x.shape
        self.size = filters.shape[-1]
        self.rows, self.cols = self.height - self.size + 1, self.width - self.size + 1
        self.flat = filters.reshape(len(filters), -1).contiguous()
        self.transposed = self.flat.t().contiguous()
        self.step = max(1, STRIP // self.cols)

    def __iter__(self) -> Any:
        for image in range(self.count):
            for row in range(0, self.rows, self.step):
                yield image, row, min(self.step, self.rows - row)

    def patches(self, image: Tensor, row: int, rows: int) -> Tensor:
        k, pitch = self.size, self.width
        windows = image[row:].as_strided((k, k, rows, self.cols), (pitch, 1, pitch, 1))
        return windows.reshape(k * k, rows * self.cols)


class _ValidGradient(torch.autograd.Function):
    """The same on the CPU: strips of patches as columns, two matrix products, compiled spline."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float) -> Tensor:
        from smadmm.denoisers.ridge_kernels import scatter_patches, spline

        x = x.contiguous()
        ctx.save_for_backward(x, filters, offset, slope)
        ctx.spacing = spacing
        strips, z = _Strips(x, filters), torch.zeros_like(x)
        a, b = offset.numpy(), slope.numpy()
        for image, row, rows in strips:
            columns = strips.patches(x[image], row, rows)
            t = strips.flat @ columns
            spline(t.numpy(), a, b, 1 / spacing)
            torch.mm(strips.transposed, t, out=columns)
            scatter_patches(columns.numpy(), row, rows, strips.size, 1, z[image].numpy())
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor) -> Any:
        from smadmm.denoisers.ridge_kernels import piece_sums, scatter_patches, spline, spline_slope

        x, filters, offset, slope = ctx.saved_tensors
        wants_image, wants_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        strips, v = _Strips(x, filters), v.contiguous()
        d_x, d_filters = torch.zeros_like(x), torch.zeros_like(strips.flat)
        d_offset, d_slope = (
            torch.zeros_like(offset, dtype=torch.float64),
            torch.zeros_like(slope, dtype=torch.float64),
        )
        a, b, inverse = offset.numpy(), slope.numpy(), 1 / ctx.spacing
        for image, row, rows in strips:
            of_x, of_v = strips.patches(x[image], row, rows), strips.patches(v[image], row, rows)
            t, q = strips.flat @ of_x, strips.flat @ of_v
            if wants_weights:
                piece_sums(t.numpy(), q.numpy(), inverse, d_offset.numpy(), d_slope.numpy())
            spline_slope(t.numpy(), b, inverse, q.numpy())
            if wants_weights:
                spline(t.numpy(), a, b, inverse)
                d_filters.addmm_(q, of_x.t()).addmm_(t, of_v.t())
            if wants_image:
                columns = strips.transposed @ q
                scatter_patches(columns.numpy(), row, rows, strips.size, 1, d_x[image].numpy())
        return d_x, d_filters.view_as(filters), d_offset.to(offset), d_slope.to(slope), None


def valid_gradient(x: Tensor, filters: Tensor, offset: Tensor, slope: Tensor, spacing: float) -> Tensor:
    """Gradient of the potential without padding, N x H x W: compiled if on the CPU and numba is there."""
    if x.device.type != "cpu" or find_spec("numba") is None:
        return valid_gradient_torch(x, filters, offset, slope, spacing)
    z: Tensor = _ValidGradient.apply(x, filters, offset.contiguous(), slope.contiguous(), spacing)  # type: ignore[no-untyped-call]
    return z


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
    """max P and max N of the module docstring on a grid x grid sampling of the frequencies."""
    upper = _largest(filters, slopes.clamp(min=0).amax(1), grid)
    lower = _largest(filters, (-slopes).clamp(min=0).amax(1), grid)
    return upper, lower


class Ridge(nn.Module):
    """g(x) = sum_c sum_p psi_c((w_c * x)_p): filters C x k x k, slopes C x J on knots `spacing` apart."""

    alignment = 1
    circular = True

    def __init__(self, filters: Tensor, slopes: Tensor, spacing: float) -> None:
        super().__init__()
        self.filters, self.slopes = nn.Parameter(filters), nn.Parameter(slopes)
        self.spacing = spacing
        self.radius = filters.shape[-1] - 1  # a pixel of grad g depends on pixels at most this far away

    def _wrapped(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(x.shape[-2] + self.radius, device=x.device) % x.shape[-2]
        cols = torch.arange(x.shape[-1] + self.radius, device=x.device) % x.shape[-1]
        return x[:, 0][:, rows][:, :, cols], rows, cols

    def forward(self, x: Tensor) -> Tensor:
        """g of every image of a batch N x 1 x H x W."""
        slopes, spacing = self.slopes, self.spacing
        t = F.conv2d(self._wrapped(x)[0][:, None], self.filters[:, None])
        offset, slope = spline_pieces(slopes, spacing)
        count, half = slope.shape[1], slope.shape[1] // 2
        knot = spacing * (torch.arange(count, dtype=t.dtype, device=t.device) - half)  # left end of each piece
        knot[0] = knot[1]
        width = slopes.new_full((slopes.shape[1],), spacing)
        start = (offset + slope * knot)[:, half:-1]
        rise = (start * width + slopes * width**2 / 2).cumsum(1)
        right = torch.cat([rise.new_zeros(len(rise), 1), rise], 1)  # psi at the knots 0, spacing, ...
        base = torch.cat([right[:, -1:], right.flip(1)[:, :-1], right], 1)
        piece = _pieces(t.detach(), count, spacing)
        left = (knot.expand_as(slope)).flatten()[piece]
        phi = (offset + slope * knot).flatten()[piece]
        value = base.flatten()[piece] + phi * (t - left) + slope.flatten()[piece] * (t - left) ** 2 / 2
        return value.sum((1, 2, 3))

    def gradient(self, x: Tensor) -> Tensor:
        """grad g of every image of a batch N x 1 x H x W, padded circularly."""
        padded, rows, cols = self._wrapped(x)
        z = valid_gradient(padded, self.filters, *spline_pieces(self.slopes, self.spacing), self.spacing)
        height, width = x.shape[-2:]
        if height >= self.radius and width >= self.radius:
            top = torch.cat([z[:, : self.radius] + z[:, height:], z[:, self.radius : height]], 1)
            z = torch.cat([top[..., : self.radius] + top[..., width:], top[..., self.radius : width]], -1)
        else:
            z = z.new_zeros(len(z), height, z.shape[2]).index_add(1, rows, z)
            z = z.new_zeros(len(z), height, width).index_add(2, cols, z)
        return z[:, None]

    @torch.no_grad()
    def certificate(self) -> float:
        """A proved upper bound of |Hess g| at every image of every size."""
        upper, lower = spectral_bounds(self.filters.double(), self.slopes.double(), GRID)
        between_grid_points = 1 / math.cos(math.pi * self.radius / GRID) ** 2
        return max(float(upper), float(lower)) * between_grid_points


class RidgeParameters(nn.Module):
    """Free parameters whose every value gives a Ridge of Lipschitz constant `bound` on the training grid.

    Filters are centred (but for the first `means`) and normalised; slopes are scaled so that max P = bound,
    then the negative ones so that max N <= bound.
    Start: cosine filters, slopes of t / (1 + (t / 2.5 sigma)^4).
    """

    def __init__(self, filters: int, size: int, sigma: float, means: int = 0, seed: int = 0, knots: int = 24) -> None:
        super().__init__()
        self.bound, self.spacing, self.means, self.margin = 0.99, 0.4 * sigma, means, size - 1
        self.grid = 96
        generator = torch.Generator().manual_seed(seed)
        start = _first_filters(filters, size, means)
        jitter = 0.02 * torch.randn(start.shape, generator=generator)
        self.filters = nn.Parameter(start + jitter)
        t = 0.4 * torch.arange(knots + 1)
        self.slopes = nn.Parameter(torch.diff(t / (1 + (t / 2.5) ** 4)).div(0.4).repeat(filters, 1))
        self.log_weights = nn.Parameter(torch.zeros(filters))

    def effective(self) -> tuple[Tensor, Tensor]:
        """Filters and slopes that satisfy the bound, differentiable in the free parameters."""
        mean = self.filters.mean((1, 2), keepdim=True)
        mean = mean * (torch.arange(len(mean)) >= self.means)[:, None, None]
        filters = self.filters - mean
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None]
        slopes = self.slopes * self.log_weights.exp()[:, None]
        upper, _ = spectral_bounds(filters, slopes, self.grid)
        slopes = slopes * (self.bound / upper)
        _, lower = spectral_bounds(filters, slopes, self.grid)
        shrink = (self.bound / lower.clamp(min=1e-9)).clamp(max=1)
        return filters, torch.where(slopes > 0, slopes, slopes * shrink)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For Adam: slopes learn 10/3 as fast as filters."""
        profiles = [self.slopes, self.log_weights]
        return [{"params": [self.filters], "scale": 1.0}, {"params": profiles, "scale": 10 / 3}]

    def denoise_patches(self, y: Tensor) -> Tensor:
        """y - grad g(y) on patches N x 1 x H x W without padding: right but for `margin` at the border."""
        filters, slopes = self.effective()
        z = valid_gradient(y[:, 0], filters, *spline_pieces(slopes, self.spacing), self.spacing)
        return y - z[:, None]

    @torch.no_grad()
    def export(self) -> Ridge:
        """The potential, rescaled so that its certificate is at most `bound`."""
        filters, slopes = self.effective()
        potential = Ridge(filters.detach().clone(), slopes.detach().clone(), self.spacing)
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
