"""A spec from elsewhere runs no code that it names, unless whoever gives the command allows it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from taugrad import cli
from taugrad.platform.launching.driver import train as command
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.allowing import VARIABLE, allowed, code_of, is_allowed
from taugrad.platform.spec.reading import read_spec
from taugrad.search.reading import read_search

LEAVES_A_FILE = "from pathlib import Path\nPath('ran').touch()\ndef made(**_): raise RuntimeError('called')\n"
SECTIONS = ("task", "data", "model")


@pytest.fixture(autouse=True)
def folder(own_folder, monkeypatch):
    """The working folder, with a module beside the specs that says when it is imported."""
    monkeypatch.setattr(sys, "path", [str(own_folder), *sys.path])
    (own_folder / "theirs.py").write_text(LEAVES_A_FILE)
    yield own_folder
    sys.modules.pop("theirs", None)


def spec_naming(section: str, factory: str = "theirs:made", more: str = "") -> Path:
    path = Path("spec.yaml")
    path.write_text(f"{section}: {{kind: custom, factory: '{factory}'}}\n{more}")
    return path


RANGED = "compressor: {kind: wgt, tau: {log: [1e-3, 1e-1]}}\n"
COMMANDS = (
    ("train", "spec.yaml"),
    ("search", "spec.yaml"),
    ("auto", "spec.yaml"),
    ("plan", "spec.yaml", "--link", "100mbit,20ms"),
    ("submit", "spec.yaml", "--address", "http://127.0.0.1:1"),
    ("submit", "auto", "spec.yaml", "--address", "http://127.0.0.1:1"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("section", SECTIONS)
def test_no_command_imports_it(words, section, capsys):
    spec_naming(section, more=RANGED if "search" in words else "")
    assert cli.main(words) == cli.WRONG_INPUT
    (told,) = capsys.readouterr().err.splitlines()
    assert f"{section}.factory = theirs:made: names code" in told
    assert "--allow-custom" in told
    assert not Path("ran").exists()
    assert "theirs" not in sys.modules


def test_a_choice_among_models_hides_no_code():
    text = "model: {choice: [{kind: mlp}, {kind: custom, factory: 'theirs:made'}, {kind: lenet}]}\n"
    Path("spec.yaml").write_text(RANGED + text)
    with pytest.raises(SpecError, match=r"model\.factory = theirs:made: names code"):
        read_search(Path("spec.yaml"))
    with allowed(True):
        read_search(Path("spec.yaml"))


def test_a_training_of_a_searchs_own_is_code(monkeypatch):
    Path("spec.yaml").write_text(RANGED + "search: {evaluate: 'theirs:made'}\n")
    with pytest.raises(SpecError, match=r"^spec.yaml: search\.evaluate = theirs:made: names code"):
        read_search(Path("spec.yaml"))
    with allowed(True):
        assert read_search(Path("spec.yaml")).settings.evaluate == "theirs:made"
    search = read_search(Path("spec.yaml"), ["--search.evaluate", "mine:curve"])
    assert search.settings.evaluate == "mine:curve"
    monkeypatch.setenv("TAUGRAD_SEARCH__EVALUATE", "mine:other")
    assert read_search(Path("spec.yaml")).settings.evaluate == "mine:other"


def test_what_the_user_names_needs_no_allowance(monkeypatch):
    """The command line and the environment are the user's own word, a file is not."""
    Path("spec.yaml").write_text("seed: 1\n")
    flags = ["--model.kind", "custom", "--model.factory", "mine:net"]
    assert code_of(read_spec(Path("spec.yaml"), flags)) == {"model.factory": "mine:net"}
    spec_naming("data")
    with pytest.raises(SpecError, match=r"spec.yaml: data\.factory = theirs:made"):
        read_spec(Path("spec.yaml"), flags)
    monkeypatch.setenv("TAUGRAD_DATA__FACTORY", "mine:data")
    assert code_of(read_spec(Path("spec.yaml"), flags)) == {
        "data.factory": "mine:data",
        "model.factory": "mine:net",
    }


def test_with_the_option_it_runs_and_the_option_does_not_last(capsys):
    spec_naming("data")
    assert cli.main(["train", "spec.yaml", "--allow-custom"]) == cli.WRONG_INPUT
    assert "data.factory = theirs:made: called with no arguments it raised" in capsys.readouterr().err
    assert Path("ran").exists()
    assert not is_allowed()


@pytest.mark.parametrize(("value", "allows"), [("1", True), ("", False), ("0", False)])
def test_the_environment_allows_it(monkeypatch, value, allows):
    monkeypatch.setenv(VARIABLE, value)
    assert is_allowed() is allows
    with allowed(True):
        assert is_allowed()
        assert read_spec(spec_naming("task")).task.factory == "theirs:made"
    assert is_allowed() is allows


def test_a_run_that_a_store_describes_is_a_file_like_any_other(monkeypatch, folder):
    """Who can write into the store could name code in the spec of a run that somebody resumes."""
    model = {"kind": "custom", "factory": "theirs:made"}
    spec = RunSpec.model_validate({"model": model, "storage": str(folder)})
    monkeypatch.setattr(command, "probe", lambda *_, **__: None)
    monkeypatch.setattr(command, "usable_store", lambda: None)
    monkeypatch.setattr(command, "_spec_of", lambda client, run_id: spec)
    with pytest.raises(SpecError, match=r"^run abc: model\.factory = theirs:made: names code"):
        command.resume("abc", display=SimpleNamespace(console=None))
    assert not Path("ran").exists()
