"""Bins of equal width, for `linear` and `entropy`; apart, as reading a configuration needs no NumPy."""

import numpy as np
from torch import Tensor

from ..ops.passes import Ranges
from ..ops.results import Quantizing
from ..wire.quantized import Uniform, blocks_of, symbol_dtype
from .base import Outcome, Work


def quantize_uniformly(
    residual: Tensor | None,
    gradient: Tensor,
    bits: int,
    block: int,
    work: Work,
    ranges: Ranges | None = None,
) -> Outcome:
    """Bins of equal width between a block's extremes, as `Passes.linear_pass` makes them."""
    n, ops = gradient.numel(), work.ops
    symbols, blocks = ops.empty(n, symbol_dtype(bits)), blocks_of(n, block)
    lows, steps = ops.empty(blocks, np.float32), ops.empty(blocks, np.float32)
    given = Quantizing(residual, gradient, symbols, bits, block)
    passed = ops.linear_pass(given, lows, steps, work.returned, ranges)
    return Outcome(Uniform(bits, block, symbols, lows, steps), passed)
