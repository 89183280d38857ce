"""The page of all commands and their options, from the parser itself."""

import argparse
import os
from collections.abc import Iterator
from textwrap import fill

from taugrad import cli

WIDTH = 88
"""Characters that fit beside the navigation."""


def page() -> str:
    """The page, as Markdown."""
    os.environ["COLUMNS"] = str(WIDTH)
    return "".join(_sections("taugrad", cli.build_parser()))


def _sections(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    usage, _, rest = parser.format_help().rstrip().partition("\n\n")
    usage = fill(" ".join(usage.split()), WIDTH - 2, subsequent_indent=" " * 7, break_on_hyphens=False)
    yield f"\n## {name}\n\n```text\n{usage}\n\n{rest}\n```\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, command in action.choices.items():
                yield from _sections(f"{name} {below}", command)
