"""Links and policies in a line: names with fields in brackets, read without running anything."""

import ast
import difflib
from collections.abc import Collection
from typing import Any

LONGEST = 10_000
"""Characters of a line; more is no line but a mistake."""
FIRST_FIELD = {
    "wgt": "tau",
    "bgt": "tau",
    "qgt": "tau",
    "strom": "tau",
    "topk": "density",
    "chunked_topk": "keep",
    "linear": "bits",
    "quantile": "bits",
    "entropy": "floor",
    "fp8": "block",
    "powersgd": "rank",
    "schedule": "points",
    "density": "target",
    "sidco": "target",
    "dl4j": "start",
    "allocate": "density",
    "law": "constant",
    "layers": "default",
    "clip": "every",
    "warmup": "iterations",
}
POLICIES = ("schedule", "density", "sidco", "dl4j", "allocate", "law", "layers")
FLOORS = ("law",)
"""What a floor can be, besides a number."""
GROUPS = ("clip", "exempt", "warmup")
"""Groups of fields, which are no choice between kinds."""


def parse_expression(text: str) -> ast.expr | None:
    """The syntax of a line; None where it has none."""
    if len(text) > LONGEST:
        return None
    try:
        return ast.parse(" ".join(text.strip().splitlines()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def expand_policy(value: Any, known: Collection[str] = POLICIES) -> Any:
    """`density(0.01)` as the dictionary that it stands for; anything else as it is.

    Raises:
        ValueError: it is text, and neither a number nor one of the policies known.
    """
    if not isinstance(value, str) or _is_number(value):
        return value
    node = parse_expression(value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"no number, and no policy with its fields in brackets: {', '.join(known)}")
    return read_call(node, known)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_known(name: str, known: Collection[str]) -> str:
    """The name, if it is one of those known; a ValueError names the choice."""
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{name} is unknown: choose {', '.join(known)}{meant}")
    return name


def read_call(node: ast.Call, known: Collection[str]) -> dict[str, Any]:
    """`kind(first, field=value)` as a dictionary.

    Raises:
        ValueError: the kind is unknown, a field has no name or stands twice, or a value is no literal.
    """
    assert isinstance(node.func, ast.Name)
    kind = require_known(node.func.id, known)
    fields: dict[str, Any] = {} if kind in GROUPS else {"kind": kind}
    if len(node.args) > 1:
        raise ValueError(f"{kind} takes one field without a name, the others as name=value")
    for argument in node.args:
        if kind not in FIRST_FIELD:
            raise ValueError(f"{kind} takes its fields as name=value")
        fields[FIRST_FIELD[kind]] = _value(argument, FIRST_FIELD[kind])
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{kind} takes its fields as name=value, not from **")
        if keyword.arg in fields:
            raise ValueError(f"{kind}: {keyword.arg} is given twice")
        fields[keyword.arg] = _value(keyword.value, keyword.arg)
    return fields


def _value(node: ast.expr, field: str = "") -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name in GROUPS and name != field:
            raise ValueError(f"{name}(...) is a value of the field {name}, not of {field or 'this one'}")
        return read_call(node, FLOORS if field == "floor" else (*POLICIES, *GROUPS))
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_literal(key): _value(value) for key, value in pairs if key is not None}
    return _literal(node)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(f"{ast.unparse(node)} is no number, text, list or policy") from None
