"""Every text of an error that the sources can raise, by what it is about: for the page on troubleshooting.

Texts are read from the syntax trees, so that a changed one is on the page at the next build. Where a value
stands in a text, it has `…`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("platform", "search", "dashboards", "src/taugrad", "compressors")
VALUE = "…"
SHORTEST = 12
"""Characters. A shorter text says nothing without what stands around it."""

GROUPS = {
    "corrupt": ("CorruptMessage",),
    "run": (
        "NonFiniteGradient",
        "NonFiniteWeight",
        "Diverged",
        "PeerLost",
        "platform/launching/failure",
        "platform/launching/command",
        "platform/synchronization/quorum",
    ),
    "workers": (
        "WorkersDisagree",
        "KeyProblem",
        "compressors/exchange/keys",
        "compressors/exchange/agreement",
        "compressors/exchange/mesh",
        "compressors/exchange/addresses",
    ),
    "own-code": ("UserCodeError", "UserCodeRaised", "platform/spec/allowing"),
    "data": ("DataError", "SpeechError", "platform/data/"),
    "plan": ("CalibrationError", "ProbeError", "search/plan/", "search/auto"),
    "checkpoint": (
        "CheckpointError",
        "Unusable",
        "Unfinished",
        "platform/training/manifest",
        "platform/training/batch_plan",
        "platform/training/checkpoint",
        "compressors/exchange/resizing",
        "compressors/hook",
        "compressors/worker_state",
        "compressors/replicas",
        "compressors/reduce_scatter",
        "compressors/fsdp_internals",
        "compressors/bucket/feedback",
        "compressors/integrations/rank_files",
        "compressors/methods/powersgd",
        "compressors/names",
    ),
    "cluster": ("platform/launching/", "platform/ports", "platform/deadline"),
    "store": ("TrackingError", "platform/tracking/"),
    "search": ("search/",),
    "views": ("dashboards/",),
    "method": (
        "compressors/fields",
        "compressors/methods/",
        "compressors/thresholds/",
    ),
    "spec": (
        "platform/spec/",
        "platform/preflight",
        "src/taugrad/",
        "platform/synchronization/validation",
        "config.py",
        "platform/models/",
        "platform/tasks/",
        "platform/training/",
        "platform/synchronization/hybrid/layers",
    ),
}
"""By group: names of errors, or parts of paths. The first group that fits is a message's."""
_INTERNAL = (
    "compressors/ops/",
    "compressors/lazy.py",
    "compressors/bucket/ledger",
    "platform/data/batches",
    "compressors/exchange/patterns",
    "platform/synchronization/build",
    "platform/synchronization/synchronization",
    "platform/synchronization/asynchronous/accumulator",
    "platform/synchronization/asynchronous/mode",
)
"""What only a wrong program meets; but for the errors that are named in a group."""
_TELLING = {"_refuse", "refusal", "problem", "_problem", "_no_cluster", "_wrong", "_unusable"}
"""Functions that make or raise an error of their arguments."""
_SAYING = {"say", "_tell", "print", "notify"}
"""Functions that tell a user; `print` where it goes to the standard error."""
_WORDING = (
    "platform/spec/explaining.py",
    "platform/spec/validation.py",
    "platform/spec/allowing.py",
    "platform/launching/driver/cluster_probe.py",
    "platform/launching/driver/failure.py",
    "platform/launching/driver/train.py",
    "platform/tracking/run_lock.py",
)
"""Files in which a text that is returned or yielded is told to a user."""
_LINKED = {"compressors", "platform", "search", "dashboards"}


@dataclass(frozen=True, order=True)
class Message:
    """A text that a user can meet."""

    text: str
    error: str
    """The class, or the function that makes the error."""
    source: str
    """The file, from the repository's top."""


@cache
def collected() -> dict[str, list[Message]]:
    """Every message, by its group."""
    found: dict[str, dict[str, Message]] = {group: {} for group in GROUPS}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.relative_to(ROOT).as_posix()
            if room == "src/taugrad" and source.split("/")[2] in _LINKED:
                continue
            for message in _of_tree(ast.parse(path.read_text(encoding="utf-8")), source):
                group = group_of(message)
                if group:
                    found[group].setdefault(message.text, message)
    return {group: sorted(messages.values()) for group, messages in found.items()}


def group_of(message: Message) -> str:
    """The group of a message; empty for what is no user's."""
    internal = any(part in message.source for part in _INTERNAL)
    for group, signs in GROUPS.items():
        if message.error in signs or (
            not internal and any(s in message.source for s in signs if "/" in s or "." in s)
        ):
            return group
    return ""


def _of_tree(tree: ast.Module, source: str) -> Iterator[Message]:
    classes = {
        id(each): node.name for node in tree.body if isinstance(node, ast.ClassDef) for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        name, told = _told(node, source, classes.get(id(node), ""))
        for argument in told:
            for text in _texts(argument):
                words = " ".join(text.split())
                if len(words.replace(VALUE, "")) >= SHORTEST and " " in words:
                    yield Message(words, name, source)


def _told(node: ast.AST, source: str, around: str) -> tuple[str, list[ast.expr]]:
    """Who tells something, and expressions of what is told."""
    if isinstance(node, ast.Return | ast.Yield) and source in _WORDING and node.value is not None:
        return "", [node.value]
    call = node.exc if isinstance(node, ast.Raise) else node
    if not isinstance(call, ast.Call):
        return "", []
    name = _name(call.func)
    if name == "__init__" and _is_error(around):
        return around, call.args
    to_stderr = any(word.arg == "file" for word in call.keywords)
    if isinstance(node, ast.Raise) or name in _TELLING or _is_error(name):
        return name, call.args
    return name, call.args if name in _SAYING and (name != "print" or to_stderr) else []


def _is_error(name: str) -> bool:
    return name.endswith(("Error", "CorruptMessage", "Disagree", "Gradient", "Lost", "Failed"))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be."""
    match node:
        case ast.Constant(value=str(value)):
            yield value
        case ast.JoinedStr(values=values):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = list(_texts(right)) or [VALUE]
            yield from (begin + end for begin in list(_texts(left)) or [VALUE] for end in ends)
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body)
            yield from _texts(other)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for each in elements:
                yield from _texts(each)


def section(group: str) -> str:
    """A group's messages, as Markdown to unfold."""
    texts = [each.text for each in collected()[group]]
    return f'??? note "All messages ({len(texts)})"\n\n' + "".join(f"    - {_code(text)}\n" for text in texts)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
