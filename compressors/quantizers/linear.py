"""linear: bins of equal width between a block's smallest and largest value (Rae, section 2.3)."""

from typing import TYPE_CHECKING, ClassVar, Literal

from ..config.base import Symbols
from ..config.methods import DenseMethod
from .base import Bits, Blocks, Outcome, Quantizer, QuantizerLink, Work, quantize_uniformly

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops.returns import Steps
    from ..wire.forms import Form


class LinearFields(Blocks, Quantizer):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    first_field: ClassVar[str] = "bits"
    makes: ClassVar["Form"] = "linear"

    bits: Bits = 8
    """Bits of a bin's number."""

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(self.bits)

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """See `Quantizer.apply`."""
        yield from ()
        return quantize_uniformly(residual, gradient, self.bits, self.block_of(gradient.numel()), work)


class LinearLink(LinearFields, QuantizerLink):
    """What was selected, in bins of equal width."""

    kind: Literal["linear"] = "linear"


class Linear(DenseMethod, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """How bin numbers are written down."""
