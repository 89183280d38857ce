"""Arrays for passes over many parameters."""

from collections.abc import Sequence

import numpy as np

from ..ops.cpu.bitpack import symbol_type
from ..ops.interface import Ops
from ..ops.results import Quantizing
from .base import Given


def with_room(given: Sequence[Given], bits: int, block: int, ops: Ops) -> Quantizing:
    """A pass over parameters, with room for their symbols of at most so many bits."""
    gradients = [each.gradient for each in given]
    work = Quantizing([each.residual for each in given], gradients, _NONE, bits, block)
    return work._replace(symbols=ops.empty(work.offsets.all_symbols, symbol_type(bits)))


_NONE = np.empty(0, np.uint8)
