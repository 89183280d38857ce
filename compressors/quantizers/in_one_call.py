"""Passes over many parameters, whose symbols and tables share arrays."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from ..ops.array import Array
from ..ops.interface import Ops
from ..ops.results import QuantizedPass, Quantizing
from ..ops.returns import Pending
from ..wire.quantized import Quantized, symbol_dtype
from .base import Given, Outcome

Values = Callable[[int, Array, slice], Array | Quantized]
"""A parameter's values, of its block, its symbols, and where its tables are. The block is 0 where one holds
all elements, so that a message says it in one way."""


def with_room(given: Sequence[Given], bits: int, block: int, ops: Ops) -> Quantizing:
    """A pass over parameters, with room for their symbols."""
    gradients = [each.gradient for each in given]
    work = Quantizing([each.residual for each in given], gradients, _NONE, bits, block)
    return work._replace(symbols=ops.empty(work.offsets.elements, symbol_dtype(bits)))


def outcomes(work: Quantizing, passed: Pending[list[QuantizedPass]], values: Values) -> list[Outcome]:
    """What a pass came to, by parameter."""
    offsets, block, found = work.offsets, work.block, cache(passed)  # every parameter asks for all
    return [
        Outcome(values(block if block < n else 0, work.symbols[at], tables), _one(found, number))
        for number, (n, at, tables) in enumerate(
            zip(work.sizes, offsets.symbols, offsets.tables, strict=True)
        )
    ]


def _one(passed: Pending[list[QuantizedPass]], number: int) -> Pending[QuantizedPass]:
    return lambda: passed()[number]


_NONE = np.empty(0, np.uint8)
