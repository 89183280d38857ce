"""What values of many parameters stand for, added."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..segments import Numbers
from . import linear, minifloat, quantile

_HALVES: dict[str, Any] = {"fp16": minifloat.add_fp16, "bf16": minifloat.add_bf16}
_IN_BLOCKS: dict[str, Any] = {
    "linear": linear.add_values,
    "quantile": quantile.add_values,
    "fp8": minifloat.add_fp8,
}


def add_values(
    form: str,
    symbols: NDArray[Any],
    block: int,
    tables: tuple[NDArray[Any], ...],
    rows: Numbers,
    out: NDArray[np.float32],
    starts: Numbers,
) -> None:
    """See `Ops.add_values`."""
    if form == "quantile":
        exponents, means = tables
        tables = means.reshape(max(exponents.size, 1), -1), exponents
    for (begin, n, first, blocks), start in zip(rows.tolist(), starts.tolist(), strict=True):
        own, into = symbols[begin : begin + n], out[start : start + n]
        if form == "f32":
            into += own
        elif form in _HALVES:
            _HALVES[form](own, into)
        else:
            length = block if 0 < block < n else n
            _IN_BLOCKS[form](own, length, *[table[first : first + blocks] for table in tables], into)
