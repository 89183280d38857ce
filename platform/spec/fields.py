"""The spec's fields by their dotted names, as on the command line: for `--help` and for messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..config import descriptions
from .run import RunSpec


def alternatives(annotation: Any) -> Iterator[Any]:
    """What a field may be: models, types, choices, lists and dictionaries, without unions around them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from alternatives(arguments[0])
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from alternatives(argument)
    else:
        yield annotation


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field may be, but for those in lists and dictionaries."""
    return [alternative for alternative in alternatives(annotation) if _is_model(alternative)]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def entered(annotations: Sequence[Any], *names: str) -> list[Any]:
    """A field's annotation in each member of a union of `annotations`; none where there is no such field.

    These are a model, or what `entered` returned for the group around it; names of groups come before the
    field's.
    """
    for part in names:
        models = (model for annotation in annotations for model in models_in(annotation))
        fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        kinds = (alternative for annotation in annotations for alternative in alternatives(annotation))
        annotations = fields or [get_args(model)[1] for model in kinds if get_origin(model) is dict]
    return list(annotations)


def held(annotations: Sequence[Any]) -> set[type]:
    """The plain types among annotations, in lists too; text and paths are str."""
    seen = set[type]()
    for kind in (alternative for annotation in annotations for alternative in alternatives(annotation)):
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            seen |= {type(choice) for choice in arguments}
        elif arguments and origin is not dict:
            seen |= held(arguments)
        elif isinstance(kind, type) and not _is_model(kind):
            seen.add(str if issubclass(kind, Path) else kind)
    return seen


def type_name(annotation: Any) -> str:
    """What a field holds, in a word: a type's name, or the choices; without None and limits."""
    names: dict[str, None] = {}
    for alternative in alternatives(annotation):
        origin = get_origin(alternative)
        if origin is Literal:
            names |= dict.fromkeys(map(str, get_args(alternative)))
        elif origin in (list, dict, tuple):
            names["list" if origin is tuple else origin.__name__] = None
        elif alternative is not NoneType and not _is_model(alternative):
            names[alternative.__name__] = None
    return "|".join(names)


METHOD = "compressor"
TAGS = ("kind", "mode")
"""Fields that choose among the members of a union; a model has one of them at most."""


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
    by_name: dict[str, list[SpecField]] = {}
    for field in all_fields():
        by_name.setdefault(field.name, []).append(field)
    choices = {
        name.rpartition(".")[0] + ".": [field.kind for field in alike]
        for name, alike in by_name.items()
        if is_tag(name)
    }
    fields: list[FieldHelp] = []
    for name, alike in by_name.items():
        if name.startswith(f"{METHOD}.") and not any(field.name == METHOD for field in fields):
            example = "'wgt(tau=1e-3) | quantile | golomb_rice'"
            described = f"A method and its links, such as {example}; below are its single fields."
            fields.append(FieldHelp(METHOD, "LINE", "none", "", described))
        types = dict.fromkeys(part for field in alike for part in type_name(field.info.annotation).split("|"))
        kinds = "" if is_tag(name) else _kinds_text(name, [field.kind for field in alike], choices)
        shown_default = "" if is_tag(name) else _default_text(alike)
        default = (
            shown_default if "; " in shown_default else defaults.get(name) or shown_default
        )  # kinds may not agree on it
        described = next((field.description for field in alike if field.description), "")
        fields.append(FieldHelp(name, "|".join(types), default, kinds, described))
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


def _default_text(alike: Sequence["SpecField"]) -> str:
    """A field's default, with the kinds where they do not agree on it."""
    by_default: dict[str, list[str]] = {}
    for field in alike:
        info = field.info
        default = "required" if info.is_required() else str(info.get_default(call_default_factory=True))
        by_default.setdefault(default, []).append(field.kind)
    if len(by_default) == 1:
        return next(iter(by_default))
    usual, *others = sorted(by_default.items(), key=lambda item: -len(item[1]))
    return "; ".join(
        [usual[0], *(f"{', '.join(dict.fromkeys(kinds))}: {default}" for default, kinds in others)]
    )


def is_tag(name: str) -> bool:
    """Whether a field chooses among the members of a union."""
    return name.rpartition(".")[2] in TAGS


def below(section: str) -> list[str]:
    """The fields and groups of a group; of the whole spec if it is empty."""
    prefix = f"{section}." if section else ""
    inside = (field.name.removeprefix(prefix) for field in all_fields() if field.name.startswith(prefix))
    return list(dict.fromkeys(name.partition(".")[0] for name in inside))


def kinds_of(section: str) -> tuple[str, list[str]]:
    """The field that chooses a group's kind, and its kinds; ("", []) where there is nothing to choose."""
    alike = [
        field for field in all_fields() if is_tag(field.name) and field.name.rpartition(".")[0] == section
    ]
    kinds = list(dict.fromkeys(field.kind for field in alike))
    return (alike[0].name.rpartition(".")[2], kinds) if len(kinds) > 1 else ("", [])


def without_tags(where: Sequence[str | int]) -> Iterator[str | int]:
    """The path of a field without the kinds that pydantic puts in where a union was entered."""
    inside: list[Any] = [RunSpec]
    """What the next part may be a part of."""
    for part in where:
        models = [model for annotation in inside for model in models_in(annotation)]
        chosen = [model for model in models if part in _tags(model)]
        if chosen or (part == "number" and models) or part == "[key]":
            inside = chosen
            continue
        inside = entered(inside, str(part))
        yield part


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    tag = next((model.model_fields[name] for name in TAGS if name in model.model_fields), None)
    return get_args(tag.annotation) if tag is not None else ()


class SpecField(NamedTuple):
    """A field that holds a value."""

    name: str
    """Dotted."""
    kind: str
    """The kind of its union that it belongs to; empty outside unions."""
    model: type[BaseModel]
    """The group that has it."""

    @property
    def info(self) -> FieldInfo:
        """What pydantic knows."""
        return self.model.model_fields[self.name.rpartition(".")[2]]

    @property
    def description(self) -> str:
        """The docstring under it, on one line; may be empty."""
        return descriptions(self.model).get(self.name.rpartition(".")[2], "")


@cache
def all_fields() -> tuple[SpecField, ...]:
    """Every field of the spec that holds a value."""
    return tuple(_walk(RunSpec, "", "", ()))


def _walk(
    model: type[BaseModel], prefix: str, kind: str, around: tuple[type[BaseModel], ...]
) -> Iterator[SpecField]:
    """A group's fields. A choice within one of its own alternatives (a policy of a policy) is not entered."""
    for name, info in sorted(model.model_fields.items(), key=lambda item: item[0] not in TAGS):
        members = models_in(info.annotation)
        if not all(
            alternative is NoneType or _is_model(alternative) for alternative in alternatives(info.annotation)
        ):
            yield SpecField(prefix + name, kind, model)
        for member in members:
            kinds = _tags(member) if len(members) > 1 else ()
            if member in around:
                continue
            for tag in kinds or ("",):
                yield from _walk(member, f"{prefix}{name}.", str(tag) or kind, (*around, *members))
