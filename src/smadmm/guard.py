"""What is wrong with a state or an estimate, and where to look for the cause."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smadmm.losses.stream import Stream
from smadmm.problem import FiniteSum, Problem
from smadmm.solver import State

EXPLOSION = 1e8  # growth of |x| that counts as divergence
NOT_FINITE = "look for NaN or infinity in the data or the loss"
NAMED = 5  # samples that an error names


def check_estimate(s: State, last: State) -> None:
    """What an estimator may forget: to return an Estimate, and to count (a budget of gradients would never end)."""
    shape = tuple(getattr(getattr(s.est, "v", None), "shape", ()))
    if shape != tuple(s.x.shape):
        raise ValueError(
            f"an estimator's update returns an Estimate with v of shape {tuple(s.x.shape)}, "
            f"got {type(s.est).__name__} with v of shape {shape}"
        )
    if s.drawn > last.drawn and s.est.sfo <= last.est.sfo:
        raise ValueError(
            f"iteration {s.k} drew {s.drawn - last.drawn} samples, but the estimator's sfo stayed {s.est.sfo}; let its "
            "update return the earlier sfo plus the sample gradients it computed"
        )


def why_not_finite(problem: Problem, s: State) -> str:
    """Which part of the problem first gave NaN or infinity; empty where none did, and the step is to blame."""
    for h, z, y in zip(problem.hs, s.zs, s.ys, strict=False):
        if bool(torch.isfinite(z).all()) and not bool(torch.isfinite(y).all()):
            return f"the prox of {type(h).__name__} gave values that are not finite in iteration {s.k}; look there"
    x, v, f = s.est.at, s.est.v, problem.f
    if bool(torch.isfinite(v).all()) or not bool(torch.isfinite(x).all()):
        return ""
    what = f"the gradient is not finite after iteration {s.k}" if s.k else "the gradient is not finite at the start"
    samples = bad_samples(f, x) if isinstance(f, FiniteSum) else []
    if samples:
        listed = ", ".join(map(str, samples[:NAMED])) + (", ..." if len(samples) > NAMED else "")
        return f"{what}; look for NaN or infinity in the data of sample {listed}, or in the loss there"
    if isinstance(f, Stream):
        return f"{what}; look for NaN or infinity in the stream before sample {s.drawn}, or in the loss"
    return f"{what}; {NOT_FINITE}"


def bad_samples(f: FiniteSum, x: Tensor, most: int = NAMED + 1) -> list[int]:
    """The first samples whose gradient at x is not finite, found by halving the parts that have some."""
    waiting: list[Tensor] = [f.everything]
    found: list[int] = []
    while waiting and len(found) < most:
        part = waiting.pop()
        if bool(torch.isfinite(f.gradient((x,), (1.0,), part)).all()):
            continue
        if len(part) == 1:
            found.append(int(part))
        else:
            waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return found


def trouble_of(s: State, limit: float) -> str | None:
    """What is wrong with a state, and the likely cause."""
    size, slope = (float(torch.linalg.vector_norm(v)) for v in (s.x, s.est.v))
    if size <= limit and math.isfinite(slope):
        return None
    if math.isfinite(size) and size <= limit:
        what, cause = "the gradient is not finite", NOT_FINITE
    elif not all(bool(y.isfinite().all()) for y in s.ys):
        what, cause = "y, which a prox or denoiser made, is not finite", "look for NaN or infinity there, or raise eta"
    else:
        what = f"|x| = {size:.3g} has exploded" if math.isfinite(size) else "x is not finite"
        cause = "the step 1/eta is likely too long for this problem: raise eta, or take smadmm.tuning.auto's"
    return f"{what} after iteration {s.k}; {cause}"
