"""Tables: the same rows from every format that they can be written in."""

import gzip

import numpy as np
import pytest

from smadmm.io.tables import load_table

pd = pytest.importorskip("pandas")
ARFF = """% a comment
@relation fruit
@attribute weight numeric
@attribute colour {red, green}
@attribute 'how sweet' real
@attribute label {no, yes}
@data
1.5,red,0.25,yes
2,green,-1e3,no
2.5,red,?,yes
"""


@pytest.fixture
def frame():
    return pd.DataFrame({
        "weight": [1.5, 2.0, 2.5], "colour": ["red", "green", "red"], "how sweet": [0.25, -1000.0, np.nan],
        "label": ["yes", "no", "yes"],
    })  # fmt: skip


def written(frame, path):
    if path.suffix == ".arff":
        path.write_text(ARFF, encoding="utf-8")
    elif path.suffix in (".parquet", ".feather"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_feather(path)
    else:
        text = frame.to_csv(sep="\t" if ".tsv" in path.suffixes else ",", index=False)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.arff", "a.parquet", "a.feather"])
def test_every_format_gives_the_same_rows(frame, name, tmp_path):
    found = load_table(written(frame, tmp_path / name), "label", impute=True)
    assert list(found.X.columns) == ["weight", "how sweet", "colour_green", "colour_red"]
    np.testing.assert_array_equal(found.X, [[1.5, 0.25, 0, 1], [2, -1000, 1, 0], [2.5, -499.875, 0, 1]])
    assert found.y.tolist() == ["yes", "no", "yes"]
    with pytest.raises(ValueError, match="how sweet lacks 1 of 3 values; remove those rows or use impute"):
        load_table(tmp_path / name, "label")
