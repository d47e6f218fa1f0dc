"""What a scan leaves open beside the object: the probe and the positions, each a block with its own steps.

With d_i = F'((1 - y/|z_i|) z_i), z_i = F(P_i x_i), x_i the object in window i and S_i the shift by its fraction:
    probe      P -= sum_i S_i'(conj(x_i) d_i) / sum_i |x_i|^2                         the curvature of every pixel
    positions  one Gauss-Newton step on |z_i| - y_i, with the slopes  Re(conj(z_i)/|z_i| F(x_i dP_i/dr))
    rPIE       position by position  x_i -= conj(P_i) d_i / (.8 |P_i|^2 + .2 max |P_i|^2), and so P with x_i
Patterns fix the product of probe and object only: a factor and a ramp may go from one to the other. Where a pattern has
few photons, single positions carry the factor ever further, so that rPIE keeps the energy of the probe; and it then
makes a poor probe (`tells`). Every position that is visited counts as one sample gradient.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.losses.phase import SMALLEST
from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography, shifted
from smadmm.sampling import Rng

ALONE = 0.5  # of the object: an error of one pattern's object with which rPIE is of use
SOFT, SOFT_PROBE = 0.2, 1.0  # of the largest power, in the steps of rPIE; 1: those of ePIE
FAR = 0.5  # pixels: the longest step of a position
FAINT = 0.05  # of the largest curvature of a probe's pixels


def redescribed(loss: PtychographyLoss, probe: Tensor, positions: NDArray[np.float64]) -> PtychographyLoss:
    """The loss of the same patterns with another probe or other positions."""
    operator = Ptychography(probe, positions, loss.operator.size)
    return PtychographyLoss(operator, loss.amplitudes, loss.sampling, loss.dark)


def scaled_probe(probe: Tensor, amplitudes: Tensor) -> Tensor:
    """A first guess with the energy of the mean pattern, so that the object is about 1."""
    energy = amplitudes.clamp(min=0).square().sum((1, 2)).mean().sqrt()
    scaled: Tensor = probe * (energy / probe.norm())
    return scaled


def tells(noise: float, probe: Tensor) -> bool:
    """Whether one pattern tells more of an object of about 1 than noise: its error s sqrt(2) / max |P| is small."""
    return noise * math.sqrt(2) < ALONE * float(probe.abs().max())


def rpie(loss: PtychographyLoss, x: Tensor, epochs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Object and probe after passes over the positions in random order; the probe is left alone in the first."""
    operator, x, probe = loss.operator, x.clone(), loss.operator.probe.clone()
    height, width = operator.window
    for epoch in range(epochs):
        for number in Rng(seed, epoch).permutation(operator.count).tolist():
            (r, c), fraction = operator.corners[number], operator.fractions[number]
            there, window = shifted(probe, *fraction), x[r : r + height, c : c + width]
            z, data = torch.fft.fft2(there * window, norm="ortho"), loss.amplitudes[number]
            step = torch.fft.ifft2(z * ((1 - data / (z.abs() + SMALLEST)) * (data >= 0)), norm="ortho")
            power, strength = there.abs().square(), window.abs().square()
            if epoch > 0:
                back = window.conj() * step / ((1 - SOFT_PROBE) * strength + SOFT_PROBE * strength.max())
                probe = probe - shifted(back, -fraction[0], -fraction[1])
            window -= there.conj() * step / ((1 - SOFT) * power + SOFT * power.max())
        factor = loss.operator.probe.norm() / probe.norm()
        x, probe = x / factor, probe * factor
    return x, probe


def probe_step(loss: PtychographyLoss, x: Tensor, steps: int = 1) -> Tensor:
    """The probe after gradient steps with the object as it is, each over all positions."""
    operator, probe, everything = loss.operator, loss.operator.probe, loss.everything
    windows = operator.windows(x, everything)
    curvature = windows.abs().square().sum(0)
    curvature = curvature.clamp(min=FAINT * float(curvature.max()))
    for _ in range(steps):
        back = windows.conj() * torch.fft.ifft2(loss.residuals(x, everything), norm="ortho")
        moved = [shifted(part, -r, -c) for part, (r, c) in zip(back, operator.fractions, strict=True)]
        probe = probe - torch.stack(moved).sum(0) / curvature
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
