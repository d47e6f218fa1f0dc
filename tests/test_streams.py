"""Data that never end: sources that seek, that are live, late or fail; tables larger than memory; models that go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import smadmm
from smadmm import ADMM, SGD, Problem, Reason, Stop, Storm, run
from smadmm.losses import ArrayRows, Stream, StreamFailed, TableRows
from smadmm.losses.stream import _plain, _restored
from smadmm.proxes import L1
from smadmm.results import Interrupted
from smadmm.sampling import Rng

D = 4
DATA = torch.randn(600, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
START = torch.zeros(D, dtype=torch.float64)


def squared(x, batch):
    rows = batch if isinstance(batch, torch.Tensor) else batch[0]
    return 0.5 * (x - rows).square().sum(1).mean()


def solver(source, **options):
    return ADMM(Problem(Stream(squared, source, **options), L1(0.01)), Storm(5, 0.5), rho=1.0, eta=5.0)


def steps(source, iterations, **options):
    return run(solver(source), START, Stop(iterations=iterations), progress=False, **options)


class Counted:
    """A source that seeks and counts what it has read."""

    def __init__(self, chunk):
        self._chunk, self._read = chunk, 0

    def start(self, sample):
        for first in range(sample, len(DATA), self._chunk):
            self._read += len(DATA[first : first + self._chunk])
            yield DATA[first : first + self._chunk]


def test_resume_seeks_where_the_source_can(tmp_path):
    expected = steps(Counted(7), 100).x
    steps(Counted(7), 60, checkpoint=tmp_path / "c")
    again = Counted(7)
    assert torch.equal(steps(again, 100, checkpoint=tmp_path / "c", resume=True).x, expected)
    assert again._read <= 40 * 5 + 7


def test_reading_forward_keeps_nothing():
    f = Stream(squared, list(DATA.split(10)))
    f.draw(Rng(0, 1, 500), 5)
    assert f._held <= 10 and f._position == 505


def test_arrays_maps_and_zarr_begin_anywhere(tmp_path):
    np.save(tmp_path / "rows.npy", DATA.numpy())
    kinds = [DATA, DATA.numpy(), np.load(tmp_path / "rows.npy", mmap_mode="r")]
    zarr = pytest.importorskip("zarr")
    kinds.append(zarr.array(DATA.numpy(), chunks=(50, D)))
    for array in kinds:
        source = ArrayRows(array, np.arange(600), chunk=64)
        X, y = next(iter(source.start(333)))
        assert torch.equal(X, DATA[333:397]) and y[0] == 333 and len(source) == 600
    with pytest.raises(ValueError, match="arrays need one length"):
        ArrayRows(DATA, DATA[:3])


def test_another_array_is_another_run(tmp_path):
    steps(ArrayRows(DATA), 10, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="the checkpoint is from other settings"):
        steps(ArrayRows(DATA + 1), 20, checkpoint=tmp_path / "c", resume=True)


def test_a_live_source_goes_on_with_what_comes_and_says_so(tmp_path):
    first = run(solver(iter(DATA[:200].split(10)), live=True), START, Stop(iterations=20), checkpoint=tmp_path / "c",
                progress=False)  # fmt: skip
    assert first.warnings == ()
    came = iter(DATA[300:].split(10))
    second = run(solver(came, live=True), START, Stop(iterations=25), checkpoint=tmp_path / "c", resume=True,
                 progress=False)  # fmt: skip
    assert second.warnings == ("the stream is live: from sample 105 on the run used what came after it was resumed",)
    assert second.state.drawn == 130 and torch.equal(next(came), DATA[330:340])
    third = run(solver(came, live=True), START, Stop(iterations=25), checkpoint=tmp_path / "c", resume=True,
                progress=False)  # fmt: skip
    assert third.warnings == second.warnings  # the checkpoint knows


def late(after):
    """Some data, and then none for a long time."""
    yield DATA[:after]
    time.sleep(600)


def test_stop_rules_act_while_data_are_late():
    begin = time.monotonic()
    result = run(solver(late(52), wait=0.05), START, Stop(seconds=0.3), progress=False)
    assert result.reason is Reason.SECONDS and result.state.k == 9 and time.monotonic() - begin < 30


def test_signals_act_while_data_are_late(tmp_path):
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(Interrupted) as caught:
        run(solver(late(52), wait=0.05), START, Stop(iterations=100), checkpoint=tmp_path / "c", progress=False)
    assert caught.value.result.state.k == 9 and smadmm.checkpoint.load(tmp_path / "c")[0].k == 9


def test_late_data_change_nothing():
    def slowly():
        for rows in DATA.split(50):
            time.sleep(0.03)
            yield rows

    options = {"every": 10, "certify": True, "certify_sample": 64, "progress": False}
    slow = run(solver(slowly(), wait=0.01), START, Stop(iterations=60), **options)
    assert torch.equal(slow.x, run(solver(list(DATA.split(50))), START, Stop(iterations=60), **options).x)


def test_a_source_that_fails_keeps_the_last_state_and_names_the_cause(tmp_path):
    def failing():
        yield from DATA[:300].split(10)
        raise ConnectionError("the camera is gone")

    with pytest.raises(StreamFailed, match="failed after 300 samples: ConnectionError: the camera is gone") as caught:
        steps(failing(), 1000, checkpoint=tmp_path / "c", checkpoint_seconds=1e9)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert caught.value.result.state.k == smadmm.checkpoint.load(tmp_path / "c")[0].k == 59
    assert caught.value.result.reason is Reason.SOURCE_FAILED


def test_a_bad_wait_is_refused():
    with pytest.raises(ValueError, match="wait is the seconds between two looks"):
        Stream(squared, [], wait=0)


class Shuffling:
    """A loader with a state of its own, as StatefulDataLoader has one: a random order, and where it is in it."""

    def __init__(self, seed):
        self._generator, self._at, self._order = torch.Generator().manual_seed(seed), 0, None

    def state_dict(self):
        return {"generator": self._generator.get_state(), "order": self._order, "at": self._at, 3: (b"x", None)}

    def load_state_dict(self, state):
        assert state.pop(3) == [b"x", None]
        self._generator.set_state(state["generator"])
        self._order, self._at = state["order"], state["at"]

    def __iter__(self):
        if self._order is None:
            self._order = torch.randperm(len(DATA), generator=self._generator)
        while self._at < len(DATA):
            self._at += 8
            yield DATA[self._order[self._at - 8 : self._at]]


def test_a_loader_with_a_state_of_its_own_resumes_by_it(tmp_path):
    expected = steps(Shuffling(1), 100).x
    steps(Shuffling(1), 61, checkpoint=tmp_path / "c")
    resumed = steps(Shuffling(2), 100, checkpoint=tmp_path / "c", resume=True)  # its own seed does not matter
    assert torch.equal(resumed.x, expected)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it, torch warns of it
def test_stateful_dataloader(tmp_path):
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(seed):
        generator = torch.Generator().manual_seed(seed)
        data = torch.utils.data.TensorDataset(DATA)
        return loaders.StatefulDataLoader(data, batch_size=7, shuffle=True, generator=generator)

    expected = steps(loader(1), 80).x
    steps(loader(1), 41, checkpoint=tmp_path / "c")
    assert torch.equal(steps(loader(1), 80, checkpoint=tmp_path / "c", resume=True).x, expected)


def test_states_of_sources_survive_json():
    state = {"a": [1, 2.5, None, True], 2: {"t": torch.arange(3, dtype=torch.uint8), "b": b"\x00\xff"}}
    back = _restored(_plain(state))
    assert back["a"] == state["a"] and torch.equal(back[2]["t"], state[2]["t"]) and back[2]["b"] == b"\x00\xff"
    with pytest.raises(TypeError, match="holds a object, which a checkpoint cannot keep"):
        _plain({"a": object()})


# --- tables


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Three Parquet files with row groups of 400 rows, and one Arrow file."""
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    weight = np.repeat(rng.standard_normal(3), 2)
    for number in range(3):
        X = rng.standard_normal((1000, 6)).astype(np.float32)
        y = np.where(X @ weight + rng.standard_normal(1000) > 0, "up", "down")
        table = pa.table({**{f"f{i}": X[:, i] for i in range(6)}, "y": y, "t": X[:, 0]})
        if number < 2:
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=400)
        else:
            with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as file:
                file.write_table(table, max_chunksize=300)
    return folder


def test_tables_begin_at_any_row(tables):
    source = TableRows(tables, target="t", columns=["f0", "f1"], chunk=128)
    whole = torch.cat([X for X, _ in source])
    assert len(source) == 3000 == len(whole) and whole.dtype == torch.float32
    for row in (0, 1, 399, 400, 1999, 2000, 2350, 2999):
        X, t = next(iter(source.start(row)))
        assert torch.equal(X, whole[row : row + len(X)]) and torch.equal(t, whole[row : row + len(X), 0])
    assert list(source.start(3000)) == []
    arrow = pytest.importorskip("pyarrow.dataset").dataset(tables / "0.parquet")
    assert len(TableRows(arrow, columns=["f0"])) == 1000
    with pytest.raises(ValueError, match="has no column 'z'"):
        TableRows(tables, columns=["z"])
    with pytest.raises(ValueError, match="the column y of .* holds values of type object; streams take finite"):
        list(TableRows(tables, columns=["y"]))


def test_a_run_on_tables_resumes_where_it_was(tables, tmp_path):
    make = lambda: TableRows(tables, columns=[f"f{i}" for i in range(4)], chunk=100)  # noqa: E731
    start = torch.zeros(4)

    def on(source, iterations, **options):
        going = ADMM(Problem(Stream(squared, source), L1(0.01)), SGD(16), rho=1.0, eta=5.0)
        return run(going, start, Stop(iterations=iterations), progress=False, **options).x

    on(make(), 70, checkpoint=tmp_path / "c")
    assert torch.equal(on(make(), 150, checkpoint=tmp_path / "c", resume=True), on(make(), 150))


# --- the classifier


@pytest.fixture
def labelled():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 8))
    return X, np.digitize(X @ np.repeat([1.0, -1.0], 4) + rng.standard_normal(1200), [-1, 1])


WEIGHTS = {0: 2.0, 1: 1.0, 2: 1.0}


@pytest.mark.parametrize(
    ("options", "compiled"),
    [({}, True), ({"alpha": None, "fit_intercept": False}, True), ({"class_weight": WEIGHTS}, True), ({}, False)],
)
def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(labelled, tmp_path, options, compiled, monkeypatch):
    learn = pytest.importorskip("smadmm.learn")
    from smadmm.io.models import load_model, save_model

    if not compiled:
        monkeypatch.setattr("smadmm.learn.fitting.have_numba", lambda: False)
    X, y = labelled
    model = learn.GraphGuidedClassifier(**{"alpha": 1e-3, "graph": "chain", "random_state": 0} | options)
    for rows in (slice(0, 300), slice(300, 700)):
        model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
    save_model(tmp_path / "model.npz", model)
    loaded = load_model(tmp_path / "model.npz")
    for going in (model, loaded):
        going.partial_fit(X[700:], y[700:])
    assert np.array_equal(model.coef_, loaded.coef_) and np.array_equal(model.intercept_, loaded.intercept_)
    assert (model.n_iter_, model.sfo_, model.alpha_) == (loaded.n_iter_, loaded.sfo_, loaded.alpha_)


def test_a_stream_kept_by_the_other_form_is_refused(labelled, tmp_path, monkeypatch):
    learn = pytest.importorskip("smadmm.learn")
    pytest.importorskip("numba")
    from smadmm.io.models import load_model, save_model

    X, y = labelled
    model = learn.GraphGuidedClassifier(1e-3, graph="chain").partial_fit(X, y, classes=[0, 1, 2])
    save_model(tmp_path / "model.npz", model)
    monkeypatch.setattr("smadmm.learn.fitting.have_numba", lambda: False)
    with pytest.raises(ValueError, match="in the middle of a stream with numba, or without, and here it is the other"):
        load_model(tmp_path / "model.npz")


def test_shards_are_averaged_with_the_weights_of_their_rows(labelled):
    learn = pytest.importorskip("smadmm.learn")
    X, y = labelled
    make = lambda: learn.GraphGuidedClassifier(1e-3, graph="chain", random_state=0)  # noqa: E731
    labels = np.where(y > 0, 1, -1)
    whole, serial = make().fit(X, labels), make().fit(X, labels, shards=7)
    with ThreadPoolExecutor(2) as executor:
        pooled = make().fit(X, labels, executor=executor, shards=7)
    assert np.array_equal(serial.coef_, pooled.coef_)
    best = whole.history_["objective"][-1]
    assert best < serial.history_["objective"][-1] < 1.02 * best
    assert serial.certificate_.total > whole.certificate_.total
    parts = [make() for _ in range(7)]
    for number, part in enumerate(parts):  # by hand, with the columns of all rows
        part.standardize = False
        part.fit(whole._standard.apply(X)[number::7], labels[number::7])
    counts = [len(labels[number::7]) for number in range(7)]  # 171 or 172
    by_hand = np.average([part.coef_ for part in parts], axis=0, weights=counts)
    np.testing.assert_allclose(serial.coef_standardized_, by_hand, atol=1e-8)
    several = make().fit(X, y, shards=2)
    assert several.score(X, y) > 0.95 * make().fit(X, y).score(X, y) and several.predict_proba(X).shape == (1200, 3)


def test_shards_that_cannot_be_are_refused(labelled):
    learn = pytest.importorskip("smadmm.learn")
    X, y = labelled
    make = lambda: learn.GraphGuidedClassifier(graph="chain")  # noqa: E731
    with pytest.raises(ValueError, match="shards must be at least 1, got 0"):
        make().fit(X, y, shards=0)
    with pytest.raises(TypeError, match=r"executor is a concurrent.futures.Executor, got int"):
        make().fit(X, y, executor=3, shards=2)
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="say how many by shards="):
        make().fit(X, y, executor=executor)
    with pytest.raises(ValueError, match="one of 600 shards has rows of one class only; use fewer shards"):
        make().fit(X, y, shards=600)


def test_dask_ml_incremental(labelled):
    wrappers = pytest.importorskip("dask_ml.wrappers")
    da = pytest.importorskip("dask.array")
    learn = pytest.importorskip("smadmm.learn")
    X, y = labelled
    model = learn.GraphGuidedClassifier(1e-3, graph="chain", random_state=0)
    wrapped = wrappers.Incremental(model, shuffle_blocks=False)
    wrapped.fit(da.from_array(X, chunks=(400, 8)), da.from_array(y, chunks=400), classes=[0, 1, 2])
    for rows in np.split(np.arange(1200), 3):
        model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
    assert np.array_equal(wrapped.estimator_.coef_, model.coef_)


# --- smadmm classify --stream

KILLED = """
import os, signal, sys
import smadmm.cli.classify_stream as command
import smadmm.io.models as models
command.SAVE_EVERY = 0.0
count, write = int(sys.argv.pop(1)), models.save_model
def killed(path, model):
    write(path, model)
    if model.n_iter_ == count:
        os.kill(os.getpid(), signal.SIGKILL)
models.save_model = killed
from smadmm.__main__ import main
main()
"""


def classify(*arguments):
    """The command in this process."""
    from typer.testing import CliRunner

    from smadmm.__main__ import app

    return CliRunner().invoke(app, ["classify", *map(str, arguments), "--stream", "--graph", "chain", "--quiet"])


@pytest.mark.command
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_classify_of_lines_that_is_killed_goes_on_to_the_same_model(tmp_path, monkeypatch):
    """LIBSVM in two files, 20,000 rows in three chunks, killed after the first."""
    pytest.importorskip("typer")
    rng = np.random.default_rng(0)
    (tmp_path / "lines").mkdir()
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        X = rng.standard_normal((10_000, 4)).round(3)
        rows = [f"{'+1' if x[0] - x[3] > 0 else '-1'} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(x)) for x in X]
        (tmp_path / "lines" / f"{number}.txt").write_text("# comment\n\n" + "\n".join(rows))
    calm = classify("lines", "--out", "calm")
    assert calm.exit_code == 0 and "20000 rows in 2 files, 4 features, classes [-1.  1.]" in calm.output
    command = [sys.executable, "-c", KILLED, "1", "classify", "lines", "--out", "cut", "--stream", "--graph", "chain"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == -signal.SIGKILL
    with pytest.raises(ValueError, match="holds an unfinished fit; go on with resume, or remove it"):
        raise classify("lines", "--out", "cut").exception
    ended = classify("lines", "--out", "cut", "--resume")
    assert ended.exit_code == 0 and "going on after row 8192" in ended.output
    assert (tmp_path / "cut" / "model.npz").read_bytes() == (tmp_path / "calm" / "model.npz").read_bytes()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["model.npz"]


def test_classify_of_tables_by_stream(tables, tmp_path):
    pytest.importorskip("typer")
    told = classify(tables, "--target", "y", "--out", tmp_path / "out")
    assert told.exit_code == 0 and "3000 rows in 3 files, 7 features, classes ['down' 'up']" in told.output
    assert "class up: heaviest coefficients" in told.output
    for more, sentence in {
        ("--epochs", "2"): "reads the rows once, as they are",
        ("--method", "smadmm"): "goes with method auto, got smadmm",
        ("--resume",): "there is no unfinished fit in",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            raise classify(tables, "--target", "y", "--out", tmp_path / "other", *more).exception
