"""The fit of a scan without a prior: object and probe as one vector u = (x, P), and the positions.

The fields are bilinear, z_i(u) = F(P_i x_i), x_i the object in window i, so that along a direction d
    z(u + t d) = B(u, u) + t (B(u, d) + B(d, u)) + t^2 B(d, d),         B(u, v)_i = F(P_i of u, x_i of v),
and a step is found without further transforms. With r_i = F'((1 - y/|z_i|) z_i) and S_i the shift by a fraction
    gradient     sum_i conj(P_i) r_i into window i              sum_i S_i'(conj(x_i) r_i)
    curvature    sum_i |P_i|^2 of every pixel                   sum_i |x_i|^2
Steps are those of conjugate gradients (Polak and Ribiere) on gradient over curvature. Noise is fitted after the object:
a share of the amplitudes is held out, and the fit is the u that predicts these best. This ends a fit of few photons
after some steps, and lets one of many photons take the hundreds that an unknown probe needs.

Positions take one Gauss-Newton step each on |z_i| - y_i, with the slopes  Re(conj(z_i)/|z_i| F(x_i dP_i/dr)).
Patterns fix the product of probe and object only: a factor and a ramp may go from one to the other. Every position that
is visited counts as one sample gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from smadmm.losses.phase import SMALLEST
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography
from smadmm.sampling import Rng

FAR = 0.5  # pixels: the longest step of a position
FAINT = 0.05  # of the largest curvature of a block's pixels
HELD, LOOK, PATIENCE = 0.05, 5, 80  # of the amplitudes; steps between looks at them; steps without a good look
ENOUGH = 1.03  # times the least error: what a probe may leave that went on
CLOSE, SHORTEST, LONGEST, HALVINGS = 0.2, 0.2, 3.0, 6  # of the first try of a step: a second one; how many shorter ones
UNSURE, AROUND = 0.1, 32  # of a probe's power: the square of its error; the window over the pixels around one
FRESH = 20  # steps after which fields are computed anew


def redescribed(loss: PtychographyLoss, probe: Tensor, positions: NDArray[np.float64]) -> PtychographyLoss:
    """The loss of the same patterns with another probe or other positions."""
    operator = Ptychography(probe, positions, loss.operator.size)
    return PtychographyLoss(operator, loss.amplitudes, loss.sampling, loss.dark)


def scaled_probe(probe: Tensor, amplitudes: Tensor) -> Tensor:
    """A first guess with the energy of the mean pattern, so that the object is about 1."""
    energy = amplitudes.clamp(min=0).square().sum((1, 2)).mean().sqrt()
    scaled: Tensor = probe * (energy / probe.norm())
    return scaled


class Joint:
    """1/2 |(|z(u)| - y) seen|^2 of object and probe as one vector u = (x, P), of which one block may be fixed."""

    def __init__(self, loss: PtychographyLoss, seen: Tensor, free: tuple[bool, bool] = (True, True)):
        self.operator, self.data, self.seen, self.free = loss.operator, loss.amplitudes, seen, free
        self.everything, self.sizes = (
            loss.everything,
            [math.prod(n) for n in (loss.operator.size, loss.operator.window)],
        )

    def parts(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Object and probe."""
        x, probe = u.split(self.sizes)
        return x.view(self.operator.size), probe.view(self.operator.window)

    def fields(self, u: Tensor, v: Tensor) -> Tensor:
        """B(u, v): the probe of u on the object of v."""
        probes = self.operator.moved(self.parts(u)[1])
        z: Tensor = torch.fft.fft2(probes * self.operator.windows(self.parts(v)[0], self.everything), norm="ortho")
        return z

    def along(self, u: Tensor, d: Tensor) -> tuple[Tensor, Tensor | float]:
        """What is linear and what is quadratic in a step from u along d."""
        if all(self.free):
            return self.fields(u, d) + self.fields(d, u), self.fields(d, d)
        return (self.fields(u, d) if self.free[0] else self.fields(d, u)), 0.0

    def value(self, z: Tensor) -> float:
        return 0.5 * float(((z.abs() - self.data) * self.seen).square().sum())

    def gradient(self, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, 0 in a block that is fixed, and the curvature of every entry."""
        (x, probe), operator = self.parts(u), self.operator
        back = torch.fft.ifft2(z * ((1 - self.data / (z.abs() + SMALLEST)) * self.seen), norm="ortho")
        probes, windows = operator.moved(probe), operator.windows(x, self.everything)
        power = probes.abs().square().expand(len(self.data), -1, -1)
        slopes = (operator.add_windows(probes.conj() * back, self.everything, torch.zeros_like(x)),
                  operator.gathered(windows.conj() * back))  # fmt: skip
        light = (operator.add_windows(power, self.everything, torch.zeros_like(x.real)),
                 windows.abs().square().sum(0))  # fmt: skip
        slope = torch.cat([part.flatten() * free for part, free in zip(slopes, self.free, strict=True)])
        return slope, torch.cat([part.clamp(min=FAINT * float(part.max())).flatten() for part in light])

    def step(self, z: Tensor, linear: Tensor, square: Tensor | float, slope: float) -> tuple[float, Tensor]:
        """How far to go, and the fields there: the Gauss-Newton step, made better by the parabola that it shows."""
        speed = (z.conj() * linear).real / (z.abs() + SMALLEST)
        first, before = -slope / max(float((speed * self.seen).square().sum()), SMALLEST), self.value(z)

        def tried(t: float) -> tuple[float, float, Tensor]:
            there = z + t * linear + t**2 * square
            return self.value(there), t, there

        found = tried(first)
        bend = found[0] - before - slope * first
        second = -0.5 * slope * first**2 / bend if bend > 0 else 2 * first
        if abs(second - first) > CLOSE * first:
            found = min(found, tried(min(max(second, SHORTEST * first), LONGEST * first)), key=lambda each: each[0])
        for _ in range(HALVINGS):
            if found[0] <= before:
                break
            found = tried(found[1] / 4)
        return found[1:] if found[0] <= before else (0.0, z)


def conjugate(joint: Joint, u: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """u and its fields after each step; ends where no step lowers the value."""
    z, d, old, size = joint.fields(u, u), torch.zeros_like(u), torch.zeros_like(u), math.inf
    for number in range(1, steps + 1):
        g, curvature = joint.gradient(u, z)
        s = g / curvature
        turn = max(0.0, _dot(g - old, s) / size)
        d, old, size = turn * d - s, g, max(_dot(g, s), SMALLEST)
        if _dot(g, d) >= 0:
            d = -s
        t, z = joint.step(z, *joint.along(u, d), _dot(g, d))
        if t == 0:
            return
        u = u + t * d
        z = joint.fields(u, u) if number % FRESH == 0 else z  # against rounding
        yield u, z


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.vdot(a, b).real)


def fit_blocks(
    loss: PtychographyLoss, x: Tensor, steps: int, free: tuple[bool, bool] = (True, True), enough: float = 1.0
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]:
    """Object and probe as they predict amplitudes best that are held out, the last ones, and the number of steps."""
    measured = loss.amplitudes >= 0
    held = measured & (torch.from_numpy(Rng(0, 0).random(measured.shape, dtype=np.float32)) < HELD).to(x.device)
    joint, least, chosen = Joint(loss, measured & ~held, free), math.inf, 0
    u = best = last = torch.cat([x.flatten(), loss.operator.probe.flatten()])
    number = 0
    for number, (last, z) in enumerate(conjugate(joint, u, steps), 1):
        if number % LOOK == 0:
            error = float(((z.abs() - loss.amplitudes) * held).square().sum())
            least = min(least, error)
            if error <= enough * least:
                chosen, best = number, last
            elif number >= chosen + PATIENCE:
                break
    return joint.parts(best), joint.parts(last), number


@dataclass(frozen=True)
class LikelyProbe:
    """What is known of a probe before the object is: a first one, and the weight per pixel of staying near it."""

    probe: Tensor
    weight: Tensor | float


def likely_probe(probe: Tensor, noise: float) -> LikelyProbe:
    """The probe is off by UNSURE of the power that the first one has around a pixel; noise is that of amplitudes."""
    power = probe.abs().square()[None, None]
    reach = max(1, min(probe.shape) // AROUND) * 2 + 1
    around = avg_pool2d(power, reach, stride=1, padding=reach // 2, count_include_pad=False)[0, 0]
    return LikelyProbe(probe, 2 * noise**2 / (UNSURE * around.clamp(min=FAINT * float(around.max()))))


def probe_step(loss: PtychographyLoss, x: Tensor, steps: int = 1, likely: LikelyProbe | None = None) -> Tensor:
    """The probe after gradient steps with the object as it is, each over all positions."""
    operator, probe, everything = loss.operator, loss.operator.probe, loss.everything
    near = LikelyProbe(probe, 0.0) if likely is None else likely
    windows = operator.windows(x, everything)
    curvature = windows.abs().square().sum(0)
    curvature = curvature.clamp(min=FAINT * float(curvature.max())) + near.weight
    for _ in range(steps):
        back = torch.fft.ifft2(loss.residuals(x, everything), norm="ortho")
        slope = operator.gathered(windows.conj() * back) + near.weight * (probe - near.probe)
        probe = probe - slope / curvature
        loss = redescribed(loss, probe, operator.positions)
    return probe


def position_step(loss: PtychographyLoss, x: Tensor) -> NDArray[np.float64]:
    """The positions after one Gauss-Newton step each; their mean stays, as the object may move with them."""
    operator, everything = loss.operator, loss.everything
    z, data = operator.forward_views(x, everything), loss.amplitudes
    seen = (data >= 0).to(data.dtype)
    gap, phase = (z.abs() - data) * seen, z / (z.abs() + SMALLEST)
    slopes = []
    for axis in (0, 1):
        moved = _slope(operator.probes(everything), axis) * operator.windows(x, everything)
        slopes.append((phase.conj() * torch.fft.fft2(moved, norm="ortho")).real * seen)
    J = torch.stack(slopes, -1).flatten(1, 2).double()
    gram = J.mT @ J
    gram = gram + 1e-6 * gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-30)[:, None, None] * torch.eye(2)
    step = -torch.linalg.solve(gram, (J.mT @ gap.flatten(1).double()[..., None]))[..., 0].clamp(-1e6, 1e6)
    step = step.clamp(-FAR, FAR).cpu().numpy()
    most = np.array(operator.size) - np.array(operator.window)
    moved_places: NDArray[np.float64] = np.clip(operator.positions + step - step.mean(0), 0, most)
    return moved_places


def _slope(probes: Tensor, axis: int) -> Tensor:
    """dP/dr or dP/dc of probes, as they are shifted."""
    count = probes.shape[1 + axis]
    ramp = (-2j * math.pi * torch.fft.fftfreq(count, dtype=torch.float64, device=probes.device)).to(probes.dtype)
    slope: Tensor = torch.fft.ifft2(torch.fft.fft2(probes) * (ramp[:, None] if axis == 0 else ramp))
    return slope
