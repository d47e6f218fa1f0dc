"""What made a result: a key of the code, and fingerprints of the data.

The code of a function is its module, every module of the package which that one imports (also inside functions), every
module these import, and so on, but for the rooms in OUTSIDE: how a run is stopped, recorded, stored and shown does not
change what the method computes, and what was read from files is covered by fingerprints of the data. Each module is
hashed as its syntax tree without docstrings, so comments, docstrings and layout do not count, and neither does the
version.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import smadmm

J = TypeVar("J", bound=Any)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGE = Path(smadmm.__file__).parent
OUTSIDE = ("report", "io", "arguments", "extras", "checkpoint", "running", "protocol")


def code_key(*functions: Callable[..., Any]) -> str:
    """A key of all the code that these functions can run."""
    return key_of_files({Path(inspect.getfile(function)) for function in functions})


def key_of_files(files: Iterable[Path], package: Path = PACKAGE) -> str:
    """A key of the files and of all the modules of the package that they involve."""
    trees: dict[str, str] = {}
    waiting = set(files)
    while waiting:
        file = waiting.pop()
        name = str(file.relative_to(package)) if file.is_relative_to(package) else file.name
        if name not in trees:
            tree = ast.parse(file.read_bytes())
            waiting |= set(_imported(tree, package))
            trees[name] = ast.dump(_without_docstrings(tree))
    return hashlib.sha256(repr(sorted(trees.items())).encode()).hexdigest()[:16]


def _imported(tree: ast.Module, package: Path) -> Iterator[Path]:
    """The files of the package that a module imports; `from a import b` means the module a.b, or else a name in a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [_file(alias.name, package) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            own = _file(node.module, package)
            found = [_file(f"{node.module}.{alias.name}", package) or own for alias in node.names]
        else:
            continue
        yield from (file for file in found if file is not None)


def _file(module: str, package: Path) -> Path | None:
    """The file of a module of the package."""
    first, *rest = module.split(".")
    if rest and rest[0] in OUTSIDE:
        return None
    place = package.joinpath(*rest)
    files = [place.with_suffix(".py"), place / "__init__.py"] if rest else [place / "__init__.py"]
    return next((file for file in files if first == package.name and file.is_file()), None)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


def fingerprint(arrays: Iterable[Any]) -> str:
    """Of the values of arrays or tensors."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def with_fingerprints(jobs: Sequence[J], read: Callable[[Any, int], Sequence[Any]], prior: str) -> list[J]:
    """Jobs with the fingerprint of a set of images of one size, as `read`, and of the weights of a shipped denoiser.

    Images that are needed but not there are refused.
    """
    from smadmm.denoisers import load

    weights = [tensor for _, tensor in sorted(load(prior).state_dict().items())]
    marks: dict[tuple[Any, int], str] = {}
    for kind, size in dict.fromkeys((job.scan.images, job.scan.size) for job in jobs):
        images = read(kind, size)
        needed = 1 + max(job.scan.image for job in jobs if (job.scan.images, job.scan.size) == (kind, size))
        if needed > len(images):
            raise ValueError(f"{needed} {kind} images are needed, but there are only {len(images)}; add to the data")
        marks[kind, size] = fingerprint([*images, *weights])
    return [replace(job, fingerprint=marks[job.scan.images, job.scan.size]) for job in jobs]
