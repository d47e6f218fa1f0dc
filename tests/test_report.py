"""The report page: what is inside is escaped, complete, and survives JSON."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from smadmm.imaging.findings import Finding
from smadmm.imaging.inspection import Inspection
from smadmm.imaging.result import ImageResult
from smadmm.imaging.trial import Trust
from smadmm.paper.stored_parts import as_json, from_json
from smadmm.records import History
from smadmm.report import (
    Column,
    Compare,
    Curves,
    Facts,
    Heading,
    Levels,
    Measured,
    Page,
    Picture,
    Row,
    Run,
    Series,
    Table,
    Verdict,
    data_uri,
    environment,
    png,
)
from smadmm.report.page import anchors, part_html

NASTY = "</script><script>alert(1)</script> \" ' & <b> \u2028"


class Outline(HTMLParser):
    """The tags of a page, its text, and whether they are closed in order."""

    VOID = ("meta", "img", "input")

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.blocks = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.blocks.append(data)


def curves(**changes):
    series = [
        Series("mean", [1, 2, 3], [1.0, np.nan, np.inf], [0.5, 1, 2], [2, 3, 4]),
        Series(NASTY, torch.tensor([1.0]), [0]),
    ]
    return Curves("curves", series, "x", "y", **changes)


def everything():
    image = np.linspace(0, 1, 12).reshape(3, 4)
    return [
        NASTY,
        Heading(NASTY),
        Heading("second"),
        Heading("third"),
        Facts({NASTY: NASTY, "none": None, "number": 0.25}, NASTY),
        Table(NASTY, [NASTY, Column("a", ".1f", "lower")], [[NASTY, Measured(1.0, 2.0, 0.1)]], NASTY),
        curves(note=NASTY),
        Picture(image, NASTY, NASTY),
        Compare(NASTY, {NASTY: image, "b": image}, NASTY, Levels(0, 1, 0.2, 0.8, NASTY)),
        Row([Picture(image, NASTY, NASTY, NASTY), Compare(NASTY, {NASTY: image, "b": image})]),
        Verdict(NASTY, "holds", NASTY),
        Run(NASTY, 1.0, 0, NASTY, {NASTY: NASTY}),
    ]


def test_text_of_every_part_is_escaped():
    html = Page(NASTY, NASTY, everything()).html()
    page = Outline(html)
    assert page.open == []
    assert "alert(1)</script>" not in html and "<b>" not in html
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json"}, {}]
    assert json.loads(page.blocks[0])["series"][1]["name"] == NASTY


def test_page_asks_for_nothing_outside():
    html = Page("title", "intro", everything()).html()
    assert all(a.get("src", "data:").startswith("data:") for _, a in Outline(html).tags)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", html)
    assert "default-src 'none'; img-src data:" in html and "unsafe" not in html


def test_every_image_and_plot_has_words():
    tags = Outline(Page("title", "", everything()).html()).tags
    assert all(attributes["alt"] for tag, attributes in tags if tag == "img")
    assert all(attributes["aria-label"] for tag, attributes in tags if tag == "input")
    assert ("html", {"lang": "en"}) in tags


def test_headings_are_linked_once_each():
    assert anchors(["A b", "a  B", "Ü", "a-b-2", "a b"]) == ["a-b", "a-b-2", "part", "a-b-2-2", "a-b-3"]
    tags = Outline(Page("title", "", everything()).html()).tags
    links = [attributes["href"][1:] for tag, attributes in tags if tag == "a"]
    assert links == [attributes["id"] for tag, attributes in tags if tag == "h2"]


def test_curves_hold_what_was_given_and_gaps_for_the_rest():
    block = json.loads(Outline(part_html(curves(log_x=True))).blocks[0])
    assert block["logX"] is True and block["logY"] is False
    assert block["series"][0]["y"] == [1.0, None, None] and block["series"][0]["high"] == [2, 3, 4]
    assert block["series"][1]["x"] == [1.0]


@pytest.mark.parametrize("log_x", [False, True])
def test_long_curves_are_thinned_and_keep_their_ends(log_x):
    x = np.arange(1, 100_001)
    series = json.loads(Outline(part_html(Curves("c", [Series("s", x, 2 * x)], log_x=log_x))).blocks[0])["series"][0]
    assert 1000 < len(series["x"]) <= 2000 and (series["x"][0], series["x"][-1]) == (1, 100_000)
    assert series["y"] == [2 * v for v in series["x"]]


@pytest.mark.parametrize(
    ("cell", "better", "text"),
    [
        (Measured(35.1, 35.36), "higher", 'paper 35.36 <span class="worse">\u22120.26<span class="said"> (worse)'),
        (Measured(35.5, 35.36), "higher", 'paper 35.36 <span class="better">+0.14<span class="said"> (better)'),
        (Measured(35.5, 35.36), "lower", '<span class="worse">+0.14'),
        (Measured(35.5, 35.36), "", '<span class="differs">+0.14</span>'),
        (Measured(35.361, 35.36), "higher", '<span class="same">equal</span>'),
        (Measured(float("nan"), 35.36), "higher", "-<small>paper 35.36</small>"),
        (Measured(35.5, None, 0.1), "higher", '<td class="number">35.50 ± 0.10</td>'),
        (None, "higher", '<td class="number">-</td>'),
        (7, "higher", '<td class="number">7.00</td>'),
    ],
)
def test_cells_show_the_difference_to_the_paper(cell, better, text):
    html = part_html(Table("t", ["name", Column("SNR", ".2f", better)], [["row", cell]]))
    assert text in html and '<th scope="row">row</th>' in html


def test_png_is_read_back_by_pillow(g):
    image_module = pytest.importorskip("PIL.Image")
    for image in (torch.rand(5, 7, generator=g), torch.rand(6, 4, 3, generator=g).double()):
        read = np.asarray(image_module.open(io.BytesIO(png(image))))
        assert np.array_equal(read, np.rint(255 * image.double().numpy()).astype(np.uint8))
    colour = torch.rand(3, 8, 9, generator=g)
    assert png(colour) == png(colour.permute(1, 2, 0)) and png(colour[:1]) == png(colour[0])
    assert png(np.array([[-1.0, 2.0, np.nan, np.inf]])) == png(np.array([[0.0, 1.0, 0.0, 1.0]]))


@pytest.mark.parametrize("image", [np.zeros(3), np.zeros((2, 2, 2)), np.zeros((0, 4)), np.zeros((2, 2), complex)])
def test_what_is_no_image_is_refused(image):
    with pytest.raises(ValueError, match="an image must"):
        png(image)


def test_image_bytes_must_be_png_or_jpeg(tmp_path):
    with pytest.raises(ValueError, match="PNG or JPEG"):
        data_uri(b"<svg/>")
    (tmp_path / "a.png").write_bytes(png(np.zeros((2, 2))))
    assert data_uri(tmp_path / "a.png") == data_uri(np.zeros((2, 2)))


def test_parts_survive_json(tmp_path):
    (tmp_path / "a.png").write_bytes(png(np.zeros((2, 2))))
    parts = [p for p in everything() if not isinstance(p, Picture | Compare | Row)]
    parts += [Picture("a.png", "words"), Compare("two", {"a": "a.png", "b": "a.png"})]
    stored = json.loads(json.dumps([as_json(part) for part in parts], allow_nan=False))
    read = [from_json(value, tmp_path) for value in stored]
    shown = [p for p in parts if not isinstance(p, Picture | Compare)]
    assert Page("t", "", read[: len(shown)]).html() == Page("t", "", shown).html()
    assert read[-2].image == tmp_path / "a.png" and "data:image/png" in part_html(read[-1])


def test_json_is_refused_with_the_reason(tmp_path):
    with pytest.raises(TypeError, match="name of a file, got ndarray"):
        as_json(Picture(np.zeros((2, 2)), "words"))
    with pytest.raises(ValueError, match="no part of a page of the kind 'chart'"):
        from_json({"kind": "chart"}, tmp_path)
    with pytest.raises(ValueError, match="not in"):
        from_json({"kind": "picture", "image": "../a.png", "alt": ""}, tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Verdict("claim", "true", ""), "one of holds, holds in part, does not hold here; got 'true'"),
        (lambda: Series("s", [1, 2], [1]), "different lengths"),
        (lambda: Series("s", [1], [1], low=[1]), "both low and high"),
        (lambda: Table("t", ["a"], [[1, 2]]), "2 cells for 1 columns"),
        (lambda: Compare("c", {"a": ""}), "two images"),
        (lambda: Heading("h", 1), "level 2 or 3"),
        (lambda: Levels(0, 1, 0.8, 0.2), "in this order, got 0, 0.8, 0.2, 1"),
    ],
)
def test_parts_refuse_what_cannot_be_shown(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_page_is_written_whole(tmp_path):
    page = Page("title").add("paragraph", Run("smadmm x", 1.25, 3, "0.1.0", environment()))
    page.write(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html == page.html() and "<code>smadmm x</code>" in html and f"torch {torch.__version__}" in html
    assert [file.name for file in Path(tmp_path).iterdir()] == ["report.html"]


def found_result(**changes):
    """An image with findings, a trial and a residual."""
    rows = np.linspace(0, 1, 12 * 40, dtype=np.float32).reshape(12, 40)
    findings = (Finding("detectors", "detector 7 is dead: no weight", True), Finding("range", NASTY, False))
    look = Inspection(np.arange(12.0), 0.0, 0.1, 1.0, rows, None, 0.01, False, True, findings)
    image = np.linspace(0, 2, 30 * 30, dtype=np.float32).reshape(30, 30)
    errors = {"ridge-ct": 0.0213, "tv": 0.0123, "FBP": 0.0471, "CGLS": 0.0345}
    trust = Trust(errors, 3, "tv", 10.0, 0.02, 0.01 * image)
    row = {"iterations": 1, "sfo": 5, "seconds": 0.1, "residual": 0.1, "residual_fbp": 0.2, "stopped": "done"}
    settings = {"method": "smadmm", "prior": "tv", "views": 12, "seed": 0, "total_seconds": 1.0}
    history = History({"k": [0, 1], "sfo": [0, 5], "seconds": [0.0, 0.1], "residual": [0.2, 0.1]})
    notes = (*(finding.text for finding in findings), *trust.notes())
    shown = {"FBP": 0.9 * image, "SMADMM": image}
    told = {"notes": notes, "warnings": ("angles look odd",), "inspection": look, "trust": trust}
    result = ImageResult("Reconstruction", image, shown, [row], [history], settings, **told, residual=rows - 0.5)
    return replace(result, **changes)


def test_the_report_of_an_image_says_what_to_trust(tmp_path):
    pytest.importorskip("tifffile")
    result = found_result()
    result.save(tmp_path, "smadmm reconstruct scan.h5", "scan.h5")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html)
    assert headings == ["Result", "What was found in the data", "How far to trust the image", "The run"]
    assert html.count("detector 7 is dead: no weight</td><td>corrected</td>") == 1 and "<td>noted</td>" in html
    assert html.count("detector 7 is dead") == 1  # in the table, and not once more among the notes
    assert "<p>Warning: angles look odd</p>" in html and "No image fits the data to better than 2.00%" in html
    errors = re.findall(r'<th scope="row">(\S+)</th><td>([^<]*)</td><td class="number">([\d.]+%)</td>', html)
    assert [(name, error) for name, _, error in errors] == [
        ("tv", "1.23%"), ("ridge-ct", "2.13%"), ("CGLS", "3.45%"), ("FBP", "4.71%")]  # fmt: skip
    assert errors[0][1] == "prior, taken" and errors[1][1] == "prior"
    assert "black is -0.496, gray zero, white 0.496" in html and "Where the prior decides" in html
    trust = json.loads((tmp_path / "run.json").read_text())["trust"]
    assert trust["held_out"]["FBP"] == 0.0471 and {**trust, "held_out": 0} == {
        "held_out": 0, "views": 3, "prior": "tv", "strength": 10.0, "misfit": 0.02}  # fmt: skip
    assert "held-out views 1.23%" in repr(result)


def test_pictures_keep_room_for_other_windows(tmp_path):
    pytest.importorskip("tifffile")
    found_result(window=(0.5, 1.0), inspection=None, trust=None, residual=None).save(tmp_path)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    figure = next(attributes for _, attributes in Outline(html).tags if attributes.get("class") == "compare")
    ends = [float(figure[f"data-{name}"]) for name in ("low", "black", "white", "high")]
    assert ends == [0.25, 0.5, 1.0, 1.25] and "How far to trust the image" not in html and "Findings" not in html


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_image_of_no_numbers_is_still_reported(tmp_path):
    pytest.importorskip("tifffile")
    image = np.full((30, 30), np.nan, np.float32)
    found_result(shown={"FBP": image, "SMADMM": image}).save(tmp_path)
    assert 'data-low="' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_map_follows_the_unit_of_the_image_without_its_offset():
    result = found_result()
    other = result.in_unit("HU", lambda x: 2500 * x - 1000, (-300.0, 450.0))
    np.testing.assert_allclose(other.trust.differs, 2500 * result.trust.differs, atol=1e-3)
