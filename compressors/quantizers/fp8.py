"""fp8: 8-bit floats (e4m3), scaled by a power of two for each block."""

from typing import TYPE_CHECKING, Literal

from ..method.base import Symbols
from ..method.methods import DenseMethod
from .base import Blocks, Given, Quantized, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence


class Float8Fields(Blocks, Quantizer):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    first_field = "block"
    makes = "fp8"

    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """See `Quantizer.apply`."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        asked = work.room(given, 8, self.block)
        exponents = work.ops.empty(asked.offsets.all_blocks, np.int8)
        passed = work.ops.fp8_pass(asked, exponents, work.returned)
        return Quantized([8] * len(given), asked.symbols, passed, self.block, (exponents,))


class Float8Link(Float8Fields, QuantizerLink):
    """Sends the selected values as 8-bit floats, scaled by block."""

    kind: Literal["fp8"] = "fp8"


class Float8(DenseMethod, Float8Fields):
    """Every element as an 8-bit float (e4m3), scaled by block."""

    kind: Literal["fp8"] = "fp8"
    symbols: Symbols = "auto"
    """Encoding of the 8-bit floats."""
