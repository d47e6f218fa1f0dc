"""HTC 2022, few views of a whole turn: the default of `reconstruct` beside filtered back-projection, CGLS and TV.

Every 720/n-th of the first 720 views, half a degree apart, is taken. An image is cut in two at Otsu's threshold and
compared with the reference segmentation, whose rows point upwards. Nothing is tuned, not even the beam hardening.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smadmm.extras import needs
from smadmm.imaging.ct import reconstruct
from smadmm.imaging.geometry import cgls
from smadmm.operators.fan import FanGeometry
from smadmm.operators.radon import hann
from smadmm.paper.experiment import JobResult, Row
from smadmm.paper.rows import outcome
from smadmm.report import Column, Part, Table, Verdict

PHANTOMS = ("01a", "03a", "05a", "07a")
VIEWS = (15, 30, 60)
METHODS = ("FBP", "CGLS", "TV", "smadmm")
FIRST = {15: 0.964, 30: 0.989, 60: 0.995}  # means that a first version reached
SCANNER = FanGeometry(source_to_axis=410.66, source_to_detector=553.74, pitch=0.2)
SIZE, STEPS = 512, 10  # pixels, steps of CGLS

Array = NDArray[Any]


@dataclass(frozen=True)
class SparseRun:
    phantom: str
    views: int
    fingerprint: str

    @property
    def name(self) -> str:
        return f"sparse-{self.phantom}-{self.views}"


def run_sparse(rows: Array, angles: Array, reference: Array) -> dict[str, Any]:
    """The score of each method, and its seconds of one core."""
    filters = needs("skimage.filters", "imaging", "thresholds")
    data, degrees = rows.astype(np.float32), np.rad2deg(angles)
    beam, b = SCANNER.projector(SIZE, angles, rows.shape[1]), torch.from_numpy(data)
    options: dict[str, Any] = {"geometry": SCANNER, "size": SIZE}
    methods: dict[str, Callable[[], Any]] = {
        "FBP": lambda: beam.fbp(b, hann).numpy(),
        "CGLS": lambda: cgls(beam, b, STEPS).numpy(),
        "TV": lambda: reconstruct(data, degrees, prior="tv", **options).image,
        "smadmm": lambda: reconstruct(data, degrees, **options).image,
    }
    found: dict[str, Any] = {}
    for name, method in methods.items():
        begin = time.process_time()
        image = np.asarray(method())[::-1]
        found[name] = matthews(image > filters.threshold_otsu(image), reference)
        found[f"{name} s"] = time.process_time() - begin
    return found


def matthews(a: Array, b: Array) -> float:
    """The correlation coefficient of two segmentations; 0 where one of them is constant."""
    value = np.corrcoef(a.ravel(), b.ravel())[0, 1] if a.any() and b.any() and not (a.all() or b.all()) else 0.0
    return float(value)


def sparse_rows(jobs: Sequence[SparseRun], results: Mapping[str, JobResult]) -> list[Row]:
    """One row for each scan and method."""
    return [
        {"phantom": job.phantom, "views": job.views, "method": method,
         "mcc": results[job.name][method], "cpu": results[job.name][f"{method} s"]}
        for job in jobs for method in METHODS
    ]  # fmt: skip


def sparse_chapter(rows: Sequence[Row]) -> list[Part]:
    def mean(views: int, method: str) -> float:
        return float(np.mean([row["mcc"] for row in rows if (row["views"], row["method"]) == (views, method)]))

    counts = sorted({row["views"] for row in rows})
    phantoms = sorted({row["phantom"] for row in rows})
    best = sum(mean(n, "smadmm") >= max(mean(n, m) for m in METHODS[:-1]) - 0.0005 for n in counts)
    kept = sum(mean(n, "smadmm") >= FIRST[n] - 0.0005 for n in counts)
    heads = [Column("views"), *(Column(name, ".4f", "higher") for name in METHODS)]
    return [
        f"Few views of a whole turn, default settings; means over {', '.join(phantoms)}, cut at Otsu's threshold.",
        Verdict("with few views the default is not worse than FBP, CGLS and TV", outcome(best, len(counts)),
                f"to three digits at {best} of {len(counts)} numbers of views"),
        Verdict("few views reach the figures of the first version", outcome(kept, len(counts)),
                f"to three digits at {kept} of {len(counts)} numbers of views"),
        Table("Few views", heads, [[n, *(mean(n, name) for name in METHODS)] for n in counts]),
    ]  # fmt: skip
