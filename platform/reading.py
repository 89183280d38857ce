"""Reading a spec: a YAML file, over it the environment, over that the command line.

`TAUGRAD_COMPRESSOR__TAU=1e-3` and `--compressor.tau 1e-3` set the same field. What is wrong comes back as
one `SpecError` that names each field, its value, and what would do.
"""

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
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

from .spec import RunSpec

ENVIRONMENT_PREFIX = "TAUGRAD_"
_METHOD = "compressor"
_TAGS = ("kind", "mode")
"""Fields that choose among the members of a union; a model has one of them at most."""
_COMMAND_LINE = "command line"


class SpecError(ValueError):
    """A spec that cannot run; the message has a line for each field that is wrong."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source, self.problems = source, list(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


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
    overrides, replaced = _expand_overrides(overrides)
    tree = {**_expand_chains(tree, source)}
    if replaced or f"{ENVIRONMENT_PREFIX}{_METHOD.upper()}" in os.environ:
        tree.pop(_METHOD, None)  # a whole method takes the place of another, fields are not mixed

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
                environment.pop(_METHOD, None)
            return (
                command_line,
                InitSettingsSource(settings_cls, environment),
                InitSettingsSource(settings_cls, tree),
                InitSettingsSource(settings_cls, _kinds(RunSpec().model_dump())),
            )

    try:
        settings = Settings()
    except ValidationError as error:
        raise SpecError(source, [_explain(problem) for problem in error.errors()]) from None
    except SettingsError as error:
        raise SpecError(_COMMAND_LINE, [_explain_arguments(str(error))]) from None
    return RunSpec.model_validate(settings.model_dump())


@dataclass(frozen=True)
class FieldHelp:
    """One field of the spec, for `--help`."""

    name: str
    """Dotted, as on the command line."""
    type: str
    default: str
    kinds: str
    """The kinds of its union that have it; empty when all have."""
    description: str


def spec_fields() -> list[FieldHelp]:
    """Every field of the spec, those of several kinds merged."""
    defaults = RunSpec().flat()
    found: dict[str, list[tuple[str, FieldInfo]]] = {}
    for name, kind, info in _walk(RunSpec):
        found.setdefault(name, []).append((kind, info))
    choices = {
        name.rpartition(".")[0] + ".": [kind for kind, _ in alike]
        for name, alike in found.items()
        if _is_tag(name)
    }
    fields: list[FieldHelp] = []
    for name, alike in found.items():
        if name.startswith(f"{_METHOD}.") and not any(field.name == _METHOD for field in fields):
            fields.append(_METHOD_HELP)
        types = dict.fromkeys(each for _, info in alike for each in _type_name(info.annotation).split("|"))
        kinds = "" if _is_tag(name) else _kinds_text(name, [kind for kind, _ in alike], choices)
        default = defaults.get(name) or ("" if _is_tag(name) else _default_text(alike))
        described = next((info.description for _, info in alike if info.description), "")
        fields.append(FieldHelp(name, "|".join(types), default, kinds, " ".join(described.split())))
    return fields


def _kinds_text(name: str, kinds: Sequence[str], choices: dict[str, list[str]]) -> str:
    """Which kinds of the union around a field have it, in as few words as can be."""
    kinds = list(dict.fromkeys(kinds))
    around = [
        prefix for prefix, all_kinds in choices.items() if name.startswith(prefix) and kinds[0] in all_kinds
    ]
    if not kinds[0] or not around:
        return ", ".join(kinds) if kinds[0] else ""
    others = [kind for kind in dict.fromkeys(choices[max(around, key=len)]) if kind not in kinds]
    if not others:
        return ""
    return ", ".join(kinds) if len(kinds) <= len(others) + 2 else f"all but {', '.join(others)}"


def _default_text(alike: Sequence[tuple[str, FieldInfo]]) -> str:
    """A field's default, with the kinds where they do not agree on it."""
    by_default: dict[str, list[str]] = {}
    for kind, info in alike:
        own = "required" if info.is_required() else str(info.get_default(call_default_factory=True))
        by_default.setdefault(own, []).append(kind)
    if len(by_default) == 1:
        return next(iter(by_default))
    usual, *others = sorted(by_default.items(), key=lambda item: -len(item[1]))
    return "; ".join([usual[0], *(f"{', '.join(dict.fromkeys(kinds))}: {own}" for own, kinds in others)])


_METHOD_HELP = FieldHelp(
    _METHOD,
    "LINE",
    "none",
    "",
    "A method and its links, such as 'wgt(tau=1e-3) | quantile | golomb_rice'; below are its single fields.",
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields that a file holds, by name; numbers such as 1e-3 are read as numbers.

    Raises:
        SpecError: there is no such file, or it holds no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(str(path), ["no such file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"cannot be read: {error}"]) from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        hint = "; text that holds ': ' must stand in quotes" if "mapping values are not" in str(error) else ""
        raise SpecError(str(path), [f"is no YAML: {' '.join(str(error).split())}{hint}"]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SpecError(str(path), [f"holds a {type(tree).__name__}; a spec is a mapping of fields"])
    numbers: dict[str, Any] = read_numbers(tree)
    return numbers


def _expand_chains(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Methods given as a line, as the mapping that it stands for: single fields of it can then be changed."""
    written = tree.get(_METHOD)
    return {**tree, _METHOD: _chain(written, source)} if isinstance(written, str) else tree


def _expand_overrides(overrides: Sequence[str]) -> tuple[list[str], bool]:
    """The same on a command line: `--compressor "strom(tau=1e-3) | golomb_rice"`; and whether it has one."""
    expanded, replaced = list(overrides), False
    for i, argument in enumerate(expanded):
        option, equals, value = argument.partition("=")
        if option != f"--{_METHOD}":
            continue
        replaced = True
        if equals:
            expanded[i] = f"{option}={_chain_as_json(value)}"
        elif i + 1 < len(expanded):
            expanded[i + 1] = _chain_as_json(expanded[i + 1])
        else:
            raise SpecError(_COMMAND_LINE, [f"{option}: expected one argument"])
    return expanded, replaced


def _chain_as_json(text: str) -> str:
    return text if text.lstrip().startswith("{") else json.dumps(_chain(text, _COMMAND_LINE))


def _chain(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_chain(text)
    except ValueError as error:
        raise SpecError(source, [f"{_METHOD} = {text}: {error}"]) from None


_YAML_MISSES = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def read_numbers(tree: Any) -> Any:
    """Reads 1e-3 as the number it is: YAML 1.1 wants 1.0e-3 and calls the rest a string."""
    if isinstance(tree, dict):
        return {key: read_numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [read_numbers(value) for value in tree]
    return float(tree) if isinstance(tree, str) and _YAML_MISSES.fullmatch(tree) else tree


def _kinds(tree: dict[str, Any]) -> dict[str, Any]:
    """The default kind of every union, so that a field of it can be set without naming the kind."""
    kinds: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and (inner := _kinds(value)):
            kinds[key] = inner
        elif key in _TAGS:
            kinds[key] = value
    return kinds


def _is_tag(name: str) -> bool:
    return name.rpartition(".")[2] in _TAGS


def _explain(problem: Any) -> str:  # noqa: PLR0911 (one for each kind of problem)
    """One validation error in a user's words."""
    where, value = problem["loc"], problem.get("input")
    field = ".".join(str(part) for part in _without_tags(where))
    context = problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            return f"{field}: {_unknown(field, where)}"
        case "missing":
            return f"{field}: is missing"
        case "union_tag_invalid":
            choices = context["expected_tags"].removeprefix("'number', ")  # a number needs no kind
            return f"{field}.{_tag_of(context)} = {context['tag']}: choose {_either(choices)}"
        case "union_tag_not_found":
            return f"{field}.{_tag_of(context)}: is missing"
        case "model_type" | "model_attributes_type" if field == _METHOD:
            return f"{field} = {value}: give a line such as wgt(tau=1e-3) | golomb_rice, or kind and fields"
        case "model_type" | "model_attributes_type":
            return f"{field} = {value}: give its fields, {', '.join(_below(field))}"
        case "tuple_type" | "list_type":
            return f"{field} = {value}: give a list, such as [{value}]"
        case "too_short":
            return f"{field} = {value}: needs {context['min_length']} or more"
        case "value_error" if isinstance(value, dict | BaseModel):
            return f"{field}: {context['error']}" if field else str(context["error"])
        case "value_error":
            return f"{field} = {value}: {context['error']}"
        case _:
            return f"{field} = {value}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _tag_of(context: dict[str, Any]) -> str:
    """The field that chooses a union's member; where a function does, that field is `kind`."""
    written = str(context["discriminator"]).strip("'")
    return written if written in _TAGS else "kind"


def _unknown(field: str, where: Sequence[str | int]) -> str:
    having = list(dict.fromkeys(kind for name, kind, _ in _walk(RunSpec) if name == field))
    if having and len(where) > 1:
        return f"kind {where[-2]} has no such field; {_either(', '.join(having))} has"
    return f"no such field{_nearest(field)}"


def _explain_arguments(message: str) -> str:
    unknown = re.search(r"unrecognized arguments: (--[\w.-]+)?", message)
    if unknown is None:
        return message.removeprefix("error parsing CLI: ")
    if unknown[1] is None:
        return message.removeprefix("error parsing CLI: ")
    return f"{unknown[1]}: no such field{_nearest(unknown[1].removeprefix('--'))}"


def _either(quoted: str) -> str:
    return " or ".join(quoted.replace("'", "").rsplit(", ", 1))


def _nearest(field: str) -> str:
    section, dot, own = field.rpartition(".")
    beside = _below(section)
    close = difflib.get_close_matches(own, beside, n=1)
    if close:
        return f"; did you mean {section}{dot}{close[0]}?"
    names = dict.fromkeys(name for name, _, _ in _walk(RunSpec))
    close = [] if beside else difflib.get_close_matches(field, names, n=1)
    return f"; did you mean {close[0]}?" if close else _listed([f"{section}{dot}{name}" for name in beside])


def _below(section: str) -> list[str]:
    """The fields and groups of a group; of the whole spec if it is empty."""
    prefix = f"{section}." if section else ""
    inside = (name.removeprefix(prefix) for name, _, _ in _walk(RunSpec) if name.startswith(prefix))
    return list(dict.fromkeys(name.partition(".")[0] for name in inside))


def _listed(names: Sequence[str]) -> str:
    return f"; there are {', '.join(names)}" if names else ""


def _without_tags(where: Sequence[str | int]) -> Iterator[str | int]:
    """The path of a field without the kinds that pydantic puts in where a union was entered."""
    inside: list[Any] = [RunSpec]
    """What the next part may be a part of."""
    for part in where:
        models = [model for annotation in inside for model in _models(annotation)]
        entered = [model for model in models if part in _tags(model)]
        if entered or (part == "number" and models) or part == "[key]":
            inside = entered
            continue
        fields = [model.model_fields[str(part)].annotation for model in models if part in model.model_fields]
        inside = fields or [values for annotation in inside for values in _values(annotation)]
        yield part


def _values(annotation: Any) -> Iterator[Any]:
    """What the values of a dictionary may be, where that is one."""
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        yield arguments[1]
    else:
        for argument in arguments:
            yield from _values(argument)


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    tag = next((model.model_fields[name] for name in _TAGS if name in model.model_fields), None)
    return get_args(tag.annotation) if tag is not None else ()


def _walk(
    model: type[BaseModel],
    prefix: str = "",
    kind: str = "",
    around: tuple[type[BaseModel], ...] = (),
) -> Iterator[tuple[str, str, FieldInfo]]:
    """Every field that holds a value: its dotted name, the kind it belongs to, what pydantic knows.

    A choice within one of its own alternatives (a policy of a policy) is not entered again.
    """
    for name, info in sorted(model.model_fields.items(), key=lambda item: item[0] not in _TAGS):
        members = list(_models(info.annotation))
        if not members or _plain(info.annotation):
            yield prefix + name, kind, info
        for member in members:
            kinds = _tags(member) if len(members) > 1 else ()
            if member in around:
                continue
            for each in kinds or ("",):
                yield from _walk(member, f"{prefix}{name}.", str(each) or kind, (*around, *members))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) not in (list, dict):
        for argument in get_args(annotation):
            yield from _models(argument)


def _plain(annotation: Any) -> bool:
    """Whether a field that may hold a model may also hold a number or a text."""
    if isinstance(annotation, type):
        return not issubclass(annotation, BaseModel | NoneType)
    if get_origin(annotation) in (list, dict, Literal):
        return True
    return any(_plain(argument) for argument in _alternatives(annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    arguments = get_args(annotation)
    return arguments[:1] if get_origin(annotation) is Annotated else arguments


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    origin = get_origin(annotation)
    if origin in (list, dict, tuple):
        return "list" if origin is tuple else str(origin.__name__)
    if isinstance(annotation, type):
        return "" if issubclass(annotation, BaseModel | NoneType) else annotation.__name__
    named = [_type_name(member) for member in _alternatives(annotation)]
    return "|".join(name for name in dict.fromkeys(named) if name)
