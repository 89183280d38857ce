"""Specs as text: YAML 1.2 by its core schema, read by what the fields hold, and errors if it is not valid.

PyYAML parses the text; its own schema is that of YAML 1.1, for which `no` is false, `010` is 8 and `1:30` is
90. A field that holds text takes a plain scalar as it is written: `name: 61e9540` and `name: 0123` are names.
"""

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from . import SpecError
from .fields import entered, held

_TAG = "tag:yaml.org,2002:"
_CORE = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
    "merge": ("<<", ["<"]),
}
"""The core schema's plain scalars (YAML 1.2.2, 10.3.2) by tag, each with its first characters; and merge
keys, which people write although the schema leaves them out."""
_MOST = 100_000
"""Values that a text may stand for; aliases can make a short text endless."""
_CHOICE = "choice"
"""The key of a range of alternatives, each of which takes the place of its field's value."""


class _Loader(yaml.SafeLoader):
    """Tells plain scalars apart as the core schema does."""

    yaml_implicit_resolvers = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes the text that YAML 1.1 or 1.2 would take for something else."""


for _name, (_pattern, _first) in _CORE.items():
    _compiled = re.compile(rf"(?:{_pattern})\Z")
    yaml.add_implicit_resolver(_TAG + _name, _compiled, _first, Loader=_Loader, Dumper=_Dumper)


def read_yaml(path: Path, model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model that a file holds, by name.

    Raises SpecError: there is no such file, or it holds no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(str(path), f"no such file{_meant(path)}") from None
    except IsADirectoryError:
        raise SpecError(str(path), f"is a folder; give its files, {path}/*.yaml") from None
    except UnicodeDecodeError:
        raise SpecError(str(path), "is not text in UTF-8") from None
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror}") from None
    try:
        tree = parse_yaml(text, [model])
    except yaml.YAMLError as error:
        raise SpecError(str(path), explain_yaml(error, text)) from None
    if tree is None:
        return {}
    if isinstance(tree, str):
        raise SpecError(str(path), f"holds the text {tree!r:.60}; write fields as `name: value`")
    if not isinstance(tree, dict):
        raise SpecError(str(path), f"holds a {type(tree).__name__}; a spec must be a mapping of fields")
    return tree


def read_value(text: str, annotations: Sequence[Any]) -> Any:
    """A field's value that stands on a command line or in the environment as YAML; other text as it is."""
    try:
        return parse_yaml(text, annotations)
    except yaml.YAMLError:
        return text


def parse_yaml(text: str, annotations: Sequence[Any]) -> Any:
    """What a text in YAML says: dictionaries with text as keys, lists, text, numbers, true, false and None.

    `annotations` are what its value may be: a model, or what `entered` returns for a field. Raises
    yaml.YAMLError: it is not valid, for which `explain_yaml` has a line.
    """
    try:
        node = yaml.compose(text, _Loader)
        return None if node is None else _Reading().value(node, annotations, ())
    except RecursionError:
        raise yaml.YAMLError("brackets or groups are nested too deeply") from None


def dump_yaml(tree: Any) -> str:
    """A tree as YAML that `parse_yaml` reads back as it was."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


class _Reading:
    """Reads one document's nodes."""

    def __init__(self) -> None:
        self._count = 0

    def value(self, node: yaml.Node, annotations: Sequence[Any], around: tuple[yaml.Node, ...]) -> Any:
        """What a node says, which lies in the nodes `around`.

        `annotations` are what it may be; none where that is not known.
        """
        self._count += 1
        if node in around:
            raise _wrong(node, "an alias to what it lies in")
        if self._count > _MOST:
            raise _wrong(node, f"aliases make more than {_MOST:,} values of it")
        around = (*around, node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, held(annotations))
        if isinstance(node, yaml.SequenceNode):
            _require(node, "seq")
            return [self.value(item, annotations, around) for item in node.value]
        assert isinstance(node, yaml.MappingNode)
        _require(node, "map")
        merged: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong(key, "a list or a mapping cannot be a name")
            name = key.value
            if name in lines:
                raise _wrong(key, f"{name} is given twice, first in line {lines[name]}")
            lines[name] = key.start_mark.line + 1
            if key.tag == f"{_TAG}merge":
                for mapping in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                    if not isinstance(mapping, yaml.MappingNode):
                        raise _wrong(mapping, "<< takes the fields of a mapping, such as <<: *name")
                    merged |= self.value(mapping, annotations, around)
            else:
                inside = annotations if name == _CHOICE else entered(annotations, name)
                fields[name] = self.value(value, inside, around)
        return merged | fields


def _scalar(node: yaml.ScalarNode, types: set[type]) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind in ("str", "merge"):
        return text
    if kind not in _CORE or not re.fullmatch(_CORE[kind][0], text):
        _require(node, "str")
    if kind == "null" and (not text or types != {str}):
        return None
    if types and bool not in types and (kind == "bool" or not types & {int, float}):
        return text  # a field that takes neither text nor this value says so
    if kind == "bool":
        return text.lower() == "true"
    return _number(text)


def _number(text: str) -> int | float | str:
    """A number; text as it is where it would be an endless one, such as the commit 61e9540."""
    digits = text.lstrip("+-")
    try:
        if digits.startswith(("0o", "0x")):
            return int(digits, 0)
        if digits.isdecimal():
            return int(text)
    except ValueError:  # Python reads no integer of so many digits
        return text
    if digits[1:].isalpha():  # .inf or .nan
        return float(text.replace(".", ""))
    return text if math.isinf(number := float(text)) else number


def _require(node: yaml.Node, kind: str) -> None:
    if node.tag != _TAG + kind:
        shown = node.tag.replace(_TAG, "!!")
        raise _wrong(node, f"the tag {shown} is not for this value: tags are not needed; leave it out")


def _wrong(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _meant(path: Path) -> str:
    name, equals, value = str(path).partition("=")
    if equals:
        return f"; fields are set as --{name.lstrip('-')} {value}"
    beside = [file.name for file in path.parent.glob("*.y*ml")]
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def explain_yaml(error: yaml.YAMLError, text: str) -> str:
    """What is wrong with a text, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"is not valid YAML: {' '.join(str(error).split())}"
    problem = " ".join(str(getattr(error, "problem", "")).split())
    lines = text.splitlines()
    line = lines[mark.line].strip() if mark.line < len(lines) else ""
    hint = ""
    if "mapping values are not" in problem:
        hint = "; fields of one group begin in the same column, and text that holds ': ' must stand in quotes"
    elif "\\t" in problem:
        problem, hint = "a tab", "; indent with spaces"
    return f"is not valid YAML: line {mark.line + 1}, {line!r:.80}: {problem}{hint}"
