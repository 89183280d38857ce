"""Bins of equal width, for `linear` and `entropy`; apart, as reading a configuration needs no NumPy."""

from collections.abc import Sequence

import numpy as np

from ..ops.interface import Ranges
from .base import Given, Outcomes, Work
from .in_one_call import outcomes, with_room


def quantize_uniformly(
    given: Sequence[Given], bits: int, block: int, work: Work, ranges: Sequence[Ranges] = ()
) -> Outcomes:
    """Bins of equal width between a block's extremes, as `Passes.linear_pass` makes them."""
    ops, asked = work.ops, with_room(given, bits, block, work.ops)
    lows, steps = (ops.empty(asked.offsets.all_blocks, np.float32) for _ in range(2))
    passed = ops.linear_pass(asked, lows, steps, work.returned, ranges)
    return outcomes("linear", asked, passed, (lows, steps))
