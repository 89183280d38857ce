"""Reads a spec: merges trees of fields, and validates the result once.

The command line comes first, then the environment, the file, and the default kinds of unions. Errors come
back as one `SpecError`, which names each field, its value, where the value comes from, and what is valid.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from . import COMMAND_LINE, SpecError
from .allowing import is_allowed, refusal, require_allowed
from .explaining import explain
from .fields import METHOD, TAGS
from .overrides import ENVIRONMENT_PREFIX, Overrides, laid_over, pairs, spelled_out
from .run import RunSpec, import_extensions
from .yaml_file import read_yaml


def read_spec(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """The spec in a YAML file, with the environment's and the command line's changes.

    Fields that the file leaves out have their defaults. Raises SpecError: there is no such file, it is not
    YAML, a field is wrong or unknown, or the file names code, which is not allowed.
    """
    tree = read_yaml(path, RunSpec)
    import_named(tree, str(path), overrides)
    if "search" in tree:
        raise SpecError(str(path), f"is the spec of a search: taugrad search {shlex.quote(str(path))}")
    return read_tree(tree, str(path), Overrides.read(overrides))


def import_named(tree: Mapping[str, Any], source: str, overrides: Sequence[str]) -> None:
    """Imports the `extensions` of a spec that is not validated yet, so that its compressor can be read.

    What comes from `source` may name code only if that is allowed; the command line and the environment may.
    Raises SpecError: the tree names code, which is not allowed; or a module cannot be imported.
    """
    given = dict(pairs(overrides)).get("extensions", os.environ.get(f"{ENVIRONMENT_PREFIX}EXTENSIONS"))
    names = tree.get("extensions") if given is None else given.strip("[]").split(",")
    modules = [str(name).strip() for name in ([names] if isinstance(names, str) else names or ())]
    if modules and given is None and not is_allowed():
        raise SpecError(source, refusal("extensions", ", ".join(modules)))
    try:
        import_extensions(modules)
    except ValueError as error:
        raise SpecError(source if given is None else COMMAND_LINE, f"extensions: {error}") from None


def read_tree(tree: Mapping[str, Any], source: str, overrides: Overrides) -> RunSpec:
    """The spec in a tree of fields, as `read_yaml` returns them, with changes.

    Raises SpecError: a field is wrong or unknown, or the tree names code, which is not allowed.
    """
    fields = spelled_out(tree, source)
    if overrides.whole_method:
        fields.pop(METHOD, None)
    try:
        spec = RunSpec.model_validate(reduce(laid_over, [*overrides.layers, fields, _default_kinds()]))
    except ValidationError as error:
        wrong, problems = zip(*explain(error.errors()), strict=True)
        raise SpecError(
            source, *problems, sources=[overrides.source_of(field) or source for field in wrong]
        ) from None
    require_allowed(spec, source, overrides)
    return spec


@cache
def _default_kinds() -> dict[str, Any]:
    """The default kind of every union, so that a field of it can be set without naming the kind."""
    return _kinds(RunSpec().model_dump())


def _kinds(tree: Mapping[str, Any]) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and (inner := _kinds(value)):
            kinds[key] = inner
        elif key in TAGS:
            kinds[key] = value
    return kinds
