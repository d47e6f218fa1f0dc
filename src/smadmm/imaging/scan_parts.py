"""Parts of a scan, and a first object: what guesses, fits and checks of it begin with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.losses.ptychography import PtychographyLoss
from smadmm.operators.ptychography import Ptychography

NEAR = 36  # positions that stand for all


def neighbours(loss: PtychographyLoss) -> PtychographyLoss:
    """The scan of the positions around the middle one."""
    places = loss.operator.positions
    far = np.linalg.norm(places - np.median(places, axis=0), axis=1)
    chosen = np.sort(np.argsort(far, kind="stable")[:NEAR])
    return placed(loss.operator.probe, places[chosen], loss.amplitudes[torch.from_numpy(chosen)])


def placed(probe: Tensor, places: NDArray[np.float64], data: Tensor) -> PtychographyLoss:
    """A scan at these positions, moved to where the object begins."""
    return PtychographyLoss(Ptychography(probe, places - places.min(0)), data)


def constant_object(loss: PtychographyLoss) -> Tensor:
    """The constant with the energy of the patterns."""
    operator, data = loss.operator, loss.amplitudes
    ones, seen = torch.ones(operator.size, dtype=operator.dtype, device=operator.device), data >= 0
    return ones * (data[seen].square().sum() / operator(ones).abs()[seen].square().sum()).sqrt()
