"""The page of all commands and their options, from the parser itself."""

import argparse
import os
from collections.abc import Iterator

from taugrad import cli

WIDTH = "100"


def page() -> str:
    """The page, as Markdown."""
    os.environ["COLUMNS"] = WIDTH
    return "".join(_sections("taugrad", cli._parser()))


def _sections(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n## {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, command in action.choices.items():
                yield from _sections(f"{name} {below}", command)
