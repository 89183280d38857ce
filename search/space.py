"""The space of a search: a spec's tree of fields, with ranges instead of some values.

A choice may contain whole methods with ranges of their own. These count only if the method is chosen.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taugrad.compressors.fields import expand
from taugrad.compressors.methods.parsing import parse as parse_chain

Params = dict[str, Any]
"""A point: the value of every dimension that counts there, by the dimension's name."""

RANGES = ("log", "uniform", "int", "choice")
_METHOD = ("compressor",)
_THRESHOLD = ("compressor", "tau")
_NOT_SEARCHED = ("name", "experiment", "paper", "seed", "storage", "tracking", "checkpoint", "search")
_BY_PATTERN = ("patterns", "points")
"""Fields whose keys are the user's: `log` may be a parameter's name there."""


class RangeError(ValueError):
    """A range is not valid; the message names its field."""


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, both included."""

    name: str
    low: float
    high: float
    log: bool
    """Whether its logarithm is distributed uniformly."""
    whole: bool
    """Whether it has only integers."""

    @property
    def middle(self) -> float:
        """The middle, on the uniform scale."""
        if self.whole:
            return int(self.low + self.high) // 2
        return math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several trees."""

    name: str
    alternatives: Mapping[str, Any]
    """Trees by label."""


Dimension = Interval | Choice
Decide = Callable[[Dimension], Any]
"""Returns a dimension's value: a number, or the label of an alternative."""


def find_ranges(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's tree from YAML, with an `Interval` or a `Choice` in place of each range.

    Raises:
        RangeError: a range is not valid, or its field cannot be searched.
        ValueError: a method's line cannot be read.
    """
    ranges = _read(tree, (), "")
    assert isinstance(ranges, dict)
    for field in _NOT_SEARCHED:
        for dimension in dimensions(ranges.get(field)):
            raise RangeError(f"{dimension.name}: {field} cannot be searched; give a value")
    return ranges


def fill(tree: Any, decide: Decide) -> Any:
    """The tree with a value in place of each dimension that counts."""
    match tree:
        case Interval():
            return decide(tree)
        case Choice():
            return fill(tree.alternatives[decide(tree)], decide)
        case dict():
            return {key: fill(value, decide) for key, value in tree.items()}
        case list():
            return [fill(value, decide) for value in tree]
    return tree


def at(tree: Any, params: Mapping[str, Any]) -> Any:
    """The tree at a point; raises KeyError for a missing dimension or an unknown alternative."""
    return fill(tree, lambda dimension: params[dimension.name])


def dimensions(tree: Any) -> Iterator[Dimension]:
    """Every dimension, outer ones first."""
    match tree:
        case Interval():
            yield tree
        case Choice():
            yield tree
            for alternative in tree.alternatives.values():
                yield from dimensions(alternative)
        case dict():
            for value in tree.values():
                yield from dimensions(value)
        case list():
            for value in tree:
                yield from dimensions(value)


def active(tree: Any, params: Mapping[str, Any]) -> list[Dimension]:
    """The dimensions that count at a point."""
    decided: list[Dimension] = []

    def decide(dimension: Dimension) -> Any:
        decided.append(dimension)
        return params[dimension.name]

    fill(tree, decide)
    return decided


def corners(tree: Any) -> list[Params]:
    """Points at the ends of every dimension, one dimension at a time; the first one is the middle.

    In the middle are the middles of intervals and the first alternatives of choices.
    """
    match tree:
        case Interval(name=name):
            return [{name: tree.middle}, {name: tree.low}, {name: tree.high}]
        case Choice(name=name):
            return [
                {name: label, **inside}
                for label, alternative in tree.alternatives.items()
                for inside in corners(alternative)
            ]
        case dict() | list():
            parts = [corners(value) for value in (tree.values() if isinstance(tree, dict) else tree)]
            usual = {name: value for part in parts for name, value in part[0].items()}
            others = (usual | choice for part in parts for choice in part[1:])
            return [usual, *others]
    return [{}]


def _read(tree: Any, path: tuple[str, ...], within: str) -> Any:
    if path == _METHOD and isinstance(tree, str):
        tree = parse_chain(tree)
    if path == _THRESHOLD:
        tree = expand(tree)
    if isinstance(tree, list):
        return [_read(value, (*path, str(i)), within) for i, value in enumerate(tree)]
    if not isinstance(tree, Mapping):
        return tree
    kind = next(iter(tree), None)
    if len(tree) == 1 and kind in RANGES and (not path or path[-1] not in _BY_PATTERN):
        return _range(str(kind), tree[kind], path, within)
    return {key: _read(value, (*path, str(key)), within) for key, value in tree.items()}


def _range(kind: str, ends: Any, path: tuple[str, ...], within: str) -> Dimension:
    name = ".".join(path) + (f" [{within}]" if within else "")
    shown = f"{name} = {{{kind}: {ends}}}"
    if not path:
        raise RangeError(
            f"{kind}: a range takes the place of a value, such as compressor.tau: {{{kind}: ...}}"
        )
    if kind == "choice":
        return _choice(name, shown, ends, path, within)
    numbers = isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_is_number, ends))
    if not numbers:
        raise RangeError(f"{shown}: give the two ends, such as {{{kind}: {_EXAMPLES[kind]}}}")
    low, high = ends
    if not low < high:
        raise RangeError(f"{shown}: the first end must be lower than the second")
    if kind == "log" and low <= 0:
        raise RangeError(f"{shown}: a log range needs ends above 0")
    if kind == "int" and (low != int(low) or high != int(high)):
        raise RangeError(f"{shown}: the ends must be whole numbers")
    if kind == "int":
        return Interval(name, int(low), int(high), log=False, whole=True)
    return Interval(name, float(low), float(high), log=kind == "log", whole=False)


_EXAMPLES = {"log": "[1e-5, 1e-1]", "uniform": "[0, 1]", "int": "[2, 8]"}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _choice(name: str, shown: str, given: Any, path: tuple[str, ...], within: str) -> Choice:
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise RangeError(f"{shown}: give two or more values, such as {{choice: [a, b]}}")
    labels = [_label(value, given) for value in (_heads(given) if path == _METHOD else given)]
    labels = [str(value) if labels.count(label) > 1 else label
              for label, value in zip(labels, given, strict=True)]  # fmt: skip
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise RangeError(f"{shown}: {twice} is there twice")
    inside = [f"{within}, {label}" if within else label for label in labels]
    read = (_read(value, path, around) for value, around in zip(given, inside, strict=True))
    return Choice(name, dict(zip(labels, read, strict=True)))


def _heads(methods: Sequence[Any]) -> list[Any]:
    """Methods, with the first link's kind in place of a line."""
    return [method.partition("|")[0].partition("(")[0].strip() if isinstance(method, str) else method
            for method in methods]  # fmt: skip


def _label(value: Any, beside: Any) -> str:
    """A short name for an alternative: its kind, if no other has it, or all of it."""
    if not isinstance(value, Mapping):
        return str(value)
    for tag in ("kind", "mode"):
        tags = [other.get(tag) for other in beside if isinstance(other, Mapping)]
        if isinstance(value.get(tag), str) and tags.count(value[tag]) == 1:
            return str(value[tag])
    return json.dumps(value, separators=(", ", ": "), default=str)
