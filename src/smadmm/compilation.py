"""How kernels are compiled with numba: entry points, kept in a cache on disk, and the bodies they are made of.

Results must not depend on what the cache held. If one cached function calls another, LLVM optimises the two differently
when the callee was loaded than when it was just compiled, and sums are rounded differently. So an entry point calls
bodies only. A body is never cached: it becomes part of the code of every entry point that uses it.

Kernels allocate nothing and count no references (`_nrt`): they compile faster, run faster, and refuse what takes numba
seconds to compile, such as copying one array to another by a slice. numba renews a cached entry point when its own
module changes; here also when a module does that its own takes bodies from, as a new release may.

The cache is a convenience: a folder that cannot be written to, a disk that is full and a damaged file cost time, and
never a result. numba files compiled code under the processor and its features, so that of another one is not used.

Kernels that a process compiles, rather than reads from the cache, are told to the log "smadmm": the library prints
nothing, the commands print a sentence and a bar.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import gc
import hashlib
import inspect
import logging
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])
LOG = logging.getLogger("smadmm")
COMPILING = "compiling kernels, which takes some seconds and happens once per installation"
NOT_KEPT = (
    "compiling kernels, which takes some seconds each time: no folder can be written to; set NUMBA_CACHE_DIR to one"
)
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


@lru_cache
def _source_key(*modules: str) -> str:
    """Of the source of these modules and of those that they import from this package."""
    texts = [inspect.getsource(sys.modules[name]) for name in modules]
    others = {name for text in texts for name in re.findall(r"^from (smadmm\.[\w.]+) import", text, re.MULTILINE)}
    if not others <= set(modules):
        return _source_key(*sorted(others.union(modules)))
    return hashlib.sha256("".join(texts).encode()).hexdigest()


class _Cache(FunctionCache):
    """numba's cache, without which one can do: what cannot be read is compiled, what cannot be kept is not."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return *super()._index_key(sig, codegen), _source_key(self._py_func.__module__)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(Exception):  # a damaged file raises what it likes
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:  # an index that cannot be read is replaced, if that can be done
            with suppress(Exception):
                self.flush()
                super().save_overload(sig, data)


def compiled(fastmath: bool | set[str] = True) -> Callable[[F], F]:
    """An entry point: called from Python, never by another kernel. It releases the GIL."""

    def decorator(function: F) -> F:
        entry: Any = njit(nogil=True, fastmath=fastmath, **OPTIONS)(function)
        with suppress(RuntimeError):  # there is no folder for a cache
            entry._cache = _Cache(function)
        entry.compile = _undisturbed(entry.compile)
        kernel: F = entry
        return kernel

    return decorator


def _undisturbed(compiling: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`compiling` while the garbage collector rests: it takes a tenth of the time, and finds nothing."""

    def undisturbed(signature: Any) -> Any:
        works = gc.isenabled()
        gc.disable()
        try:
            return compiling(signature)
        finally:
            if works:
                gc.enable()

    return undisturbed


def inlined(fastmath: bool | set[str] = True) -> Callable[[F], F]:
    """A body: called by kernels, with fast-math flags of its own. Python calls the function as it is written."""
    decorator: Callable[[F], F] = register_jitable(forceinline=True, fastmath=fastmath, **OPTIONS)
    return decorator


class _Told(event.Listener):
    """Tells of kernels of ours that are compiled; numba tells of nothing that it reads from the cache.

    The first is told at level INFO, and each, when it begins and when it is done, at level DEBUG with the number of
    those that are done: for a bar.
    """

    def __init__(self) -> None:
        self.done = self._depth = 0

    def on_start(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if not _is_ours(kernel):
            return
        self._depth += 1
        if self._depth == 1:
            if not self.done:
                LOG.info(NOT_KEPT if kernel._cache.cache_path is None else COMPILING)
            self._tell(kernel)

    def on_end(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if not _is_ours(kernel):
            return
        self._depth -= 1
        if self._depth == 0:
            self.done += 1
            self._tell(kernel)

    def _tell(self, kernel: Any) -> None:
        LOG.debug("kernel %s: %d compiled", kernel.py_func.__name__, self.done, extra={"compiled": self.done})


def _is_ours(kernel: Any) -> bool:
    return str(kernel.py_func.__module__).startswith("smadmm.")


_LISTENER = _Told()
event.register("numba:compile", _LISTENER)
