"""linear: bins of equal width between a block's smallest and largest value (Rae, section 2.3)."""

from typing import TYPE_CHECKING, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Bins, Outcome, QuantizerLink, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops.returns import Steps


class LinearFields(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """See `Quantizer.apply`."""
        from .uniform import quantize_uniformly  # noqa: PLC0415 (NumPy)

        yield from ()
        return quantize_uniformly(residual, gradient, self.bits, self.block_of(gradient.numel()), work)


class LinearLink(LinearFields, QuantizerLink):
    """Quantizes the selected values to bins of equal width."""

    kind: Literal["linear"] = "linear"


class Linear(DenseMethod, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
