"""quantile: bins of equal population, each standing for the mean of its values (Rae, section 2.3.1)."""

from typing import TYPE_CHECKING, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Bins, Given, Outcome, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ops.array import Array


class QuantileFields(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"

    def quantize_all(self, given: "Sequence[Given]", work: Work) -> list[Outcome]:
        """See `InOneCall.quantize_all`."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        from ..wire.quantized import Quantiles  # noqa: PLC0415
        from .in_one_call import outcomes, with_room  # noqa: PLC0415

        bits, ops = self.bits, work.ops
        asked = with_room(given, bits, self.block, ops)
        blocks = asked.offsets.blocks
        means, exponents = ops.empty(blocks << bits, np.uint16), ops.empty(blocks, np.int8)
        passed = ops.quantile_pass(asked, means, exponents, work.returned)

        def values(block: int, symbols: "Array", at: slice) -> Quantiles:
            own = means[at.start << bits : at.stop << bits]
            return Quantiles(bits, block, symbols, own, exponents[at])

        return outcomes(asked, passed, values)


class QuantileLink(QuantileFields, QuantizerLink):
    """Quantizes the selected values to bins of equal population."""

    kind: Literal["quantile"] = "quantile"


class Quantile(DenseMethod, QuantileFields):
    """Rae, section 2.3.1: every element in bins of equal population, by their means."""

    kind: Literal["quantile"] = "quantile"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
