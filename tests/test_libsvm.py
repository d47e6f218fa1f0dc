"""LIBSVM data: formats, names, folders, cache and download; the network is a server on the loopback."""

import bz2
import functools
import gc
import gzip
import hashlib
import http.server
import threading
import warnings

import numpy as np
import pytest

from smadmm.io import libsvm
from smadmm.io.libsvm import as_signs, half_split, load_libsvm

TEXT = b"+1 1:0.5 3:2\n-1 2:-1e-3\n+1 3:0\n"
X = [[0.5, 0, 2], [0, -1e-3, 0], [0, 0, 0]]
PACK = {"": bytes, ".bz2": bz2.compress, ".gz": gzip.compress}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, a small known set `tiny`, no folder of data and no page unless a test gives them."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("pooch.os_cache", lambda project: folder)
    monkeypatch.setitem(libsvm.KNOWN, "tiny", libsvm.Known(4, (hashlib.sha256(TEXT).hexdigest(),)))
    monkeypatch.delenv("SMADMM_DATA", raising=False)
    monkeypatch.setenv("SMADMM_LIBSVM_URL", "http://127.0.0.1:9")  # nobody listens on the discard port
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder / "libsvm"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder served over HTTP in the place of the LIBSVM page; `page.asked` lists the requests."""
    folder = tmp_path / "page"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code="-", size="-"):
            asked.append((self.path, int(code)))

        def log_message(self, *args):
            pass

    asked = []
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        folder_and_log = type("Page", (), {"folder": folder, "asked": asked})
        folder_and_log.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("SMADMM_LIBSVM_URL", folder_and_log.url + "/")
        yield folder_and_log
        server.shutdown()
        thread.join()
    with warnings.catch_warnings():  # requests leaves the socket of a refused download to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_path_in_every_form(tmp_path, ending, kind):
    file = tmp_path / f"mine{ending}"
    file.write_bytes(PACK[ending](TEXT))
    set_ = load_libsvm(kind(file))
    assert set_.X.format == "csr" and set_.X.dtype == np.float64 and set_.y.dtype == np.float64
    assert set_.X.toarray().tolist() == X and set_.y.tolist() == [1, -1, 1] and set_.name == "mine"
    assert set_.X.nnz == 3 and set_.X.indices.dtype == np.int32  # written zeros are not stored
    assert load_libsvm(file, n_features=7).X.shape == (3, 7)


def test_indices_may_start_at_zero(tmp_path):
    (tmp_path / "zero").write_bytes(b"1 0:0.5 2:2\n0 1:-1e-3\n1 2:0\n")
    assert load_libsvm(tmp_path / "zero").X.toarray().tolist() == X


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("sub", ["", "libsvm"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_name_in_a_folder(tmp_path, monkeypatch, ending, sub, by):
    (tmp_path / "d" / sub).mkdir(parents=True)
    (tmp_path / "d" / sub / f"tiny{ending}").write_bytes(PACK[ending](TEXT))
    if by == "environment":
        monkeypatch.setenv("SMADMM_DATA", str(tmp_path / "d"))
    set_ = load_libsvm("tiny", data=tmp_path / "d" if by == "argument" else None)
    assert set_.X.shape == (3, 4) and set_.name == "tiny"  # the number of features is known with the name


def test_the_argument_goes_before_the_environment_and_unknown_names_work_in_folders(tmp_path, monkeypatch):
    for folder, label in (("first", b"+1"), ("second", b"-1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.t").write_bytes(label + b" 1:1\n")
    monkeypatch.setenv("SMADMM_DATA", str(tmp_path / "second"))
    assert load_libsvm("own.t").y.tolist() == [-1]
    assert load_libsvm("own.t", data=tmp_path / "first").y.tolist() == [1]


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_download_once_then_from_the_cache(page, cache, ending):
    (page.folder / f"tiny{ending}").write_bytes(PACK[ending](TEXT))
    assert load_libsvm("tiny").X.shape == (3, 4)
    assert page.asked[-1] == (f"/tiny{ending}", 200)
    assert [p.name for p in cache.iterdir()] == [f"tiny{ending}"]
    asked = len(page.asked)
    assert load_libsvm("tiny").y.tolist() == [1, -1, 1] and len(page.asked) == asked
    (cache / f"tiny{ending}").write_bytes(b"+1 1:1\n")  # damaged: fetched anew
    assert load_libsvm("tiny").y.tolist() == [1, -1, 1] and len(page.asked) > asked


def test_the_page_can_be_given_as_an_argument(page, cache, monkeypatch):
    monkeypatch.delenv("SMADMM_LIBSVM_URL")
    (page.folder / "tiny").write_bytes(TEXT)
    assert load_libsvm("tiny", url=page.url).name == "tiny" and page.asked == [("/tiny", 200)]


def test_a_folder_goes_before_the_cache_and_is_not_fetched(page, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "tiny").write_bytes(b"+1 1:1\n")  # your own file is not held against the known hash
    assert len(load_libsvm("tiny", data=tmp_path / "d").y) == 1 and page.asked == []


@pytest.mark.parametrize("content", [TEXT[:-5], b"<html>busy</html>", bz2.compress(TEXT)[:-4], b""])
def test_a_wrong_file_is_refused_and_not_kept(page, cache, content):
    (page.folder / "tiny").write_bytes(content)
    with pytest.raises(FileNotFoundError, match=r"tiny could not be fetched .*(SHA-256|cannot be read).*--data DIR"):
        load_libsvm("tiny")
    assert list(cache.iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing(cache, monkeypatch):
    class Short(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(TEXT)))
            self.end_headers()
            self.wfile.write(TEXT[:10])

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Short) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(FileNotFoundError, match="tiny could not be fetched"):
            load_libsvm("tiny", url=f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert list(cache.iterdir()) == []


def test_a_set_out_of_reach_says_how_to_get_it(cache, page):
    for url in ("http://127.0.0.1:9", page.url):  # nobody there; not on the page
        with pytest.raises(FileNotFoundError) as caught:
            load_libsvm("a9a", url=url)
        for part in (f"{url}/a9a", f"{libsvm.PAGE}/a9a", "--data", "SMADMM_DATA"):
            assert part in str(caught.value)
    assert [code for _, code in page.asked] == [404, 404]
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch, page):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "file")
    (page.folder / "tiny").write_bytes(TEXT)
    with pytest.raises(FileNotFoundError, match="tiny could not be fetched"):
        load_libsvm("tiny")


def test_wrong_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no known set of that name .*a9a.*--data or SMADMM_DATA"):
        load_libsvm("nonsense")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.bz2"):
        load_libsvm(tmp_path / "absent.bz2")
    with pytest.raises(FileNotFoundError, match=r"there is no file a9a\.bz2"):
        load_libsvm("a9a.bz2")
    with pytest.raises(FileNotFoundError, match="data folder .*nowhere does not exist"):
        load_libsvm("a9a", data=tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"# only a comment\n",
        b"+1 1:1\nhello world\n",
        b"+1 1:1 2\n",
        b"+1 3:1 2:1\n",
        b"+1 -3:1\n",
        b"1,2 3:1\n",
        b"+1 1:nan\n",
        b"nan 1:1\n",
        b"+1 1:1 99999999999999999999:1\n",
        bytes(range(256)),
        bz2.compress(TEXT)[:-4],
        gzip.compress(TEXT)[:-9],
        b"BZh9 no archive",
        b"\x1f\x8b no archive",
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_malformed_files_are_named(tmp_path, content):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad (cannot be read|holds no samples|holds NaN)") as caught:
        load_libsvm(tmp_path / "bad")
    assert "\n" not in str(caught.value)


def test_too_few_features_is_said(tmp_path):
    (tmp_path / "wide").write_bytes(TEXT)
    with pytest.raises(ValueError, match="wide cannot be read .*n_features"):
        load_libsvm(tmp_path / "wide", n_features=2)


@pytest.mark.parametrize("y", [[0, 1, 1], [1, 2, 2], [-1, 1, 1], [-1.0, 1.0, 1.0], [3, 7, 7], ["no", "yes", "yes"]])
def test_two_classes_become_signs(y):
    signs = as_signs(y)
    assert signs.tolist() == [-1, 1, 1] and signs.dtype == np.float64


def test_signs_of_one_class_stay_and_other_counts_are_refused():
    assert as_signs([-1, -1]).tolist() == [-1, -1]
    with pytest.raises(ValueError, match="have 3: 0, 1, 2"):
        as_signs([0, 1, 2])
    with pytest.raises(ValueError, match="have 1: 0"):
        as_signs([0, 0])
    with pytest.raises(ValueError, match="none at all"):
        as_signs([])
    with pytest.raises(ValueError, match=r"9, \.\.\."):
        as_signs(range(50))


@pytest.mark.parametrize("n", [2, 3, 1000, 1001])
def test_halves_are_equal_disjoint_and_seeded(n):
    first, second = half_split(n, 0)
    assert len(first) == len(second) == n // 2 and not set(first) & set(second)
    assert set(first) | set(second) <= set(range(n))
    assert all(np.array_equal(a, b) for a, b in zip((first, second), half_split(n, 0)))
    assert n < 1000 or not np.array_equal(first, half_split(n, 1)[0])


def test_one_sample_has_no_halves():
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        half_split(1, 0)


def test_known_sets_come_in_pairs_with_whole_hashes():
    sets = {name: known for name, known in libsvm.KNOWN.items() if name != "tiny"}
    for name, known in sets.items():
        assert sets[name.removesuffix(".t")].features == sets[name.removesuffix(".t") + ".t"].features
        assert known.sha256 and all(len(h) == 64 and int(h, 16) for h in known.sha256)
