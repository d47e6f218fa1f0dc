"""Progress bars: those of tqdm, in processes that were forked, too.

A lock that another thread holds while a process is forked is never released in the child. tqdm has a thread that takes
its lock now and then, and every bar, shown or not, takes it once.
"""

from __future__ import annotations

import os
import threading

from tqdm import tqdm

__all__ = ["bars_of_this_process", "tqdm"]


def bars_of_this_process() -> None:
    """A lock of its own for the bars of this process, not one between processes, which a killed one would leak."""
    tqdm.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=bars_of_this_process)
