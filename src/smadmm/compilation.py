"""How kernels are compiled with numba: entry points, kept in a cache on disk, and the bodies they are made of.

Results must not depend on what the cache held. If one cached function calls another, LLVM optimises the two differently
when the callee was loaded than when it was just compiled, and sums are rounded differently. So an entry point calls
bodies only. A body is never cached: it becomes part of the code of every entry point that uses it.

Kernels allocate nothing and count no references (`_nrt`): they compile faster, run faster, and refuse what takes numba
seconds to compile, such as copying one array to another by a slice. numba renews a cached entry point when its own
module changes, but not when a module of its bodies does: after editing one, delete __pycache__/*.nb?.

The first kernel that a process compiles, rather than reads from the cache, is told to the log "smadmm": the library
prints nothing, the commands print it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core import event
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])
LOG = logging.getLogger("smadmm")
COMPILING = "compiling kernels, which takes some seconds and happens once per installation"
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


def compiled(fastmath: bool | set[str] = True) -> Callable[[F], F]:
    """An entry point: called from Python, never by another kernel. It releases the GIL."""
    decorator: Callable[[F], F] = njit(cache=True, nogil=True, fastmath=fastmath, **OPTIONS)
    return decorator


def inlined(fastmath: bool | set[str] = True) -> Callable[[F], F]:
    """A body: called by kernels, with fast-math flags of its own. Python calls the function as it is written."""
    decorator: Callable[[F], F] = register_jitable(forceinline=True, fastmath=fastmath, **OPTIONS)
    return decorator


class _Told(event.Listener):
    """Says that a kernel of ours is compiled, once; numba tells of nothing that it reads from the cache."""

    def on_start(self, event: Any) -> None:
        if str(event.data["dispatcher"].py_func.__module__).startswith("smadmm."):
            _unregister()
            LOG.info(COMPILING)

    def on_end(self, event: Any) -> None:
        pass


_LISTENER = _Told()


def _unregister() -> None:
    event.unregister("numba:compile", _LISTENER)  # type: ignore[no-untyped-call]


event.register("numba:compile", _LISTENER)  # type: ignore[no-untyped-call]
