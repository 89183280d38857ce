"""The fused threshold pass on a device."""

from typing import Any

import numpy as np

from ..results import ThresholdRule
from .reports import GradientType, Reports
from .runtime import Runtime, float_bits

_THREADS = 256
_TILE = 4096
"""Elements of a block of threads, as in threshold.cu."""


def threshold_pass(
    runtime: Runtime,
    rule: ThresholdRule,
    residual: Any,
    gradient: Any,
    tau: float,
    words: Any,
    values: Any,
    reports: Reports,
    *,
    base: int = 0,
    gradient_type: GradientType = "float32",
) -> None:
    """Adds the gradient to the residual, moves what reaches tau into the output, keeps the rest.

    The same words, values and residual as of `ops.cpu.threshold.threshold_pass`. Does not wait: the
    number of words is in the pass's report, and the next pass appends behind them.

    Args:
        runtime: the device, where all arrays lie.
        rule: `wgt`, `bgt`, `qgt` (Anoosheh, section 2.1) or `strom` (section 2.6: what exceeds tau).
        residual: float32 [n], at any element of an allocation; changed in place.
        gradient: [n], of `gradient_type`.
        tau: the threshold, a float32 greater than 0.
        words: uint32, with room for n words behind those that are there; receives index << 1 | sign,
            ascending.
        values: float32 (wgt) or uint8 (qgt), as long as `words`; not touched for bgt and strom.
        reports: receives this pass's report.
        base: index of residual[0] within the update.
        gradient_type: what the gradient's bits mean.
    """
    n = int(residual.size)
    # A tile may begin up to three elements before the first.
    tiles = (n + 3 + _TILE - 1) // _TILE
    states = runtime.zeros(tiles + 1, np.uint64)
    runtime.launch(
        "threshold",
        f"{rule}_{gradient_type}",
        tiles,
        _THREADS,
        residual,
        gradient,
        n,
        float_bits(tau),
        base,
        words,
        values,
        states,
        reports.begin(),
    )
