"""Quantizers: links after a sparse method, and methods by themselves (`dense`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from ..fields import Settings
from ..ops.array import Array, symbol_type
from ..ops.interface import Batch, Form, Kept, Ops, Pending, Quantizing, Readback
from ..ops.parts import Part
from ..wire.forms import table_layout

Bits = Annotated[int, Field(ge=1, le=16)]
_FORMS = ", ".join(get_args(Form))


class QuantizerInput(NamedTuple):
    """Parameters to be quantized."""

    batch: Batch
    """At least one element per parameter, contiguous. Residuals become the quantization error."""
    ops: Ops
    readback: Readback
    """Receives results. A quantizer may fetch it to go on; it is fetched again later."""
    parts: Sequence[Part] = ()
    """The parameters, where every element is sent."""
    iteration: int = 0
    stream: int = 0
    """As in `BucketInput`."""

    def room(self, form: Form, bits: int, block: int) -> Quantizing:
        """A pass over the parameters, with room for symbols of at most `bits` bits, and for tables."""
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


class Quantizer(Settings):
    """The fields of a quantizer, `kind` among them, and its work: floats into symbols."""

    if TYPE_CHECKING:
        kind: str

    needs: ClassVar[Mapping[str, str]] = {"makes": f"the form of its values: one of {_FORMS}"}
    makes: ClassVar[Form]
    """The form of its values in a message."""
    has_symbols: ClassVar[bool] = True
    """Whether its values are symbols, which a Huffman code may shorten."""
    bits_are_fixed: ClassVar[bool] = False
    """Whether every value has `value_bits` bits, so that a message's size is known before."""

    @property
    def value_bits(self) -> float:
        """Bits of a value, to plan by; exact where a symbol's bits are fixed."""
        return 8.0

    @abstractmethod
    def apply(self, given: QuantizerInput) -> Quantized:
        """Quantizes residual + gradient of the parameters of a bucket, which may be none, independently."""


class FixedBits(Quantizer):
    """Quantizers of a fixed number of bits, in blocks (Rae, section 2.3)."""

    bits_are_fixed = True

    def apply(self, given: QuantizerInput) -> Quantized:
        form, bits, block = self.makes, int(self.value_bits), getattr(self, "block", 0)
        work = given.room(form, bits, block)
        passed = given.ops.quantize(form, work)
        return Quantized([bits] * len(given.batch), work.symbols, passed, block, work.tables)


class Blocks(FixedBits):
    """Quantizes block by block."""

    block: Annotated[int, Field(ge=0, le=2**31 - 1)] = 2048
    """Number of elements that share a range or table; 0: the whole layer is one block."""


class Bins(Blocks):
    """Quantizes to 2^bits bins a block."""

    first_field = "bits"

    bits: Bits = 8
    """Bits per element."""

    @property
    def value_bits(self) -> float:
        return float(self.bits)


class Linear(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"

    kind: Literal["linear"] = "linear"


class Quantile(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"

    kind: Literal["quantile"] = "quantile"

    @model_validator(mode="after")
    def _tables_are_short(self) -> Quantile:
        if self.block and 2 * 2**self.bits > 8 * self.block:
            raise ValueError(
                f"bits = {self.bits} with block = {self.block}: a block's table of 2^bits means is more than "
                "twice as long as its gradients; take fewer bits, longer blocks, or linear"
            )
        return self


class Float8(Blocks):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    first_field = "block"
    makes = "fp8"

    kind: Literal["fp8"] = "fp8"


class Half(FixedBits):
    """16-bit floats."""

    has_symbols = False

    @property
    def value_bits(self) -> float:
        return 16.0


class Float16(Half):
    """16-bit floats, IEEE 754."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16(Half):
    """bfloat16, with the range of float32."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"
