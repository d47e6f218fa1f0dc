"""How kernels are compiled with numba: entry points, which are kept on disk, and the bodies they are made of.

A result must not depend on what was on disk. If one cached function calls another, LLVM optimises the pair differently
where the callee was loaded than where it was just compiled, and sums are rounded differently. So an entry point calls
bodies alone. A body is never cached: it is compiled in each process that compiles an entry point, and becomes part of
that one's code. Neither allocates memory; what they need they are given. This also halves the time of compilation.

numba renews its files when the module of the entry point changes, but not for the modules of its bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])
Rules = bool | set[str]  # how arithmetic may be changed: True at will, or flags of LLVM


def compiled(fastmath: Rules = True) -> Callable[[F], F]:
    """An entry point: called from Python, and by no other kernel. Releases the GIL."""
    options = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
    make: Any = njit
    decorator: Callable[[F], F] = make(cache=True, nogil=True, fastmath=fastmath, **options)
    return decorator


def inlined(fastmath: Rules = True) -> Callable[[F], F]:
    """A body, with its own rules of arithmetic. Called from Python it is an ordinary function."""
    options = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
    decorator: Callable[[F], F] = register_jitable(forceinline=True, fastmath=fastmath, **options)
    return decorator
