"""The pages that are made of the code have all that it has, and the page on errors quotes what is said."""

import re
from pathlib import Path

import error_texts
import pytest
from html_page import Page

from taugrad import cli, compressors
from taugrad.platform import data, tasks
from taugrad.platform.spec.fields import spec_fields
from taugrad.platform.tracking import names
from taugrad.search.config import search_fields


@pytest.fixture
def page(site):
    return lambda name: Page(site / "reference" / f"{name}.html")


def test_every_field_has_a_place_with_what_it_says(page):
    result = page("spec")
    said = result.words.replace("`", "")
    for field in [*spec_fields(), *search_fields()]:
        assert field.name in result.places
        assert " ".join(field.description.replace("`", "").split()) in said, field.name


def test_every_command_and_option_is_there(page):
    text = page("cli").text
    parser = cli.build_parser()
    (commands,) = (action for action in parser._actions if action.choices and action.dest == "==SUPPRESS==")
    assert {"train", "doctor"} <= set(commands.choices)
    for name, command in commands.choices.items():
        assert f"taugrad {name}" in text
        for action in command._actions:
            for option in action.option_strings:
                assert option in text, (name, option)


def test_every_name_in_mlflow_is_there_with_what_it_means(page):
    text = page("metrics").text
    constants = {name: value for name, value in vars(names).items() if re.match(r"[A-Z]+_|EPOCH$", name)}
    texts = {name: value for name, value in constants.items() if isinstance(value, str)}
    assert len(texts) > 50
    for name, value in texts.items():
        row = re.search(rf"^{re.escape(value)}\n(?P<meaning>.*)\n{name}$", text, re.MULTILINE)
        assert row is not None, name
        assert row["meaning"].strip(), name
    for quantity in ("grad_p999", "zeros"):
        assert f"layer/<name>/{quantity}" in text


def test_every_public_name_is_there(page):
    places = page("python").places
    public = [f"taugrad.compressors.{name}" for name in compressors.__all__ if name != "CompressorConfig"]
    public += [f"taugrad.platform.data.{name}" for name in data.__all__ if name not in {"Data", "load"}]
    public += [f"taugrad.platform.tasks.{name}" for name in tasks.__all__ if name[0].isupper()]
    assert not set(public) - places


# The page on errors


PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
_QUOTED = re.compile(r"^`(?P<pattern>[^`\n]+)`\n:   ", re.MULTILINE)
SHORTEST = 6
"""Characters of a piece of a pattern that is looked for."""


def everything() -> list[str]:
    return [message.text for group in error_texts.collected().values() for message in group]


def quoted() -> list[str]:
    return [match["pattern"] for match in _QUOTED.finditer(PAGE.read_text(encoding="utf-8"))]


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
