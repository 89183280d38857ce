"""linear: bins of equal width between a block's smallest and largest value (Rae, section 2.3)."""

from typing import TYPE_CHECKING, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Bins, Given, Outcomes, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence


class LinearFields(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"

    def quantize_all(self, given: "Sequence[Given]", work: Work) -> Outcomes:
        """See `InOneCall.quantize_all`."""
        from .uniform import quantize_uniformly  # noqa: PLC0415 (NumPy)

        return quantize_uniformly(given, self.bits, self.block, work)


class LinearLink(LinearFields, QuantizerLink):
    """Quantizes the selected values to bins of equal width."""

    kind: Literal["linear"] = "linear"


class Linear(DenseMethod, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
