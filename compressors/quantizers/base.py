"""The interface of quantizers at work, from floats to symbols, and those with as many bits as fields say."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..method.quantizers import Quantizer
from ..method.registry import implementation_of
from ..ops.array import Array
from ..ops.cpu.bitpack import symbol_type
from ..ops.interface import Batch, Kept, Ops, Quantizing
from ..ops.readback import Pending, Readback
from ..wire.forms import table_layout


class Given(NamedTuple):
    """Parameters to be quantized, and where."""

    batch: Batch
    """Of at least one element each, side by side. Residuals become what the symbols leave out."""
    ops: Ops
    """Where residuals and gradients are."""
    readback: Readback
    """Receives results. A quantizer may fetch it to go on; it is fetched again later."""
    rms: Sequence[float | None] = ()
    """Of the loss's gradients, where something else is quantized in their place."""
    numbers: Sequence[float | None] = ()
    """What a law says for each parameter, where the method has a law."""

    def room(self, bits: int, block: int) -> Quantizing:
        """A pass over the parameters, with room for their symbols of at most so many bits."""
        symbols = self.ops.empty(int(self.batch.sizes.sum()), symbol_type(bits))
        return Quantizing(self.batch, symbols, bits, block)


@dataclass(slots=True)
class Quantized:
    """What passes over some parameters made; each parameter's stands behind that of the one before."""

    bits: Sequence[int]
    """Of a symbol, or of a short float, of each parameter."""
    values: Array
    """Symbols, uint8 where all have up to 8 bits, otherwise uint16; or the bits of 16-bit floats."""
    passed: Pending[Kept]
    """Results of the passes. Where one was not finite, symbols and tables mean nothing."""
    block: int = 0
    """Values that share tables, the last ones of a parameter may be fewer; 0: one block a parameter."""
    tables: tuple[Array, ...] = ()
    """Ranges or tables of all blocks (`wire.forms.table_layout`)."""


class Quantization(ABC):
    """Quantizes the parameters of a bucket."""

    def __init__(self, config: Any) -> None:
        """By a quantizer's fields."""
        self.config = config

    @abstractmethod
    def apply(self, given: Given) -> Quantized:
        """Quantizes residual + gradient of all parameters of a bucket, each for itself; there may be none."""


class FixedBits(Quantization):
    """linear, quantile, fp8, fp16 and bf16 (Rae, section 2.3), in the blocks that the fields say."""

    config: Quantizer

    def apply(self, given: Given) -> Quantized:
        form, bits, block = self.config.makes, int(self.config.value_bits), getattr(self.config, "block", 0)
        work, ops = given.room(bits, block), given.ops
        blocks = work.offsets.all_blocks
        tables = tuple(ops.empty(blocks * size, dtype) for dtype, size in table_layout(form, bits))
        passed = ops.quantize(form, work, tables, given.readback)
        return Quantized([bits] * len(given.batch), work.symbols, passed, block, tables)


def quantization_of(quantizer: Quantizer) -> Quantization:
    """The work by a quantizer's fields.

    Raises:
        ValueError: the address of its work leads to none.
    """
    made: Quantization = implementation_of(type(quantizer), "quantizes", Quantization)(quantizer)
    return made
