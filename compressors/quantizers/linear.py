"""linear: bins of equal width between a block's smallest and largest value (Rae, section 2.3)."""

from typing import TYPE_CHECKING, Literal

from ..method.base import Symbols
from ..method.methods import DenseMethod
from .base import Bins, Given, Quantized, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence


class LinearFields(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"

    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """See `Quantizer.apply`: bins of equal width between a block's extremes."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        asked = work.room(given, self.bits, self.block)
        lows, steps = (work.ops.empty(asked.offsets.all_blocks, np.float32) for _ in range(2))
        passed = work.ops.linear_pass(asked, lows, steps, work.returned)
        return Quantized([self.bits] * len(given), asked.symbols, passed, self.block, (lows, steps))


class LinearLink(LinearFields, QuantizerLink):
    """Quantizes the selected values to bins of equal width."""

    kind: Literal["linear"] = "linear"


class Linear(DenseMethod, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
