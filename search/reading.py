"""Reads a search: a spec with ranges and a `search:` section, from a file, environment and command line."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.fields import METHOD, entered
from taugrad.platform.spec.overrides import ENVIRONMENT_PREFIX, Overrides, pairs
from taugrad.platform.spec.reading import import_named, read_tree
from taugrad.platform.spec.yaml_file import read_value, read_yaml

from .config import SearchSpec, take_section
from .search import Search, corner_specs
from .space import RANGES, RangeError, dimensions, find_ranges


def read_search(path: Path, overrides: Sequence[str] = ()) -> Search:
    """The search in a file, with the environment's and the command line's changes.

    Args:
        path: a YAML file: a spec in which ranges take the place of values, with a `search` section.
        overrides: command-line arguments; a value may be a range, `["--compressor.tau", "{log: [1e-5, 1]}"]`.

    Raises:
        SpecError: a range, the section or a spec in the corners of the space is wrong.
    """
    tree, source = read_yaml(path, SearchSpec), str(path)
    import_named(tree, source, overrides)
    given = dict(pairs(overrides))
    settings = take_section(tree, given, source)
    try:
        plain, ranges = _split(given)
        tree = _without_overridden(find_ranges(tree), plain)
        for name, value in ranges.items():
            tree = _with_range(tree, name.split("."), value)
        tree = find_ranges(tree)
    except RangeError as error:
        raise SpecError(source, str(error)) from None
    except ValueError as error:
        raise SpecError(source, f"{METHOD}: {error}") from None
    arguments = tuple(part for name, value in plain.items() for part in (f"--{name}", value))
    if next(dimensions(tree), None) is None:
        read_tree(tree, source, Overrides.read(arguments))  # what is wrong with it says more
        raise SpecError(source, "nothing to search: no field has a range, such as tau: {log: [1e-5, 1e-1]}")
    search = Search(source, settings, tree, arguments)
    corner_specs(search)
    return search


def name_search(path: Path, overrides: Sequence[str]) -> tuple[str, str, list[str]]:
    """The name and the MLflow experiment of a search, and the arguments that set other fields.

    Raises:
        SpecError: the file or an argument is wrong.
    """
    tree, given = read_yaml(path, SearchSpec), dict(pairs(overrides))
    settings = take_section(tree, given, str(path))
    written = tree.get("experiment", RunSpec.model_fields["experiment"].default)
    named = os.environ.get(f"{ENVIRONMENT_PREFIX}EXPERIMENT", written)
    experiment = given.pop("experiment", named)
    others = [part for name, value in given.items() for part in (f"--{name}", value)]
    return settings.name or path.stem, str(experiment), others


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The command line's plain values, and those that hold ranges."""
    plain: dict[str, str] = {}
    ranges: dict[str, Any] = {}
    for name, text in given.items():
        value = read_value(text, entered([RunSpec], *name.split(".")))
        if name == METHOD and isinstance(value, str):
            ranges_inside = any(f"{kind}'" in value or f'{kind}"' in value for kind in RANGES)
            (ranges if ranges_inside else plain)[name] = text
        elif isinstance(value, dict) and any(dimensions(find_ranges({name.rpartition(".")[2]: value}))):
            ranges[name] = value
        else:
            plain[name] = text
    return plain, ranges


def _without_overridden(tree: dict[str, Any], plain: Iterable[str]) -> dict[str, Any]:
    """Removes ranges of fields that the command line or the environment sets; RangeError inside a choice."""
    variables = (name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX))
    variables = (name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".") for name in variables)
    given = [*plain, *variables]
    for name in given:
        tree = _without(tree, name.split("."))
    for dimension in dimensions(tree):
        field = dimension.name.partition(" [")[0]
        for name in given:
            if f"{field}.".startswith(f"{name}."):
                raise RangeError(f"--{name}: is inside a choice; give its value there")
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
        raise RangeError(f"{path[0]}: is inside a choice; give its range there")
    return {**tree, path[0]: _with_range(tree.get(path[0], {}), path[1:], value)}
