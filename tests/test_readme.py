"""The README's commands can be read: specs are there, fields exist, and a wrong one is told as it says.

So can those of docs/clusters.md.
"""

import glob
import re
import shlex
from pathlib import Path

import pytest

from taugrad import cli
from taugrad.platform.spec.reading import read_spec
from taugrad.search.reading import read_search

ROOT = Path(__file__).resolve().parent.parent


def fenced(page: str = "README.md") -> list[str]:
    """Every line of a page's fenced blocks; continued lines are joined."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in re.sub(r" *\\\n *", " ", block).splitlines()]


def commands(page: str = "README.md") -> list[tuple[dict[str, str], list[str]]]:
    """Every `taugrad` line: the variables before it, and its arguments after the shell has had them."""
    found = []
    for line in fenced(page):
        said = line.startswith(("$", "taugrad:"))
        words = shlex.split(line, comments=True) if "taugrad" in line and not said else []
        variables = {}
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name, _, variables[name] = words.pop(0).partition("=")
        if "--" in words and words[:3] == ["ray", "job", "submit"]:
            words = words[words.index("--") + 1 :]
        if words[:1] == ["taugrad"]:
            arguments = [each for word in words[1:] for each in sorted(glob.glob(word)) or [word]]
            found.append((variables, arguments))
    return found


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_command_can_be_read(monkeypatch):
    seen, further = set(), commands("docs/clusters.md")
    assert {arguments[0] for _, arguments in further} >= {"submit", "report"}
    for variables, arguments in commands() + further:
        if "--help" in arguments:
            with pytest.raises(SystemExit, match="0"):
                cli.main(arguments)
            continue
        options, overrides = cli._parser().parse_known_args(arguments)
        assert not overrides or options.takes_fields, arguments
        seen.add(arguments[0])
        with monkeypatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            for path in [*getattr(options, "specs", []), *filter(None, [getattr(options, "spec", None)])]:
                if not path.name.endswith(".yaml"):
                    continue  # SPEC stands for one, train for `submit train`
                search = "search" in arguments[:2]
                assert read_search(path, overrides) if search else read_spec(path, overrides)
    assert seen >= {"train", "search", "auto", "law", "doctor", "dashboard", "report", "submit"}


def test_what_it_shows_of_a_wrong_spec_is_what_is_said(capsys):
    lines = fenced()
    (place,) = [i for i, line in enumerate(lines) if line.startswith("$ taugrad")]
    told = lines[place + 1].removesuffix("(...)")
    assert cli.main(shlex.split(lines[place])[2:]) == cli.WRONG_INPUT
    assert capsys.readouterr().err.startswith(told)
