"""quantile: bins of equal population, each standing for the mean of its values (Rae, section 2.3.1)."""

from typing import TYPE_CHECKING, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Bins, Outcome, QuantizerLink, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops.returns import Steps


class QuantileFields(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """See `Quantizer.apply`."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        from ..ops.results import Quantizing  # noqa: PLC0415
        from ..wire.quantized import Quantiles, blocks_of, symbol_dtype  # noqa: PLC0415

        yield from ()
        n, bits, ops = gradient.numel(), self.bits, work.ops
        block = self.block_of(n)
        symbols, blocks = ops.empty(n, symbol_dtype(bits)), blocks_of(n, block)
        means, exponents = ops.empty(blocks << bits, np.uint16), ops.empty(blocks, np.int8)
        given = Quantizing(residual, gradient, symbols, bits, block)
        passed = ops.quantile_pass(given, means, exponents, work.returned)
        return Outcome(Quantiles(bits, block, symbols, means, exponents), passed)


class QuantileLink(QuantileFields, QuantizerLink):
    """Quantizes the selected values to bins of equal population."""

    kind: Literal["quantile"] = "quantile"


class Quantile(DenseMethod, QuantileFields):
    """Rae, section 2.3.1: every element in bins of equal population, by their means."""

    kind: Literal["quantile"] = "quantile"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
