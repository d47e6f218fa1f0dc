"""Lipschitz constants of I - D, measured: the largest singular value of its Jacobian at given images.

Krylov iteration on J'J; for D = I - grad g the Jacobian is symmetric and J itself is iterated. Full-size
images matter: patches under-report; clean images and points between clean and noisy ones are often worse
than noisy ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from smadmm.denoisers.gradient_step import GradientStep

Map = Callable[[Tensor], Tensor]


def _lanczos(operator: Map, v: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Largest |eigenvalue| of a symmetric operator for each image of the batch v, and its unit vector.

    Rayleigh-Ritz on the Krylov space of v, fully orthogonalised: power iteration with a memory. The value
    is a lower bound that rises with the iterations; it stops when the rise is below tolerance (relative).
    """
    shape, q = v.shape, torch.nn.functional.normalize(v.flatten(1), dim=1)
    basis, images = q[:, None], q.new_zeros(len(q), 0, q.shape[1])
    value = q.new_zeros(len(q))
    for _ in range(iterations):
        u = operator(q.view(shape)).flatten(1)
        images = torch.cat([images, u[:, None]], 1)
        projected = basis @ images.mT
        if not projected.isfinite().all():
            raise ValueError("the Jacobian is not finite: the denoiser diverged in training, or divides by 0 somewhere")
        values, vectors = torch.linalg.eigh((projected + projected.mT) / 2)
        best = values.abs().argmax(1)
        previous, value = value, values.abs().amax(1)
        vector = vectors[torch.arange(len(q)), :, best]
        if bool((value - previous <= tolerance * value).all()):
            break
        for _ in range(2):
            u = u - (basis.mT @ (basis @ u[..., None]))[..., 0]
        q = torch.nn.functional.normalize(u, dim=1)
        basis = torch.cat([basis, q[:, None]], 1)
    ritz = (vector[:, None] @ basis[:, : vector.shape[1]])[:, 0]
    return value, ritz.view(shape)


def symmetric_norm(
    gradient: Map, x: Tensor, v: Tensor, iterations: int, tolerance: float = 0.0
) -> tuple[Tensor, Tensor]:
    """|J| per image, J the symmetric Jacobian of `gradient` at x, and its top eigenvector; v is the start."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = gradient(x)
    return _lanczos(lambda q: torch.autograd.grad(z, x, q, retain_graph=True)[0], v, iterations, tolerance)


def general_norm(function: Map, x: Tensor, v: Tensor, iterations: int, tolerance: float = 0.0) -> tuple[Tensor, Tensor]:
    """The same for any Jacobian, by J'J; J q is the derivative of w -> J'w, a second differentiation."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = function(x)
        w = torch.zeros_like(z, requires_grad=True)
        (adjoint,) = torch.autograd.grad(z, x, w, create_graph=True)

    def gram(q: Tensor) -> Tensor:
        (u,) = torch.autograd.grad(adjoint, w, q, retain_graph=True)
        return torch.autograd.grad(z, x, u, retain_graph=True)[0]

    square, vector = _lanczos(gram, v, iterations, tolerance)
    return square.sqrt(), vector


@dataclass(frozen=True)
class LipschitzReport:
    """Largest singular values of the Jacobian of I - D by image and kind of point.

    >>> LipschitzReport(clean=(0.9,), between=(0.95,), noisy=(0.8,)).largest
    0.95
    """

    clean: tuple[float, ...]
    between: tuple[float, ...]
    noisy: tuple[float, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return self.clean + self.between + self.noisy

    @property
    def largest(self) -> float:
        return max(self.values)

    def histogram(self, bins: int = 10) -> str:
        """The values as lines of text."""
        counts, edges = np.histogram(self.values, bins)
        return "\n".join(
            f"{low:6.3f} - {high:6.3f} {'#' * n}" for n, low, high in zip(counts, edges, edges[1:], strict=False)
        )


def lipschitz(
    denoiser: Map,
    images: Sequence[Tensor],
    sigma: float | None = None,
    iterations: int = 40,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> LipschitzReport:
    """Measure Lip(I - D) at clean images B x C x H x W, at them with noise sigma, and half way between.

    The noise is that of the denoiser if it has a `sigma`, else 5/255. A module is measured as it works, in evaluation
    mode, and keeps the largest value seen as its `lipschitz`, unless that was larger (a proved bound).

    >>> from smadmm.denoisers import load
    >>> lipschitz(load("ridge-ct"), [torch.rand(1, 1, 16, 16)]).largest < 1
    True
    """
    if not len(images) or iterations < 1:
        raise ValueError(f"give at least one image and one iteration, got {len(images)} and {iterations}")
    level = getattr(denoiser, "sigma", None) or 5 / 255 if sigma is None else sigma
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {"clean": [], "between": [], "noisy": []}
    with _evaluated(denoiser):
        for number, image in enumerate(images):
            if not image.isfinite().all():
                raise ValueError(f"image {number} has values that are not finite; remove or repair it")
            noise, start = (torch.randn(image.shape, generator=generator).to(image) for _ in range(2))
            for kind, part in (("clean", 0.0), ("between", 0.5), ("noisy", 1.0)):
                found[kind] += _measure(denoiser, image + part * level * noise, start, iterations, tolerance).tolist()
    report = LipschitzReport(tuple(found["clean"]), tuple(found["between"]), tuple(found["noisy"]))
    if isinstance(denoiser, nn.Module):
        known = getattr(denoiser, "lipschitz", None)
        if not callable(known):
            setattr(denoiser, "lipschitz", max(report.largest, float(known or 0.0)))  # noqa: B010
    return report


@contextmanager
def _evaluated(denoiser: Map) -> Iterator[None]:
    """A module in evaluation mode, and afterwards each of its parts in the mode it was in."""
    parts = list(denoiser.modules()) if isinstance(denoiser, nn.Module) else []
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def _measure(denoiser: Map, x: Tensor, v: Tensor, iterations: int, tolerance: float) -> Tensor:
    with torch.enable_grad():
        if not denoiser(x.detach().requires_grad_()).requires_grad:
            raise ValueError("this denoiser cannot be differentiated: it works under no_grad or detaches its image")
    norm = symmetric_norm if isinstance(denoiser, GradientStep) else general_norm
    return norm(lambda y: y - denoiser(y), x, v, iterations, tolerance)[0]
