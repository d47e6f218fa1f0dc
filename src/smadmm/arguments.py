"""Errors that name arguments: `batch` in Python, `--batch` on the command line, from one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import Any


class ArgumentError(ValueError):
    """A bad argument. In the sentence {batch} is the argument batch, {0}, {1}, ... are the values that follow.

    >>> str(ArgumentError("{batch} is {0}, but there are only {1} views; lower it", 7, 5))
    'batch is 7, but there are only 5 views; lower it'
    """

    def __init__(self, sentence: str, *values: object):
        self.sentence, self.values = sentence, values
        super().__init__(self.spelled(lambda name: name))

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The sentence with every argument as `spell` writes it."""
        return _Spelling(spell).vformat(self.sentence, self.values, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.sentence, *self.values)


class FileError(ArgumentError):
    """A file that cannot be used: which, why, and what to do; {angles} in the cure is the argument angles.

    >>> str(FileError("scan.h5", "has no angles", "give {angles}"))
    'scan.h5 has no angles; give angles'
    """

    def __init__(self, path: Path | str, reason: str, cure: str = ""):
        self.path, self.reason, self.cure = Path(path), reason, cure
        super().__init__("{0} {1}" + (f"; {cure}" if cure else ""), path, reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason, self.cure)


class MissingError(ArgumentError, FileNotFoundError):
    """A bad argument: there is no such file."""


class _Spelling(Formatter):
    """Numbered fields are values, named ones are arguments."""

    def __init__(self, spell: Callable[[str], str]):
        self.spell = spell

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return args[key] if isinstance(key, int) else self.spell(key)


def positive(**values: float | None) -> None:
    """Refuse values that are given and not positive."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ArgumentError("{" + name + "} must be positive, got {0:g}", value)


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known."""
    if value not in known:
        raise ArgumentError("{" + name + "} is one of {0}, got {1!r}", ", ".join(known), value)
