"""What the user points at: a sinogram, or images to simulate one from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from smadmm.imaging.scans import Scan, measured, simulated
from smadmm.io.counts import from_counts
from smadmm.io.images import read_slices
from smadmm.io.sinogram import Unit, read_sinogram

SNR = 50.0  # dB, of simulated data


@dataclass(frozen=True)
class Source:
    """The options of an input; simulate: the number of views, None for a measured sinogram."""

    path: str
    simulate: int | None = None
    snr: float | None = None
    angles: str | None = None
    unit: str = "auto"
    views: int | None = None
    size: int | None = None
    spacing: float = 1.0
    center: float = 0.0
    seed: int = 0
    threads: int = 1
    photons: float | None = None
    flat: str | None = None
    dark: str | None = None

    def scan(self) -> Scan:
        """Open the input; everything in it is checked before anything is computed."""
        path = Path(self.path)
        if self.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {self.threads}")
        if self.simulate is not None:
            for name in ("angles", "views", "size", "flat", "dark"):
                if getattr(self, name) is not None:
                    raise ValueError(f"--{name} is for measured sinograms; leave it out with --simulate VIEWS")
            return self._simulated(path, self.simulate)
        if self.snr is not None:
            raise ValueError("--snr is the noise of a simulation; add --simulate VIEWS or leave it out")
        if self.size is not None and self.size < 2:
            raise ValueError(f"--size must be at least 2 pixels, got {self.size}")
        if not (0 < self.spacing < math.inf and math.isfinite(self.center)):
            raise ValueError(f"--spacing must be positive and --center finite, got {self.spacing} and {self.center}")
        if self.dark is not None and self.flat is None:
            raise ValueError("--dark needs the counts without object, too; add --flat FILE")
        sinogram = read_sinogram(path, self.angles, self._unit())
        if self.flat is not None:
            sinogram = from_counts(sinogram, self.flat, self.dark)
        options = (self.views, self.size, self.spacing, self.center, self.threads, self.photons)
        return measured(path.name, sinogram, *options)

    def _simulated(self, path: Path, views: int) -> Scan:
        if self.photons is not None and self.snr is not None:
            raise ValueError("--snr and --photons are two kinds of noise; give one of them")
        snr = SNR if self.snr is None and self.photons is None else self.snr
        return simulated(path.name, read_slices(path), views, snr, self.seed, self.threads, self.photons)

    def _unit(self) -> Unit:
        if self.unit == "auto":
            return "auto"
        if self.unit in ("degrees", "radians"):
            return "degrees" if self.unit == "degrees" else "radians"
        raise ValueError(f"--unit is auto, degrees or radians, got {self.unit!r}")
