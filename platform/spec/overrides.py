"""Changes to a spec from the environment and the command line, as trees of fields.

`TAUGRAD_COMPRESSOR__TAU=1e-3` and `--compressor.tau 1e-3` set the same field.
"""

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from .errors import COMMAND_LINE, SpecError
from .explaining import explain_arguments
from .fields import METHOD, below, walk
from .lines import spelled_out
from .run import RunSpec

ENVIRONMENT_PREFIX = "TAUGRAD_"
_NEAR = 0.8
"""How alike a variable of the environment and a field must be for the variable to be a typing error."""


class _Fields(RunSpec, BaseSettings):
    """Tells pydantic-settings which fields there are; nobody makes one."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__")


@dataclass(frozen=True, eq=False)
class Overrides:
    """The changes that a command was given, to whichever spec they will be made."""

    layers: Sequence[Mapping[str, Any]]
    """Trees of fields; the first one counts most."""
    whole_method: bool
    """Whether they give a method as a whole. It takes the place of another: fields are not mixed."""
    options: Sequence[str]
    """The command line's, such as `--compressor.tau`."""

    @classmethod
    def read(cls, arguments: Sequence[str] = ()) -> "Overrides":
        """Those of the present environment, and over them those of a command line.

        Args:
            arguments: such as `["--compressor.tau", "1e-3"]`.

        Raises:
            SpecError: an argument or a variable is no field, or its text cannot be read.
        """
        _check_variables()
        method, others = _take_method(arguments)
        try:
            command_line = _command_line_source()(args=others)()
            environment = EnvSettingsSource(_Fields)()
        except SettingsError as error:
            problem = explain_arguments(str(error))
            in_variable = "EnvSettingsSource" in str(error)
            where = _variable_of(problem.partition(":")[0]) if in_variable else COMMAND_LINE
            raise SpecError(where, [problem]) from None
        if method:
            environment.pop(METHOD, None)
        return cls(
            (command_line, method, environment),
            bool(method) or f"{ENVIRONMENT_PREFIX}{METHOD.upper()}" in os.environ,
            [argument.partition("=")[0] for argument in arguments],
        )

    def source_of(self, field: str) -> str:
        """Which of the command line and the environment gave a field its value; empty if it was neither."""
        if any(f"--{name}" in self.options for name in _around(field)):
            return COMMAND_LINE
        return _variable_of(field)


@cache
def _command_line_source() -> CliSettingsSource[Any]:
    """Made once: that takes far longer than reading a command line with it."""
    return CliSettingsSource(_Fields, cli_exit_on_error=False)


def _take_method(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Takes `--compressor "strom(tau=0.05) | golomb_rice"`, or its fields as JSON, out of a command line.

    Returns:
        The method as a tree, which is empty where there is none; the other arguments.
    """
    method: dict[str, Any] = {}
    others = []
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if option != f"--{METHOD}":
            others.append(argument)
            continue
        text = value if equals else next(rest, None)
        if text is None:
            raise SpecError(COMMAND_LINE, [f"{option}: expected one argument"])
        method = spelled_out({METHOD: _fields_or_line(text)}, COMMAND_LINE)
    return method, others


def _fields_or_line(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip().startswith("{") else text
    except ValueError:
        return text  # whoever reads it as a line says what is wrong


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


def _variable_of(field: str) -> str:
    """The variable that sets a field or a group around it; empty if none does."""
    named = {name: variable for variable, name in _variables().items()}
    return next((named[name] for name in _around(field) if name in named), "")


def _around(field: str) -> list[str]:
    """A field, and the groups that it lies in, from within."""
    parts = field.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
