"""What an inspection tells, and the repairs that can be switched off."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smadmm.arguments import ArgumentError

REPAIRS = ("angles", "axis", "completion", "air", "width", "detectors", "stripes", "rays", "views", "noise", "negative")


class Finding(NamedTuple):
    """What was found in the data; `repaired` where data, weights or geometry were changed for it.

    >>> Finding("dead", "detector 7 is dead", repaired=True).kind
    'dead'
    """

    kind: str
    text: str
    repaired: bool


def skipped(raw: bool | Collection[str]) -> frozenset[str]:
    """The repairs that are switched off, by name."""
    if isinstance(raw, bool):
        return frozenset(REPAIRS if raw else ())
    names = frozenset([raw] if isinstance(raw, str) else raw)
    if names - set(REPAIRS):
        wrong, known = ", ".join(sorted(names - set(REPAIRS))), ", ".join(REPAIRS)
        raise ArgumentError("{raw} names repairs to switch off, and {0} is none; there are {1}", wrong, known)
    return names


def numbered(word: str, which: NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(which)
    listed = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"{word} {listed} is" if len(numbers) == 1 else f"{len(numbers)} {word}s ({listed}) are"
