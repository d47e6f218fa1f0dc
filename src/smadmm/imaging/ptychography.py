"""Ptychography from arrays: the object that a probe has scanned, and the probe itself where it is not known.

The error of a fit without prior at a pixel with the light w = 1/n sum_i |P_i|^2 is lv = s sqrt(2 / (n w)) per real
value, s the noise per amplitude (1/2 of square roots of counts), as phase_fit.py says of masks. s is taken from what
such a fit leaves at bright pixels of the detector: most others hold no photons and no noise. SMADMM follows with a
denoiser of real and imaginary part for the level of the mean light and the weight rho = w/2. It begins at the fit, but
at low counts at a constant unless the object is far from one: such a fit is full of errors that the prior does not take
back. After FIRST iterations on amplitudes the loss is the likelihood of counts, which dark pixels of the detector do
not bias (losses/ptychography.py): from a constant it would be slow, as dark pixels have hardly a gradient. Only pixels
with light are known.

An unknown probe is a second block (probe.py) with steps of its own, in the fit as after every ROUND iterations of
SMADMM; so are open positions. The state of the solver goes on.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import ArgumentError
from smadmm.distributed import if_joined
from smadmm.imaging.metrics import align, snr, ssim, without_ramp
from smadmm.imaging.phase import NATURAL, Still
from smadmm.imaging.phase_checks import holes, saturation, told_pixels
from smadmm.imaging.pnp import pnp
from smadmm.imaging.priors import ComplexProx, Prior, find_prior
from smadmm.imaging.probe import fit_blocks, position_step, probe_step, redescribed, scaled_probe
from smadmm.imaging.probe_guess import centred, guessed_probe
from smadmm.imaging.ptychography_checks import constant_object, empty_patterns, scan_doubts
from smadmm.imaging.red import RED
from smadmm.imaging.result import DataWarning, ImageResult
from smadmm.losses.phase import NO_DATA
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography
from smadmm.problem import Prox, Step
from smadmm.records import History
from smadmm.results import Reason, Result
from smadmm.running import Stop, run
from smadmm.sampling import reshuffled
from smadmm.solver import ADMM, State
from smadmm.xsteps import Metric

FIT, MOVES, SHORT = 300, 6, 25  # steps of a fit at most; rounds in which positions move, the steps of each
ITERATIONS = 200
FIRST, DARK = 60, 0.1  # iterations on amplitudes; photons e of the counts' likelihood
ROUND, PROBE_STEPS = 10, 1  # iterations between refinements of probe and positions; the probe's steps then
LIT = 0.05  # of the largest light: darker pixels are not judged
STILL = 0.001  # of lv
DIM = 2  # times the level of the weakest denoiser: the level of a fit that is a worse start than a constant
FAR = 0.66  # of an object: what is left of it beside a constant; phases of all sizes leave 1
PIECE = 512  # positions of a whole gradient; with more, batches
GUESSED = "the probe was not given: it was guessed from the mean pattern and found with the object"


@dataclass(frozen=True)
class ScanFit:
    """An object fitted to a scan without a prior: residual and noise per amplitude, light of every pixel."""

    image: Tensor
    residual: float
    noise: float
    light: Tensor
    count: int  # positions
    sfo: int  # sample gradients that it took

    @property
    def lit(self) -> Tensor:
        return self.light > LIT * self.light.max()

    @property
    def extent(self) -> float:
        """The largest modulus but for outliers."""
        return float(np.quantile(self.image[self.lit].abs().cpu().numpy(), 0.999))

    @property
    def level(self) -> float:
        """lv: its error at the mean light of the pixels that are judged."""
        return self.noise * math.sqrt(2 / (self.count * float(self.light[self.lit].mean())))

    @property
    def dim(self) -> bool:
        """Whether a constant is a better start: there is little light, and the object is not far from a constant."""
        lit = self.image[self.lit]
        far = float((lit - lit.mean()).norm() / lit.norm())
        return self.level > DIM * NATURAL[0][0] * self.extent and far < FAR


def residual_of(loss: PtychographyLoss, x: Tensor) -> float:
    """The root mean square of |A x| - y over all measured amplitudes."""
    amplitudes = _of_counts(loss, 0.0)
    return math.sqrt(2 * loss.n * float(amplitudes.value(x, loss.full())) / max(int((loss.amplitudes >= 0).sum()), 1))


def _of_counts(loss: PtychographyLoss, dark: float) -> PtychographyLoss:
    """The loss with the likelihood of counts, or with 0 the one of amplitudes."""
    return PtychographyLoss(loss.operator, loss.amplitudes, loss.sampling, dark)


def fit_scan(
    loss: PtychographyLoss, refine_probe: bool = False, refine_positions: bool = False
) -> tuple[PtychographyLoss, ScanFit]:
    """The scan as it is described then, and the fit, from a constant; open positions move between shorter fits."""
    if refine_probe:
        loss = redescribed(loss, scaled_probe(loss.operator.probe, loss.amplitudes), loss.operator.positions)
    x, visits = constant_object(loss), 0
    for _ in range(MOVES if refine_positions else 0):
        (x, probe), _, steps = fit_blocks(loss, x, SHORT, (True, refine_probe))
        loss = redescribed(loss, probe, loss.operator.positions)
        loss, visits = redescribed(loss, probe, position_step(loss, x)), visits + (steps + 1) * loss.n
    (x, probe), last, steps = fit_blocks(loss, x, FIT, (True, refine_probe))
    noise = bright_noise(redescribed(loss, last[1], loss.operator.positions), last[0])
    loss = redescribed(loss, probe, loss.operator.positions)
    return loss, ScanFit(x, residual_of(loss, x), noise, loss.operator.light(), loss.n, visits + steps * loss.n)


def bright_noise(loss: PtychographyLoss, x: Tensor) -> float:
    """The noise per amplitude at bright pixels of the detector, from what a fit leaves there."""
    data = loss.amplitudes
    bright = data > data[data >= 0].square().mean().sqrt()
    return float((loss.operator(x).abs() - data)[bright].square().mean().sqrt())


@dataclass(frozen=True)
class Constrained(Prox):
    """A prox, then the projection to a constraint: as denoisers are cut to the range of images."""

    free: Prox
    constraint: Prox

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignores_step", self.free.ignores_step)

    def prox(self, v: Tensor, t: Step) -> Tensor:
        return self.constraint.prox(self.free.prox(v, t), t)


@dataclass(frozen=True)
class ScanPlan:
    """How the object is found once the noise is known, and what is refined beside it."""

    prior: str | None = None
    strength: float = 1.0
    iterations: int = ITERATIONS
    batch: int | None = None
    seed: int = 0
    refine_probe: bool = False
    refine_positions: bool = False
    constraint: Prox | None = None

    def found_prior(self, loss: PtychographyLoss, fit: ScanFit) -> Prior:
        """The denoiser for the error of the fit."""
        name = self.prior or next(name for most, name in NATURAL if fit.level <= most * max(fit.extent, fit.level))
        return find_prior(name, loss.operator.device, None, min(fit.level, 1.0))

    def solver(self, loss: PtychographyLoss, prior: Prior) -> ADMM | RED:
        """SMADMM on the scan as it is described now; with all positions gradients are exact."""
        size, light = self.size(loss), loss.operator.light()
        floor, lit = LIT * float(light.max()), light > LIT * light.max()
        rho, whole = 0.5 * self.strength * float(light[lit].mean()), size >= loss.n
        loss.sampling = reshuffled  # whole passes: of positions as of views
        crowded = 1.0 if whole else min(4.0, loss.n / size)  # a batch may lie on one spot
        step = Metric(crowded * light.clamp(min=floor) + rho)
        h: Prox = ComplexProx(prior.prox(rho))
        h = h if self.constraint is None else Constrained(h, self.constraint)
        return pnp(if_joined(loss), h, "smadmm", size, rho, 1.0, a=1.0 if whole else None, x_step=step,
                   seed=self.seed)  # fmt: skip

    def size(self, loss: PtychographyLoss) -> int:
        """Positions per iteration."""
        return self.batch or (loss.n if loss.n <= PIECE else 64)

    def run(
        self, loss: PtychographyLoss, fit: ScanFit, prior: Prior, truth: Tensor | None
    ) -> tuple[Result, PtychographyLoss, int]:
        """The result, the scan as it is described in the end, and the sample gradients of probe and positions."""
        whole, visits = self.size(loss) >= loss.n, 0
        passes = 1 if whole else -(-loss.n // self.size(loss))
        still = Still(STILL * fit.level) if whole else None
        start: Tensor | State = constant_object(loss) if fit.dim else fit.image
        history = History()
        for end in self.ends():
            result = run(self.solver(loss, prior), start, Stop(iterations=end * passes), every=10, objective=False,
                         metrics=_metric(loss, truth, self.refine_probe), callback=still, progress=False)  # fmt: skip
            history, start = _continued(history, result.history), result.state
            if result.interrupted or end == self.iterations:
                break
            loss, more = self.refined(loss, result.x)
            loss = _of_counts(loss, DARK * (2 * fit.noise) ** 2) if end >= FIRST else loss
            visits += more
        return replace(result, history=history), loss, visits

    def ends(self) -> list[int]:
        """The iterations after which the scan is described anew, and the last one."""
        blind, last = self.refine_probe or self.refine_positions, self.iterations
        inner = range(ROUND, last, ROUND) if blind else range(FIRST, min(last, FIRST + 1))
        return [*inner, last]

    def refined(self, loss: PtychographyLoss, x: Tensor) -> tuple[PtychographyLoss, int]:
        """The scan with what is open refined, and what that cost."""
        if self.refine_positions:
            loss = redescribed(loss, loss.operator.probe, position_step(loss, x))
        if self.refine_probe:
            loss = redescribed(loss, probe_step(loss, x, PROBE_STEPS), loss.operator.positions)
        return loss, loss.n * (self.refine_positions + PROBE_STEPS * self.refine_probe)


def scan_snr(truth: Tensor, x: Tensor, light: Tensor, blind: bool = True) -> float:
    """The SNR over the pixels that have light, after what the patterns leave open is removed.

    That is a phase, and with an unknown probe a factor and a ramp of the phase.
    """
    lit = light > LIT * light.max()
    if blind:
        return snr(truth[lit], without_ramp(truth, x, lit)[lit])
    return snr(truth[lit], align(truth[lit], x[lit]))


def retrieve_scan(
    patterns: Any,
    positions: Any,
    probe: Any,
    plan: ScanPlan,
    *,
    shape: tuple[int, int] | None = None,
    quantity: str = "amplitudes",
    valid: Any = None,
    truth: Any = None,
) -> ImageResult:
    """The object of a scan; see `smadmm.retrieve`."""
    begin = time.perf_counter()
    given, told = _scan(patterns, positions, probe, shape, quantity, valid)
    if probe is None:
        given, plan = centred(given), replace(plan, refine_probe=True)
    if plan.refine_probe:
        guess = guessed_probe(given, probe is not None)
        given = redescribed(given, guess, given.operator.positions)
    loss, fit = fit_scan(given, plan.refine_probe, plan.refine_positions)
    prior = plan.found_prior(loss, fit)
    exact = None if truth is None else torch.from_numpy(np.asarray(truth).astype(np.complex64))
    result, loss, visits = plan.run(loss, fit, prior, exact)
    found = result.x if plan.constraint is None else plan.constraint.prox(result.x, 1.0)
    told += scan_doubts(given, loss, fit.image, (plan.refine_probe, plan.refine_positions), quantity)
    for text in told:
        warnings.warn(text, DataWarning, stacklevel=3)
    row = _row(loss, fit, result, visits) | {"residual": residual_of(loss, found) / _size(loss)}
    row["seconds"] = time.perf_counter() - begin
    quality, pictures = _pictures(fit, found, exact, plan.refine_probe)
    made = list(pictures.values())[-1]
    return ImageResult(
        verb="Ptychography",
        image=made if isinstance(patterns, Tensor) else made.numpy(),
        shown={name: x.abs().float().numpy() for name, x in pictures.items()},
        slices=[row | quality],
        histories=[result.history],
        settings=_settings(loss, fit, prior, plan) | {"data": quantity, "total_seconds": row["seconds"]},
        notes=(GUESSED,) * (probe is None),
        warnings=tuple(told),
        interrupted=result.interrupted,
        unit="transmission",
        probe=loss.operator.probe.numpy(),
        positions=loss.operator.positions,
    )


def _size(loss: PtychographyLoss) -> float:
    """The root mean square of the measured amplitudes."""
    return float(loss.amplitudes[loss.amplitudes >= 0].square().mean().sqrt())


def _row(loss: PtychographyLoss, fit: ScanFit, result: Result, visits: int) -> dict[str, Any]:
    size = _size(loss)
    return {"iterations": result.state.k, "sfo": fit.sfo + result.state.sfo + visits, "sfo_fit": fit.sfo,
            "relative_noise": fit.noise / size, "residual_fit": fit.residual / size,
            "stopped": "no more change" if result.reason is Reason.CALLBACK else result.reason.value}  # fmt: skip


def _settings(loss: PtychographyLoss, fit: ScanFit, prior: Prior, plan: ScanPlan) -> dict[str, Any]:
    operator = loss.operator
    return {"method": "smadmm", "prior": prior.name, "strength": plan.strength, "seed": plan.seed,
            "positions": loss.n, "probe": list(operator.window), "size": list(operator.size), "noise": fit.noise,
            "refine_probe": plan.refine_probe, "refine_positions": plan.refine_positions,
            "prior_sigma": prior.sigma, "prior_lipschitz": prior.lipschitz}  # fmt: skip


def _scan(
    patterns: Any, positions: Any, probe: Any, shape: tuple[int, int] | None, quantity: str, valid: Any
) -> tuple[PtychographyLoss, list[str]]:
    """The loss of a scan from arrays, and what is wrong with pixels of the detector."""
    data = np.asarray(patterns).astype(np.float32)
    if data.ndim != 3:
        raise ArgumentError("{patterns} are n x height x width, got the shape {0}", data.shape)
    field = np.ones(data.shape[1:], np.complex64) if probe is None else np.asarray(probe).astype(np.complex64)
    if not (np.isfinite(field).all() and field.any()):
        raise ValueError("the probe is zero everywhere or has values that are not finite; give its complex field")
    operator = Ptychography(torch.from_numpy(field), positions, shape)
    if data.shape != operator.out_shape:
        raise ArgumentError("{patterns} has the shape {0}, but {positions} and {probe} need {1}", data.shape,
                            operator.out_shape)  # fmt: skip
    if not (np.isfinite(data).all() and data.min() >= 0):
        raise ValueError(f"the patterns have {quantity} that are negative or not finite, the least {data.min():g}")
    data = np.sqrt(data) if quantity == "intensities" else data
    kept = np.ones(data.shape[1:], dtype=bool) if valid is None else np.asarray(valid).astype(bool)
    if kept.shape not in (data.shape, data.shape[1:]) or not kept.any():
        raise ArgumentError(
            "{valid} is {0} with {1} valid pixels, the patterns {2}", kept.shape, kept.sum(), data.shape
        )
    seen = np.broadcast_to(kept, data.shape)
    dead, top = holes((data.astype(np.float64) ** 2).sum(0)) & seen.any(0), saturation(data[seen])
    told = told_pixels(data[seen], dead, top)
    seen = seen & ~dead & (data < (math.inf if top is None else top))
    empty = empty_patterns(data)
    if empty.any():
        told.append(f"{empty.sum()} patterns hold no light, the first of them {empty.argmax()}: they are left out.")
        seen = seen & ~empty[:, None, None]
    return PtychographyLoss(operator, torch.from_numpy(np.where(seen, data, np.float32(NO_DATA)))), told


def _metric(loss: PtychographyLoss, truth: Tensor | None, blind: bool) -> dict[str, Callable[[State], float]]:
    """SNR where the truth is known, the relative residual elsewhere."""
    if truth is not None:
        light = loss.operator.light()
        return {"snr": lambda s: scan_snr(truth, s.answer, light, blind)}
    size = _size(loss)
    return {"residual": lambda s: residual_of(loss, s.answer) / size}


def _continued(history: History, more: History) -> History:
    """Both, one after the other: the first row of a later part is the last one of the part before it."""
    spent = history["seconds"][-1] if history.rows else 0.0
    for number in range(1 if history.rows else 0, more.rows):
        row = {name: values[number] for name, values in more.items()}
        history.append(row | {"seconds": row["seconds"] + spent})
    return history


def _pictures(
    fit: ScanFit, found: Tensor, exact: Tensor | None, blind: bool
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """SNR where the truth is known, and the images as it lets them be compared."""
    pictures = {"without prior": fit.image, "SMADMM": found}
    if exact is None:
        return {}, pictures
    made = {name: without_ramp(exact, x, fit.lit) if blind else align(exact, x) for name, x in pictures.items()}
    quality = {"snr": scan_snr(exact, found, fit.light, blind), "snr_fit": scan_snr(exact, fit.image, fit.light, blind)}
    quality |= {"ssim": ssim(exact, made["SMADMM"]), "ssim_fit": ssim(exact, made["without prior"])}
    return quality, {"truth": exact} | made
