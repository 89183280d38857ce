"""Values as symbols: numbers of bins, with the ranges or tables of their blocks that say what they stand for.

Legend: k values in blocks of `block` (the last may be shorter; 0 takes all k as one), B blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import CorruptMessage
from ..ops.array import Array, host
from ..ops.cpu.bitpack import symbol_type as symbol_dtype
from ..ops.cpu.ops import CPU, CpuOps
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
        """The blocks' ranges or tables, in a message's types and order, which is that of the fields."""

    @classmethod
    def of(cls, bits: int, block: int, symbols: Array, tables: Sequence[Array]) -> "Quantized":
        """The reverse of `tables`."""
        kind: Any = cls  # each has its own fields
        made: Quantized = kind(bits, block, symbols, *tables)
        return made

    @staticmethod
    @abstractmethod
    def block_layout(bits: int) -> list[tuple[np.dtype[Any], int]]:
        """Type and number of a block's elements in each array of `tables`.

        Raises:
            CorruptMessage: symbols of this form never have so many bits.
        """

    @staticmethod
    @abstractmethod
    def check(bits: int, symbols: Array, tables: Sequence[Array], ops: CpuOps) -> None:
        """Whether symbols and tables from the wire are such as are written.

        Raises:
            CorruptMessage: one stands for a value that is not finite.
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
    def block_layout(bits: int) -> list[tuple[np.dtype[Any], int]]:
        """8 bytes."""
        return [(_F32, 1), (_F32, 1)]

    @staticmethod
    def check(bits: int, symbols: Array, tables: Sequence[Array], ops: CpuOps) -> None:
        """See `Quantized.check`."""
        lows, steps = map(host, tables)
        ops.check_linear_tables(bits, lows, steps)


@dataclass(slots=True)
class Quantiles(Quantized):
    """Bins of equal population; the value is the mean of the bin's (Rae, section 2.3.1)."""

    exponents: Array
    """int8 [B], powers of two."""
    means: Array
    """uint16 [B * 2^bits], the bins' values as the bits of float16, to be scaled by the exponent."""

    form = "quantile"

    def write_to(self, out: Array, *, add: bool = False, ops: Ops = CPU) -> None:
        """See `Quantized.write_to`."""
        ops.quantile_values(self.symbols, self.block, self.bits, self.means, self.exponents, out, add)

    def tables(self) -> tuple[Array, ...]:
        """exponents, means."""
        return self.exponents, self.means

    @staticmethod
    def block_layout(bits: int) -> list[tuple[np.dtype[Any], int]]:
        """1 byte and 2^bits float16."""
        return [(_I8, 1), (_U16, 1 << bits)]

    @staticmethod
    def check(bits: int, symbols: Array, tables: Sequence[Array], ops: CpuOps) -> None:
        """See `Quantized.check`."""
        exponents, means = map(host, tables)
        ops.check_quantile_tables(means, exponents)


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
    def block_layout(bits: int) -> list[tuple[np.dtype[Any], int]]:
        """1 byte."""
        if bits != 8:
            raise CorruptMessage(f"an 8-bit float of {bits} bits")
        return [(_I8, 1)]

    @staticmethod
    def check(bits: int, symbols: Array, tables: Sequence[Array], ops: CpuOps) -> None:
        """See `Quantized.check`."""
        (exponents,) = map(host, tables)
        ops.check_fp8(host(symbols), exponents)


QUANTIZED: dict[str, type[Quantized]] = {
    "linear": Uniform,
    "quantile": Quantiles,
    "fp8": ScaledFloats,
}
