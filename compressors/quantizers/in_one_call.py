"""Passes over many parameters, whose symbols and tables share arrays."""

from collections.abc import Sequence

import numpy as np

from ..ops.array import Array
from ..ops.interface import Ops
from ..ops.results import QuantizedPass, Quantizing
from ..ops.returns import Pending
from ..wire.columns.values import SharedValues
from ..wire.forms import Form
from ..wire.quantized import symbol_dtype
from .base import Given, Outcomes


def with_room(given: Sequence[Given], bits: int, block: int, ops: Ops) -> Quantizing:
    """A pass over parameters, with room for their symbols."""
    gradients = [each.gradient for each in given]
    work = Quantizing([each.residual for each in given], gradients, _NONE, bits, block)
    return work._replace(symbols=ops.empty(work.offsets.all_symbols, symbol_dtype(bits)))


def outcomes(
    form: Form, work: Quantizing, passed: Pending[list[QuantizedPass]], tables: tuple[Array, ...] = ()
) -> Outcomes:
    """What a pass came to.

    Args:
        form: of the values.
        work: the pass, whose symbols are there.
        passed: what it says of each parameter.
        tables: of all blocks, in the order of a message's.
    """
    values = SharedValues(form, work.bits, work.block, work.offsets, work.symbols, tables)
    return Outcomes(values, passed)


_NONE = np.empty(0, np.uint8)
