"""The fused threshold pass on a device.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

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
