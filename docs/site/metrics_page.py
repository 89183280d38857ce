"""The page of names in MLflow, from the module that defines them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

NAMES = Path(__file__).resolve().parents[2] / "platform" / "tracking" / "names.py"
QUANTITIES = {
    "WorkerQuantity": ("worker/<rank>/", "Per worker, at evaluations and checkpoints"),
    "LayerQuantity": ("layer/<name>/", "Per layer, of worker 0, every `tracking.layer_interval` iterations"),
}
"""By the name of a type: what stands before its words, and a heading."""
_COMMENTED = re.compile(r'^\s+"(?P<word>\w+)",  # (?P<said>.+)$', re.MULTILINE)


def page() -> str:
    """The page, as Markdown."""
    return "".join(_tables(NAMES.read_text(encoding="utf-8")))


def _tables(source: str) -> Iterator[str]:
    lines, module = source.splitlines(), ast.parse(source)
    heading, pending = "", ""
    for node, after in zip(module.body, [*module.body[1:], None], strict=True):
        pending = _comment_above(lines, node) or pending
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield from _quantities(node.targets[0].id, ast.get_source_segment(source, node) or "", after)
        name = _constant(node)
        if name is None:
            continue
        if pending != heading:
            heading = pending
            yield _head(heading)
        constant, value = name
        yield f"| `{value}` | {_docstring(after)} | `{constant}` |\n"


def _head(title: str, last: str = "constant") -> str:
    return f"\n## {title}\n\n| name | meaning | {last} |\n| --- | --- | --- |\n"


def _quantities(name: str, text: str, after: ast.stmt | None) -> Iterator[str]:
    """Names that are made of a layer's, or a worker's, and a word."""
    if name not in QUANTITIES:
        return
    prefix, title = QUANTITIES[name]
    meanings = {found["word"]: found["said"] for found in _COMMENTED.finditer(text)}
    yield _head(title, "type")
    for each in ast.walk(ast.parse(text)):
        if _is_text(each):
            meaning = meanings.get(each.value, _docstring(after))
            yield f"| `{prefix}{each.value}` | {meaning[:1].upper()}{meaning[1:].rstrip('.')}. | `{name}` |\n"


def _constant(node: ast.stmt) -> tuple[str, str] | None:
    """A constant and the name in MLflow that it stands for."""
    if (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.target.id, node.value.value
    return None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _comment_above(lines: list[str], node: ast.stmt) -> str:
    """The comment that heads a group of constants, without its point."""
    line = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
    return line.removeprefix("#").strip().rstrip(".") if line.startswith("#") else ""


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and _is_text(node.value):
        return " ".join(str(node.value.value).split()).replace("|", r"\|").replace("<", "&lt;")
    return ""
