"""Whether a spec may name code: `extensions` and a `factory` of kind `custom` are imported, whatever they do.

A file can come from anywhere, so the person who gives the command has to allow it. What is on the command
line or in the environment is their own already.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from . import SpecError
from .data import CustomData
from .models import CustomModel
from .run import RunSpec
from .tasks import CustomTask

if TYPE_CHECKING:
    from .overrides import Overrides

OPTION = "--allow-custom"
VARIABLE = "TAUGRAD_ALLOW_CUSTOM"
_REQUIRED = ("mlflow", "numpy", "ray", "torch")


def import_from_here() -> None:
    """Makes the modules of the current folder importable, here as in Ray's workers, before all others.

    Raises SpecError: a file there would be imported in place of a module of Python or of one that taugrad
    requires. Ray's processes would not start, and say nothing.
    """
    here = str(Path.cwd())
    for name in (*sorted(sys.stdlib_module_names), *_REQUIRED):
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            continue  # these come before any folder
        module = PathFinder.find_spec(name, [here])
        if module is not None and module.origin is not None:
            problem = f"would be imported in place of {'the' if name in _REQUIRED else 'the standard'} module"
            raise SpecError(module.origin, f"{problem} {name}, and Ray would not start; rename it")
    sys.path.insert(0, here)


def is_allowed() -> bool:
    """Whether the environment says so."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


@contextmanager
def allowed(given: bool) -> Iterator[None]:
    """Within it files may name code, if the command line said so; processes that are started learn of it."""
    before = os.environ.get(VARIABLE)
    if given:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if given and before is None:
            del os.environ[VARIABLE]
        elif given and before is not None:
            os.environ[VARIABLE] = before


def code_of(spec: RunSpec) -> dict[str, str]:
    """The fields of a spec that name code, and what they name."""
    sections = {"task": spec.task, "data": spec.data, "model": spec.model}
    modules = {"extensions": ", ".join(spec.extensions)} if spec.extensions else {}
    return modules | {
        f"{name}.factory": section.factory
        for name, section in sections.items()
        if isinstance(section, CustomTask | CustomData | CustomModel)
    }


def require_allowed(spec: RunSpec, source: str, overrides: "Overrides | None" = None) -> None:
    """Refuses a spec that names code, unless that is allowed; nothing has been imported then.

    Code that the command line or the environment (`overrides`) names is allowed. Raises SpecError.
    """
    if is_allowed():
        return
    theirs = {
        field: path
        for field, path in code_of(spec).items()
        if overrides is None or not _said(overrides, field)
    }
    if theirs:
        raise SpecError(source, *[refusal(field, path) for field, path in theirs.items()])


def _said(overrides: "Overrides", field: str) -> bool:
    """Whether the command line or the environment gives a field its value."""
    section, _, name = field.partition(".")
    values = [layer[section] for layer in overrides.layers if section in layer]
    return any(not name or (isinstance(value, Mapping) and name in value) for value in values)


def refusal(field: str, path: str) -> str:
    """What is said of code that is not allowed."""
    return f"{field} = {path}: names code, which would run; if you trust it, add {OPTION} or set {VARIABLE}=1"
