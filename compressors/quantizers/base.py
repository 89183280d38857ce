"""The interface of quantizers, from floats to symbols, and those of a fixed number of bits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..method.base import Form
from ..method.quantizers import Quantizer
from ..method.registry import implementation_of
from ..ops.array import Array
from ..ops.cpu.bitpack import symbol_type
from ..ops.interface import Batch, Kept, Ops, Quantizing
from ..ops.readback import Pending, Readback
from ..wire.forms import table_layout


class Given(NamedTuple):
    """Parameters to be quantized."""

    batch: Batch
    """At least one element per parameter, contiguous. Residuals become the quantization error."""
    ops: Ops
    readback: Readback
    """Receives results. A quantizer may fetch it to go on; it is fetched again later."""
    rms: Sequence[float | None] = ()
    """Of the loss's gradients, where something else is quantized in their place."""

    def room(self, form: Form, bits: int, block: int) -> Quantizing:
        """A pass over the parameters, with room for symbols of at most so many bits, and for tables."""
        symbols = self.ops.empty(int(self.batch.sizes.sum()), symbol_type(bits))
        work = Quantizing(self.batch, self.readback, symbols, bits, block)
        blocks, layout = work.offsets.all_blocks, table_layout(form, bits)
        return work._replace(tables=tuple(self.ops.empty(blocks * size, dtype) for dtype, size in layout))


@dataclass(slots=True)
class Quantized:
    """The quantized parameters, one after the other."""

    bits: Sequence[int]
    """Bits of a symbol, or of a short float, by parameter."""
    values: Array
    """Symbols, uint8 where all have up to 8 bits, otherwise uint16; or the bits of 16-bit floats."""
    passed: Pending[Kept]
    """Results of the passes. If one is not finite, its symbols and tables are undefined."""
    block: int = 0
    """Values that share tables, the last ones of a parameter may be fewer; 0: one block a parameter."""
    tables: Sequence[Array] = ()
    """Ranges or tables of all blocks (`wire.forms.table_layout`)."""


class Quantization(ABC):
    """Quantizes the parameters of a bucket."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def apply(self, given: Given) -> Quantized:
        """Quantizes residual + gradient of the parameters of a bucket, which may be none, independently."""


class FixedBits(Quantization):
    """linear, quantile, fp8, fp16 and bf16, in blocks (Rae, section 2.3)."""

    config: Quantizer

    def apply(self, given: Given) -> Quantized:
        form, bits, block = self.config.makes, int(self.config.value_bits), getattr(self.config, "block", 0)
        work = given.room(form, bits, block)
        passed = given.ops.quantize(form, work)
        return Quantized([bits] * len(given.batch), work.symbols, passed, block, work.tables)


def quantization_of(quantizer: Quantizer) -> Quantization:
    """The implementation of a quantizer; ValueError if it cannot be imported or created."""
    made: Quantization = implementation_of(type(quantizer), "quantizes", Quantization)(quantizer)
    return made
