"""Updates of every element of several parameters: sequences, so that they can be taken one by one, too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from ...ops.array import Array
from ...ops.offsets import Offsets
from ..forms import FORMS, Form
from ..quantized import QUANTIZED, Quantized
from ..update import NO_TAU, Update


@dataclass(frozen=True)
class SharedValues(Sequence["Array | Quantized"]):
    """16-bit floats, or symbols with their tables, of several parameters."""

    form: Form
    sizes: tuple[int, ...]
    """n of each parameter, at least 1."""
    bits: int
    """Of a symbol, or of a 16-bit float."""
    block: int
    """Elements that share tables, a parameter's last ones may be fewer; 0 for one block a parameter."""
    offsets: Offsets
    """Where each parameter's symbols and tables stand."""
    symbols: Array
    """uint8 up to 8 bits, uint16 above; or the bits of 16-bit floats."""
    tables: tuple[Array, ...] = ()
    """Of all blocks, in the order of a message's."""

    def __len__(self) -> int:
        return len(self.sizes)

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
        return kind.of(self.bits, self.message_block(number), symbols, tables)

    def message_block(self, number: int) -> int:
        """`block` as a parameter's message says it: 0 where one block holds all elements."""
        return self.block if self.block < self.sizes[number] else 0

    @property
    def value_bits(self) -> int:
        """Value bits of an element sent, as Anoosheh counts them."""
        return FORMS[self.form].paper_bits or self.bits


@dataclass(frozen=True)
class EveryElement(Sequence[Update]):
    """One update for each parameter."""

    values: SharedValues

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, number: int) -> Update: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Update]: ...
    def __getitem__(self, number: int | slice) -> Update | Sequence[Update]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        values = self.values
        return Update(values.form, values.sizes[number], NO_TAU, None, values[number])

    def __iter__(self) -> Iterator[Update]:
        return (self[number] for number in range(len(self)))
