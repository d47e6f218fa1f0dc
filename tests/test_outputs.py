"""What a result leaves behind: images, figure, curves, run.json; and the writers below it."""

import csv
import json
import math

import numpy as np
import pytest
import torch

from smadmm.imaging.result import ImageResult
from smadmm.io.files import read_arrays, write_arrays, write_csv, write_json
from smadmm.io.images import read_slices
from smadmm.io.phantoms import abdomen_image
from smadmm.records import History
from smadmm.report.figures import comparison, curves, detail, write_figure

tifffile = pytest.importorskip("tifffile")


def result_of(image, **changes):
    history = History({"k": [0, 1], "sfo": [0, 5], "seconds": [0.0, 0.1], "residual": [0.2, math.nan]})
    row = {"iterations": 1, "sfo": 5, "seconds": 0.1, "residual": 0.1, "residual_fbp": 0.2, "stopped": "done"}
    count = len(image) if image.ndim == 3 else 1
    plane = image[count // 2] if image.ndim == 3 else image
    shown = {"FBP": 0.9 * np.asarray(plane), "SMADMM": np.asarray(plane)}
    settings = {"method": "smadmm", "prior": "tv", "views": 9, "seed": 0, "total_seconds": 1.0}
    fields = {"image": image, "shown": shown, "slices": [row] * count, "histories": [history] * count}
    return ImageResult("Reconstruction", **(fields | {"settings": settings} | changes))


def test_an_image_is_written_as_numbers_and_as_a_picture(tmp_path):
    image = abdomen_image(32).numpy()
    result_of(image, window=(0.0, 1.0)).save(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "image.npy"), image)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "image.tif"), image)
    np.testing.assert_allclose(read_slices(tmp_path / "image.png")[0], image, atol=0.5 / 255 + 1e-6)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_volume_is_a_stack(tmp_path):
    volume = torch.stack([abdomen_image(32, seed) for seed in range(3)])
    said = result_of(volume).save(tmp_path, "smadmm reconstruct scan.h5", "scan.h5")
    assert said[0] == "mean residual |Ax - b| / |b| 10.00% (FBP 20.00%)" and "per slice" in said[1]
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "image.tif"), volume.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "image.npy"), volume.numpy())
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["slice"] for row in rows] == ["0", "0", "1", "1", "2", "2"] and rows[2]["residual"] == "0.2"
    content = json.loads((tmp_path / "run.json").read_text())
    assert len(content["slices"]) == 3 and content["residual"] == pytest.approx(0.1)
    page = (tmp_path / "report.html").read_text()
    assert "Reconstruction of scan.h5" in page and "smadmm reconstruct scan.h5" in page


def test_a_result_in_another_unit():
    image = abdomen_image(32).numpy()
    other = result_of(image).in_unit("HU", lambda x: 2500 * x - 1000, (-300.0, 450.0))
    np.testing.assert_allclose(other.image, 2500 * image - 1000)
    assert other.unit == "HU" and other.limits() == (-300.0, 450.0)
    np.testing.assert_allclose(other.shown["FBP"], 2250 * image - 1000, atol=1e-3)


def test_the_detail_is_where_the_contrast_is():
    image = np.zeros((50, 100), np.float32)
    image[32:36, 71:79] = np.random.default_rng(0).random((4, 8))
    rows, columns = detail(image)
    assert (rows.stop - rows.start, columns.stop - columns.start) == (10, 20)
    assert rows.start <= 32 and rows.stop >= 36 and columns.start <= 71 and columns.stop >= 79


def test_the_figure_shows_every_image_its_detail_and_the_difference(tmp_path):
    image = abdomen_image(40).numpy()
    shown = {"truth": image, "FBP": 0.8 * image, "SMADMM": 0.9 * image}
    figure = comparison(result_of(0.9 * image, shown=shown))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["truth", "FBP", "SMADMM", "error (attenuation per pixel)"]
    arrays = [axes.images[0].get_array() for axes in figure.axes if axes.images and axes.get_title()]
    np.testing.assert_allclose(arrays[3], -0.1 * image, atol=1e-6)
    close = [axes.images[0].get_array() for axes in figure.axes if axes.images and not axes.get_title()]
    np.testing.assert_array_equal(close[0], image[detail(image)])
    assert write_figure(tmp_path / "figure.png", lambda: figure, dpi=60) == (tmp_path / "figure.png").read_bytes()


def test_curves_over_iterations_gradients_and_seconds():
    figure = curves(result_of(abdomen_image(32).numpy()).history, "residual", "residual")
    assert [axes.get_xlabel() for axes in figure.axes] == ["iterations", "sample gradients", "seconds"]


def test_files_of_numbers(tmp_path):
    write_json(tmp_path / "a.json", {"bad": math.nan, "rows": [{"k": 1, "inf": [math.inf]}]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"bad": None, "rows": [{"k": 1, "inf": [None]}]}
    write_csv(tmp_path / "a.csv", [{"a": 1}, {"b": 2, "a": 3}])
    assert (tmp_path / "a.csv").read_text().split() == ["a,b", "1,", "3,2"]
    write_arrays(tmp_path / "a.npz", {"x": np.arange(3)}, {"name": "text", "bad": math.nan})
    arrays, about = read_arrays(tmp_path / "a.npz")
    assert about == {"name": "text", "bad": None} and arrays["x"].tolist() == [0, 1, 2]
