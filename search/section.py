"""The `search:` section of a spec: read from its file, the environment and the command line; its `--help`."""

import difflib
import os
from typing import Any

from pydantic import ValidationError

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.allowing import is_allowed, refusal
from taugrad.platform.spec.fields import FieldHelp, entered, type_name
from taugrad.platform.spec.overrides import ENVIRONMENT_PREFIX
from taugrad.platform.spec.yaml_file import read_value

from .config import SearchConfig

_SECTION = "search"


class SearchSpec(RunSpec):
    """Tells what the fields of a search's file hold; nobody makes one."""

    search: SearchConfig


def take_section(tree: dict[str, Any], given: dict[str, str], source: str) -> SearchConfig:
    """Takes the section's fields out of what was given.

    Args:
        tree: a file's fields; the section is taken out.
        given: the command line's values by field; those of the section are taken out.
        source: the file's name, for messages.

    Returns:
        What the file says, over it the environment, over that the command line.

    Raises:
        SpecError: a field is wrong or unknown, or the file names code, which is not allowed.
    """
    section = tree.pop(_SECTION, None) or {}
    if not isinstance(section, dict):
        raise SpecError(source, [f"{_SECTION} = {section}: give its fields, {', '.join(_fields())}"])
    own = [name for name in given if name.partition(".")[0] == _SECTION]
    on_command_line = {
        name.partition(".")[2]: _value(name.partition(".")[2], given.pop(name)) for name in own
    }
    environment = _environment()
    try:
        settings = SearchConfig.model_validate(section | environment | on_command_line)
    except ValidationError as error:
        raise SpecError(source, [_explain(problem) for problem in error.errors()]) from None
    own_words = "evaluate" in environment or "evaluate" in on_command_line
    if settings.evaluate is not None and not own_words and not is_allowed():
        raise SpecError(source, [refusal(f"{_SECTION}.evaluate", settings.evaluate)])
    return settings


def search_fields() -> list[FieldHelp]:
    """Every field of the section, for `--help`."""
    return [
        FieldHelp(
            f"{_SECTION}.{name}",
            type_name(info.annotation),
            str(info.get_default()),
            "",
            " ".join((info.description or "").split()),
        )
        for name, info in SearchConfig.model_fields.items()
    ]


def _environment() -> dict[str, Any]:
    prefix = f"{ENVIRONMENT_PREFIX}{_SECTION.upper()}__"
    return {
        (own := name.removeprefix(prefix).lower()): _value(own, value)
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def _value(name: str, text: str) -> Any:
    return read_value(text, entered([SearchConfig], name))


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return f"{_SECTION}: {problem['ctx']['error']}"
    own = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(own, _fields(), n=1)
        hint = f"did you mean {_SECTION}.{close[0]}?" if close else f"there are {', '.join(_fields())}"
        return f"{_SECTION}.{own}: no such field; {hint}"
    said = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
    return f"{_SECTION}.{own} = {problem['input']}: {said[0].lower()}{said[1:]}"


def _fields() -> list[str]:
    return list(SearchConfig.model_fields)
