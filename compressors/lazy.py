"""Packages whose names come from their modules, each imported when the name is first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def export_lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package.

    Args:
        package: the package's `__name__`.
        homes: for each name the module that defines it, relative to the package: `.building`.

    Returns:
        The function; it raises AttributeError for other names.
    """

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return get_attribute
