"""The experiments in the order of the paper. Importing them loads no heavy library: their work does."""

from __future__ import annotations

from smadmm.paper.classification import CLASSIFICATION
from smadmm.paper.complexity import COMPLEXITY
from smadmm.paper.ct import CT
from smadmm.paper.denoisers import DENOISERS
from smadmm.paper.experiment import Experiment
from smadmm.paper.htc2022 import HTC2022
from smadmm.paper.phase import PHASE
from smadmm.paper.ptychography import PTYCHOGRAPHY
from smadmm.paper.robustness import ROBUSTNESS
from smadmm.paper.scan_defects import SCAN_DEFECTS
from smadmm.paper.tabular import TABULAR

EXPERIMENTS: tuple[Experiment, ...] = (
    COMPLEXITY,
    CLASSIFICATION,
    DENOISERS,
    *CT,
    PHASE,
    ROBUSTNESS,
    PTYCHOGRAPHY,
    SCAN_DEFECTS,
    HTC2022,
    TABULAR,
)
