"""One self-contained HTML page: text, facts, tables beside the paper's, interactive curves, pictures to compare.

    page = Page("Reconstruction", "What this page shows.")
    columns = ["method", Column("SNR (dB)", ".2f", "higher")]
    page.add(Heading("Quality"), Table("180 views", columns, [["SMADMM", Measured(35.1, paper=35.36)]]))
    page.write("report.html")

The page needs no network, and its Content-Security-Policy forbids any; script and style are ours (*.js, page.css) and
are named there by their hashes, so nothing else runs. Text is escaped.
"""

from smadmm.report.page import Page
from smadmm.report.parts import (
    Column,
    Compare,
    Curves,
    Facts,
    Heading,
    Levels,
    Measured,
    Part,
    Picture,
    Row,
    Run,
    Series,
    Table,
    Verdict,
    environment,
)
from smadmm.report.pictures import data_uri, png

__all__ = [
    "Column",
    "Compare",
    "Curves",
    "Facts",
    "Heading",
    "Levels",
    "Measured",
    "Page",
    "Part",
    "Picture",
    "Row",
    "Run",
    "Series",
    "Table",
    "Verdict",
    "data_uri",
    "environment",
    "png",
]
