"""Tables with named columns: CSV, TSV, Parquet, Feather (pandas; pyarrow for the last two) and ARFF.

Columns of words become one column of zeros and ones per word, `colour_red`. What tells rows apart and nothing more is
left out: words most of which are there once (names, dates, identifiers), and a column without a name that counts the
rows. Numbers may be written as in offices: 1,234.50 or 1.234,50, with a sign of money or per cent; what is no number in
a column of numbers is missing. Missing values are refused or imputed: the mean of a column of numbers in the training
data, a word of its own in a column of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smadmm.arguments import ArgumentError, MissingError
from smadmm.extras import needs
from smadmm.io.libsvm import Dataset
from smadmm.io.scan import ScanError

ENCODINGS = ("utf-8", "utf-16", "cp1252")  # the last two as spreadsheets write them
NUMBERS = 0.9  # share of a column of words that makes it one of numbers
TEXT = {".csv": ",", ".tsv": "\t"}
KINDS = (*TEXT, ".parquet", ".feather", ".arff")
MOST_WORDS = 20  # a column of words may have that many, or half as many as rows


def kind_of(path: Path) -> str:
    """The ending of a table, also before .gz or .bz2; nothing for other files."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in (".gz", ".bz2")]
    return endings[-1] if endings and endings[-1] in KINDS else ""


def load_table(
    path: Path,
    target: str | None,
    impute: bool = False,
    labelled: bool = True,
    means: Mapping[str, float] | None = None,
) -> Dataset:
    """The columns as a data frame X, the labels y; without labels y is empty.

    Gaps are filled with the `means` of the training data, or with those of this table where it is the training data.
    """
    pd = needs("pandas", None, "tables")
    if not path.is_file():
        raise MissingError("there is no file {0}; check the path", path)
    frame = _frame(pd, path)
    columns = ", ".join(map(str, frame.columns[:10]))
    if labelled and target not in frame.columns:
        raise ArgumentError("{target} must be the column of the labels in {0}, one of {1}", path, columns)
    y = frame.pop(target) if target in frame.columns else pd.Series(dtype=float)
    if y.isna().any():
        raise ArgumentError("{0} rows of {1} have no label; remove them", int(y.isna().sum()), path)
    if pd.api.types.is_float_dtype(y) and (y % 1 != 0).any():
        raise ArgumentError(
            "the column {0} holds numbers such as {1:g}, no classes; numbers are predicted by GraphGuidedRegressor, in "
            "Python", target, y[y % 1 != 0].iloc[0],
        )  # fmt: skip
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = _as_numbers(pd, frame[name], 0.0 if means is not None and name in means else NUMBERS)
    left_out = [] if means is not None else _telling_rows_apart(pd, frame)
    frame = frame.drop(columns=left_out)
    if frame.columns.empty:
        raise ArgumentError("{0} has no columns to learn from besides the labels; add some", path)
    missing = frame.isna().sum()
    if missing.any() and not impute:
        first = missing[missing > 0]
        raise ArgumentError(
            "the column {0} lacks {1} of {2} values; remove those rows or use {impute}",
            first.index[0], first.iloc[0], len(frame),
        )  # fmt: skip
    words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    frame[words] = frame[words].astype(object).fillna("missing")
    numbers = frame.columns.drop(words)
    frame[numbers] = frame[numbers].fillna(frame[numbers].mean() if means is None else dict(means))
    X = pd.get_dummies(frame, dtype=float).astype(float)
    X.attrs.update(words=words, left_out=left_out)
    return Dataset(X, y.to_numpy(), path.name)


def aligned(X: Any, names: Any) -> tuple[Any, list[str]]:
    """The columns of a model, zeros for words that the table does not have; and words that the model does not know."""
    made = tuple(f"{word}_" for word in X.attrs["words"])
    for name in names:
        if name not in X.columns and not name.startswith(made):
            words = ", or a column of words that makes it" if "_" in name else ""
            raise ValueError(f"the model needs the column {name}{words}, which the table lacks; add it")
    used = tuple(word for word in made if any(name.startswith(word) for name in names))
    new = [name for name in X.columns if name not in names and name.startswith(used)]
    return X.reindex(columns=list(names), fill_value=0.0), new


def _telling_rows_apart(pd: Any, frame: Any) -> list[str]:
    most = max(MOST_WORDS, len(frame) / 2)
    words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    found = [name for name in words if frame[name].nunique() > most]
    first = frame.columns[0] if len(frame.columns) else ""
    counts = str(first).startswith("Unnamed: ") and (frame[first].diff().iloc[1:] == 1).all()  # as pandas writes them
    return [first, *found] if counts else found


def _as_numbers(pd: Any, column: Any, share: float) -> Any:
    """A column of words as numbers, NaN for other words, if this share of its words are numbers; or itself."""
    words = column.astype("string").str.replace(r"[\s€$£%]", "", regex=True)
    found = []
    for mark, decimal in (",.", ".,"):
        pattern = rf"[+-]?(\d+|\d{{1,3}}(\{mark}\d{{3}})+)(\{decimal}\d+)?"
        plain = words.where(words.str.fullmatch(pattern)).str.replace(mark, "").str.replace(decimal, ".")
        found.append(pd.to_numeric(plain).astype("float64"))
    best = max(found, key=lambda numbers: numbers.notna().sum())
    return best if best.notna().sum() >= share * column.notna().sum() else column


def _separated(pd: Any, path: Path, mark: str) -> Any:
    """A table of text in the first encoding that fits."""
    errors = []
    for encoding in ENCODINGS:
        try:
            frame = _split(pd, path, mark, encoding)
        except UnicodeError as error:
            errors.append(error)
        else:
            frame.columns = [str(name).strip() for name in frame.columns]
            return frame
    raise errors[0]


def _split(pd: Any, path: Path, mark: str, encoding: str) -> Any:
    """With semicolons, where commas may be decimal, what gives more columns of numbers."""
    options = {"encoding": encoding, "skipinitialspace": True}
    frame = pd.read_csv(path, sep=mark, **options)
    if mark != "," or len(frame.columns) > 1 or ";" not in str(frame.columns[0]):
        return frame
    tables = [pd.read_csv(path, sep=";", decimal=decimal, **options) for decimal in ".,"]
    return max(tables, key=lambda table: len(table.select_dtypes("number").columns))


def _frame(pd: Any, path: Path) -> Any:
    kind = kind_of(path)
    try:
        if kind in TEXT:
            return _separated(pd, path, TEXT[kind])
        if kind == ".arff":
            rows = needs("scipy.io.arff", "learn", "ARFF files").loadarff(path)[0]
            words = {name: rows[name].astype(str) for name in rows.dtype.names if rows.dtype[name].kind == "S"}
            return pd.DataFrame({name: words.get(name, rows[name]) for name in rows.dtype.names}).replace("?", np.nan)
        needs("pyarrow", None, f"{kind} files")
        frame = pd.read_parquet(path) if kind == ".parquet" else pd.read_feather(path)
        for name in frame.select_dtypes(exclude="number"):
            frame[name].to_numpy(object)  # texts are looked at when they are used; damage is to be found here
        return frame
    except ImportError:
        raise
    except Exception as error:  # parsers of tables raise what they like
        told = (str(error)[:1000].splitlines() or [type(error).__name__])[0]  # some hold the whole table
        cure = "check that it is complete and what its ending says"
        cure = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else cure
        raise ScanError(path, f"cannot be read as a {kind[1:]} table: {told!a:.200}", cure) from None
