"""The command line: results as promised, errors as one sentence with exit code 2."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

import smadmm
from smadmm import __main__ as cli

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


def smadmm_command(*arguments, **options):
    command = [sys.executable, "-m", "smadmm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture
def here(monkeypatch, capsys):
    """The command line in this process: its exit code, what it says and what it complains of."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["smadmm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return call


@pytest.mark.command
def test_version_and_help():
    assert smadmm_command("--version").stdout.strip() == f"smadmm {smadmm.__version__}"
    assert "reproduce" in smadmm_command("--help").stdout


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 TB")])
def test_too_little_memory_is_one_sentence(error, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr("smadmm.cli.app.app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith("Error: this machine has not enough memory")
    error = ZeroDivisionError("ours")
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.command
def test_unwritable_output_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = smadmm_command("reproduce", "complexity", "--out", tmp_path / "file" / "out", "--quick")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the output folder") and "choose another" in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    loud = smadmm_command("--debug", "reproduce", "complexity", "--out", tmp_path / "file" / "out", "--quick")
    assert "Traceback" in loud.stderr


COMMANDS = [["classify"], ["reconstruct"], ["retrieve"], ["train-denoiser"]]
COMMANDS += [["reproduce", name] for name in ("complexity", "classification", "denoisers", "ct-120", "phase", "all")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_the_common_options(command):
    from typer.testing import CliRunner

    from smadmm.__main__ import app

    wide = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    text = CliRunner(env=wide).invoke(app, [*command, "--help"]).output
    for option in ("--out", "--seed", "--device", "--threads", "--quiet"):
        assert option in text, f"{command} lacks {option}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["classify", "a9a"], "runs on the CPU only, got --device abacus"),
        (["reproduce", "complexity", "--out", "x"], "runs on the CPU only, got --device abacus"),
        (["train-denoiser", "x", "--out", "x"], "the device 'abacus' is not available here; use cpu"),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(arguments, reason, here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, error = here(*arguments, "--device", "abacus")
    assert code == 2 and reason in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.command
@posix
@pytest.mark.parametrize(("send", "number"), [("killpg", signal.SIGINT), ("kill", signal.SIGTERM)])
def test_ctrl_c_ends_all_processes_and_says_how_to_go_on(send, number, tmp_path):
    """A terminal sends the signal to the command and the processes it has started, `kill` to the command alone."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "smadmm", "reproduce", "complexity", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as going:
        try:
            for _ in range(1500):
                if going.poll() is not None or (out / "parts").is_dir():
                    break
                time.sleep(0.2)
            time.sleep(3)
            getattr(os, send)(going.pid, number)
            _, said = going.communicate(timeout=600)  # until the last of its processes has closed stderr
        finally:
            with suppress(ProcessLookupError):
                os.killpg(going.pid, signal.SIGKILL)
    assert going.returncode == (143 if number == signal.SIGTERM else 130)
    assert said.strip().endswith(f"what is finished is kept in {out}: the same command goes on from there")
    assert "Traceback" not in said


# --- smadmm classify


@pytest.fixture
def files(tmp_path):
    """A small problem as LIBSVM files, and its edges."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    y = np.where(X @ [1, 1, 0, -1, -1] > 0, 1, -1)
    for name, rows in (("train", slice(0, 300)), ("test", slice(300, 400))):
        lines = [f"{b} " + " ".join(f"{j + 1}:{v:.4f}" for j, v in enumerate(row)) for row, b in zip(X[rows], y[rows])]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "edges").write_text("0 1\n3 4\n")
    return tmp_path


@pytest.mark.command
def test_classify_fits_saves_and_applies(files):
    graph = files / "edges"
    fitted = smadmm_command(
        "classify", files / "train", "--test", files / "test", "--graph", graph, "--out", files / "out"
    )
    assert fitted.returncode == 0, fitted.stderr
    assert "300 rows, 5 features (counted from 0), 2 edges" in fitted.stdout
    assert "heaviest coefficients" in fitted.stdout
    accuracy = float(fitted.stdout.split("accuracy on test ")[1].split()[0])
    assert accuracy > 0.9 and (files / "out" / "graph.png").stat().st_size > 5000
    applied = smadmm_command("predict", files / "out", files / "test", "--out", files / "applied")
    assert f"accuracy on test {accuracy:.4f} (100 rows)" in applied.stdout
    assert len((files / "applied" / "predictions.csv").read_text().splitlines()) == 101


def test_tables_have_names_words_and_missing_values(files, here):
    """A table with words and string labels is fitted, stored, applied; gaps and other files get a sentence."""
    rng = np.random.default_rng(0)
    size, colour = rng.standard_normal(200), rng.choice(["red", "blue"], 200)
    label = np.where(size + (colour == "red") > 0.5, "yes", "no")
    lines = [f"{s:.4f},{c},{b}" for s, c, b in zip(size, colour, label)]
    (files / "t.csv").write_text("\n".join(["size,colour,label", *lines]))
    code, said, error = here("classify", files / "t.csv", "--target", "label", "--out", files / "m", "--quiet")
    assert code == 0 and "size: +" in said, error
    code, said, _ = here("predict", files / "m", files / "t.csv", "--target", "label", "--out", files / "p")
    accuracy = float(said.split("accuracy on t.csv ")[1].split()[0])
    table = (files / "p" / "predictions.csv").read_text().splitlines()
    assert code == 0 and accuracy > 0.95 and table[0] == "prediction,probability of no,probability of yes"
    (files / "gap.csv").write_text("\n".join(["size,colour,label", ",red,yes", *lines]))
    code, _, error = here("classify", files / "gap.csv", "--target", "label")
    assert code == 2 and "the column size lacks 1 of 201 values; remove those rows or use --impute" in error
    assert here("classify", files / "gap.csv", "--target", "label", "--impute", "--quiet")[0] == 0
    code, _, error = here("classify", files / "t.csv")
    assert code == 2 and "--target must be the column of the labels" in error
    (files / "image").write_bytes(bytes(range(256)) * 9)
    code, _, error = here("classify", files / "image")
    assert code == 2 and "neither a table" in error and error.strip().isprintable()


def test_a_model_is_kept_and_a_pipeline_gets_a_sentence(tmp_path):
    """Three classes through a file; what cannot be kept as plain arrays is refused before anything is written."""
    from sklearn.pipeline import make_pipeline

    from smadmm.io.models import load_model, save_model
    from smadmm.learn import GraphGuidedClassifier

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90, 3)), np.repeat(["a", "b", "c"], 30)
    model = GraphGuidedClassifier(graph="chain").fit(X, y)
    save_model(tmp_path / "m.npz", model)
    np.testing.assert_array_equal(load_model(tmp_path / "m.npz").predict_proba(X), model.predict_proba(X))
    for wrong in (make_pipeline(model), GraphGuidedClassifier()):
        with pytest.raises(TypeError, match="keeps a fitted GraphGuidedClassifier, got"):
            save_model(tmp_path / "w.npz", wrong)
    assert not (tmp_path / "w.npz").exists()


def test_tables_as_offices_write_them(files, here):
    """Semicolons and decimal commas, a counted first column, identifiers, labels that are no classes, encodings."""
    rng = np.random.default_rng(0)
    sizes = rng.uniform(0, 100, 60).round(1)
    rows = [f"{n};{str(size).replace('.', ',')};Köln;u{n:03d};{'ja' if size > 50 else 'nein'}" for n, size in
            enumerate(sizes)]  # fmt: skip
    text = "\n".join([";Größe;Stadt;Kennung;Ziel", *rows])
    (files / "office.csv").write_text(text, "utf-8-sig")
    code, said, error = here("classify", files / "office.csv", "--target", "Ziel", "--out", files / "m", "--quiet")
    assert code == 0, error
    assert "left out, as they tell rows apart and nothing more: Unnamed: 0, Kennung" in said
    assert "60 rows, 2 features" in said and "heaviest coefficients Größe: -" in said and "+0," not in said
    code, said, error = here("predict", files / "m", files / "office.csv")
    count = int((sizes > 50).sum())
    assert code == 0 and "does not know" not in said and f"predicted: {count} ja, {60 - count} nein" in said, said
    for encoding in ("cp1252", "utf-16"):
        (files / "other.csv").write_bytes(text.encode(encoding))
        assert here("predict", files / "m", files / "other.csv")[1] == said.replace("office.csv", "other.csv")
    (files / "wrong.csv").write_bytes(text.encode("latin-1") + b"\x81")
    code, _, error = here("classify", files / "wrong.csv", "--target", "Ziel")
    assert code == 2 and error.rstrip().endswith("save it as UTF-8")
    code, _, error = here("classify", files / "office.csv", "--target", "Größe")
    assert code == 2 and "no classes; numbers are predicted by GraphGuidedRegressor" in error


def test_numbers_as_offices_write_them(files, here):
    """Thousands, per cent, money, a word for a gap; in a table to predict the model says which columns are numbers."""
    rng = np.random.default_rng(0)
    price, share = rng.uniform(1, 5000, 60).round(2), rng.integers(0, 100, 60)
    label = np.where(price > 2500, "yes", "no")
    for name, swap in {"english": str.maketrans("", ""), "german": str.maketrans(",.", ".,")}.items():
        cells = [f"€ {p:,.2f}".translate(swap) for p in price]
        cells[7] = "n.n."
        rows = [f"{cell};{s} %;{y}" for cell, s, y in zip(cells, share, label)]
        (files / f"{name}.csv").write_text("\n".join([" price; share ;y", *rows]), "utf-8")
        code, _, error = here("classify", files / f"{name}.csv", "--target", "y")
        assert code == 2 and "the column price lacks 1 of 60 values" in error
        options = ("--target", "y", "--impute", "--out", files / name, "--quiet")
        code, said, error = here("classify", files / f"{name}.csv", *options)
        assert code == 0 and "60 rows, 2 features" in said, error
        assert "class yes: heaviest coefficients price: +" in said
    (files / "new.csv").write_text("price,share\nunknown,5 %")
    code, _, error = here("predict", files / "english", files / "new.csv")
    assert code == 2 and "the column price lacks 1 of 1 values" in error
    assert here("predict", files / "english", files / "new.csv", "--impute")[0] == 0


def test_tables_to_predict_may_differ_from_the_training_table(files, here):
    """Other words are told, gaps get the mean of the training data, and a lost column is never taken for zeros."""
    rng = np.random.default_rng(1)
    size, colour = rng.normal(50, 10, 200), rng.choice(["red", "blue"], 200)
    label = np.where(size + 20 * (colour == "red") > 60, "yes", "no")
    rows = [f"{s:.4f},{c},{b}" for s, c, b in zip(size, colour, label)]
    head = "body_size,colour,label"
    (files / "t.csv").write_text("\n".join([head, *rows]))
    (files / "other.csv").write_text(f"{head}\n80,green,yes\n20,red,no")
    code, said, error = here(
        "classify", files / "t.csv", "--target", "label", "--test", files / "other.csv", "--out", files / "m", "--quiet"
    )
    assert code == 0 and "accuracy on other.csv" in said, error
    assert "which count for nothing: colour_green" in said
    mean = np.mean([float(row.split(",")[0]) for row in rows])
    found = []
    for name, value in {"gap": "", "mean": repr(float(mean))}.items():
        (files / f"{name}.csv").write_text(f"body_size,colour\n{value},red")
        assert here("predict", files / "m", files / f"{name}.csv", "--impute", "--out", files / name)[0] == 0
        row = (files / name / "predictions.csv").read_text().splitlines()[1]
        found.append([float(value) for value in row.split(",")[1:]])
    np.testing.assert_allclose(*found, rtol=1e-10)
    for lost, table in {"body_size": "colour\nred", "colour_blue": "body_size\n50"}.items():
        (files / "lost.csv").write_text(table)
        code, _, error = here("predict", files / "m", files / "lost.csv")
        assert code == 2 and f"the model needs the column {lost}" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no file 'nowhere'"),
        (["{train}", "--graph", "ring"], "neither auto, glasso, knn, chain, none nor a file of edges"),
        (["{train}", "--loss", "hinge"], "loss is one of"),
        (["{train}", "--method", "sgd"], "method is one of auto, smadmm"),
        (["{train}", "--alpha", "-1"], "alpha must be a number that is not negative"),
    ],
)
def test_classify_errors_are_one_sentence(files, arguments, message, here):
    code, _, error = here("classify", *(a.format(train=files / "train") for a in arguments), "--quiet")
    assert code == 2 and message in error
    assert error.startswith("Error: ") and "Traceback" not in error


@pytest.mark.parametrize(
    ("model", "message"),
    [("nothing.npz", "there is no model nothing.npz"), ("{train}", "make a model with smadmm classify")],
)
def test_predict_errors_are_one_sentence(files, model, message, here):
    code, _, error = here("predict", model.format(train=files / "train"), files / "train")
    assert code == 2 and message in error and error.startswith("Error: ")
