"""Files are whole, in UTF-8 with the same line ends, on every system."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import smadmm
from smadmm.io.files import atomic_write, locked, remove_stale, written_whole
from smadmm.io.scan import ScanError
from smadmm.io.sinogram import read_angles

SOURCE = Path(smadmm.__file__).parent


def refuses_folders(path, flags, mode=0o777, *, dir_fd=None, really=os.open):
    """os.open as Windows has it."""
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return really(path, flags, mode, dir_fd=dir_fd)


def test_a_file_is_written_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", refuses_folders)
    with pytest.raises(PermissionError):
        atomic_write(tmp_path / "elsewhere", b"1")
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        path = tmp_path / "file"  # made before, as pathlib looks at os.name
        atomic_write(path, b"one\ntwo\r\n")
        atomic_write(path, b"three\n")
    assert path.read_bytes() == b"three\n"
    assert {file.name for file in tmp_path.iterdir()} == {"file", "elsewhere"}


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_write(path, b"before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, b"after")
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "no folder" / "file", b"")


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    path, stale = tmp_path / "file", tmp_path / ".file.0123456789abcdef"
    stale.write_bytes(b"half")
    (tmp_path / ".other.0123456789abcdef").write_bytes(b"of another file")
    with written_whole(path) as temporary:
        assert not stale.exists()
        atomic_write(path, b"meanwhile")
        assert temporary.exists() and path.read_bytes() == b"meanwhile"
        temporary.write_bytes(b"last")
    assert path.read_bytes() == b"last"
    assert {file.name for file in tmp_path.iterdir()} == {"file", ".other.0123456789abcdef"}


def test_a_folder_is_cleared_of_what_killed_writers_left_and_of_nothing_else(tmp_path):
    for left in (".slice.0123456789abcdef", ".slice.checkpoint.lock", ".hidden", "file.0123456789abcdef"):
        (tmp_path / left).write_bytes(b"half")
    with locked(tmp_path), locked(tmp_path / "other"), written_whole(tmp_path / "file") as temporary:
        remove_stale(tmp_path)
        kept = {".lock", ".other.lock", ".hidden", "file.0123456789abcdef", temporary.name}
        assert {file.name for file in tmp_path.iterdir()} == kept


HOLDING = """
import sys, time
from smadmm.io.files import locked, remove_stale
with locked(sys.argv[1]):
    print(1, flush=True)
    time.sleep(60)
"""


@pytest.mark.command
def test_a_lock_on_a_folder_dies_with_its_owner(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline()
        begin = time.monotonic()
        with pytest.raises(ValueError, match="is being written by another run"), locked(tmp_path):
            pass
        assert time.monotonic() - begin < 30  # it does not wait for the owner
        owner.kill()
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def calls(file):
    """Calls that open a text: the node, its name, its mode."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        of = getattr(getattr(node.func, "value", None), "id", "")
        if name in ("read_text", "write_text"):
            yield node, name, name[0]
        elif name == "open" and of not in ("Pillow", "os", "zarr", "archive"):
            place = 0 if isinstance(node.func, ast.Attribute) else 1  # path.open(mode), open(path, mode)
            mode = node.args[place] if len(node.args) > place else ast.Constant("r")
            yield node, name, ast.literal_eval(mode)


def test_texts_name_their_encoding_and_line_ends():
    found = 0
    for file in SOURCE.rglob("*.py"):
        for node, name, mode in calls(file):
            found += 1
            if "b" in mode:
                continue
            given = {keyword.arg for keyword in node.keywords}
            assert "encoding" in given, f"{file}:{node.lineno}: {name} without encoding depends on the machine"
            assert "r" in mode or "newline" in given, f"{file}:{node.lineno}: {name} without newline depends on it, too"
    assert found > 10


def test_angles_from_an_editor_that_marks_its_files(tmp_path):
    (tmp_path / "angles.txt").write_bytes(b"\xef\xbb\xbf0\r\n45\r\n90\r\n")
    assert read_angles(str(tmp_path / "angles.txt"), 3)[0].tolist() == [0, 45, 90]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b""),
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8', "),
        ("a.npy", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,)} \n"),
        ("a.txt", b"\xff\xfe"),
        ("a.txt", b"1 2 x"),
    ],
)
def test_damaged_angles_are_refused_with_path_reason_and_cure(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ScanError) as caught:
        read_angles(str(tmp_path / name), 3)
    assert caught.value.path == tmp_path / name and caught.value.reason and caught.value.cure


@pytest.mark.parametrize(("option", "value"), [("--seed", 10**23), ("--threads", 100_000)])
def test_numbers_beyond_the_machine_are_refused(tmp_path, option, value):
    runner = pytest.importorskip("typer.testing").CliRunner()
    from smadmm.__main__ import app

    done = runner.invoke(app, ["classify", "no file", option, str(value)])
    assert done.exit_code != 0 and not isinstance(done.exception, OverflowError)
    told = str(done.exception) + done.output
    assert "cores of this machine" in told if option == "--threads" else "--seed" in told and "4294967295" in told, told


@pytest.mark.command
def test_a_letter_that_the_terminal_lacks_does_not_end_a_command(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("typer")
    path = tmp_path / "\u03b5.txt"
    path.write_text("+1 1:1\n-1 1:-1\n" * 5, encoding="utf-8")
    command = [sys.executable, "-m", "smadmm", "classify", str(path), "--graph", "none", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("?.txt: 10 rows")
