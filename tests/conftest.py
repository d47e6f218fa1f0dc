import os
import signal
from importlib.util import find_spec

import pytest
import torch

# MKL's own memory manager was seen to loop for ever in a process that was forked after threads had computed
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

# files that cannot do without a library; where it is missing, as it is beside the core alone, they are left out
LIBRARIES = {
    "cvxpy": ["answers", "proxes"],
    "h5py": ["images", "phase", "scans", "reconstruct", "retrieve", "tomography"],
    "numba": ["denoisers_ridge", "method_pages", "radon"],
    "PIL": ["experiment_phase"],
    "safetensors": [
        "denoisers_experiment",
        "denoisers_gradient_step",
        "denoisers_jacobian",
        "denoisers_training",
        "denoisers_weights",
        "experiment_ct",
    ],
    "scipy": ["losses", "method_pages", "operators"],
    "sklearn": ["classification", "classifier", "graphs", "learn_loops", "libsvm", "method_pages"],
    "typer": ["cli", "denoisers_command", "index", "transmission"],
}
LEFT_OUT = {library: files for library, files in LIBRARIES.items() if find_spec(library) is None}
collect_ignore = [f"test_{file}.py" for files in LEFT_OUT.values() for file in files]


def pytest_terminal_summary(terminalreporter):
    for library, files in LEFT_OUT.items():
        terminalreporter.write_line(f"without {library}, left out: {', '.join(files)}")


@pytest.fixture
def g():
    """A seeded torch generator: tests make their data with it."""
    return torch.Generator().manual_seed(0)
