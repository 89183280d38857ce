"""quantile: bins of equal population, each standing for the mean of its values (Rae, section 2.3.1)."""

from typing import TYPE_CHECKING, Literal

from ..method.base import Symbols
from ..method.methods import DenseMethod
from .base import Bins, Given, Quantized, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence


class QuantileFields(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"

    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """See `Quantizer.apply`."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        bits, ops = self.bits, work.ops
        asked = work.room(given, bits, self.block)
        blocks = asked.offsets.all_blocks
        means, exponents = ops.empty(blocks << bits, np.uint16), ops.empty(blocks, np.int8)
        passed = ops.quantile_pass(asked, means, exponents, work.returned)
        tables = exponents, means
        return Quantized([bits] * len(given), asked.symbols, passed, self.block, tables)


class QuantileLink(QuantileFields, QuantizerLink):
    """Quantizes the selected values to bins of equal population."""

    kind: Literal["quantile"] = "quantile"


class Quantile(DenseMethod, QuantileFields):
    """Rae, section 2.3.1: every element in bins of equal population, by their means."""

    kind: Literal["quantile"] = "quantile"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
