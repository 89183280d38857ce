"""fp8: 8-bit floats (e4m3), scaled by a power of two for each block."""

from typing import TYPE_CHECKING, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Blocks, Outcome, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops.returns import Steps


class Float8Fields(Blocks, Quantizer):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    first_field = "block"
    makes = "fp8"

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """See `Quantizer.apply`."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        from ..ops.results import Quantizing  # noqa: PLC0415
        from ..wire.quantized import ScaledFloats, blocks_of  # noqa: PLC0415

        yield from ()
        n, ops = gradient.numel(), work.ops
        block = self.block_of(n)
        symbols, exponents = ops.empty(n, np.uint8), ops.empty(blocks_of(n, block), np.int8)
        given = Quantizing(residual, gradient, symbols, 8, block)
        passed = ops.fp8_pass(given, exponents, work.returned)
        return Outcome(ScaledFloats(8, block, symbols, exponents), passed)


class Float8Link(Float8Fields, QuantizerLink):
    """Sends the selected values as 8-bit floats, scaled by block."""

    kind: Literal["fp8"] = "fp8"


class Float8(DenseMethod, Float8Fields):
    """Every element as an 8-bit float (e4m3), scaled by block."""

    kind: Literal["fp8"] = "fp8"
    symbols: Symbols = "auto"
    """Encoding of the 8-bit floats."""
