"""Names that are imported when they are first used: reading a spec takes a part of a second."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["export_lazily", "np", "torch"]


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


class _LazyModule(ModuleType):
    """A module that is imported when one of its names is first used."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np, torch = _LazyModule("numpy"), _LazyModule("torch")
"""In modules that reading a spec imports."""
