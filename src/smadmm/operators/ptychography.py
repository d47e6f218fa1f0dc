"""Ptychography, A_i x = F(P_i x[window i]): far-field patterns of a probe P at n positions of an object x.

A position is (row, column) of the probe's upper left corner, in pixels of the object, whose upper left pixel is (0, 0).
Between pixels the probe is shifted by the fraction, by a ramp on its Fourier transform. F is the unitary 2-D FFT, zero
frequency first. A_i'z = conj(P_i) F'z put back into window i, and A'A is the diagonal sum_i |P_i|^2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.operators.linear import Norm, Operator, Shape


def shifted(fields: Tensor, by: Tensor) -> Tensor:
    """Each field moved by its row and column of `by`, fractions of a pixel; n x height x width."""
    rows, columns = (
        torch.exp(-2j * math.pi * by[:, axis, None] * torch.fft.fftfreq(n, dtype=torch.float64, device=by.device))
        for axis, n in enumerate(fields.shape[-2:])
    )
    ramp = (rows[:, :, None] * columns[:, None]).to(fields)
    moved: Tensor = torch.fft.ifft2(torch.fft.fft2(fields) * ramp)
    return moved


class Ptychography(Operator):
    """x -> (F(P_1 x[window 1]), ..., F(P_n x[window n])) on complex objects of `shape`.

    >>> probe = torch.ones(8, 8, dtype=torch.complex64)
    >>> operators.Ptychography(probe, [(0, 0), (0, 4), (4, 0), (4, 4)]).out_shape
    (4, 8, 8)
    """

    def __init__(self, probe: Tensor, positions: Any, shape: Shape | None = None):
        places = np.asarray(positions, dtype=np.float64)
        if places.ndim != 2 or places.shape[1] != 2 or not len(places):
            raise ValueError(f"positions are n x 2, rows and columns, got shape {places.shape}")
        if probe.ndim != 2 or not probe.is_complex():
            raise ValueError(f"a probe is a complex image, got {probe.dtype} of shape {tuple(probe.shape)}")
        corners = np.floor(places + 1e-6).astype(np.int64)
        fractions = np.where(np.abs(places - corners) < 1e-6, 0.0, places - corners)
        ends = corners.max(0) + np.array(probe.shape)
        size = tuple(int(n) for n in (ends if shape is None else shape))
        if corners.min() < 0 or (ends > np.array(size)).any():
            raise ValueError(
                f"the probe reaches from {tuple(corners.min(0).tolist())} to {tuple(ends.tolist())}, beyond the object "
                f"of {size}; positions are (row, column) of its upper left corner in pixels, from 0 downwards"
            )
        self.positions, self.corners = places, corners.tolist()
        self.count, self.size, self.window = len(places), size, tuple(probe.shape)
        self.in_shape, self.out_shape = size, (self.count, *self.window)
        self.dtype, self.device = probe.dtype, probe.device
        self.probe = probe
        self.fractions = torch.from_numpy(fractions).to(probe.device) if fractions.any() else None
        self._moved = None if self.fractions is None else self.moved(probe)

    def probes(self, numbers: Tensor) -> Tensor:
        """The probe as it is at these positions; one for all where none is between pixels."""
        return self.probe[None] if self._moved is None else self._moved[numbers]

    def moved(self, probe: Tensor) -> Tensor:
        """A probe as it would be at all positions; one for all where none is between pixels."""
        return probe[None] if self.fractions is None else shifted(probe[None], self.fractions)

    def gathered(self, parts: Tensor) -> Tensor:
        """The adjoint of `moved`: what is found at every position, moved back and added."""
        return (parts if self.fractions is None else shifted(parts, -self.fractions)).sum(0)

    def windows(self, x: Tensor, numbers: Tensor) -> Tensor:
        """x[window i] of these positions."""
        h, w = self.window
        return torch.stack([x[r : r + h, c : c + w] for r, c in (self.corners[i] for i in numbers.tolist())])

    def add_windows(self, parts: Tensor, numbers: Tensor, out: Tensor) -> Tensor:
        """out[window i] += part i."""
        h, w = self.window
        for part, number in zip(parts, numbers.tolist(), strict=True):
            r, c = self.corners[number]
            out[r : r + h, c : c + w] += part
        return out

    def forward_views(self, x: Tensor, numbers: Tensor) -> Tensor:
        """F(P_i x[window i]) for these positions."""
        fields: Tensor = torch.fft.fft2(self.probes(numbers) * self.windows(x, numbers), norm="ortho")
        return fields

    def adjoint_views(self, z: Tensor, numbers: Tensor) -> Tensor:
        """sum_i conj(P_i) F'z_i, each in its window."""
        back: Tensor = self.probes(numbers).conj() * torch.fft.ifft2(z, norm="ortho")
        return self.add_windows(back, numbers, torch.zeros(self.size, dtype=z.dtype, device=z.device))

    def light(self) -> Tensor:
        """1/n sum_i |P_i|^2 of every pixel of the object."""
        everything = torch.arange(self.count)
        power = self.probes(everything).abs().square().expand(self.count, -1, -1)
        out = torch.zeros(self.size, dtype=power.dtype, device=power.device)
        self.add_windows(power, everything, out)
        return out.div_(self.count)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_views(x, torch.arange(self.count))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.adjoint_views(y, torch.arange(self.count))

    def norm(self, iterations: int = 100, seed: int = 0) -> Norm:
        return Norm(math.sqrt(self.count * float(self.light().max())))
