"""Reading a spec: a YAML file, over it the environment, over that the command line.

`TAUGRAD_COMPRESSOR__TAU=1e-3` and `--compressor.tau 1e-3` set the same field. What is wrong comes back as
one `SpecError` that names each field, its value, where that comes from, and what would do.
"""

import difflib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from taugrad.compressors.config.chain import parse as parse_chain

from ..models.config import spelled_out
from .errors import COMMAND_LINE, SpecError
from .explaining import explain, explain_arguments
from .fields import METHOD, TAGS, FieldHelp, below, spec_fields, walk
from .run import RunSpec
from .yaml_file import read_numbers, read_yaml

__all__ = [
    "ENVIRONMENT_PREFIX",
    "FieldHelp",
    "SpecError",
    "read_numbers",
    "read_spec",
    "read_tree",
    "read_yaml",
    "spec_fields",
]

ENVIRONMENT_PREFIX = "TAUGRAD_"
_NEAR = 0.8
"""How alike a variable of the environment and a field must be for the variable to be a typing error."""


def read_spec(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """The spec in a file, with the environment's and the command line's changes.

    Args:
        path: a YAML file; fields that it leaves out have their defaults.
        overrides: command-line arguments, such as `["--compressor.tau", "1e-3"]`.

    Raises:
        SpecError: there is no such file, it is no YAML, or a field is wrong or unknown.
    """
    tree = read_yaml(path)
    if "search" in tree:
        raise SpecError(str(path), [f"is the spec of a search: taugrad search {path}"])
    return read_tree(tree, str(path), overrides)


def read_tree(tree: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The spec in a tree of fields, as `read_yaml` returns it, with the changes of `read_spec`.

    Args:
        tree: fields by name; those that it leaves out have their defaults.
        source: its file's name, for messages.
        overrides: command-line arguments.

    Raises:
        SpecError: a field is wrong or unknown.
    """
    _check_variables()
    given = [argument.partition("=")[0] for argument in overrides]
    overrides, replaced = _expand_overrides(overrides)
    tree = {**_expand_chains(tree, source)}
    if replaced or f"{ENVIRONMENT_PREFIX}{METHOD.upper()}" in os.environ:
        tree.pop(METHOD, None)  # a whole method takes the place of another, fields are not mixed

    class Settings(RunSpec, BaseSettings):
        model_config = SettingsConfigDict(
            extra="forbid", env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__"
        )

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            command_line: CliSettingsSource[Any] = CliSettingsSource(
                settings_cls, cli_parse_args=list(overrides), cli_exit_on_error=False
            )
            environment = EnvSettingsSource(settings_cls)()
            if replaced:
                environment.pop(METHOD, None)
            return (
                command_line,
                InitSettingsSource(settings_cls, environment),
                InitSettingsSource(settings_cls, tree),
                InitSettingsSource(settings_cls, _kinds(RunSpec().model_dump())),
            )

    try:
        settings = Settings()
    except ValidationError as error:
        fields, problems = zip(*explain(error.errors()), strict=True)
        sources = [_source(field, given) or source for field in fields]
        raise SpecError(source, problems, sources) from None
    except SettingsError as error:
        problem = explain_arguments(str(error))
        in_variable = "EnvSettingsSource" in str(error)
        where = _source(problem.partition(":")[0], ()) if in_variable else COMMAND_LINE
        raise SpecError(where, [problem]) from None
    return RunSpec.model_validate(settings.model_dump())


def _expand_chains(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Methods and models given as a line, as the mapping that it stands for, whose fields can be changed."""
    if "model" in tree:
        tree = {**tree, "model": spelled_out(tree["model"])}
    written = tree.get(METHOD)
    return {**tree, METHOD: _chain(written, source)} if isinstance(written, str) else tree


def _expand_overrides(overrides: Sequence[str]) -> tuple[list[str], bool]:
    """The same on a command line: `--compressor "strom(tau=0.05) | golomb_rice"`; and whether it has one."""
    expanded, replaced = list(overrides), False
    for i, argument in enumerate(expanded):
        option, equals, value = argument.partition("=")
        if option != f"--{METHOD}":
            continue
        replaced = True
        if equals:
            expanded[i] = f"{option}={_chain_as_json(value)}"
        elif i + 1 < len(expanded):
            expanded[i + 1] = _chain_as_json(expanded[i + 1])
        else:
            raise SpecError(COMMAND_LINE, [f"{option}: expected one argument"])
    return expanded, replaced


def _chain_as_json(text: str) -> str:
    return text if text.lstrip().startswith("{") else json.dumps(_chain(text, COMMAND_LINE))


def _chain(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_chain(text)
    except ValueError as error:
        raise SpecError(source, [f"{METHOD} = {text}: {error}"]) from None


def _kinds(tree: dict[str, Any]) -> dict[str, Any]:
    """The default kind of every union, so that a field of it can be set without naming the kind."""
    kinds: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and (inner := _kinds(value)):
            kinds[key] = inner
        elif key in TAGS:
            kinds[key] = value
    return kinds


def _variables() -> dict[str, str]:
    """The variables of the environment that set a field or look as if they should, with that field's name."""
    ours = (name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX))
    return {name: name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".") for name in ours}


def _check_variables() -> None:
    """Refuses variables that are fields but for a typing error: pydantic would pass over them in silence."""
    fields = {name.upper().replace(".", "__") for name, _, _ in walk(RunSpec)}
    for variable, name in _variables().items():
        if name.partition(".")[0] in (*below(""), "search"):
            continue  # pydantic, or the search, says what is wrong with it
        own = variable[len(ENVIRONMENT_PREFIX) :].upper()
        if close := difflib.get_close_matches(own, fields, n=1, cutoff=_NEAR):
            raise SpecError(variable, [f"no such field; did you mean {ENVIRONMENT_PREFIX}{close[0]}?"])


def _source(field: str, given: Sequence[str]) -> str:
    """Which of the command line and the environment gave a field its value; empty if it was neither."""
    around = _around(field)
    if any(f"--{name}" in given for name in around):
        return COMMAND_LINE
    named = {name: variable for variable, name in _variables().items()}
    return next((named[name] for name in around if name in named), "")


def _around(field: str) -> list[str]:
    """A field, and the groups that it lies in, from within."""
    parts = field.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
