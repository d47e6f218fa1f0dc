"""How the object of a scan is found once its noise is known: SMADMM with a denoiser, and what is refined beside it.

The denoiser, of real and imaginary part, is for the level of the fit (scan_fit.py) at the mean light w; its weight is
rho = w/2. SMADMM begins at the fit, but at low counts at a constant unless the object is far from one: such a fit is
full of errors that the prior does not take back. After FIRST iterations on amplitudes the loss is the likelihood of
counts, which dark pixels of the detector do not bias (losses/ptychography.py): from a constant it would be slow, as
dark pixels have hardly a gradient.

An unknown probe is a second block (probe.py) with steps of its own after every ROUND iterations; so are open positions.
The state of the solver goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from smadmm.distributed import if_joined
from smadmm.imaging.metrics import align, snr, without_ramp
from smadmm.imaging.phase import NATURAL, Still
from smadmm.imaging.pnp import pnp
from smadmm.imaging.priors import ComplexProx, Prior, find_prior
from smadmm.imaging.probe import LikelyProbe, likely_probe, position_step, probe_step, redescribed
from smadmm.imaging.red import RED
from smadmm.imaging.scan_fit import LIT, ScanFit, of_counts, residual_of, size_of
from smadmm.imaging.scan_parts import constant_object
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.problem import Prox, Step
from smadmm.records import History
from smadmm.results import Result
from smadmm.running import Stop, run
from smadmm.sampling import reshuffled
from smadmm.solver import ADMM, State
from smadmm.xsteps import Metric

ITERATIONS = 120
FIRST, DARK = 60, 0.1  # iterations on amplitudes; photons e of the counts' likelihood
ROUND, PROBE_STEPS = 10, 2  # iterations between refinements of probe and positions; the probe's steps then
STILL = 0.001  # of lv
PIECE = 512  # positions of a whole gradient; with more, batches


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
        self, loss: PtychographyLoss, fit: ScanFit, prior: Prior, truth: Tensor | None, guess: Tensor
    ) -> tuple[Result, PtychographyLoss, int]:
        """The result, the scan as it is described in the end, and the sample gradients of probe and positions.

        Where a constant is the better start, so is the guess of the probe.
        """
        whole, visits = self.size(loss) >= loss.n, 0
        passes = 1 if whole else -(-loss.n // self.size(loss))
        still = Still(STILL * fit.level) if whole else None
        if fit.dim:
            loss = redescribed(loss, guess, loss.operator.positions)
        start: Tensor | State = constant_object(loss) if fit.dim else fit.image
        first = likely_probe(loss.operator.probe, fit.noise)
        history = History()
        for end in self.ends():
            result = run(self.solver(loss, prior), start, Stop(iterations=end * passes), every=10, objective=False,
                         metrics=_metric(loss, truth, self.refine_probe), callback=still, progress=False)  # fmt: skip
            history, start = _continued(history, result.history), result.state
            if result.interrupted or end == self.iterations:
                break
            loss, more = self.refined(loss, result.x, first)
            loss = of_counts(loss, DARK * (2 * fit.noise) ** 2) if end >= FIRST else loss
            visits += more
        return replace(result, history=history), loss, visits

    def ends(self) -> list[int]:
        """The iterations after which the scan is described anew, and the last one."""
        blind, last = self.refine_probe or self.refine_positions, self.iterations
        inner = range(ROUND, last, ROUND) if blind else range(FIRST, min(last, FIRST + 1))
        return [*inner, last]

    def refined(self, loss: PtychographyLoss, x: Tensor, likely: LikelyProbe) -> tuple[PtychographyLoss, int]:
        """The scan with what is open refined, and what that cost."""
        if self.refine_positions:
            loss = redescribed(loss, loss.operator.probe, position_step(loss, x))
        if self.refine_probe:
            loss = redescribed(loss, probe_step(loss, x, PROBE_STEPS, likely), loss.operator.positions)
        return loss, loss.n * (self.refine_positions + PROBE_STEPS * self.refine_probe)


def _metric(loss: PtychographyLoss, truth: Tensor | None, blind: bool) -> dict[str, Callable[[State], float]]:
    """SNR where the truth is known, the relative residual elsewhere."""
    if truth is not None:
        light = loss.operator.light()
        return {"snr": lambda s: scan_snr(truth, s.answer, light, blind)}
    size = size_of(loss)
    return {"residual": lambda s: residual_of(loss, s.answer) / size}


def _continued(history: History, more: History) -> History:
    """Both, one after the other: the first row of a later part is the last one of the part before it."""
    spent = history["seconds"][-1] if history.rows else 0.0
    for number in range(1 if history.rows else 0, more.rows):
        row = {name: values[number] for name, values in more.items()}
        history.append(row | {"seconds": row["seconds"] + spent})
    return history


def scan_snr(truth: Tensor, x: Tensor, light: Tensor, blind: bool = True) -> float:
    """The SNR over the pixels that have light, after what the patterns leave open is removed.

    That is a phase, and with an unknown probe a factor and a ramp of the phase.
    """
    lit = light > LIT * light.max()
    if blind:
        return snr(truth[lit], without_ramp(truth, x, lit)[lit])
    return snr(truth[lit], align(truth[lit], x[lit]))
