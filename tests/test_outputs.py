"""What a job leaves behind: images, figure, curves, run.json."""

import csv
import json
import math

import numpy as np
import pytest

from smadmm.data.images import read_slices
from smadmm.data.phantoms import abdomen_image
from smadmm.history import History
from smadmm.imaging.outputs import Panel, comparison, curves, detail, mean_of, write_curves, write_image, write_run
from smadmm.report.figures import write_figure

tifffile = pytest.importorskip("tifffile")


def test_an_image_is_written_as_numbers_and_as_a_picture(tmp_path):
    image = abdomen_image(32).numpy()
    write_image(tmp_path, "image", image, (0.0, 1.0))
    np.testing.assert_array_equal(np.load(tmp_path / "image.npy"), image)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "image.tif"), image)
    np.testing.assert_allclose(read_slices(tmp_path / "image.png").read(0), image, atol=0.5 / 255 + 1e-6)
    write_image(tmp_path, "stack", np.stack([image] * 3), (0.0, 1.0))
    assert tifffile.imread(tmp_path / "stack.tif").shape == (3, 32, 32) and not (tmp_path / "stack.png").exists()


def test_the_detail_is_where_the_contrast_is():
    image = np.zeros((50, 100), np.float32)
    image[32:36, 71:79] = np.random.default_rng(0).random((4, 8))
    rows, columns = detail(image)
    assert (rows.stop - rows.start, columns.stop - columns.start) == (10, 20)
    assert rows.start <= 32 and rows.stop >= 36 and columns.start <= 71 and columns.stop >= 79


def test_the_figure_shows_every_panel_and_its_detail(tmp_path):
    image = abdomen_image(40).numpy()
    figure = comparison(
        [Panel("truth", image), Panel("result", 0.9 * image), Panel("error", -0.1 * image, True)], (0, 1)
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == ["truth", "result", "error"]
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images and axes.get_title()]
    np.testing.assert_allclose(shown[2], -0.1 * image)
    close = [axes.images[0].get_array() for axes in figure.axes if axes.images and not axes.get_title()]
    np.testing.assert_array_equal(close[0], image[detail(image)])
    assert write_figure(tmp_path / "figure.png", lambda: figure, dpi=60) == (tmp_path / "figure.png").read_bytes()


def test_curves_and_numbers(tmp_path):
    history = History({"k": [0, 1], "sfo": [0, 5], "seconds": [0.0, 0.1], "snr": [20.0, math.nan]})
    figure = curves(history, {"snr": "SNR (dB)"})
    assert [axes.get_xlabel() for axes in figure.axes] == ["iterations", "sample gradients", "seconds"]
    write_curves(tmp_path / "curves.csv", [history, history])
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["slice"] for row in rows] == ["0", "0", "1", "1"] and rows[2]["snr"] == "20.0"
    write_run(tmp_path, {"snr": np.float32(1.5), "bad": math.nan, "out": tmp_path, "slices": [{"k": 1}]})
    content = json.loads((tmp_path / "run.json").read_text())
    assert content == {"snr": 1.5, "bad": None, "out": str(tmp_path), "slices": [{"k": 1}]}
    assert mean_of([{"a": 1, "b": 2.0}, {"a": 3}], ["a", "b"]) == {"a": 2.0}
