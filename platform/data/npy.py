"""Maps NumPy's files, whose header tells the type and the shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from .errors import DataError


def mapped(path: Path, fits: Callable[[NDArray[Any]], bool], expected: str) -> NDArray[Any]:
    """Maps the array of a `.npy` file; reads no pickles.

    `fits`: whether type and dimensions are those that are `expected`. Raises DataError: it cannot be read,
    is not complete, does not fit, or is not in C order.
    """
    try:
        array: NDArray[Any] = open_memmap(path, mode="r")  # reads no pickles
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); expected {expected}") from error
    except (ValueError, EOFError, SyntaxError) as error:  # what a damaged header leads to
        problem = " ".join(str(error).split())
        raise DataError(f"{path}: is not a complete .npy file ({problem}); expected {expected}") from error
    if not fits(array) or not array.flags.c_contiguous:
        shape = " x ".join(map(str, array.shape))
        order = "" if array.flags.c_contiguous else ", column by column"
        raise DataError(f"{path}: holds {array.dtype}, {shape}{order}; expected {expected}, row by row")
    end = array.offset + array.nbytes if isinstance(array, np.memmap) else path.stat().st_size
    if path.stat().st_size != end:
        raise DataError(f"{path}: holds {path.stat().st_size} bytes; its header says {end}")
    return array
