"""A user's own functions: what is said of them fits on a line and leads to the place."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import in_turn

from taugrad import cli
from taugrad.platform.places import FOLDER
from taugrad.platform.spec.allowing import import_from_here
from taugrad.platform.user_code import (
    UserCodeError,
    UserCodeRaised,
    call,
    import_object,
    placing_errors,
)

MINE = """
import torch
def takes(size, scale=1.0): return size
def fails(**anything): return deeper(anything)
def deeper(given):
    raise KeyError("line one\\nline two")
def in_torch(size): return torch.zeros(size).reshape(7)
def leaves(): raise SystemExit("usage: ...")
size = 3
class Factory: pass
"""
BROKEN = {
    "taugrad_broken": "import taugrad_no_such_dependency\n",
    "taugrad_script": "import sys\nsys.exit(3)\n",
    "taugrad_syntax": "def f(:\n",
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    for name, text in {"taugrad_mine": MINE, **BROKEN}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield "taugrad_mine"
    sys.modules.pop("taugrad_mine", None)


@in_turn(
    "path, reason",
    [
        ("taugrad_none:f", "no module named 'taugrad_none'"),
        ("taugrad_none.part:f", "no module named 'taugrad_none'"),
        ("taugrad.no_such_part:f", "no module named 'taugrad.no_such_part'"),
        ("taugrad_mine:nothing", "taugrad_mine has no attribute 'nothing'"),
        ("taugrad_mine:Factory.nothing", "taugrad_mine.Factory has no attribute 'nothing'"),
        ("taugrad_mine:size", "taugrad_mine.size is int, which cannot be called"),
        ("taugrad_broken:f", "importing taugrad_broken failed: ModuleNotFoundError: No"),
        ("taugrad_mine.py:f", "leave out .py"),
        ("taugrad_script:f", "failed: SystemExit: 3 (taugrad_script.py:2 in <module>)"),
        ("taugrad_syntax:f", "failed: SyntaxError: invalid syntax (taugrad_syntax.py:1)"),
        *((f"{path}", "expected the form package.module:function") for path in ("a", ":f", "a:", "a:f.")),
    ],
)
def test_a_wrong_import_path_is_named_with_the_reason(mine, path, reason):
    with pytest.raises(UserCodeError) as caught:
        import_object(path)
    assert repr(path) in str(caught.value)
    assert reason in str(caught.value)
    assert str(copy.copy(caught.value)) == str(caught.value)  # as pickling does, by __reduce__


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("takes", {"sise": 3}, "takes(size, scale=1.0) cannot be called with sise=3: missing a required"),
        ("takes", {}, "cannot be called with no arguments: missing a required argument: 'size'"),
        ("fails", {"a": 1, "b": "x"}, "called with a=1, b='x' it raised KeyError: "),
        ("fails", {}, "line one\\\\nline two' (taugrad_mine.py:6 in deeper)"),
        ("in_torch", {"size": 3}, "it raised RuntimeError: shape '[7]' is invalid"),
        ("in_torch", {"size": 3}, "(taugrad_mine.py:7 in in_torch)"),
        ("leaves", {}, "it raised SystemExit: usage: ... (taugrad_mine.py:8 in leaves)"),
    ],
)
def test_what_a_function_does_wrong_is_one_line(mine, function, arguments, said):
    path = f"{mine}:{function}"
    with pytest.raises(UserCodeError) as caught:
        call(path, import_object(path), arguments, "it takes this and returns that")
    message = str(caught.value)
    assert said.replace("\\\\", "\\") in message
    assert path in message
    assert message.endswith("; it takes this and returns that")
    assert "\n" not in message
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reason) == (message, caught.value.reason)


def test_an_error_while_training_is_placed_if_it_comes_from_the_users_code(mine):
    fails = import_object(f"{mine}:fails")
    with (
        pytest.raises(UserCodeRaised, match=r"KeyError: .*\(taugrad_mine.py:6 in deeper\)"),
        placing_errors(),
    ):
        fails()
    with pytest.raises(UserCodeError, match="takes this"), placing_errors():
        call(f"{mine}:fails", fails, {}, "takes this")
    with pytest.raises(UserCodeError), placing_errors():
        import_object("nowhere:f")


def test_a_function_finds_files_where_the_command_was_given(tmp_path, monkeypatch):
    """A worker of our own Ray begins in another folder, and is told which one that was."""
    (tmp_path / "numbers.txt").write_text("1 2 3")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert call("mine:read", lambda path: Path(path).read_text(), {"path": "numbers.txt"}, "") == "1 2 3"


@pytest.fixture
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("command", ["train spec.yaml", "search search.yaml", "submit spec.yaml --address x"])
def test_a_users_module_that_would_hide_another_is_named(command, said, own_folder, path):
    for name in ("platform.py", "queue.py", "secrets/__init__.py", "xmlrpc.py", "torch.py"):
        file = own_folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise RuntimeError\n")
        module = name.removesuffix("/__init__.py").removesuffix(".py")
        line = said(command)
        assert line.startswith(f"taugrad: {file}: would be imported in place of the ")
        assert line.endswith(f"module {module}, and Ray would not start; rename it")
        shutil.rmtree(file.parent) if file.parent != own_folder else file.unlink()


def test_files_that_hide_nothing_are_no_trouble(own_folder, path):
    """Built-in and frozen modules come before any folder; a folder without `__init__.py` comes after."""
    for name in ("sys.py", "os.py", "own_net.py", "queue/data.txt", "platform/own.py", "queue.txt"):
        (own_folder / name).parent.mkdir(exist_ok=True)
        (own_folder / name).write_text("raise RuntimeError\n")
    import_from_here()
    assert sys.path[0] == str(own_folder)


def test_the_module_taugrad_finds_it_too(own_folder):
    """`python -m` puts the current folder first by itself."""
    (own_folder / "platform.py").write_text("")
    (own_folder / "textwrap.py").write_text("")
    words = [sys.executable, "-m", "taugrad", "train", "spec.yaml"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"taugrad: {own_folder}/platform.py: would be imported in place")


def test_a_deleted_folder_is_named(own_folder, capsys):
    (own_folder / "gone").mkdir()
    os.chdir(own_folder / "gone")
    (own_folder / "gone").rmdir()
    for words in (["doctor"], ["train", "spec.yaml"], ["report", "mine", "-o", "page"]):
        assert cli.main(words) == cli.WRONG_INPUT
        assert capsys.readouterr().err == (
            "taugrad: the current folder has been deleted; cd to one that exists\n"
        )


def test_each_wrong_field_has_a_line_that_begins_as_any_error(own_folder, capsys):
    words = ["train", "spec.yaml", "--training.epochs", "0", "--workers.count", "0"]
    assert cli.main(words) == cli.WRONG_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" = ")[0] for line in lines] == [
        "taugrad: command line: training.epochs",
        "taugrad: command line: workers.count",
    ]
