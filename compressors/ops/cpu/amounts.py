"""What values of many parameters stand for, written or added."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..segments import Numbers
from . import linear, minifloat, quantile

_IN_BLOCKS: dict[str, Any] = {
    "linear": linear.dequantize,
    "quantile": quantile.dequantize,
    "fp8": minifloat.from_fp8s,
}


def write_values(
    form: str,
    symbols: NDArray[Any],
    block: int,
    tables: tuple[NDArray[Any], ...],
    rows: Numbers,
    out: NDArray[np.float32],
    starts: Numbers,
    add: bool,
) -> None:
    """See `Ops.write_values`."""
    if form == "quantile":
        exponents, means = tables
        tables = means.reshape(max(exponents.size, 1), -1), exponents
    for (begin, n, first, blocks), start in zip(rows.tolist(), starts.tolist(), strict=True):
        own, into = symbols[begin : begin + n], out[start : start + n]
        length = block if 0 < block < n else n
        of_blocks = [table[first : first + blocks] for table in tables]
        if form in _IN_BLOCKS:
            _IN_BLOCKS[form](own, length, *of_blocks, into, add)
        elif form != "f32":
            minifloat.from_halves(own, form == "bf16", into, add)
        elif add:
            into += own
        else:
            into[:] = own
