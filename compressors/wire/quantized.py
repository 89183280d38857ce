"""Values as symbols: numbers of bins, with the ranges or tables of their blocks that say what they stand for.

Legend: k values in blocks of `block` (the last may be shorter; 0 takes all k as one), B blocks.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..ops.cpu import linear, minifloat, quantile

Bytes = NDArray[np.uint8]
QuantizedForm = Literal["fp8", "linear", "quantile"]


def blocks_of(k: int, block: int) -> int:
    """How many blocks k values have."""
    return -(-k // block) if block else min(k, 1)


def symbol_dtype(bits: int) -> type[np.unsignedinteger[Any]]:
    """uint8 up to 8 bits, uint16 above."""
    return np.uint8 if bits <= 8 else np.uint16


@dataclass(frozen=True)
class Quantized(ABC):
    """k symbols and what they mean."""

    bits: int
    """Bits of a symbol, 1 to 16."""
    block: int
    """Values in a block; 0 for all."""
    symbols: NDArray[Any]
    """uint8 [k] up to 8 bits, uint16 [k] above."""

    form: ClassVar[QuantizedForm]

    @property
    def size(self) -> int:
        """k."""
        return int(self.symbols.size)

    @abstractmethod
    def write_to(self, out: NDArray[np.float32], *, add: bool = False) -> None:
        """Writes the values, float32 [k], or adds them to what is there."""

    def floats(self) -> NDArray[np.float32]:
        """float32 [k], what the symbols stand for."""
        out = np.empty(self.size, np.float32)
        self.write_to(out)
        return out

    @abstractmethod
    def tables(self) -> tuple[NDArray[Any], ...]:
        """The blocks' ranges or tables, in the order and the types in which a message holds them."""

    @staticmethod
    @abstractmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[str, int]]:
        """Type and number of elements of each array of `tables`."""

    @classmethod
    @abstractmethod
    def from_tables(
        cls, bits: int, block: int, symbols: NDArray[Any], tables: list[NDArray[Any]]
    ) -> "Quantized":
        """The reverse of `tables`.

        Raises:
            CorruptMessage: a table stands for a value that is not finite.
        """


@dataclass(frozen=True)
class Uniform(Quantized):
    """Bins of equal width; the value is the bin's centre (Rae, section 2.3; Oland-Raj, section 4)."""

    lows: NDArray[np.float32]
    """float32 [B], the smallest value of each block."""
    steps: NDArray[np.float32]
    """float32 [B], the width of its bins; 0 where the block is constant."""

    form = "linear"

    def write_to(self, out: NDArray[np.float32], *, add: bool = False) -> None:
        """See `Quantized.write_to`."""
        linear.linear_values(self.symbols, self.block, self.lows, self.steps, out, add)

    def tables(self) -> tuple[NDArray[Any], ...]:
        """lows, steps."""
        return self.lows, self.steps

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[str, int]]:
        """8 bytes a block."""
        blocks = blocks_of(k, block)
        return [("<f4", blocks), ("<f4", blocks)]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: NDArray[Any], tables: list[NDArray[Any]]
    ) -> "Uniform":
        """See `Quantized.from_tables`."""
        lows, steps = tables
        if not linear.linear_tables_valid(bits, lows, steps):
            raise CorruptMessage("a block's range is not finite, or its width is none that is written")
        return cls(bits, block, symbols, lows, steps)


@dataclass(frozen=True)
class Quantiles(Quantized):
    """Bins of equal population; the value is the mean of the bin's (Rae, section 2.3.1)."""

    means: NDArray[np.uint16]
    """uint16 [B, 2^bits], the bins' values as the bits of float16, to be scaled by the exponent."""
    exponents: NDArray[np.int8]
    """int8 [B], powers of two."""

    form = "quantile"

    def write_to(self, out: NDArray[np.float32], *, add: bool = False) -> None:
        """See `Quantized.write_to`."""
        quantile.quantile_values(self.symbols, self.block, self.bits, self.means, self.exponents, out, add)

    def tables(self) -> tuple[NDArray[Any], ...]:
        """exponents, means."""
        return self.exponents, self.means.reshape(-1)

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[str, int]]:
        """1 byte and 2^bits float16 a block."""
        blocks = blocks_of(k, block)
        return [("i1", blocks), ("<u2", blocks << bits)]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: NDArray[Any], tables: list[NDArray[Any]]
    ) -> "Quantiles":
        """See `Quantized.from_tables`."""
        exponents, means = tables
        means = means.reshape(exponents.size, 1 << bits)
        if not quantile.quantile_tables_valid(means, exponents):
            raise CorruptMessage("a bin's value is not finite, or scaled as none is written")
        return cls(bits, block, symbols, means, exponents)


@dataclass(frozen=True)
class ScaledFloats(Quantized):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    exponents: NDArray[np.int8]
    """int8 [B], powers of two."""

    form = "fp8"

    def write_to(self, out: NDArray[np.float32], *, add: bool = False) -> None:
        """See `Quantized.write_to`."""
        minifloat.fp8_values(self.symbols, self.block, self.exponents, out, add)

    def tables(self) -> tuple[NDArray[Any], ...]:
        """exponents."""
        return (self.exponents,)

    @staticmethod
    def table_layout(bits: int, block: int, k: int) -> list[tuple[str, int]]:
        """1 byte a block."""
        return [("i1", blocks_of(k, block))]

    @classmethod
    def from_tables(
        cls, bits: int, block: int, symbols: NDArray[Any], tables: list[NDArray[Any]]
    ) -> "ScaledFloats":
        """See `Quantized.from_tables`."""
        (exponents,) = tables
        if bits != 8 or (symbols.size and int((symbols & 0x7F).max()) == 0x7F):
            raise CorruptMessage("an 8-bit float is no number, or has not 8 bits")
        least, most = minifloat.FP8_EXPONENTS
        if exponents.size and not least <= int(exponents.min()) <= int(exponents.max()) <= most:
            raise CorruptMessage("a block is scaled as none is written")
        return cls(bits, block, symbols, exponents)


QUANTIZED: dict[str, type[Quantized]] = {
    "linear": Uniform,
    "quantile": Quantiles,
    "fp8": ScaledFloats,
}
