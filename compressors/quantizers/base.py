"""The interface of quantizers at work, from floats to symbols, and those with as many bits as fields say."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..method.quantizers import Quantizer
from ..method.registry import implementation_of
from ..ops.array import Array
from ..ops.cpu.bitpack import symbol_type
from ..ops.interface import Ops, QuantizedPass, Quantizing
from ..ops.readback import Pending, Readback
from ..wire.forms import table_layout


class Given(NamedTuple):
    """A parameter to be quantized."""

    residual: Tensor | None
    """Contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody keeps."""
    gradient: Tensor
    """Contiguous [n], n at least 1, of any float type."""
    rms: float | None = None
    """Of the loss's gradient, where something else is quantized in its place."""
    number: float | None = None
    """What a law says for the parameter, where the method has a law."""


class Work(NamedTuple):
    """Where a quantizer works, and what it waits for."""

    ops: Ops
    """Where residuals and gradients are."""
    readback: Readback
    """What a quantizer asks for, and fetches, to go on."""
    returned: Readback
    """Receives what passes come to; somebody else fetches it."""

    def room(self, given: Sequence[Given], bits: int, block: int) -> Quantizing:
        """A pass over parameters, with room for their symbols of at most so many bits."""
        gradients = [each.gradient for each in given]
        symbols = self.ops.empty(sum(each.numel() for each in gradients), symbol_type(bits))
        return Quantizing([each.residual for each in given], gradients, symbols, bits, block)


@dataclass(slots=True)
class Quantized:
    """What passes over some parameters made; each parameter's stands behind that of the one before."""

    bits: Sequence[int]
    """Of a symbol, or of a short float, of each parameter."""
    values: Array
    """Symbols, uint8 where all have up to 8 bits, otherwise uint16; or the bits of 16-bit floats."""
    passed: Pending[list[QuantizedPass]]
    """What the passes came to. Where one was not finite, symbols and tables mean nothing."""
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
    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """Quantizes residual + gradient of all parameters of a bucket, each for itself.

        Args:
            given: the parameters; there may be none.
            work: where, and what is waited for.
        """


class FixedBits(Quantization):
    """linear, quantile, fp8, fp16 and bf16 (Rae, section 2.3), in the blocks that the fields say."""

    config: Quantizer

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        form, bits, block = self.config.makes, int(self.config.value_bits), getattr(self.config, "block", 0)
        asked, ops = work.room(given, bits, block), work.ops
        blocks = asked.offsets.all_blocks
        tables = tuple(ops.empty(blocks * each, dtype) for dtype, each in table_layout(form, bits))
        passed = ops.quantize(form, asked, tables, work.returned)
        return Quantized([bits] * len(given), asked.symbols, passed, block, tables)


def quantization_of(quantizer: Quantizer) -> Quantization:
    """The work by a quantizer's fields.

    Raises:
        ValueError: the address of its work leads to none.
    """
    made: Quantization = implementation_of(type(quantizer), "quantizes", Quantization)(quantizer)
    return made
