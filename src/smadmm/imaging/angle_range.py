"""Whether the angles are half as large as those of the views.

With t measured along the detector, the moments of a view, M_n = sum_j t_j^n b_ij / sum_j b_ij, are trigonometric
polynomials of degree n in its angle: the centre of mass is a sine. With all angles halved they are none any more, so
far as the object shows it: one in the middle, alike from all sides, says nothing. How noisy moments are is measured by
differences from view to view. The opposite, angles that are twice as large as they should be, looks like an object that
creeps aside, and is not told.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from smadmm.imaging.geometry import Array, air_of

FITS, FAILS = 1.6, 2.5  # noises that a fit leaves: with angles that are right, and with wrong ones, at least
WORSE = 2.5  # times as much is left with wrong angles
LARGE = 2e-3  # of half the detector: less is no evidence
FEWEST = 24  # views
MOST = 400.0  # degrees: scans of more than a turn are rare


def are_halved(b: NDArray[np.float32], degrees: Array) -> bool:
    """Whether the views contradict their angles, and fit angles twice as large."""
    order = np.argsort(degrees, kind="stable")
    a, moments = np.deg2rad(degrees[order] - degrees.min()), _moments(b[order].astype(np.float64))
    if len(b) < FEWEST or moments is None or 2 * np.rad2deg(a[-1]) > MOST:
        return False
    contradicted = False
    for degree, moment in enumerate(moments, 1):
        noise = max(float(np.sqrt((np.diff(moment, 3) ** 2).mean() / 20)), 1e-4)
        told, twice = _left(moment, a, degree), _left(moment, 2 * a, degree)
        if twice > FITS * noise:
            return False
        contradicted |= told > max(FAILS * noise, WORSE * twice, LARGE)
    return contradicted


def doubt(b: NDArray[np.float32], degrees: Array) -> str | None:
    """A warning that names the likelier range; None where there is no doubt."""
    if not are_halved(b, degrees):
        return None
    first, end = degrees.min(), degrees.max() + float(np.median(np.diff(np.sort(degrees))))
    return (
        f"the views contradict their angles, {first:.4g} to {end:.4g} degrees, and agree with angles twice as large: "
        f"{first:.4g} to {2 * end - first:.4g} degrees are likely; check them"
    )


def _moments(b: Array) -> list[Array] | None:
    """The first two, in units of half the detector; None if views have no mass."""
    air, detectors = air_of(b), b.shape[1]
    p, t = b - 0.5 * (air.left + air.right)[:, None], np.linspace(-1, 1, detectors)
    mass = p.sum(1)
    return [(p @ t**n) / mass for n in (1, 2)] if np.median(mass) > 0 and mass.min() > 0.5 * np.median(mass) else None


def _left(moment: Array, a: Array, degree: int) -> float:
    """What a trigonometric polynomial leaves, root mean square per degree of freedom."""
    waves = [wave(n * a) for n in range(1, degree + 1) for wave in (np.cos, np.sin)]
    u, s, _ = np.linalg.svd(np.stack([np.ones_like(a), *waves], axis=1), full_matrices=False)
    basis = u[:, s > 1e-3 * s[0]]
    rest = moment - basis @ (basis.T @ moment)
    return math.sqrt(float((rest**2).sum()) / (len(moment) - basis.shape[1]))
