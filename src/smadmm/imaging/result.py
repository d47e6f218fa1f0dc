"""The result of a verb that makes images: the answer, what it was made from, and what is known of its quality."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smadmm.records import History

Array = NDArray[np.float32]
Limits = tuple[float, float]


class DataWarning(UserWarning):
    """The data, or how they were described, do not fit the result."""


@dataclass(frozen=True, repr=False)
class ImageResult:
    """An image (height x width) or volume (slices first), and how it was found; `shown` holds pictures of one slice.

    `slices` has a row of numbers per slice: residual, noise, iterations, seconds, and SNR and SSIM where the truth was
    given. `settings` says how it was made.
    """

    verb: str
    image: Any
    shown: Mapping[str, Array]  # the answer last but for the truth, which comes first
    slices: list[dict[str, Any]]
    histories: list[History]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    interrupted: bool = False
    unit: str = "attenuation per pixel"
    inspection: Any = None  # of the slice that is shown: smadmm.imaging.Inspection, where it was made
    trust: Any = None  # smadmm.imaging.Trust of that slice, where views were held out
    residual: Array | None = None  # b - A x of that slice, in the sinogram's unit, where it is in memory
    probe: NDArray[np.complex64] | None = None  # of ptychography, as it was given or found
    positions: NDArray[np.float64] | None = None  # likewise, rows and columns
    window: Limits | None = field(default=None)  # black and white of pictures; None: quantiles of the answer

    @property
    def history(self) -> History:
        """What was recorded for the slice that is shown, the one in the middle."""
        return self.histories[len(self.histories) // 2]

    def mean(self, name: str) -> float:
        """The mean of a number over the slices."""
        return float(np.mean([row[name] for row in self.slices]))

    def __contains__(self, name: str) -> bool:
        return bool(self.slices) and all(isinstance(row.get(name), (int, float)) for row in self.slices)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.image.shape))
        parts = [size]
        if "snr" in self:
            parts.append(f"SNR {self.mean('snr'):.2f} dB")
        if "residual" in self:
            noise = f" (noise {self.mean('relative_noise'):.2%})" if "relative_noise" in self else ""
            parts.append(f"residual {self.mean('residual'):.2%}{noise}")
        if self.trust is not None:
            parts.append(f"held-out views {self.trust.held_out[self.trust.prior]:.2%}")
        if self.slices:
            per = " per slice" if len(self.slices) > 1 else ""
            parts.append(f"{self.mean('iterations'):.0f} iterations, {self.mean('seconds'):.1f} s{per}")
        parts += ["interrupted"] if self.interrupted else []
        count = len(self.warnings)
        parts += [f"{count} warning{'s' if count > 1 else ''}"] if count else []
        return f"{self.verb}({', '.join(parts)})"

    def limits(self) -> Limits:
        """Black and white of pictures."""
        if self.window is not None:
            return self.window
        low, high = (float(q) for q in np.nanquantile(list(self.shown.values())[-1], (0.005, 0.998)))
        return low, max(high, low + 1e-12)

    def in_unit(self, unit: str, convert: Callable[[Any], Any], window: Limits) -> ImageResult:
        """The same result in another unit, as `convert` makes it."""
        shown = {name: convert(image) for name, image in self.shown.items()}
        trust = self.trust
        if trust is not None:  # a difference has no offset
            trust = replace(trust, differs=convert(trust.differs) - convert(np.zeros_like(trust.differs)))
        return replace(self, image=convert(self.image), shown=shown, unit=unit, window=window, trust=trust)

    def plot(self) -> Any:
        """A matplotlib figure: the images side by side, their difference, and a detail of each."""
        from smadmm.report.figures import comparison

        return comparison(self)

    def save(self, folder: str | os.PathLike[str], command: str = "", name: str = "") -> list[str]:
        """Write image, figure, curves, run.json and report.html into a folder; returns what there is to say.

        `command` and `name` (of the input) go into the report.
        """
        from smadmm.report.image_results import write_image_result

        return write_image_result(self, folder, command, name)

    def _repr_html_(self) -> str:
        from html import escape

        from smadmm.report.pictures import data_uri, gray

        picture = gray(list(self.shown.values())[-1], self.limits())
        return f'<figure><img src="{data_uri(picture)}" alt="{escape(self.verb)}"><p>{escape(repr(self))}</p></figure>'
