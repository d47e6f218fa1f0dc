import signal

import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored


@pytest.fixture
def g():
    """A seeded torch generator: tests make their data with it."""
    return torch.Generator().manual_seed(0)
