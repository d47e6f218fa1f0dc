"""Tables with named columns: CSV, TSV, Parquet, Feather (pandas; pyarrow for the last two) and ARFF.

Columns of words become one column of zeros and ones per word, `colour_red`. Missing values are refused or imputed: the
median of a column of numbers, a word of its own in a column of words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smadmm.arguments import ArgumentError, MissingError
from smadmm.extras import needs
from smadmm.io.libsvm import Dataset
from smadmm.io.scan import ScanError

TEXT = {".csv": ",", ".tsv": "\t"}
KINDS = (*TEXT, ".parquet", ".feather", ".arff")


def kind_of(path: Path) -> str:
    """The ending of a table, also before .gz or .bz2; nothing for other files."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in (".gz", ".bz2")]
    return endings[-1] if endings and endings[-1] in KINDS else ""


def load_table(path: Path, target: str | None, impute: bool = False, labelled: bool = True) -> Dataset:
    """The columns as a data frame X, the labels y; without labels y is empty."""
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
    missing = frame.isna().sum()
    if missing.any() and not impute:
        first = missing[missing > 0]
        raise ArgumentError(
            "{0} values of the column {1} are missing; remove these rows or use {impute}", first.iloc[0], first.index[0]
        )
    for name in missing.index[missing > 0]:
        numeric = pd.api.types.is_numeric_dtype(frame[name])
        frame[name] = (
            frame[name].fillna(frame[name].median()) if numeric else frame[name].astype(object).fillna("missing")
        )
    return Dataset(pd.get_dummies(frame, dtype=float).astype(float), y.to_numpy(), path.name)


def aligned(X: Any, names: Any) -> Any:
    """The columns of a model; words that the table does not have are zeros."""
    words = [name for name in names if name not in X.columns]
    lost = [name for name in words if "_" not in name]
    if lost:
        raise ValueError(f"the model needs the column {lost[0]}, which the table lacks")
    return X.reindex(columns=list(names), fill_value=0.0)


def _frame(pd: Any, path: Path) -> Any:
    kind = kind_of(path)
    try:
        if kind in TEXT:
            return pd.read_csv(path, sep=TEXT[kind])
        if kind == ".arff":
            rows = needs("scipy.io.arff", "learn", "ARFF files").loadarff(path)[0]
            words = {name: rows[name].astype(str) for name in rows.dtype.names if rows.dtype[name].kind == "S"}
            return pd.DataFrame({name: words.get(name, rows[name]) for name in rows.dtype.names}).replace("?", np.nan)
        needs("pyarrow", None, f"{kind} files")
        return pd.read_parquet(path) if kind == ".parquet" else pd.read_feather(path)
    except ImportError:
        raise
    except Exception as error:  # parsers of tables raise what they like
        told = (str(error).splitlines() or [type(error).__name__])[0]
        cure = "check that it is complete and what its ending says"
        raise ScanError(path, f"cannot be read as a {kind[1:]} table: {told!a:.200}", cure) from None
