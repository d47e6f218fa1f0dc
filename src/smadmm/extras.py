"""Libraries that come with an extra, imported where they are used."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

PACKAGES = {"PIL": "Pillow", "skimage": "scikit-image", "sklearn": "scikit-learn"}  # where pip has another name


def needs(module: str, extra: str | None, what: str) -> Any:
    """The module, imported; if its library is missing, the error says what to install (extra None: the library)."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        package = PACKAGES.get(library, library)
        install = package if extra is None else f"'smadmm[{extra}]'"
        raise ImportError(f"{what} need {package}; install it with: pip install {install}") from error


@lru_cache
def kernels(module: str) -> Any:
    """A module of compiled kernels, or None without numba."""
    try:
        return import_module(module)
    except ImportError:
        return None
