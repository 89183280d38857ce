"""Reading a search: a spec with ranges and a `search:` section, from a file, environment and command line."""

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError

from taugrad.platform.spec import COMMAND_LINE, RunSpec, SpecError
from taugrad.platform.spec.reading import ENVIRONMENT_PREFIX, FieldHelp, read_numbers, read_tree, read_yaml
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.tasks.metric import Metric

from .config import SearchConfig
from .momentum import in_optimizer
from .space import RANGES, Params, RangeError, at, corners, dimensions, find_ranges

_SECTION = "search"
_METHOD = "compressor"


@dataclass(frozen=True, eq=False)
class Search:
    """A search as it was asked for."""

    source: str
    """The spec's file."""
    settings: SearchConfig
    tree: Mapping[str, Any]
    """The spec's fields with ranges read."""
    overrides: tuple[str, ...] = ()
    """Plain values from the command line."""
    middle: Params = field(default_factory=dict)
    """A point at which every dimension has a middling value."""

    @property
    def name(self) -> str:
        """Under what name it goes on."""
        return self.settings.name or Path(self.source).stem

    @cached_property
    def metric(self) -> Metric:
        """What trials are judged by: the metric that counts in the middle of the space.

        Raises:
            ValueError: the data or the task cannot be had.
        """
        return counting_metric(self.spec(self.middle))

    @property
    def evaluated_by(self) -> str:
        """What an evaluation ends: an `epoch`, or where iterations count, itself."""
        training = self.spec(self.middle).training
        by_epochs = training.iterations is None and training.evaluate_every is None
        return "epoch" if by_epochs else "evaluation"

    def spec(self, params: Mapping[str, Any]) -> RunSpec:
        """The run at a point.

        Raises:
            SpecError: there is none.
        """
        tree = at(self.tree, params)
        return read_tree({**tree, "name": ""}, self.source, self.overrides)

    def seeds(self, spec: RunSpec) -> list[RunSpec]:
        """A point's trainings: the run with as many seeds as were asked for."""
        return [spec.model_copy(update={"seed": (spec.seed + i) % 2**32}) for i in range(self.settings.seeds)]

    def baseline(self) -> RunSpec:
        """The run without compression; other dimensions are in their middle, or take their first choice."""
        spec = self.spec(self.middle)
        tree = in_optimizer(spec)
        tree[_METHOD] = {"kind": "none", "reduction": spec.compressor.reduction}
        for sync in (tree["sync"], tree["sync"].get("of", {})):
            if "back" in sync:
                sync["back"] = None
        return RunSpec.model_validate({**tree, "name": "baseline"})

    def identity(self) -> str:
        """Twelve hex digits: equal for searches over the same space, whatever their budgets."""
        spaces = sorted(repr(each) for each in _plain(self.tree))
        middle = [self.spec(self.middle).fingerprint(), self.settings.evaluate or ""]
        return hashlib.sha256(json.dumps([spaces, middle]).encode()).hexdigest()[:12]


def read_search(path: Path, overrides: Sequence[str] = ()) -> Search:
    """The search in a file, with the environment's and the command line's changes.

    Args:
        path: a YAML file: a spec in which ranges take the place of values, with a `search` section.
        overrides: command-line arguments; a value may be a range, `["--compressor.tau", "{log: [1e-5, 1]}"]`.

    Raises:
        SpecError: a range, the section or a spec in the corners of the space is wrong.
    """
    tree, source = read_yaml(path), str(path)
    given = dict(_pairs(overrides))
    settings = _settings(_section(tree, source) | _environment() | _section_of(given), source)
    plain, ranges = _split(given)
    try:
        tree = _without_overridden(find_ranges(tree), plain)
        for name, value in ranges.items():
            tree = _with_range(tree, name.split("."), value)
        tree = find_ranges(tree)
    except RangeError as error:
        raise SpecError(source, [str(error)]) from None
    except ValueError as error:
        raise SpecError(source, [f"{_METHOD}: {error}"]) from None
    arguments = tuple(part for name, value in plain.items() for part in (f"--{name}", value))
    if next(dimensions(tree), None) is None:
        read_tree(tree, source, arguments)  # what is wrong with it says more
        raise SpecError(source, ["nothing to search: no field has a range, such as tau: {log: [1e-5, 1e-1]}"])
    search = Search(source, settings, tree, arguments, corners(tree)[0])
    corner_specs(search)
    return search


def name_search(path: Path, overrides: Sequence[str]) -> tuple[str, str, list[str]]:
    """Which search a command speaks of.

    Args:
        path: its spec.
        overrides: command-line arguments.

    Returns:
        The search's name, its MLflow experiment, and the arguments that set other fields.

    Raises:
        SpecError: the file or an argument is wrong.
    """
    tree, given = read_yaml(path), dict(_pairs(overrides))
    section = _section(tree, str(path)) | _environment() | _section_of(given)
    written = tree.get("experiment", RunSpec.model_fields["experiment"].default)
    named = os.environ.get(f"{ENVIRONMENT_PREFIX}EXPERIMENT", written)
    experiment = given.pop("experiment", named)
    others = [part for name, value in given.items() for part in (f"--{name}", value)]
    return _settings(section, str(path)).name or path.stem, str(experiment), others


def corner_specs(search: Search) -> list[RunSpec]:
    """The runs at the ends of every dimension, one at a time; the first is the one in the middle.

    Raises:
        SpecError: one of them cannot be; the message says where in the space.
    """
    specs = []
    for params in corners(search.tree):
        try:
            specs.append(search.spec(params))
        except SpecError as error:
            differing = {n: v for n, v in params.items() if search.middle.get(n) != v} or params
            where = ", ".join(f"{name} = {_shown(value)}" for name, value in differing.items())
            problems = [f"at {where}: {problem}" for problem in error.problems]
            raise SpecError(error.source, problems, error.sources) from None
    return specs


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--name value` and `--name=value` as pairs."""
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            raise SpecError(COMMAND_LINE, [f"{argument}: expected --FIELD VALUE"])
        if not equals:
            following = next(rest, None)
            if following is None:
                raise SpecError(COMMAND_LINE, [f"{name}: expected one argument"])
            value = following
        yield name.removeprefix("--"), value


def _section(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Takes the section out of a file's fields."""
    section = tree.pop(_SECTION, None) or {}
    if not isinstance(section, dict):
        raise SpecError(source, [f"{_SECTION} = {section}: give its fields, {', '.join(_fields())}"])
    return section


def _section_of(given: dict[str, str]) -> dict[str, Any]:
    """Takes the section's own fields out of the command line."""
    own = [name for name in given if name.partition(".")[0] == _SECTION]
    return {name.partition(".")[2]: _yaml(given.pop(name)) for name in own}


def _environment() -> dict[str, Any]:
    prefix = f"{ENVIRONMENT_PREFIX}{_SECTION.upper()}__"
    return {
        name.removeprefix(prefix).lower(): _yaml(value)
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def _yaml(text: str) -> Any:
    try:
        return read_numbers(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


def _settings(section: dict[str, Any], source: str) -> SearchConfig:
    try:
        return SearchConfig.model_validate(section)
    except ValidationError as error:
        raise SpecError(source, [_explain(problem) for problem in error.errors()]) from None


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return f"{_SECTION}: {problem['ctx']['error']}"
    own = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(own, _fields(), n=1)
        hint = f"did you mean {_SECTION}.{close[0]}?" if close else f"there are {', '.join(_fields())}"
        return f"{_SECTION}.{own}: no such field; {hint}"
    said = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
    return f"{_SECTION}.{own} = {problem['input']}: {said[0].lower()}{said[1:]}"


def _fields() -> list[str]:
    return list(SearchConfig.model_fields)


def search_fields() -> list[FieldHelp]:
    """Every field of the section, for `--help`."""
    return [
        FieldHelp(
            f"{_SECTION}.{name}",
            _type_name(info.annotation),
            str(info.get_default()),
            "",
            " ".join((info.description or "").split()),
        )
        for name, info in SearchConfig.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    """The values of a literal, or a type's name, without None and constraints."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(arguments)
    if get_origin(annotation) is Annotated:
        return _type_name(arguments[0])
    named = [_type_name(each) for each in arguments if each is not NoneType]
    return "|".join(named) if named else str(annotation.__name__)


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The command line's plain values, and those that hold ranges."""
    plain: dict[str, str] = {}
    ranges: dict[str, Any] = {}
    for name, text in given.items():
        value = _yaml(text)
        if name == _METHOD and isinstance(value, str):
            ranges_inside = any(f"{kind}'" in value or f'{kind}"' in value for kind in RANGES)
            (ranges if ranges_inside else plain)[name] = text
        elif isinstance(value, dict) and any(dimensions(_read_quietly(name, value))):
            ranges[name] = value
        else:
            plain[name] = text
    return plain, ranges


def _read_quietly(name: str, value: dict[str, Any]) -> Any:
    try:
        return find_ranges({name.rpartition(".")[2]: value})
    except RangeError as error:
        raise SpecError(COMMAND_LINE, [f"--{name}: {error}"]) from None


def _without_overridden(tree: dict[str, Any], plain: Mapping[str, str]) -> dict[str, Any]:
    """Takes out the ranges of fields to which the command line or the environment gives a value."""
    names = [name.split(".") for name in plain]
    for variable in os.environ:
        if variable.startswith(ENVIRONMENT_PREFIX):
            names.append(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
    for path in names:
        tree = _without(tree, path)
    return tree


def _without(tree: Any, path: Sequence[str]) -> Any:
    if not isinstance(tree, dict) or path[0] not in tree:
        return tree
    if len(path) > 1:
        return {**tree, path[0]: _without(tree[path[0]], path[1:])}
    ranged = next(dimensions(tree[path[0]]), None) is not None
    return {key: value for key, value in tree.items() if key != path[0] or not ranged}


def _with_range(tree: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    if not isinstance(tree, dict):
        raise RangeError(f"{path[0]}: stands inside a choice; give its range there")
    return {**tree, path[0]: _with_range(tree.get(path[0], {}), path[1:], value)}


def _plain(tree: Any) -> Iterator[tuple[Any, ...]]:
    """What defines the dimensions, as plain data."""
    for each in dimensions(tree):
        if hasattr(each, "alternatives"):
            yield (each.name, *each.alternatives)
        else:
            yield (each.name, each.low, each.high, each.log, each.whole)
