import pytest
import torch


@pytest.fixture
def g():
    """A seeded torch generator: tests make their data with it."""
    return torch.Generator().manual_seed(0)
