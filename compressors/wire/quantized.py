"""Values as symbols: numbers of bins, with the ranges or tables of their blocks that say what they stand for.

Legend: k values in blocks of `block` (the last may be shorter; 0 takes all k as one), B blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import CorruptMessage
from ..ops.array import Array
from ..ops.cpu.bitpack import symbol_type as symbol_dtype
from ..ops.cpu.ops import CPU
from ..ops.faults import Faults
from ..ops.interface import Ops

__all__ = ["QUANTIZED", "Quantiles", "Quantized", "ScaledFloats", "Uniform", "blocks_of", "symbol_dtype"]

_I8, _U16, _F32 = np.dtype("i1"), np.dtype("<u2"), np.dtype("<f4")
QuantizedForm = Literal["fp8", "linear", "quantile"]


def blocks_of(k: int, block: int) -> int:
    """How many blocks k values have."""
    return -(-k // block) if block else min(k, 1)


@dataclass(slots=True)  # not frozen: see `update.Update`
class Quantized(ABC):
    """k symbols and what they mean; arrays are all of one device."""

    bits: int
    """Bits of a symbol, 1 to 16."""
    block: int
    """Values in a block; 0 for all."""
    symbols: Array
    """uint8 [k] up to 8 bits, uint16 [k] above."""

    form: ClassVar[QuantizedForm]

    @property
    def size(self) -> int:
        """k."""
        return int(self.symbols.size)

    @abstractmethod
    def write_to(self, out: Array, *, add: bool = False, ops: Ops = CPU) -> None:
        """Writes the values, float32 [k], or adds them to what is there."""

    def floats(self, ops: Ops = CPU) -> Any:
        """float32 [k], what the symbols stand for."""
        out = ops.empty(self.size, np.float32)
        self.write_to(out, ops=ops)
        return out

    @abstractmethod
    def tables(self) -> tuple[Array, ...]:
        """The blocks' ranges or tables, in the order and the types in which a message holds them."""

    @staticmethod
    @abstractmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[np.dtype[Any], int]]:
        """Type and number of elements of each array of `tables`."""

    @classmethod
    @abstractmethod
    def from_tables(
        cls, bits: int, block: int, symbols: Array, tables: Sequence[Array], faults: Faults, ops: Ops
    ) -> "Quantized":
        """The reverse of `tables`.

        Raises:
            CorruptMessage: a table stands for a value that is not finite; on a device the faults say so.
        """


@dataclass(slots=True)
class Uniform(Quantized):
    """Bins of equal width; the value is the bin's centre (Rae, section 2.3; Oland-Raj, section 4)."""

    lows: Array
    """float32 [B], the smallest value of each block."""
    steps: Array
    """float32 [B], the width of its bins; 0 where the block is constant."""

    form = "linear"

    def write_to(self, out: Array, *, add: bool = False, ops: Ops = CPU) -> None:
        """See `Quantized.write_to`."""
        ops.linear_values(self.symbols, self.block, self.bits, self.lows, self.steps, out, add)

    def tables(self) -> tuple[Array, ...]:
        """lows, steps."""
        return self.lows, self.steps

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[np.dtype[Any], int]]:
        """8 bytes a block."""
        blocks = blocks_of(k, block)
        return [(_F32, blocks), (_F32, blocks)]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: Array, tables: Sequence[Array], faults: Faults, ops: Ops
    ) -> "Uniform":
        """See `Quantized.from_tables`."""
        lows, steps = tables
        ops.check_linear_tables(bits, lows, steps, faults)
        return cls(bits, block, symbols, lows, steps)


@dataclass(slots=True)
class Quantiles(Quantized):
    """Bins of equal population; the value is the mean of the bin's (Rae, section 2.3.1)."""

    means: Array
    """uint16 [B * 2^bits], the bins' values as the bits of float16, to be scaled by the exponent."""
    exponents: Array
    """int8 [B], powers of two."""

    form = "quantile"

    def write_to(self, out: Array, *, add: bool = False, ops: Ops = CPU) -> None:
        """See `Quantized.write_to`."""
        ops.quantile_values(self.symbols, self.block, self.bits, self.means, self.exponents, out, add)

    def tables(self) -> tuple[Array, ...]:
        """exponents, means."""
        return self.exponents, self.means.reshape(-1)

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[np.dtype[Any], int]]:
        """1 byte and 2^bits float16 a block."""
        blocks = blocks_of(k, block)
        return [(_I8, blocks), (_U16, blocks << bits)]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: Array, tables: Sequence[Array], faults: Faults, ops: Ops
    ) -> "Quantiles":
        """See `Quantized.from_tables`."""
        exponents, means = tables
        ops.check_quantile_tables(means, exponents, faults)
        return cls(bits, block, symbols, means, exponents)


@dataclass(slots=True)
class ScaledFloats(Quantized):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    exponents: Array
    """int8 [B], powers of two."""

    form = "fp8"

    def write_to(self, out: Array, *, add: bool = False, ops: Ops = CPU) -> None:
        """See `Quantized.write_to`."""
        ops.fp8_values(self.symbols, self.block, self.exponents, out, add)

    def tables(self) -> tuple[Array, ...]:
        """exponents."""
        return (self.exponents,)

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[np.dtype[Any], int]]:
        """1 byte a block."""
        if bits != 8:
            raise CorruptMessage(f"an 8-bit float of {bits} bits")
        return [(_I8, blocks_of(k, block))]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: Array, tables: Sequence[Array], faults: Faults, ops: Ops
    ) -> "ScaledFloats":
        """See `Quantized.from_tables`."""
        (exponents,) = tables
        ops.check_fp8(symbols, exponents, faults)
        return cls(bits, block, symbols, exponents)


QUANTIZED: dict[str, type[Quantized]] = {
    "linear": Uniform,
    "quantile": Quantiles,
    "fp8": ScaledFloats,
}
