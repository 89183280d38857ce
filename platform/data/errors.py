"""Data that cannot be used, and packages that only some data need. Needs no torch: Ray's tasks import it."""

from importlib import import_module
from typing import Any


class DataError(ValueError):
    """Data that cannot be trained on; the message says what was found and what would do."""


EXTRAS = {"PIL": ("Pillow", "images"), "tokenizers": ("tokenizers", "text")}
"""By module: the package, and the extra of taugrad that brings it."""


def needed(module: str, wanted_by: str) -> Any:
    """Imports an optional package, such as `PIL.Image`; raises DataError: it is not installed.

    `wanted_by` is the field of the spec that needs it.
    """
    package, extra = EXTRAS[module.partition(".")[0]]
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(f"{wanted_by}: {package} is not installed; pip install 'taugrad[{extra}]'") from error
