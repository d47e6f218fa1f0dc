"""The report page in a real browser, Debian's Chromium without a window: what a reader does, and no network."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image
from smadmm.paper.index import index
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
    Run,
    Series,
    Table,
    Verdict,
)
from smadmm.report.pictures import png

RESULTS = Path(__file__).parent.parent / "docs" / "results"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = "SMADMM_BROWSER" in os.environ  # set by `make test-browser`, where nothing may be skipped
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not REQUIRED, reason="Chromium is not installed; `make test-browser` installs it"
    ),
]

DESKTOP = {"viewport": {"width": 1100, "height": 800}}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if REQUIRED:
            raise
        pytest.skip("playwright is not installed; it is in smadmm[dev]")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open a file; at the end there were no errors, and no request but that of the file."""
    opened = []

    def open_file(path, settings):
        context = browser.new_context(**settings)
        tab = context.new_page()
        complaints, requests = [], []
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("websocket", lambda socket: requests.append(socket.url))
        tab.goto(path.as_uri())
        opened.append((context, path, complaints, requests))
        return tab

    yield open_file
    for context, path, complaints, requests in opened:
        context.close()
        assert complaints == []
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with every part; its curves are 1/k and 1/sqrt(k), so that values can be read off."""
    k = np.arange(1, 101)
    broken = np.where(k == 50, np.nan, 1 / np.sqrt(k))
    ramp = np.linspace(0, 1, 64 * 64).reshape(64, 64)
    page = Page("A report </script>", "An introduction.")
    page.add(Heading("Claims"), Verdict("It converges", "holds in part", "in 3 of 4 cases."))
    rows = [["SMADMM", *[Measured(35.0 + i, 35.5, 0.1) for i in range(9)]]]
    page.add(Heading("Table"), Table("SNR", ["method", *[Column(f"B = {i}", ".2f", "higher") for i in range(9)]], rows))
    curves = [Series("fast", k, 1 / k, 0.5 / k, 2 / k), Series("slow", k, broken)]
    page.add(Heading("Curves"), Curves("Decrease", curves, "iteration", "error", log_x=True, log_y=True))
    page.add(Curves("Nothing to show", [Series("empty", [1.0], [np.nan])]))
    page.add(Heading("Images"), Compare("Two", {"ramp": ramp, "flipped": 1 - ramp}))
    page.add(Compare("Three", {"ramp": ramp, "flipped": 1 - ramp, "flat": 0 * ramp}), Picture(ramp, "A ramp"))
    page.add(Facts({"a long name of a setting": "x" * 80}), Run("smadmm " + "--option " * 30, 1.0, 0, "0.1.0", {}))
    path = tmp_path_factory.mktemp("report") / "report.html"
    page.write(path)
    return path


RUNS = "window.payload=1"
PAYLOADS = [
    f"<script>{RUNS}</script>", f"</script><script>{RUNS}</script>", f"</title><script>{RUNS}</script>",
    f"</style><script>{RUNS}</script>", f"--><script>{RUNS}</script>", f"]]><script>{RUNS}</script>",
    f"<img src=x onerror={RUNS}>", f'"><img src=x onerror={RUNS}>', f"'><img src=x onerror={RUNS}>",
    f"<svg onload={RUNS}>", f'"><svg/onload={RUNS}>', f"<body onload={RUNS}>",
    f"<iframe srcdoc='<script>{RUNS}</script>'>",
    f"<iframe src=javascript:{RUNS}>", f"javascript:{RUNS}",
    f"<a href=javascript:{RUNS} autofocus onfocus={RUNS}>x</a>",
    f'" onmouseover="{RUNS}', f"' autofocus onfocus='{RUNS}", f"<input autofocus onfocus={RUNS}>",
    f"<details open ontoggle={RUNS}>", f"<video><source onerror={RUNS}></video>", f"<object data=javascript:{RUNS}>",
    f"<embed src=javascript:{RUNS}>", "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<link rel=stylesheet href=https://example.org/a.css>", "<base href=https://example.org/>",
    "<form action=https://example.org><button autofocus>x</button></form>", "<img src=https://example.org/a.png>",
    "{{constructor.constructor('window.payload=1')()}}", f"\u2028\u2029\0<!--<script>{RUNS}//",
]  # fmt: skip


def hostile_results(text, number):
    """A results.json in which every text is a payload."""
    measured = {"ours": 1.0, "paper": 2.0}
    report = [text, {"kind": "heading", "text": text, "level": 2},
              {"kind": "facts", "facts": {text: text}, "title": text},
              {"kind": "verdict", "claim": text, "outcome": "holds", "because": text},
              {"kind": "table", "title": text, "columns": [text, {"name": text, "form": ".2f"}],
               "rows": [[text, measured]], "note": text},
              {"kind": "curves", "title": text, "x_label": text, "y_label": text, "note": text,
               "series": [{"name": text, "x": [1, 2], "y": [1, 2]}]},
              {"kind": "compare", "title": text, "images": {text: "a.png", text + "2": "a.png"}, "note": text},
              {"kind": "picture", "image": "a.png", "alt": text, "caption": text, "title": text}]  # fmt: skip
    about = {"command": text, "seed": text, "version": text, "seconds": 1.0, "environment": {text: text}}
    return json.dumps({**about, "quick": bool(number % 2), "report": report, "rows": []})


def test_nothing_in_results_runs_or_leaves_the_folder(visit, tmp_path):
    assert len(PAYLOADS) == 30
    for number, text in enumerate(PAYLOADS):
        name = re.sub(r"[/\0]", " ", text)[:200]
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(np.eye(4)))
        (tmp_path / name / "results.json").write_text(hostile_results(text, number), encoding="utf-8")
    index(tmp_path).write(tmp_path / "index.html")
    tab = visit(tmp_path / "index.html", DESKTOP)
    assert tab.locator("figure.curves svg").count() == len(PAYLOADS)  # all of them are shown
    assert tab.locator("table caption").count() >= len(PAYLOADS)
    for place in tab.locator("input, button, figure.curves svg").all()[:40]:
        place.hover(force=True)
    assert tab.evaluate("window.payload") is None
    assert tab.locator("iframe, object, embed, form, base, main link, main meta, [onerror], [onload]").count() == 0


@pytest.mark.slow
def test_nothing_in_names_and_fields_of_data_runs(visit, tmp_path):
    from test_images import write_dicom
    from typer.testing import CliRunner

    from smadmm.__main__ import app

    source = tmp_path / re.sub(r"[/\0]", " ", PAYLOADS[7])
    source.mkdir()
    fields = {"PatientName": "Mueller^Hans", "PatientID": "id-4711", "SeriesDescription": PAYLOADS[1][:64],
              "ConvolutionKernel": PAYLOADS[9][:16]}  # fmt: skip
    values = np.random.default_rng(0).integers(0, 2000, (20, 24))
    write_dicom(source / f"Mueller {re.sub('[/]', ' ', PAYLOADS[0])}.dcm", values, **fields)
    write_dicom(source / "other.dcm", values[:10], series="1.2.4", **fields)
    out = tmp_path / "out of Hans"
    options = ["--simulate", "12", "--iterations", "2", "--prior", "tv", "--quiet", "--out", str(out)]
    done = CliRunner().invoke(app, ["reconstruct", str(source), *options])
    assert done.exit_code == 0, done.output
    tab = visit(out / "report.html", DESKTOP)
    assert tab.evaluate("window.payload") is None and "onerror" in tab.locator("h1").inner_text()
    for file in (out / "run.json", out / "report.html", out / "dicom" / "slice_0000.dcm"):
        assert not re.search(rb"mueller|4711", file.read_bytes(), re.IGNORECASE), file
    assert {path.name for path in tmp_path.iterdir()} == {source.name, out.name}


def plot(tab):
    return tab.locator("figure.curves").first


def ticks(tab, axis="x"):
    return [float(text) for text in plot(tab).locator(f"svg .tick.{axis}").all_text_contents()]


def inner_box(tab):
    """The area of the curves, in view."""
    area = plot(tab).locator("svg rect.paper")
    area.scroll_into_view_if_needed()
    return area.bounding_box()


def curve_lines(tab):
    return plot(tab).locator("svg path.line").count()


def eventually(tab, true):
    """Wait up to five seconds: the browser handles a wheel when it draws."""
    for _ in range(100):
        if true():
            return
        tab.wait_for_timeout(50)
    raise AssertionError("nothing happened within five seconds")


def drag(tab, start, end):
    box = inner_box(tab)
    points = [(box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in (start, end)]
    tab.mouse.move(*points[0])
    tab.mouse.down()
    tab.mouse.move(*points[1], steps=4)
    tab.mouse.up()


def test_curves_zoom_by_dragging_and_reset(visit, report):
    tab = visit(report, DESKTOP)
    before = ticks(tab)
    assert min(before) == 1 and max(before) == 100
    drag(tab, (0.5, 0.2), (0.75, 0.6))
    zoomed = ticks(tab)
    assert min(zoomed) >= 9 and max(zoomed) <= 33 and len(zoomed) >= 2
    plot(tab).get_by_role("button", name="Reset the zoom").click()
    assert ticks(tab) == before


def test_a_flat_drag_zooms_one_axis(visit, report):
    tab = visit(report, DESKTOP)
    x, y = ticks(tab), ticks(tab, "y")
    drag(tab, (0.5, 0.4), (0.9, 0.4))
    assert ticks(tab) != x and ticks(tab, "y") == y


def test_wheel_zooms_a_plot_that_was_clicked_and_else_scrolls(visit, report):
    tab = visit(report, DESKTOP)
    before, box = ticks(tab), inner_box(tab)
    top = tab.evaluate("scrollY")
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.wheel(0, 120)
    eventually(tab, lambda: tab.evaluate("scrollY") > top)
    assert ticks(tab) == before
    plot(tab).locator("svg").click()
    top = tab.evaluate("scrollY")
    tab.mouse.wheel(0, -240)
    eventually(tab, lambda: ticks(tab) != before)
    zoomed = ticks(tab)
    assert tab.evaluate("scrollY") == top and max(zoomed) / min(zoomed) < max(before) / min(before)


def test_keys_zoom_reset_and_read(visit, report):
    tab = visit(report, DESKTOP)
    before = ticks(tab)
    plot(tab).locator("svg").focus()
    tab.keyboard.press("+")
    assert ticks(tab) != before
    tab.keyboard.press("0")
    assert ticks(tab) == before
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert plot(tab).locator("output").inner_text() == "iteration = 2"
    assert plot(tab).locator("button .value").first.inner_text() == "0.5"


def test_hover_reads_the_values(visit, report):
    tab = visit(report, DESKTOP)
    box = inner_box(tab)
    margin = 0.04 / 1.08  # of the view on either side of the curves, which span two decades
    tab.mouse.move(box["x"] + box["width"] * (margin + (1 - 2 * margin) / 2), box["y"] + 20)
    assert plot(tab).locator("output").inner_text() == "iteration = 10"
    assert plot(tab).locator("button .value").all_inner_texts() == ["0.1", "0.3162"]
    assert plot(tab).locator(".overlay circle").count() == 2
    tab.mouse.move(5, 5)
    assert plot(tab).locator("output").inner_text() == ""


def test_legend_hides_a_curve(visit, report):
    tab = visit(report, DESKTOP)
    assert curve_lines(tab) == 3  # one whole, one in two pieces
    assert plot(tab).locator("svg path.band").count() == 1
    button = plot(tab).get_by_role("button", name="fast")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curve_lines(tab) == 2 and plot(tab).locator("svg path.band").count() == 0
    assert min(ticks(tab, "y")) >= 0.1  # the axis fits what is left
    button.focus()
    tab.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true" and curve_lines(tab) == 3


def test_two_fingers_zoom_on_a_phone(visit, report):
    tab = visit(report, PHONE)
    before, box = ticks(tab), inner_box(tab)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = tab.context.new_cdp_session(tab)
    for kind, apart in (("touchStart", 25), ("touchMove", 50), ("touchMove", 75), ("touchEnd", None)):
        points = [{"x": x + sign * apart, "y": y, "id": sign + 1} for sign in (-1, 1)] if apart else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    after = ticks(tab)
    assert max(after) / min(after) < (max(before) / min(before)) ** 0.5


def divider(tab, number=0):
    """Where the divider is, as a share of the image's width; the clipped image ends there too."""
    stage = tab.locator("figure.compare .images").nth(number)
    box, line = stage.bounding_box(), stage.locator(".divider").bounding_box()
    share = (line["x"] + line["width"] / 2 - box["x"]) / box["width"]
    clip = stage.locator("img.left").evaluate("node => getComputedStyle(node).clipPath")
    right = float(re.search(r"inset\(\S+ (?:calc\()?([\d.]+)%", clip).group(1))
    assert right == pytest.approx(100 * (1 - share), abs=0.6)
    return share


def test_slider_follows_the_mouse(visit, report):
    tab = visit(report, DESKTOP)
    assert divider(tab) == pytest.approx(0.5, abs=0.01)
    stage = tab.locator("figure.compare .images").first
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 60, steps=5)
    tab.mouse.up()
    assert divider(tab) == pytest.approx(0.2, abs=0.02)
    tab.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 40)
    assert divider(tab) == pytest.approx(0.9, abs=0.02)


def test_slider_follows_keys_and_says_so(visit, report):
    tab = visit(report, DESKTOP)
    slider = tab.get_by_role("slider", name="Two: ramp left of the divider, flipped right")
    slider.focus()
    tab.keyboard.press("ArrowLeft")
    assert divider(tab) == pytest.approx(0.49, abs=0.005)
    tab.keyboard.press("Home")
    assert divider(tab) == pytest.approx(0, abs=0.01)
    tab.keyboard.press("End")
    assert divider(tab) == pytest.approx(1, abs=0.01)
    assert slider.get_attribute("aria-valuetext") == "divider at 100 percent"


def test_slider_follows_a_finger(visit, report):
    tab = visit(report, PHONE)
    stage = tab.locator("figure.compare .images").first
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    tab.touchscreen.tap(box["x"] + 0.25 * box["width"], box["y"] + 40)
    assert divider(tab) == pytest.approx(0.25, abs=0.02)


def test_images_to_compare_can_be_chosen(visit, report):
    tab = visit(report, DESKTOP)
    figure = tab.locator("figure.compare").nth(1)
    figure.get_by_label("Three: image on the right").select_option("flat")
    assert figure.locator("img.right").get_attribute("alt") == "flat"
    assert figure.locator(".badge").all_inner_texts() == ["ramp", "flat"]
    figure.get_by_label("Three: image on the left").select_option("flat")
    assert figure.locator("img.right").is_visible()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A ramp from left to right, of values from -100 to 100, black at -50 and white at 50."""
    ramp = np.tile(np.linspace(0, 1, 256), (256, 1))
    path = tmp_path_factory.mktemp("windowed") / "report.html"
    Page("Window").add(Compare("Ramp", {"a": ramp, "b": ramp}, levels=Levels(-100, 100, -50, 50, "HU"))).write(path)
    return path


def brightness(tab, *values):
    """What is seen where the ramp has these values, from 0 to 1."""
    image_module = pytest.importorskip("PIL.Image")
    shot = image_module.open(io.BytesIO(tab.locator("figure.compare .images").screenshot())).convert("L")
    return [shot.getpixel((round((v + 100) / 200 * (shot.width - 1)), round(0.8 * shot.height))) / 255 for v in values]


@pytest.mark.parametrize("settings", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_black_and_white_of_images_follow_their_sliders(visit, windowed, settings):
    tab = visit(windowed, settings)
    black, white = (tab.get_by_role("slider", name=f"Ramp: {name}", exact=True) for name in ("black", "white"))
    assert brightness(tab, -60, -25, 25, 60) == pytest.approx([0, 0.25, 0.75, 1], abs=0.02)
    black.focus()
    for _ in range(125):
        tab.keyboard.press("ArrowRight")
    assert black.get_attribute("aria-valuetext") == "0 HU" and tab.locator(".levels output").first.inner_text() == "0"
    assert brightness(tab, -25, 15, 35, 60) == pytest.approx([0, 0.3, 0.7, 1], abs=0.02)
    white.focus()
    tab.keyboard.press("End")
    assert brightness(tab, -25, 25, 75) == pytest.approx([0, 0.25, 0.75], abs=0.02)
    black.focus()
    tab.keyboard.press("End")  # black stays below white
    assert [black.input_value(), white.input_value()] == ["499", "500"]
    tab.get_by_role("button", name="Reset black and white").click()
    assert brightness(tab, -60, -25, 25, 60) == pytest.approx([0, 0.25, 0.75, 1], abs=0.02)
    tab.get_by_role("slider", name="Ramp: a left of the divider, b right").focus()
    tab.keyboard.press("Home")
    assert divider(tab) == pytest.approx(0, abs=0.01)


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """The report of a small scan with a dead detector."""
    folder = tmp_path_factory.mktemp("scan")
    sinogram = simulated_sinogram(abdomen_image(64), views=40, snr=40).numpy()
    sinogram[:, 30] = 0
    smadmm.reconstruct(sinogram, size=64, iterations=4).save(folder, "smadmm reconstruct scan.h5", "scan.h5")
    return folder / "report.html"


@pytest.mark.parametrize("settings", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_report_of_a_scan_shows_what_to_trust(visit, scan, settings):
    tab = visit(scan, settings)
    assert tab.evaluate("document.documentElement.scrollWidth") <= settings["viewport"]["width"]
    alts = [image.get_attribute("alt") for image in tab.locator("img").all()]
    assert alts[:2] == ["SMADMM", "FBP"] and "bright where the prior decides" in alts[2]
    assert "the residual sinogram, gray where the image explains the data" in alts
    for image in tab.locator("img").all():
        assert image.evaluate("node => node.naturalWidth") > 0
    assert "detector 30" in tab.get_by_role("region", name="Findings").inner_text()
    table = tab.get_by_role("region", name="Error at views that were left out").inner_text()
    assert all(name in table for name in ("ridge-ct", "tv", "FBP", "CGLS"))
    shown, chart = tab.locator(".row").first.locator("figure").all()
    beside = chart.bounding_box()["x"] > shown.bounding_box()["x"]
    assert beside == (settings is DESKTOP)


@pytest.mark.parametrize("settings", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_fits_the_screen(visit, report, settings):
    tab = visit(report, settings)
    assert tab.evaluate("document.documentElement.scrollWidth") <= settings["viewport"]["width"]
    assert tab.title() == "A report </script>"
    for image in tab.locator("img:visible").all():
        assert image.evaluate("node => node.naturalWidth") == 64


def test_text_can_be_read_in_both_schemes(visit, report):
    """Contrast of at least 4.5, the accessibility guideline's, for text and verdicts."""
    script = """(name) => {
      const light = (text) => {
        const part = text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
        const [r, g, b] = part.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const node = document.querySelector(name);
      let under = node;
      while (getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
      const pair = [light(getComputedStyle(node).color), light(getComputedStyle(under).backgroundColor)];
      return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    }"""
    for scheme in ("light", "dark"):
        tab = visit(report, DESKTOP | {"color_scheme": scheme})
        for name in ("p", "td small", ".better", ".worse", ".verdict strong", ".facts dt", "nav a", ".hint"):
            assert tab.evaluate(script, name) >= 4.5, (scheme, name)


def test_injected_script_does_not_run(browser, report, tmp_path):
    """Should anything slip through the escaping, the page's own policy stops it."""
    path = tmp_path / "injected.html"
    bad = "<main><script>window.bad = 1</script><img src=x onerror='window.bad = 1'>"
    path.write_text(report.read_text().replace("<main>", bad, 1))
    tab = browser.new_page()
    complaints = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.goto(path.as_uri())
    assert tab.evaluate("window.bad") is None
    assert sum("Content Security Policy" in text for text in complaints) == len(complaints) >= 2
    assert plot(tab).locator("svg path.line").count() == 3  # the page itself works
    tab.close()


@pytest.mark.parametrize("settings", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_committed_results_make_a_page_that_works(visit, tmp_path, settings):
    index(RESULTS).write(tmp_path / "index.html")
    tab = visit(tmp_path / "index.html", settings)
    assert tab.evaluate("document.documentElement.scrollWidth") <= settings["viewport"]["width"]
    assert "Oracle complexity (Table 1)" in tab.locator("nav").inner_text()
    assert tab.locator(".verdict").count() == tab.locator("#verdicts + figure tbody tr").count() >= 9
    for figure in tab.locator("figure.curves").all():
        assert figure.locator("svg path.line").count() >= 1 and figure.locator("svg .tick.y").count() >= 2
    for image in tab.locator("img:visible").all():
        assert image.evaluate("node => node.naturalWidth") > 0
    tab.locator("nav a").last.click()
    assert tab.evaluate("scrollY") > 0
