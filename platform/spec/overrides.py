"""Changes to a spec from the environment and the command line, as trees of fields.

`TAUGRAD_COMPRESSOR__TAU=1e-3` and `--compressor.tau 1e-3` set the same field.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import yaml

from taugrad.compressors.methods.parsing import parse as parse_chain

from . import COMMAND_LINE, SpecError, models
from .explaining import nearest
from .fields import METHOD, all_fields, below, entered, held, type_name
from .run import RunSpec
from .yaml_file import explain_yaml, parse_yaml

ENVIRONMENT_PREFIX = "TAUGRAD_"
_NEAR = 0.8
"""How alike a variable of the environment and a field must be for the variable to be a typing error."""


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
        """Those of the environment, and over them those of arguments such as `--compressor.tau 1e-3`.

        Raises SpecError: an argument is no field, or the text of one or of a variable cannot be read.
        """
        _check_variables()
        given: dict[str, str] = {}
        for name, text in pairs(arguments):
            if not (annotations := entered([RunSpec], *name.split("."))):
                raise SpecError(COMMAND_LINE, f"--{name}: no such field{nearest(name)}")
            if name in given and "list" in _forms(annotations):
                raise SpecError(COMMAND_LINE, f"--{name}: is there twice; give a list, such as [a, b]")
            given[name] = text
        command_line = _tree((name, text, COMMAND_LINE) for name, text in given.items())
        sections = below("")
        environment = _tree(
            (name, os.environ[variable], variable)
            for variable, name in _variables().items()
            if name.partition(".")[0] in sections
        )
        if METHOD in given:
            environment.pop(METHOD, None)
        whole_method = METHOD in given or METHOD in _variables().values()
        return cls((command_line, environment), whole_method, [f"--{name}" for name in given])

    def source_of(self, field: str) -> str:
        """Which of the command line and the environment gave a field its value; empty if it was neither."""
        if any(f"--{name}" in self.options for name in _around(field)):
            return COMMAND_LINE
        variables = {name: variable for variable, name in _variables().items()}
        return next((variables[name] for name in _around(field) if name in variables), "")


def pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--name value` and `--name=value` as pairs; raises SpecError: an argument is neither."""
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        name = option.removeprefix("--")
        if name.startswith("-"):
            raise SpecError(COMMAND_LINE, f"{option}: a field needs two dashes, --{name.lstrip('-')}")
        if name == option:
            raise SpecError(COMMAND_LINE, f"{argument}: expected --FIELD VALUE")
        if not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise SpecError(COMMAND_LINE, f"{option}: expected one argument")
        yield name, value


def laid_over(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees as one; where both have a value, that of the first counts."""
    laid = {**under, **over}
    for key in over.keys() & under.keys():
        if isinstance(over[key], Mapping) and isinstance(under[key], Mapping):
            laid[key] = laid_over(over[key], under[key])
    return laid


def _tree(given: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """Fields by dotted name, text and source as a tree; single fields come over the groups that hold them."""
    tree: dict[str, Any] = {}
    for name, text, source in sorted(given, key=lambda override: override[0].count(".")):
        first, *inner = name.split(".")
        value = _value(name, text, source)
        for part in reversed(inner):
            value = {part: value}
        tree = laid_over(spelled_out({first: value}, source), tree)
    return tree


def _value(name: str, text: str, source: str) -> Any:
    """A field's value: text as it is where the field holds text, anything else as in a file."""
    annotations = entered([RunSpec], *name.split("."))
    holds, forms = held(annotations), _forms(annotations)
    is_text = bool(holds) and holds <= {str, NoneType}
    in_brackets = text.lstrip().startswith(("{", "["))
    if forms == {"list"} and not in_brackets:
        return [part.strip() for part in text.split(",")]
    if not text or (name == METHOD and not in_brackets):
        return text
    if is_text and not (in_brackets and "list" in forms):
        return None if text == "null" and NoneType in holds else text
    try:
        value = parse_yaml(text, annotations)
    except yaml.YAMLError as error:
        if not in_brackets or is_text:
            return text  # such as a policy or a pattern; its reader says what is wrong
        problem = f"{name} = {text}: {explain_yaml(error, text)}"
        raise SpecError(source, f"{problem}; give {{name: value}} or [value, value]") from None
    return text if isinstance(value, dict | list) and not in_brackets else value


def _forms(annotations: Sequence[Any]) -> set[str]:
    return {form for annotation in annotations for form in type_name(annotation).split("|")}


def _variables() -> dict[str, str]:
    """The variables of the environment that set a field or look as if they should, with that field's name."""
    ours = (name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX))
    return {name: name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".") for name in ours}


def _check_variables() -> None:
    """Refuses variables that are fields but for a typing error: pydantic would pass over them in silence."""
    fields = {field.name.upper().replace(".", "__") for field in all_fields()}
    for variable, name in _variables().items():
        if name.partition(".")[0] in (*below(""), "search"):
            continue  # pydantic, or the search, says what is wrong with it
        setting = variable[len(ENVIRONMENT_PREFIX) :].upper()
        if close := difflib.get_close_matches(setting, fields, n=1, cutoff=_NEAR):
            raise SpecError(variable, f"no such field; did you mean {ENVIRONMENT_PREFIX}{close[0]}?")


def _around(field: str) -> list[str]:
    """A field, and the groups that it lies in, from within."""
    parts = field.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def spelled_out(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A spec's fields with those that lines stand for, so that they can be changed one by one.

    `compressor` may be a chain, `model` timm:NAME. Raises SpecError: the method's line is no chain.
    """
    tree = {**tree}
    if "model" in tree:
        tree["model"] = models.spelled_out(tree["model"])
    if isinstance(line := tree.get(METHOD), str):
        try:
            tree[METHOD] = parse_chain(line)
        except ValueError as error:
            raise SpecError(source, f"{METHOD} = {line}: {error}") from None
    return tree
