"""A Fourier preconditioner for tomography: the x-step with Q = s H, H diagonal in frequency, for A = I.

The mean over views of A_i'A_i blurs an image by 1/distance; in frequency nu (cycles per pixel) it multiplies by
1/(pi nu). A batch of B views of an image n pixels wide acts on lines through the origin; there it multiplies by n/B:
    H(nu) = max(1/(pi nu), n/B) / (c spacing)
follows the Hessian of a batch (c is the loss's scale), and (eta Q + rho I)^{-1} has the symbol 1/(eta s H(nu) + rho):
one FFT of the image, padded by zeros to twice its size, and one back. With B = 1, H is flat: nothing to gain.

s makes it a majorant. With C the padding by zeros, s is (a bit more than) the largest eigenvalue of C' H^{-1} C Hess_S
over drawn batches S, by power iteration. Then C'(s H)^{-1} C <= Hess_S^{-1} and, since a parallel sum that is
compressed lies below the parallel sum of the compressed,
    C'(s H + rho)^{-1} C <= (Hess_S + rho)^{-1}   for every rho > 0:
with eta = 1 no step goes beyond the minimum of its batch in any direction, and one s serves all rho. Equispaced batches
are all alike; independent draws are not, and a rare one may exceed 1, but only beyond 2 would it push away.

With all views and weights of at most 1, the s of weights 1 is a majorant, too, and c cancels out in it: it depends on
the geometry alone, and `NewtonStep` finds it once for all slices of a volume.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from smadmm.losses.tomography import PIECE, Tomography
from smadmm.operators.radon.projector import Projector
from smadmm.problem import Batch, Step
from smadmm.sampling import Rng
from smadmm.xsteps import Newton, XStep

SCALE = "Fourier scale"  # among what a projector knows
MARGIN = 1.1  # power iteration stays below the largest eigenvalue, and later batches may exceed the drawn ones
PROBES = 4  # batches drawn to find s; all views are one batch
ITERATIONS = 12


SEED = 0  # of the first vector, and of the batches drawn


def _padded(radon: Projector) -> tuple[int, int]:
    return 2 * radon.height, 2 * radon.width


def _symbol(radon: Projector, batch: int) -> Tensor:
    """c H."""
    padded = _padded(radon)
    rows, columns = (
        torch.fft.fftfreq(padded[0], dtype=torch.float64),
        torch.fft.rfftfreq(padded[1], dtype=torch.float64),
    )
    nu = torch.hypot(rows[:, None], columns).clamp(min=0.5 / max(padded))
    on_line = max(radon.height, radon.width) / batch
    return (1 / (math.pi * nu)).clamp(min=on_line) / radon.spacing


def _filtered(d: Tensor, symbol: Tensor, padded: tuple[int, int]) -> Tensor:
    spectrum = torch.fft.rfft2(d, s=padded) * symbol
    image: Tensor = torch.fft.irfft2(spectrum, s=padded)
    return image[..., : d.shape[-2], : d.shape[-1]]


def _start(radon: Projector) -> Tensor:
    seed = SEED
    return torch.randn(radon.in_shape or (), generator=torch.Generator().manual_seed(seed))


def _power_iteration(product: Callable[[Tensor], Tensor], v: Tensor) -> tuple[float, Tensor]:
    """The largest eigenvalue, from below, and the direction reached."""
    value = 0.0
    for _ in range(ITERATIONS):
        v = product(v)
        length = float(torch.linalg.vector_norm(v))
        value = length if length > 0 else value
        v = v / max(length, 1e-30)
    return value, v


def share_scale(radon: Projector, most: Projector) -> None:
    """Take s of all views for most of them: it belongs to the mean over views, and hardly differs."""
    most.once(SCALE, lambda: scale_of_all_views(radon))


def scale_of_all_views(radon: Projector) -> float:
    """s for all views and weights of at most 1; computed once per projector."""

    def product(v: Tensor) -> Tensor:
        step, total = _filtered(v, 1 / H, _padded(radon)), torch.zeros_like(v)
        for piece in torch.arange(radon.views).split(PIECE):
            total += radon.adjoint_views(radon.forward_views(step, piece), piece)
        return total / radon.views

    H = _symbol(radon, radon.views).to(torch.float32)
    return radon.once(SCALE, lambda: MARGIN * _power_iteration(product, _start(radon))[0])


class FourierStep(XStep):
    """d -> C' F^{-1} [F C d / (eta s H + rho)]: for eta = 1 and estimators of this batch size; s by power iteration."""

    def __init__(self, loss: Tomography, batch: int, s: float | None = None):
        if batch < 1:
            raise ValueError(f"a batch has at least one view, got {batch}")
        if s is not None and not 0 < s < math.inf:
            raise ValueError(f"s must be positive and finite, got {s}; leave it out to have it computed")
        if (model := loss.majorant()) is not loss:
            assert isinstance(model, Tomography)
            loss = model
        self.padded = _padded(loss.radon)
        self.H = (_symbol(loss.radon, batch) / loss.c).to(loss.everything.device, loss.dtype)
        self.s = MARGIN * self._largest_eigenvalue(loss, batch) if s is None else s

    def _largest_eigenvalue(self, loss: Tomography, batch: int) -> float:
        """The largest of Hess_S C' H^{-1} C over some batches S, each started where the last one ended."""
        v = _start(loss.radon).to(self.H.device, loss.dtype)
        zero, largest = torch.zeros_like(v), 0.0
        for probe in range(PROBES if batch < loss.n else 1):
            drawn = loss.draw(Rng(SEED, probe, probe * batch), batch)

            def product(v: Tensor, drawn: Batch = drawn) -> Tensor:
                return loss.gradient((self._filter(v, 1 / self.H), zero), (1.0, -1.0), drawn)  # Hess_S C' H^{-1} C v

            value, v = _power_iteration(product, v)
            largest = max(largest, value)
        return largest

    def _filter(self, d: Tensor, symbol: Tensor) -> Tensor:
        return _filtered(d, symbol, self.padded)

    def __call__(self, direction: Tensor, eta: Step, rho: Step) -> Tensor:
        if isinstance(eta, Tensor) or isinstance(rho, Tensor):
            raise ValueError("the Fourier preconditioner needs numbers for eta and rho, got a tensor of weights")
        return self._filter(direction, 1 / (eta * self.s * self.H + rho))


class NewtonStep(Newton):
    """d -> (eta Hess + rho)^{-1} d by a few conjugate gradients, the Fourier symbol as their preconditioner.

    Where views are few it moves x freely in the directions that no view sees, in which `FourierStep` goes by rho/(s H +
    rho) alone.
    """

    def __init__(self, loss: Tomography, inner: int = 3):
        super().__init__(loss, inner=inner)
        self.fourier = FourierStep(loss, loss.n, scale_of_all_views(loss.radon))
        self.precondition = self.fourier
