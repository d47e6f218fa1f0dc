"""Whether the positions of a scan should be closer together or farther apart, as after a wrong size of a pixel.

An object can be made that explains patterns from such positions nearly as well, so the misfit of a fit says little. The
likelihood after some iterations with a prior does (probe_guess.py), where the probe is known: an unknown one would take
up the factor, as another focus.
"""

from __future__ import annotations

from smadmm.imaging.probe_guess import unlikely, with_probe
from smadmm.imaging.scan_parts import neighbours, placed
from smadmm.losses.ptychography import PtychographyLoss

FACTOR, LEAST, MOST = 1.05, 2, 8  # of positions in one step; steps that are said, and at most
CLEAR = 50.0  # how much more likely, as a logarithm, before it is said
SHARE = 0.02  # of that logarithm, at the least


def position_scale(loss: PtychographyLoss, noise: float) -> float | None:
    """The factor by which positions are most likely farther apart than given; None: not clearly another than 1."""
    few = with_probe(neighbours(loss), loss.operator.probe)
    weight = few.n / (2 * noise**2)  # of the loss in the logarithm of the likelihood

    def least(step: int) -> float:
        spread = few.operator.positions * FACTOR**step
        return weight * unlikely(placed(few.operator.probe, spread, few.amplitudes), noise)

    here = least(0)
    for turn in (1, -1):
        best, there = 0, here
        while best < MOST and (further := least(turn * (best + 1))) < there:
            best, there = best + 1, further
        if best:
            clear = here - there > max(CLEAR, SHARE * here)
            return FACTOR ** (turn * best) if LEAST <= best < MOST and clear else None
    return None
