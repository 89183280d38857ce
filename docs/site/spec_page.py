"""The page of all fields of a spec, from the pydantic models that read it."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import annotated_types
from pydantic.fields import FieldInfo

from taugrad.platform.spec.fields import FieldHelp, all_fields, spec_fields
from taugrad.search.config import search_fields

SECTIONS = {
    "": ("The run", "Top-level fields."),
    "task": ("task", "What the model is trained for. See [Tasks](../tasks.md)."),
    "model": ("model", "The network. See [Models](../models.md)."),
    "data": ("data", "What it is trained on. See [Data](../data.md)."),
    "training": ("training", "How it is trained. See [Training](../training.md)."),
    "compressor": (
        "compressor",
        "What is sent. A whole method fits on one line, such as `wgt(density(0.01)) | golomb_rice`; see "
        "[Methods](../methods.md). Its single fields can be set by themselves.",
    ),
    "sync": ("sync", "Who sends what to whom. See [Synchronization](../synchronization.md)."),
    "workers": ("workers", "The processes that train."),
    "tracking": ("tracking", "What MLflow records. See [Metrics](metrics.md)."),
    "checkpoint": ("checkpoint", "When to save. See [Checkpoints](../training.md#checkpoints)."),
}
SEARCH = "What `taugrad search` reads besides. See [Search](../search.md)."
_LARGE = 1 << 20
_NO_DEFAULT = {"", "None", "()", "{}"}


def page() -> str:
    """The page, as Markdown."""
    fields, bounds = spec_fields(), _all_bounds()
    parts = []
    for section, (title, about) in SECTIONS.items():
        own = [each for each in fields if _section_of(each.name) == section]
        parts.append(f"\n## {title}\n\n{about}\n")
        parts += _entries(own, bounds)
    parts.append(f"\n## search\n\n{SEARCH}\n")
    parts += _entries(search_fields(), {})
    return "\n".join(parts)


def _section_of(name: str) -> str:
    first = name.partition(".")[0]
    return first if first in SECTIONS else ""


def _entries(fields: Sequence[FieldHelp], bounds: dict[str, list[str]]) -> Iterator[str]:
    """A section's own fields, then group by group those below it."""
    by_group: dict[str, list[FieldHelp]] = {"": []}
    for field in fields:
        parts = field.name.split(".")
        by_group.setdefault(".".join(parts[:2]) if len(parts) > 2 else "", []).append(field)
    for group, inside in by_group.items():
        if group:
            yield f"\n### {group}\n"
        for field in inside:
            yield _entry(field, bounds.get(field.name, []))


def _entry(field: FieldHelp, bounds: Sequence[str]) -> str:
    facts = [f"`{field.type}`"]
    if field.default == "required":
        facts.append("required")
    elif field.default not in _NO_DEFAULT:
        facts.append(f"default `{field.default}`")
    facts += bounds
    kinds = f" Kinds: {field.kinds}." if field.kinds else ""
    described = f"<br>{_escaped(field.description)}" if field.description else ""
    return f"\n`{field.name}` {{ #{field.name} }}\n:   {', '.join(facts)}.{kinds}{described}\n"


def _escaped(text: str) -> str:
    """Text in which Markdown sees nothing to format, but for code."""
    return text.replace("*", r"\*").replace("<", "&lt;").replace("[", r"\[")


def _all_bounds() -> dict[str, list[str]]:
    found: dict[str, dict[str, list[str]]] = {}
    for field in all_fields():
        text = ", ".join(_bounds(field.info))
        if text:
            found.setdefault(field.name, {}).setdefault(text, []).append(field.kind)
    return {
        name: list(by_text)
        if len(by_text) == 1
        else [f"{text} ({', '.join(dict.fromkeys(kinds))})" for text, kinds in by_text.items()]
        for name, by_text in found.items()
    }


def _bounds(info: FieldInfo) -> Iterator[str]:
    yield from _of_metadata(info.metadata)
    yield from dict.fromkeys(_nested(info.annotation))


def _nested(annotation: Any) -> Iterator[str]:
    yield from _of_metadata(getattr(annotation, "__metadata__", ()))
    for each in get_args(annotation):
        if get_args(each):
            yield from _nested(each)


def _of_metadata(metadata: Sequence[Any]) -> Iterator[str]:
    for each in metadata:
        for part in getattr(each, "metadata", None) or [each]:
            match part:
                case annotated_types.Gt(gt=value):
                    yield f"above {_number(value)}"
                case annotated_types.Ge(ge=value):
                    yield f"at least {_number(value)}"
                case annotated_types.Lt(lt=value):
                    yield f"below {_number(value)}"
                case annotated_types.Le(le=value):
                    yield f"at most {_number(value)}"
                case annotated_types.MinLen(min_length=value) if value:
                    yield "not empty" if value == 1 else f"of length {value} or more"
                case annotated_types.MaxLen(max_length=value):
                    yield f"of length {value} at most"


def _number(value: Any) -> str:
    power = value.bit_length() - 1 if isinstance(value, int) and value > _LARGE else 0
    return f"2^{power}" if power and value == 1 << power else f"{value:g}"
