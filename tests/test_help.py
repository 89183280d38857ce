"""`taugrad --help` of every command, word for word: what people and scripts go by changes with intent alone.

help.txt holds it. After a change that is meant:

    python tests/test_help.py > tests/help.txt
"""

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from taugrad import cli

GOLDEN = Path(__file__).with_name("help.txt")
WIDTH = 100
THE_SAME = "  (those of `taugrad train`)\n"
"""Stands for a spec's fields where they are listed again."""


def help_of(*command: str) -> str:
    """What a command prints, at one width whatever the terminal's."""
    shown = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=str(WIDTH)),
        contextlib.redirect_stdout(shown),
        pytest.raises(SystemExit, match="0"),
    ):
        cli.main([*command, "--help"])
    # From Python 3.13 on argparse names a value once; before, after each form of an option.
    return re.sub(r"^  (-\w) (\S+), (--\S+ \2)", r"  \1, \3", shown.getvalue(), flags=re.MULTILINE)


def commands(*before: str) -> Iterator[tuple[str, ...]]:
    """Every command, from what help itself lists."""
    yield before
    listed = re.search(r"^(?:commands|sources):\n  [A-Z]+\n((?:    .*\n)+)", help_of(*before), re.MULTILINE)
    for name in re.findall(r"^ {4}(\w+)", listed[1], re.MULTILINE) if listed else ():
        yield from commands(*before, name)


def everything() -> str:
    """The help of all commands, a spec's fields once."""
    fields = help_of("train").partition("\nfields:\n")[2]
    assert fields.count("\n  --") > 100
    sections = []
    for command in commands():
        text = help_of(*command)
        if command != ("train",):
            text = text.replace(fields, THE_SAME)
        sections.append(f"$ {' '.join(('taugrad', *command))} --help\n{text}")
    return "\n".join(sections)


def test_help_is_what_it_was():
    golden, result = GOLDEN.read_text().splitlines(), everything().splitlines()
    changed = "\n".join(difflib.unified_diff(golden, result, "tests/help.txt", "help", lineterm="", n=1))
    assert not changed, f"{changed}\nif this is meant: python tests/test_help.py > tests/help.txt"


if __name__ == "__main__":
    sys.stdout.write(everything())
