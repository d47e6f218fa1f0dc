"""`reconstruct` for an operator of your own: what a scan's geometry tells is found from the data alone.

    start   ten conjugate gradient steps for |K x - b|^2: least squares, stopped early; pixels that no number of the
            data depends on, as behind a mask, are filled in harmonically, min |D x|^2 with all others fixed. Then a
            prior that is set for less and less noise: what data leave open, as of Fourier samples, is far from small.
            Its image is taken where it predicts a sixteenth of the data that it was not made from better
    scale   the 99.9 % quantile of that image; denoisers expect images in [0, 1]
    rho     of several a factor of ten apart, the one whose image best predicts the same sixteenth; all of the data are
            then used with it
    stop    30 iterations, each with a nearly exact x-step (xsteps.Newton); 60 after strong denoising

F(x) = 1/2 |K x - b|^2, so rho = s^2/sigma^2 would be the weight for data with noise s and a prior for images with noise
sigma; s is not known of data that need not be smooth along any axis, hence the trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.estimators import Spider
from smadmm.imaging.metrics import snr, ssim
from smadmm.imaging.priors import LEARNED, LEVEL, ComplexProx, Denoiser, Prior, as_prior, find_prior, suited
from smadmm.imaging.result import ImageResult
from smadmm.losses.operators import OperatorLeastSquares
from smadmm.operators.differences import FiniteDifferences
from smadmm.operators.linear import Operator, Stack
from smadmm.problem import Problem, Prox
from smadmm.results import Result
from smadmm.running import Stop, run
from smadmm.solver import ADMM
from smadmm.xsteps import Newton, conjugate_gradients

HELD_OUT, LARGE = 16, 30.0  # every sixteenth number of the data, at random; times their median: never left out
FIRST_STEPS, INNER, TRIED, ITERATIONS, LONGER = 10, 10, 6, 30, 60
LEVELS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # squares of the relative noise that rho is tried for
STAGES, STEPS, FIRM = (32.0, 16.0, 8.0, 4.0), 10, 1e-2  # times priors.LEVEL, of the start; iterations of each; rho
QUANTILE = 0.999
FILLING = 300  # steps of harmonic filling, each as cheap as two differences

Solve = Callable[[Prior, float, Tensor, Stop], Result]


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
    K = _one(operator)
    b = _data(data, operator, K)
    everything = torch.ones(b.shape)
    seen = _seen(b)
    plain = _first(K, b, everything)
    given, exact = _image("start", start, plain), _image("truth", truth, plain)
    told = bounds is not None and math.isfinite(bounds[1])
    scale = bounds[1] if bounds is not None and told else _largest(plain)
    if not scale > 0:
        raise ValueError("the data show no image: least squares gives zero everywhere")
    limits = None if bounds is None else (bounds[0] / scale, bounds[1] / scale)
    known = suited(as_prior(prior, "cpu", limits)[0], 0.0, "cpu", limits)
    solve = partial(_solve, K, b / scale, seed)

    def image(weights: Tensor, cleaned: bool) -> Tensor:
        x = _first(K, b / scale, weights)
        return _cleaned(x, _gain(K, x), known.name, partial(solve, weights)) if cleaned else x

    trials = {
        cleaned: _weight(K, b / scale, seen, image(seen, cleaned), partial(solve, seen, known))
        for cleaned in ((False, True) if given is None and prior != "none" else (False,))
    }
    cleaned = min(trials, key=lambda each: min(trials[each].values()))
    errors = trials[cleaned]
    rho = strength * min(errors, key=lambda each: errors[each])
    first = image(everything, cleaned) if given is None else given / scale
    result = solve(everything, known, rho, first, stop or Stop(iterations=LONGER if cleaned else ITERATIONS))
    return _told(result, K, b, scale, plain, exact, data, {
        "prior": known.name, "rho": rho, "scale": scale, "operator": repr(K), "seed": seed,
        "held_out": {f"{weight:.3g}": error for weight, error in errors.items()}, "method": "smadmm",
    })  # fmt: skip


def _one(operator: Any) -> Operator:
    """The operator, or the list of them as one."""
    members = operator if isinstance(operator, (list, tuple)) else (operator,)
    for member in members:
        if not isinstance(member, Operator):
            raise ArgumentError(
                "{operator} is an operator of smadmm or a list of them, got {0}; smadmm.interop makes one: from_scipy "
                "(SciPy, PyLops, matrices), from_deepinv, from_functions",
                type(member).__name__,
            )
    K = operator if isinstance(operator, Operator) else Stack(members)
    if K.in_shape is None or len(K.in_shape) < 2:
        raise ArgumentError(
            "{operator} must map images, height x width, but its input is {0}; say in_shape when you make it",
            K.in_shape,
        )
    return K


def _data(data: Any, operator: Any, K: Operator) -> Tensor:
    """The data like K x; SciPy and PyLops know nothing but flat ones, which are reshaped."""
    b = _tensor(data) if K is operator else torch.cat([_tensor(part).flatten() for part in data])
    shape = K.output_shape(K.in_shape) or ()
    if b.numel() == math.prod(shape) and min(b.ndim, len(shape)) == 1:
        b = b.reshape(shape)
    if tuple(b.shape) != shape:
        raise ArgumentError("the data have the shape {0}, but {operator} gives {1}", tuple(b.shape), shape)
    if not bool(b.isfinite().all()):
        raise ValueError(f"the data have {int((~b.isfinite()).sum())} values that are NaN or infinite; leave them out")
    return b


def _tensor(data: Any) -> Tensor:
    """Single precision, real or complex."""
    values = torch.as_tensor(data if isinstance(data, Tensor) else np.asarray(data)).detach().cpu()
    return values.to(torch.complex64 if values.is_complex() else torch.float32)


def _image(name: str, given: Any, like: Tensor) -> Tensor | None:
    if given is None:
        return None
    image = _tensor(given).to(torch.promote_types(_tensor(given).dtype, like.dtype))
    if image.shape != like.shape:
        shapes = tuple(image.shape), tuple(like.shape)
        raise ArgumentError("{" + name + "} has the shape {0}, but the images of {operator} have {1}", *shapes)
    if image.is_complex() and not like.is_complex():
        raise ArgumentError("{" + name + "} is complex, but the images of {operator} are real; give its real part")
    return image


def _seen(b: Tensor) -> Tensor:
    """0 for the data that are left out, 1 for others: without the largest, as the mean of the image among Fourier
    samples, there would be no image to judge."""
    sizes = b.abs()
    ordinary = sizes <= LARGE * sizes[sizes > 0].median() if bool(sizes.any()) else sizes == 0
    drawn = torch.from_numpy(np.random.default_rng(0).permutation(b.numel()) % HELD_OUT == 0).reshape(b.shape)
    return (~(drawn & ordinary)).float()


def _largest(x: Tensor) -> float:
    return float(np.quantile(x.abs().numpy(), QUANTILE))


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


def _solve(
    K: Operator, b: Tensor, seed: int, weights: Tensor, prior: Prior, rho: float, x: Tensor, stop: Stop
) -> Result:
    f = OperatorLeastSquares((K,), (b,), (weights,), dtype=x.dtype)
    h = prior.prox(rho)
    problem = Problem(f, ComplexProx(h) if x.is_complex() else h)
    solver = ADMM(problem, Spider(1, every=1), rho, 1.0, x_step=Newton(f, inner=INNER), seed=seed)
    return run(solver, x, stop, every=5, objective=False, progress=False)


def _gain(K: Operator, x: Tensor) -> float:
    """|K x|^2 per |x|^2, of images as this one."""
    return float(K(x).norm() / x.norm().clamp(min=1e-15)) ** 2


def _cleaned(x: Tensor, gain: float, name: str, solve: Solve) -> Tensor:
    """What a prior for less and less noise makes of x: ridge-ct in the place of an own one, whose noise is given."""
    name = LEARNED if name.startswith("own ") else name
    for stage in STAGES:
        prior = find_prior(name, limits=None, level=stage * LEVEL)
        x = solve(prior, FIRM * gain, x, Stop(iterations=STEPS)).x
    return x


def _weight(
    K: Operator, b: Tensor, seen: Tensor, x: Tensor, solve: Callable[[float, Tensor, Stop], Result]
) -> dict[float, float]:
    """Weights of the prior from strong to weak, and how far each misses the data that were left out."""
    gain, out, errors = _gain(K, x), seen == 0, {}
    for level in LEVELS:
        x = solve(level * gain, x, Stop(iterations=TRIED)).x
        errors[level * gain] = float((K(x) - b)[out].norm() / b[out].norm())
    return errors


def _told(
    result: Result,
    K: Operator,
    b: Tensor,
    scale: float,
    plain: Tensor,
    exact: Tensor | None,
    data: Any,
    settings: dict[str, Any],
) -> ImageResult:
    x = scale * result.x.detach()
    noise = min(settings["held_out"].values())
    row: dict[str, Any] = {
        "slice": 0, "residual": float((K(x) - b).norm() / b.norm()), "held_out": noise, "iterations": result.state.k,
        "sfo": result.state.sfo, "seconds": result.history["seconds"][-1], "stopped": result.reason.value,
    }  # fmt: skip
    pictures = {"least squares": plain, "SMADMM": x}
    if exact is not None:
        row |= {"snr": snr(exact, x), "ssim": ssim(exact, x), "snr_start": snr(exact, plain)}
        pictures = {"truth": exact} | pictures
    shown = {name: (image.abs() if image.is_complex() else image).numpy() for name, image in pictures.items()}
    return ImageResult(verb="Reconstruction", image=x.to(data.device) if isinstance(data, Tensor) else x.numpy(),
                       shown=shown, slices=[row], histories=[result.history], settings=settings,
                       interrupted=result.interrupted, unit="the unit of the operator")  # fmt: skip
