"""Signals that wait until a state is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[list[signal.Signals]]:
    """Collects SIGINT and SIGTERM, unless ignored, instead of dying of them; a second one acts as usual."""
    caught: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: Any) -> None:
        caught.append(signal.Signals(number))
        signal.signal(number, previous[signal.Signals(number)])

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def deliver(caught: list[signal.Signals]) -> None:
    """Let the first signal that `interruptible` has collected act as usual, now that the state is kept."""
    if caught:
        signal.raise_signal(caught[0])
