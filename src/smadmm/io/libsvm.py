"""LIBSVM files, plain or compressed, by path or by name.

A line is `label index:value index:value ...`; indices start at 1, or at 0 if a 0 occurs anywhere. A set is looked for
by its name (`a9a`, test samples `a9a.t`) in the folder `data` or SMADMM_DATA and its subfolder `libsvm`, then in the
user's cache, then on the public LIBSVM page. What comes from the page or the cache must have a known SHA-256; this is
taken of the text, so that it does not depend on the compression. Files in your own folders are read as they are.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smadmm.arguments import MissingError
from smadmm.extras import needs
from smadmm.io.limits import memory
from smadmm.io.scan import ScanError

LINES = "its lines are like '+1 3:0.5 7:1'; name a table .csv or .tsv"
PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
ENDINGS = ("", ".bz2", ".gz")


@dataclass(frozen=True)
class Dataset:
    """Samples as the rows of a CSR matrix X, their labels y as the file has them, and the name of the set."""

    X: Any
    y: NDArray[np.float64]
    name: str


@dataclass(frozen=True)
class Known:
    """A set on the LIBSVM page: features, and the SHA-256 of its text (a second one: a copy with indices from 0)."""

    features: int
    sha256: tuple[str, ...]


KNOWN = {
    "a8a": Known(123, ("d08a37b3fadd4bd3c8b3fc30bdc93b54d7c0f371265c90cbfb931a7efe97cd28",)),
    "a8a.t": Known(123, ("fc16c3580048add99056ee4d14105c93f0af63fb8ff6a78f3d66bf5d87c13cd3",)),
    "a9a": Known(
        123,
        (
            "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "64bf51ab7ce8101364b2d6b569c7bad8f04a4f9684527ff232a0f06474ae35c2",
        ),
    ),
    "a9a.t": Known(
        123,
        (
            "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
            "8de2963e337b73465257c78c8b4b1dbba40c07b0e56a58308f3f10cbde8ed7b8",
        ),
    ),
    "ijcnn1": Known(22, ("7fe291672c3fefe6a7e3c51529becd23f0e985ba05ffb8d53c9c648c1e91cc19",)),
    "ijcnn1.t": Known(22, ("e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8",)),
    "splice": Known(60, ("049917a9fce002627c1ed334f6ae10193d83762d165881002c2e5ef6dea97d81",)),
    "splice.t": Known(60, ("3ef0e387656e9c6fe025ba46f5feffbd89237a52b7fe9823286920e6f7f33d27",)),
    "splice_scale": Known(60, ("1763fde9e0d7aced354751581760b84d7e61f67e8a3b5e942aeab8866096f220",)),
    "splice_scale.t": Known(60, ("74d785d2232933a1dc2bed0b7ea66cf8ffe4ef501dade08b9be84675ce9567c6",)),
}


def load_libsvm(
    source: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    n_features: int | None = None,
    url: str | None = None,
) -> Dataset:
    """The set in the file `source`, or of that name; `url` (or SMADMM_LIBSVM_URL) replaces the LIBSVM page."""
    path, name = Path(source), _without_ending(Path(source).name)
    if path.is_file():
        return _parse(_read(path), str(path), name, n_features)
    if isinstance(source, os.PathLike) or path.name != str(source) or path.name != name:
        raise FileNotFoundError(f"there is no file {path}; check the path, or give one of the names {_names()}")
    if n_features is None and name in KNOWN:
        n_features = KNOWN[name].features
    folder = data if data is not None else os.environ.get("SMADMM_DATA") or None
    if folder is not None:
        found = _in_folder(Path(folder), name)
        if found is not None:
            return _parse(_read(found), str(found), name, n_features)
    if name not in KNOWN:
        raise MissingError(
            "there is no file {0!r} and no known set of that name (known: {1}); give the path of the file, or its "
            "folder by {data} or SMADMM_DATA",
            name,
            _names(),
        )
    base = (url or os.environ.get("SMADMM_LIBSVM_URL") or PAGE).rstrip("/")
    return _parse(_fetched(name, base), name, name, n_features)


def as_signs(y: ArrayLike) -> NDArray[np.float64]:
    """Labels of two classes as -1 and +1, the smaller class first; labels that are -1 and +1 stay as they are."""
    labels = np.asarray(y)
    classes, where = np.unique(labels, return_inverse=True)
    if set(classes.tolist()) <= {-1, 1} and len(classes):
        return labels.astype(np.float64)
    if len(classes) != 2:
        shown = ", ".join(str(c) for c in classes[:10].tolist()) + (", ..." if len(classes) > 10 else "")
        raise ValueError(f"two classes are needed, but the labels have {len(classes)}: {shown or 'none at all'}")
    return np.where(where.reshape(labels.shape) == 1, 1.0, -1.0)


def half_split(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two random halves of 0..n-1, sorted and of equal size; of an odd number one sample is left out."""
    if n < 2:
        raise ValueError(f"a split in two halves needs at least 2 samples, got {n}")
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 : 2 * (n // 2)])


def _names() -> str:
    return ", ".join(KNOWN)


def _without_ending(name: str) -> str:
    return name.removesuffix(".bz2").removesuffix(".gz")


def _candidates(folder: Path, name: str) -> Iterator[Path]:
    return (path for ending in ENDINGS if (path := folder / (name + ending)).is_file())


def _in_folder(folder: Path, name: str) -> Path | None:
    if not folder.is_dir():
        raise MissingError("the data folder {0} does not exist; correct {data} or SMADMM_DATA", folder)
    return next((path for place in (folder, folder / "libsvm") for path in _candidates(place, name)), None)


def _read(path: Path) -> bytes:
    """The text of a file; whether and how it is compressed is seen from its first bytes."""
    try:
        content = path.read_bytes()
        for start, opened in ((b"BZh", bz2.open), (b"\x1f\x8b", gzip.open)):
            if content.startswith(start):
                with opened(path, "rb") as file:
                    return _at_most(file, memory() // 4)
        return content
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ScanError(path, f"cannot be read: {error}", "it may be incomplete; fetch it anew") from error


def _at_most(file: Any, size: int) -> bytes:
    """What a compressed file holds, read piece by piece: asked for all, it would take the memory before."""
    pieces, total = [], 0
    while piece := file.read(2**20):
        pieces.append(piece)
        total += len(piece)
        if total > size:
            raise ValueError("unpacked it is larger than this machine can hold")
    return b"".join(pieces)


def _parse(text: bytes, where: str, name: str, n_features: int | None) -> Dataset:
    csr_matrix = needs("scipy.sparse", "learn", "LIBSVM files").csr_matrix
    load_svmlight_file = needs("sklearn.datasets", "learn", "LIBSVM files").load_svmlight_file
    if not text.strip():
        raise ScanError(where, "holds no samples", LINES)
    try:
        X, y = load_svmlight_file(io.BytesIO(text), n_features=n_features, dtype=np.float64, zero_based="auto")
    except Exception as error:  # the parser raises what it likes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ScanError(where, f"cannot be read as LIBSVM data: {reason}", LINES) from error
    if not (np.isfinite(X.data).all() and np.isfinite(y).all()):
        raise ScanError(where, "holds NaN or infinite numbers", "remove these samples")
    if len(y) == 0:
        raise ScanError(where, "holds no samples", LINES)
    X.eliminate_zeros()
    if max(X.shape[1], X.nnz) <= np.iinfo(np.int32).max:  # half the memory
        X = csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    return Dataset(X, np.asarray(y, dtype=np.float64), name)


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _pooch() -> Any:
    return needs("pooch", "learn", "data sets that are not in your data folder")


def _fetched(name: str, base: str) -> bytes:
    """The text of a set, from pooch's cache or else from the page; what has another SHA-256 is not kept."""
    cache, problem = Path(_pooch().os_cache("smadmm")) / "libsvm", ""
    try:
        for cached in (*_candidates(cache, name), None):
            path = cached or _download(name, base, cache)
            try:
                text = _read(path)
                if _sha256(text) in KNOWN[name].sha256:
                    return text
                problem = f"the file there has SHA-256 {_sha256(text)}, not {KNOWN[name].sha256[0]}"
            except ValueError as error:
                problem = str(error)
            path.unlink()
    except OSError as error:  # the errors of requests are OSErrors
        problem = str(error)
    raise MissingError(
        "the data set {0} could not be fetched from {1}/{0} ({2}); get it from {3}/{0} (or {0}.bz2) and give its "
        "folder by {data} or SMADMM_DATA",
        name,
        base,
        problem,
        PAGE,
    )


def _download(name: str, base: str, cache: Path) -> Path:
    """The page has most sets plain and the large ones as bz2: where one form is not found, take the other."""
    first, second = (".bz2", "") if name.startswith("ijcnn1") else ("", ".bz2")
    try:
        return _retrieve(name + first, base, cache)
    except OSError as error:
        if getattr(getattr(error, "response", None), "status_code", None) != 404:
            raise
    return _retrieve(name + second, base, cache)


def _retrieve(file: str, base: str, cache: Path) -> Path:
    pooch = _pooch()
    logger, downloader = pooch.get_logger(), pooch.HTTPDownloader(timeout=30)
    level = logger.level
    logger.setLevel("ERROR")  # a library prints nothing
    try:
        return Path(pooch.retrieve(f"{base}/{file}", None, fname=file, path=cache, downloader=downloader))
    finally:
        logger.setLevel(level)
