"""The values of several updates, in arrays that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from ...ops.array import Array
from ...ops.offsets import Numbers, Offsets
from ..forms import FORMS, Form
from ..quantized import QUANTIZED, Quantized
from .words import Words


@dataclass(frozen=True)
class SharedValues(Sequence["Array | Quantized"]):
    """Symbols with their tables, floats of 16 or 32 bits, or levels."""

    form: Form
    bits: int
    """Of a symbol, a float or a level."""
    block: int
    """Values that share tables, an update's last ones may be fewer; 0 for one block an update."""
    offsets: Offsets
    """Where each update's symbols and tables stand; quantized ones have at least one symbol each."""
    symbols: Array
    """uint8 up to 8 bits, uint16 above; the bits of 16-bit floats; or, each update's next to that of the one
    before, float32 or levels, uint8."""
    tables: tuple[Array, ...] = ()
    """Of all blocks, in the order of a message's."""

    def __len__(self) -> int:
        return len(self.offsets.sizes)

    @overload
    def __getitem__(self, number: int) -> "Array | Quantized": ...
    @overload
    def __getitem__(self, number: slice) -> "Sequence[Array | Quantized]": ...
    def __getitem__(self, number: int | slice) -> "Array | Quantized | Sequence[Array | Quantized]":
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        symbols = self.symbols[self.offsets.symbols[number]]
        kind = QUANTIZED.get(self.form)
        if kind is None:
            return symbols
        at, tables = self.offsets.tables[number], []
        for table, (_, each) in zip(self.tables, kind.block_layout(self.bits), strict=True):
            tables.append(table[at.start * each : at.stop * each])
        block = self.block if self.block < self.offsets.sizes[number] else 0  # as a message says it
        return kind.of(self.bits, block, symbols, tables)

    @property
    def value_bits(self) -> int:
        """Value bits of an element sent, as Anoosheh counts them."""
        return FORMS[self.form].paper_bits or self.bits


def beside(form: Form, words: Words, values: Array) -> SharedValues:
    """Values that are no symbols: floats, or levels; as many as words.

    Args:
        form: of the updates.
        words: theirs.
        values: those of all updates, one after the other.
    """
    bits = 8 * FORMS[form].dtype.itemsize
    return SharedValues(form, bits, 0, flat(words.counts), values)


def flat(counts: Numbers) -> Offsets:
    """Of so many values for each update, one after the other, that have no tables."""
    none = np.zeros(counts.size, np.int64)
    return Offsets(np.cumsum(counts) - counts, counts, none, none)
