"""Data that cannot be used: packages that only some need, files of NumPy. Ray's tasks import it: no torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray


class DataError(ValueError):
    """Data that cannot be trained on; the message says what was found and what would do."""


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Raises DataError, which says what was `expected`, where its context raises OSError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); {expected}") from error


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


def mapped(path: Path, fits: Callable[[NDArray[Any]], bool], expected: str) -> NDArray[Any]:
    """Maps the array of a `.npy` file; reads no pickles.

    `fits`: whether type and dimensions are those that are `expected`. Raises DataError: it cannot be read,
    is not complete, does not fit, or is not in C order.
    """
    with reading(path, f"expected {expected}"):
        try:
            array: NDArray[Any] = open_memmap(path, mode="r")  # reads no pickles
        except (ValueError, EOFError, SyntaxError) as error:  # what a damaged header leads to
            problem = " ".join(str(error).split())
            raise DataError(
                f"{path}: is not a complete .npy file ({problem}); expected {expected}"
            ) from error
    if not fits(array) or not array.flags.c_contiguous:
        shape = " x ".join(map(str, array.shape))
        order = "" if array.flags.c_contiguous else ", column by column"
        raise DataError(f"{path}: holds {array.dtype}, {shape}{order}; expected {expected}, row by row")
    end = array.offset + array.nbytes if isinstance(array, np.memmap) else path.stat().st_size
    if path.stat().st_size != end:
        raise DataError(f"{path}: holds {path.stat().st_size} bytes; its header says {end}")
    return array
