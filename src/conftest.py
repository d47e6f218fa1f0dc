"""Examples in docstrings run with `smadmm`, its public names, `torch` and `np`, as the page on the API says."""

from typing import Any

import numpy as np
import pytest
import torch

import smadmm
from smadmm import names


@pytest.fixture(autouse=True, scope="session")
def public_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(smadmm=smadmm, torch=torch, np=np)
    doctest_namespace.update({name: getattr(smadmm, name) for name in names.__all__})
