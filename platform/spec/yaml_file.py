"""Specs as text: YAML, with numbers as people write them, and errors if it is not valid."""

import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from .errors import SpecError

_YAML_MISSES = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """See `yaml.SafeLoader`."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in lines and name != "<<":
                problem = f"{name} is given twice, first in line {lines[name]}"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields that a file holds, by name; numbers such as 1e-3 are read as numbers.

    Raises:
        SpecError: there is no such file, or it holds no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(str(path), [f"no such file{_meant(path)}"]) from None
    except IsADirectoryError:
        raise SpecError(str(path), [f"is a folder; give its files, {path}/*.yaml"]) from None
    except UnicodeDecodeError:
        raise SpecError(str(path), ["is not text in UTF-8"]) from None
    except OSError as error:
        raise SpecError(str(path), [f"cannot be read: {error.strerror}"]) from None
    try:
        tree = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SpecError(str(path), [_explain(error, text)]) from None
    if tree is None:
        return {}
    if isinstance(tree, str):
        raise SpecError(str(path), [f"holds the text {tree!r:.60}; write fields as `name: value`"])
    if not isinstance(tree, dict):
        raise SpecError(str(path), [f"holds a {type(tree).__name__}; a spec must be a mapping of fields"])
    numbers: dict[str, Any] = _read_numbers(tree)
    return numbers


def read_value(text: str) -> Any:
    """A value that stands on a command line or in the environment as YAML; other text as it is."""
    try:
        return _read_numbers(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


def _read_numbers(tree: Any) -> Any:
    """Reads 1e-3 as the number it is: YAML 1.1 wants 1.0e-3 and calls the rest a string."""
    if isinstance(tree, dict):
        return {key: _read_numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_read_numbers(value) for value in tree]
    return float(tree) if isinstance(tree, str) and _YAML_MISSES.fullmatch(tree) else tree


def _meant(path: Path) -> str:
    name, equals, value = str(path).partition("=")
    if equals:
        return f"; fields are set as --{name.lstrip('-')} {value}"
    beside = [each.name for each in path.parent.glob("*.y*ml")]
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def _explain(error: yaml.YAMLError, text: str) -> str:
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
