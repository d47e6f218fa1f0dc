"""`reconstruct` for an operator of your own: what a scan's geometry tells is found from the data alone.

    start   ten conjugate gradient steps for |K x - b|^2: least squares, stopped early; pixels that no number of the
            data depends on, as behind a mask, are filled in harmonically, min |D x|^2 with all others fixed
    scale   the 99.9 % quantile of that image; denoisers expect images in [0, 1]
    rho     of several a factor of ten apart, the one whose image best predicts a sixteenth of the data that it was not
            made from; all of the data are then used with it
    stop    30 iterations, each with a nearly exact x-step (xsteps.Newton)

F(x) = 1/2 |K x - b|^2, so rho = s^2/sigma^2 would be the weight for data with noise s and a prior for images with noise
sigma; s is not known of data that need not be smooth along any axis, hence the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.estimators import Spider
from smadmm.imaging.metrics import snr, ssim
from smadmm.imaging.priors import Denoiser, Prior, as_prior, suited
from smadmm.imaging.result import ImageResult
from smadmm.losses.operators import OperatorLeastSquares
from smadmm.operators.differences import FiniteDifferences
from smadmm.operators.linear import Operator, Stack
from smadmm.problem import Problem, Prox
from smadmm.results import Result
from smadmm.running import Stop, run
from smadmm.solver import ADMM
from smadmm.xsteps import Newton, conjugate_gradients

HELD_OUT = 16  # every sixteenth number of the data, at random
FIRST_STEPS, INNER, TRIED, ITERATIONS = 10, 10, 6, 30
LEVELS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # squares of the relative noise that rho is tried for
QUANTILE = 0.999
FILLING = 300  # steps of harmonic filling, each as cheap as two differences


def by_operator(
    data: Any,
    operator: Operator | Sequence[Operator],
    prior: str | Prox | Denoiser,
    start: Any,
    stop: Stop | None,
    strength: float,
    bounds: tuple[float, float] | None,
    truth: Any,
    seed: int,
) -> ImageResult:
    """The image x of K x = data + noise; `strength` multiplies the weight of the prior that the trial found."""
    K = operator if isinstance(operator, Operator) else Stack(operator)
    if K.in_shape is None or len(K.in_shape) < 2:
        raise ArgumentError("{operator} must map images, height x width, its input is {0}", K.in_shape)
    b = _tensor(data) if K is operator else torch.cat([_tensor(part).flatten() for part in data])
    if tuple(b.shape) != K.out_shape:
        raise ArgumentError("the data have the shape {0}, but {operator} gives {1}", tuple(b.shape), K.out_shape)
    if not bool(b.isfinite().all()):
        raise ValueError(f"the data have {int((~b.isfinite()).sum())} values that are NaN or infinite; leave them out")
    plain = _first(K, b, torch.ones_like(b))
    scale = float(np.quantile(plain.abs().numpy(), QUANTILE)) if bounds is None else bounds[1]
    if not scale > 0:
        raise ValueError("the data show no image: least squares gives zero everywhere")
    first = plain if start is None else torch.as_tensor(np.asarray(start, dtype=np.float32))
    limits = None if bounds is None else (bounds[0] / scale, bounds[1] / scale)
    known = suited(as_prior(prior, "cpu", limits)[0], 0.0, "cpu", limits)
    solve = _solver(K, b / scale, known, seed)
    rho, errors = _weight(K, b / scale, solve)
    result = solve(torch.ones_like(b), strength * rho, first / scale, stop or Stop(iterations=ITERATIONS))
    return _told(result, K, b, scale, plain, truth, data, {
        "prior": known.name, "rho": strength * rho, "scale": scale,
        "operator": repr(K), "seed": seed, "held_out": errors, "method": "smadmm",
    })  # fmt: skip


def _tensor(data: Any) -> Tensor:
    return torch.as_tensor(data if isinstance(data, Tensor) else np.asarray(data)).detach().cpu().float()


def _first(K: Operator, b: Tensor, weights: Tensor) -> Tensor:
    """Least squares stopped early, and pixels that no number depends on filled in."""
    x = conjugate_gradients(lambda p: K.adjoint(weights * K(p)), K.adjoint(weights * b), FIRST_STEPS)
    probe = torch.from_numpy(np.random.default_rng(0).standard_normal(b.shape, dtype=np.float32))
    hidden = (K.adjoint(weights * probe) == 0).to(x.dtype)
    if not bool(hidden.any()) or bool(hidden.all()):
        return x
    D = FiniteDifferences(tuple(x.shape))
    fill = conjugate_gradients(lambda p: hidden * D.T(D(hidden * p)), -hidden * D.T(D(x)), FILLING, 1e-4)
    return x + hidden * fill


Solve = Callable[[Tensor, float, Tensor, Stop], Result]


def _solver(K: Operator, b: Tensor, prior: Prior, seed: int) -> Solve:
    """weights, rho, start, stop -> the result."""

    def solve(weights: Tensor, rho: float, x: Tensor, stop: Stop) -> Result:
        f = OperatorLeastSquares((K,), (b,), (weights,))
        solver = ADMM(
            Problem(f, prior.prox(rho)), Spider(1, every=1), rho, 1.0, x_step=Newton(f, inner=INNER), seed=seed
        )
        return run(solver, x, stop, every=5, objective=False, progress=False)

    return solve


def _weight(K: Operator, b: Tensor, solve: Solve) -> tuple[float, dict[str, float]]:
    """The rho that predicts data which were left out best, from strong to weak, and the errors of all."""
    out = torch.from_numpy(np.random.default_rng(0).permutation(b.numel()) % HELD_OUT == 0).reshape(b.shape)
    seen = (~out).float()
    x = _first(K, b, seen)  # knows nothing of them
    gain = float(K(x).square().sum() / x.square().sum().clamp(min=1e-30))  # |K x|^2 per |x|^2, of images as this one
    errors = {}
    for level in LEVELS:
        x = solve(seen, level * gain, x, Stop(iterations=TRIED)).x
        errors[f"{level * gain:.3g}"] = float((K(x) - b)[out].norm() / b[out].norm())
    best = min(errors, key=lambda name: errors[name])
    return float(best), errors


def _told(
    result: Result, K: Operator, b: Tensor, scale: float, plain: Tensor, truth: Any, data: Any, settings: dict[str, Any]
) -> ImageResult:
    x = scale * result.x.detach()
    noise = min(settings["held_out"].values())
    row: dict[str, Any] = {
        "slice": 0, "residual": float((K(x) - b).norm() / b.norm()), "held_out": noise, "iterations": result.state.k,
        "sfo": result.state.sfo, "seconds": result.history["seconds"][-1], "stopped": result.reason.value,
    }  # fmt: skip
    shown = {"least squares": plain.numpy(), "SMADMM": x.numpy()}
    if truth is not None:
        exact = torch.as_tensor(np.asarray(truth, dtype=np.float32))
        row |= {"snr": snr(exact, x), "ssim": ssim(exact, x), "snr_start": snr(exact, plain)}
        shown = {"truth": exact.numpy()} | shown
    return ImageResult(verb="Reconstruction", image=x.to(data.device) if isinstance(data, Tensor) else x.numpy(),
                       shown=shown, slices=[row], histories=[result.history], settings=settings,
                       interrupted=result.interrupted, unit="the unit of the operator")  # fmt: skip
