"""The page on errors: what it quotes is still said, and no error of ours is missing."""

import re
from pathlib import Path

import error_texts
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
_QUOTED = re.compile(r"^`(?P<pattern>[^`\n]+)`\n:   ", re.MULTILINE)
SHORTEST = 6
"""Characters of a piece of a pattern that is looked for."""


def everything() -> list[str]:
    return [each.text for group in error_texts.collected().values() for each in group]


def quoted() -> list[str]:
    return [found["pattern"] for found in _QUOTED.finditer(PAGE.read_text(encoding="utf-8"))]


def is_said(pattern: str, texts: list[str]) -> bool:
    """Whether a text has all pieces of a pattern in their order, or several texts one each."""
    pieces = [piece.strip(" :;,.()") for piece in pattern.split(error_texts.VALUE)]
    pieces = [piece for piece in pieces if len(piece) >= SHORTEST]
    return bool(pieces) and all(any(piece in text for text in texts) for piece in pieces)


@pytest.mark.parametrize("pattern", quoted())
def test_what_is_quoted_is_still_said(pattern):
    assert is_said(pattern, everything()), pattern


def test_every_group_stands_on_the_page_once():
    marks = re.findall(r"<!-- messages: ([\w-]+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(marks) == sorted(error_texts.GROUPS)
    assert all(error_texts.collected().values())
