"""Ranges and tables of blocks: their layout in a message, and what a reader accepts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..method.base import SMALLEST_TAU, Form
from ..ops.results import FP8_EXPONENTS, LARGEST_MEAN, QUANTILE_EXPONENTS

_U2, _F4 = np.dtype("<u2"), np.dtype("<f4")


def table_layout(form: Form, bits: int) -> list[tuple[np.dtype[Any], int]]:
    """Type of the tables of a quantized form, and elements of each for a block of symbols of so many bits.

    `linear`: lows, steps. `quantile`: exponents, the bins' means as the bits of float16. `fp8`: exponents.
    """
    exponents = np.dtype("i1"), 1
    if form == "linear":
        return [(_F4, 1), (_F4, 1)]
    return [exponents, (_U2, 1 << bits)] if form == "quantile" else [exponents]


def require_written(form: Form, bits: NDArray[np.int64], tables: Sequence[NDArray[Any]]) -> None:
    """Refuses tables that no quantizer writes, or whose values are not finite.

    Args:
        form: of the values.
        bits: int64 [blocks], of the symbols of each block.
        tables: of all blocks, see `table_layout`.

    Raises:
        CorruptMessage: a table is none that is written.
    """
    if form == "linear" and not _ranges_written(bits, *tables):
        raise CorruptMessage("a block's range is not finite, or its width is none that is written")
    if form == "quantile":
        exponents, means = tables
        largest = int((means & np.uint16(0x7FFF)).max(initial=0))
        if largest > LARGEST_MEAN or exponents.max(initial=0) > QUANTILE_EXPONENTS[1]:
            raise CorruptMessage("a bin's value is not finite, or scaled as none is written")
    least, most = FP8_EXPONENTS
    if form == "fp8" and not least <= int(tables[0].min()) <= int(tables[0].max()) <= most:
        raise CorruptMessage("a block of 8-bit floats is scaled as none is written")


def _ranges_written(bits: NDArray[np.int64], lows: NDArray[np.float32], steps: NDArray[np.float32]) -> bool:
    half = np.float32(0.5)
    with np.errstate(all="ignore"):
        highest = lows * half + (steps * half) * ((1 << bits) - 0.5).astype(np.float32)
        finite = np.isfinite(lows) & np.isfinite(highest + highest)
    steps_fit = (steps.view(np.uint32) == 0) | (steps >= np.float32(SMALLEST_TAU))
    return bool((finite & steps_fit & (lows.view(np.uint32) != 0x80000000)).all())
