"""Stochastic ADMM with momentum, and its rivals, on one loop."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from smadmm.names import *
else:

    def __getattr__(name):
        """Names come with their first use: a command that is refused does not wait for torch."""
        if not name.startswith("_") and find_spec(f"smadmm.{name}"):
            return import_module(f"smadmm.{name}")
        if name == "__all__" or not name.startswith("_"):
            names = import_module("smadmm.names")
            if name == "__all__" or name in names.__all__:
                return getattr(names, name)
        raise AttributeError(f"module 'smadmm' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
