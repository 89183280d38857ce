"""Validation errors in a user's words: the field, its value, and what is valid."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from taugrad.compressors.fields import FAMILIES, POLICIES

from .fields import METHOD, TAGS, all_fields, below, kinds_of, without_tags
from .synchronization import pattern_of_mode

_LONGEST = 100
"""Characters of a value in a message."""
_NEAR = 0.75
"""How alike a wrong value and a choice must be for that to be proposed."""
_PLAIN = {"str", "int", "float", "bool"}
_SAME_NAME = 4
"""So many fields of other groups that end in an unknown field's name are proposed in its place."""


def explain(errors: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Explains the errors of pydantic: each field that is wrong, dotted, with the line to say."""
    plain: set[str] = set()
    for problem in errors:
        where = problem["loc"]
        if len(where) > 1 and where[-1] in _PLAIN:  # one error for each member of a union
            field = ".".join(str(part) for part in without_tags(where[:-1]))
            if field not in plain:
                plain.add(field)
                yield field, f"{field} = {_shown(problem['input'])}: give text, a number, true or false"
            continue
        field = ".".join(str(part) for part in without_tags(where))
        inside = f".{_tag_of(problem['ctx'])}" if problem["type"].startswith("union_tag") else ""
        yield field + inside, _explain(problem, field)


def nearest(field: str) -> str:
    """What an unknown field may have meant, or which fields there are."""
    section, dot, last = field.rpartition(".")
    last = last.replace("-", "_")
    beside = below(section)
    close = difflib.get_close_matches(last, beside, n=1)
    if close:
        return f"; did you mean {section}{dot}{close[0]}?"
    names = list(dict.fromkeys(spec_field.name for spec_field in all_fields()))
    elsewhere = [name for name in names if name.rpartition(".")[2] == last]
    if 0 < len(elsewhere) <= _SAME_NAME:
        return f"; did you mean {either(elsewhere)}?"
    close = [] if beside else difflib.get_close_matches(field, names, n=1)
    return f"; did you mean {close[0]}?" if close else _listed([f"{section}{dot}{name}" for name in beside])


def either(choices: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(", ".join(choices).rsplit(", ", 1))


def _explain(problem: Any, field: str) -> str:  # noqa: PLR0911, PLR0912 (one for each kind of problem)
    where, value, context = problem["loc"], problem.get("input"), problem.get("ctx", {})
    said = f"{field} = {_shown(value)}"
    match problem["type"]:
        case "extra_forbidden":
            return f"{field}: {_unknown(field, where)}"
        case "missing":
            return f"{field}: is missing{_described(field, where)}"
        case "union_tag_invalid":
            choices = context["expected_tags"].removeprefix("'number', ")  # a number needs no kind
            tag = context["tag"]
            if (written := pattern_of_mode(tag)) and _tag_of(context) == "mode":
                instead = f"{{mode: simulated, of: {written}}}" if field.endswith(".of") else written
                return f"{field}.mode = {tag}: is a pattern of the mode gradients; write sync: {instead}"
            kinds = _with_registered(choices.replace("'", "").split(", "))
            return f"{field}.{_tag_of(context)} = {tag}: choose {either(kinds)}{_meant(tag, kinds)}"
        case "union_tag_not_found":
            return f"{field}.{_tag_of(context)}: is missing"
        case "model_type" | "model_attributes_type" if value is None and field != METHOD:
            return f"{field}: is empty; indent its fields below it, or leave it out"
        case "model_type" | "model_attributes_type" if field == METHOD:
            return f"{said}: give a line such as wgt(tau=1e-3) | golomb_rice, or kind and fields"
        case "model_type" | "model_attributes_type":
            return f"{said}: {_group(field, value)}"
        case "tuple_type" | "list_type":
            return f"{said}: give a list, such as [{value}]"
        case "dict_type":
            return f"{said}: give names and values, such as {{name: value}}"
        case "path_type":
            return f"{said}: give a folder's name"
        case "too_short":
            return f"{said}: needs {context['min_length']} or more"
        case "string_pattern_mismatch" if field.endswith(".factory"):
            return f"{said}: give package.module:function, such as mine:make of a file mine.py in this folder"
        case "literal_error":
            choices = _with_registered(re.findall(r"'([^']*)'", str(context.get("expected", ""))))
            return f"{said}: {_lowered(problem['msg'])}{_meant(value, choices)}"
        case "value_error" if isinstance(value, dict | BaseModel):
            return f"{field}: {context['error']}" if field else str(context["error"])
        case "value_error":
            return f"{said}: {context['error']}"
        case _ if where and where[-1] == "number":
            kinds = [tag.kind for tag in all_fields() if tag.name == f"{field}.kind"]
            policies = kinds if len(set(kinds)) == 1 else POLICIES
            return f"{said}: give a number, or a policy with its fields in brackets: {', '.join(policies)}"
        case _:
            return f"{said}: {_lowered(problem['msg'])}"


def _with_registered(builtin: list[str]) -> list[str]:
    """Names to choose from, and those that are registered besides."""
    fitting = [family for family in FAMILIES if set(builtin) <= {"auto", *family.builtin}]
    registered = (
        min(fitting, key=lambda family: len(family.builtin)).registered if builtin and fitting else ()
    )
    return [*builtin, *registered]


def _shown(value: Any) -> str:
    text = repr(value) if value == "" else " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _lowered(text: str) -> str:
    """What pydantic says, as the rest of a line: without what it could not do with the text it was given."""
    return f"{text[0].lower()}{text[1:]}".partition(", unable to")[0]


def _meant(value: Any, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=_NEAR)
    return f"; did you mean {close[0]}?" if close else ""


def _group(field: str, value: Any) -> str:
    """What to write where a value stands in the place of a group of fields."""
    tag, kinds = kinds_of(field)
    if not kinds:
        names = below(field)
        shown = _shown(value) if isinstance(value, int | float) else "VALUE"
        return f"give its fields in braces, such as {{{names[0]}: {shown}}}; they are {', '.join(names)}"
    known = value in kinds
    example = value if known else kinds[0]
    said = f"give {field}.{tag}, as {{{tag}: {example}}} in a file or --{field}.{tag} {example}"
    return said if known else f"{said}; the choices are {', '.join(kinds)}{_meant(value, kinds)}"


def _described(field: str, where: Sequence[str | int]) -> str:
    """What a field is, where the spec says it."""
    alike = [described for described in all_fields() if described.name == field and described.description]
    fitting = [described for described in alike if described.kind in where] or alike
    return f" ({fitting[0].description.removesuffix('.')})" if fitting else ""


def _tag_of(context: dict[str, Any]) -> str:
    """The field that chooses a union's member; where a function does, that field is `kind`."""
    written = str(context["discriminator"]).strip("'")
    return written if written in TAGS else "kind"


def _unknown(field: str, where: Sequence[str | int]) -> str:
    fields = [(known.name, known.kind) for known in all_fields()]
    kinds = [kind for name, kind in fields if name == field]
    having = list(dict.fromkeys(kinds or [kind for name, kind in fields if name.startswith(f"{field}.")]))
    if having and len(where) > 1:
        return f"kind {where[-2]} has no such field; {either(having)} has"
    return f"no such field{nearest(field)}"


def _listed(names: Sequence[str]) -> str:
    return f"; there are {', '.join(names)}" if names else ""
