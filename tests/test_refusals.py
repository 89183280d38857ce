"""What no command takes is refused before anything starts: exit code 2, and one line that says what is wrong.

refusals.yaml has it: specs that cannot be, files and words that cannot be read, and wrong options.
"""

import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import run_all

from taugrad import cli

TABLES: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
Refuse = Callable[[list[str], str], None]


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys):
    """Gives a command, which must say so."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "MLFLOW_", "TAUGRAD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as `python -m taugrad` has it
    (tmp_path / "own_net.py").write_text("def net(hidden): pass\n")

    def give(words: list[str], said: str) -> None:
        before = set(tmp_path.iterdir())
        assert cli.main(words) == cli.WRONG_INPUT, words
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        made = {path.name for path in set(tmp_path.iterdir()) - before}
        assert made <= {"__pycache__", *["mlflow.db"] * (words[0] == "auto")}  # which asks the store first
        ray = sys.modules.get("ray")
        assert ray is None or not ray.is_initialized()

    return give


def give(refuse: Refuse, command: str, text: str, words: list[str], said: str) -> None:
    Path("spec.yaml").write_text(text)
    refuse([command, "spec.yaml", *words], said)


@pytest.mark.parametrize("table", ["files", "searches", "cannot_run"])
def test_what_cannot_be_read_or_run(table, refuse, subtests):
    command = "search" if table == "searches" else "train"
    calls = (
        (f"{arguments[0]} {arguments[1]}", partial(give, refuse, command, *arguments))
        for arguments in TABLES[table]
    )
    run_all(calls, subtests)


def test_specs_that_cannot_be(refuse, subtests):
    """Each of them for real workers; where a model has two parts for simulated ones, too."""
    calls = ((fields, partial(_specs, refuse, fields, said)) for fields, said in TABLES["specs"])
    run_all(calls, subtests)


def _specs(refuse: Refuse, fields: str, said: str) -> None:
    tree = {"workers": {"count": 3}} | yaml.safe_load(f"{{{fields}}}")
    give(refuse, "train", yaml.safe_dump(tree), [], said)
    if tree.get("sync", {}).get("mode") == "hybrid":
        simulated = tree | {"sync": {"mode": "simulated", "of": tree["sync"]}}
        give(refuse, "train", yaml.safe_dump(simulated), [], said.replace("sync.", "sync.of."))


@pytest.mark.parametrize("table", TABLES["commands"], ids=lambda table: table["run"])
def test_options(table, refuse, subtests):
    for name in {"spec", "find"} & table.keys():
        Path(f"{name}.yaml").write_text(table[name])
    then = shlex.split(table.get("then", ""))
    calls = (
        (words, partial(refuse, [*shlex.split(f"{table['run']} {words}"), *then], said))
        for words, said in table["said"]
    )
    run_all(calls, subtests)


def test_the_command_is_installed_beside_python_and_says_where_to_begin(capsys):
    assert Path(sys.executable).with_name("taugrad").exists()
    assert cli.main(["train"]) == cli.WRONG_INPUT
    assert "experiments/quickstart" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["fly"])
